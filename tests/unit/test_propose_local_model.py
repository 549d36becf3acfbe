"""The shipped tape of a real local model: replayed without a server, a network or a key, also through the program."""

import json
import socket
from pathlib import Path

import pytest

from scripts.common import tree as trees
from scripts.propose.llm.ask import propose
from scripts.propose.llm.edits import EditError, apply_edits
from scripts.propose.local_llm import NAME, task_on
from scripts.propose.proposal import write

ROOT = Path(__file__).resolve().parents[2]
TAPE = ROOT / "tests" / "data" / "tape_local_model"


@pytest.fixture
def nothing_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a replay opened a connection")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_the_tape_says_what_it_is() -> None:
    entries = [json.loads(path.read_text()) for path in TAPE.glob("*.json") if path.name != "settings.json"]
    assert entries and all("real llama.cpp server" in entry["label"] for entry in entries)
    assert all(entry["request"]["model"] == NAME and entry["client"]["litellm"] for entry in entries)


def test_the_tape_replays_on_the_demo_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_goes_out: None
) -> None:
    """One prompt, changed by a word, is another experiment: then this tape must be recorded again (make local-llm)."""
    monkeypatch.setattr(trees, "STORE", tmp_path / "trees")
    task = task_on(ROOT / "workloads" / "minigpt", f"replay:{TAPE}", {})
    hashes = []
    for name in ("first", "second"):
        write(task, propose(task), tmp_path / name)
        hashes.append([(tmp_path / name / f).read_bytes() for f in ("proposal.json", "patch.diff", "transcript.jsonl")])
    assert hashes[0] == hashes[1]
    proposal = json.loads(hashes[0][0])
    assert proposal["status"] == "patch" and proposal["model"] == NAME
    assert proposal["usage"]["calls"] >= 1 and proposal["usage"]["output_tokens"] > 0
    assert b"fused=True" in hashes[0][1]


def test_the_answer_on_the_tape_applies_once_and_only_where_it_was_meant() -> None:
    entry = next(json.loads(p.read_text()) for p in sorted(TAPE.glob("*.json")) if p.name != "settings.json")
    text = json.loads(entry["response"]["choices"][0]["message"]["content"])["replace"]
    with pytest.raises(EditError, match="nowhere"):
        apply_edits({"a.py": "x = 1\n"}.get, [{"path": "a.py", "search": text, "replace": "y"}])
