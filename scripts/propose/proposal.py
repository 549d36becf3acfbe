"""What every proposer gets and gives: the task, the answer, and the three files that the answer becomes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common import tree as trees
from scripts.common.errors import InputError
from scripts.common.files import read_json, replacing, write_json, write_text

NO_USAGE: dict[str, Any] = {
    "calls": 0,
    "input_tokens": 0,
    "cached_tokens": 0,
    "output_tokens": 0,
    "dollars": 0.0,
    "wall_s": 0.0,
}


@dataclass(frozen=True)
class Attempt:
    """An earlier candidate of the same proposer and what the judge said about it."""

    round: int
    candidate: int
    proposal: dict[str, Any]
    verdict: str
    reason: str | None
    ratio: float | None


@dataclass(frozen=True)
class Task:
    """One call of a proposer. `tree` is a read-only folder with the content of `base_tree`."""

    proposer: str
    round: int
    candidate: int
    spec: dict[str, Any]
    base_tree: str
    tree: Path
    findings: list[dict[str, Any]]
    brief: str
    history: list[Attempt]
    accepted: list[dict[str, Any]]
    trace: Path | None = None
    """Folder with `views/` and `events/`, for the agent's SQL."""


@dataclass
class Answer:
    """What a proposer says. `edits` maps paths to the new text of whole files; `patch` is a ready diff instead."""

    status: str = "nothing"
    reason: str | None = None
    edits: dict[str, str] = field(default_factory=dict)
    patch: str | None = None
    as_given: bool = False
    """The patch does not apply and goes to the guard unchanged, which says so by name."""
    model: str | None = None
    findings_used: list[str] = field(default_factory=list)
    fix: str | None = None
    title: str | None = None
    hypothesis: str | None = None
    expected_gain: dict[str, Any] | None = None
    risk: str | None = None
    classes: list[str] = field(default_factory=list)
    needs_flag: str | None = None
    untested: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=lambda: dict(NO_USAGE))
    prompt_hash: str | None = None
    transcript: list[dict[str, Any]] = field(default_factory=list)


def read_history(verdicts: list[Path]) -> list[Attempt]:
    """Earlier candidates from their `verdict.json`, each with the `proposal.json` beside it."""
    found = []
    for path in verdicts:
        verdict = read_json(path, "verdict")
        proposal = read_json(path.parent / "proposal.json", "proposal")
        found.append(
            Attempt(
                round=proposal["round"],
                candidate=proposal["candidate"],
                proposal=proposal,
                verdict=verdict["verdict"],
                reason=verdict.get("reason"),
                ratio=verdict.get("ratio"),
            )
        )
    return sorted(found, key=lambda attempt: (attempt.round, attempt.candidate))


def patch_of(task: Task, answer: Answer) -> str:
    """The canonical diff of an answer against the task's tree, empty unless the answer is a patch.

    Raises InputError where a ready patch does not apply.
    """
    if answer.status != "patch":
        return ""
    if answer.as_given:
        return answer.patch or ""
    with tempfile.TemporaryDirectory(prefix="wholejob-propose-") as folder:
        work = trees.copy(task.tree, Path(folder) / "tree")
        if answer.patch is not None:
            given = Path(folder) / "given.diff"
            given.write_text(answer.patch, encoding="utf-8", errors="surrogateescape")
            trees.apply(given, work)
        for path, text in answer.edits.items():
            place = (work / path).resolve()
            if not place.is_relative_to(work.resolve()):
                raise InputError(f"{path}: lies outside the source tree")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", newline="")
        return trees.diff(task.tree, work)


def write(task: Task, answer: Answer, folder: Path) -> None:
    """Write `patch.diff`, `transcript.jsonl` and, last, `proposal.json`."""
    patch = patch_of(task, answer)
    if answer.status == "patch" and not patch.strip():
        answer.status, answer.reason = "nothing", "the edits change nothing"
    with replacing(folder / "patch.diff") as temporary:
        temporary.write_bytes(patch.encode("utf-8", errors="surrogateescape") if answer.status == "patch" else b"")
    lines = [json.dumps(entry, ensure_ascii=False, sort_keys=True) for entry in answer.transcript]
    write_text(folder / "transcript.jsonl", "".join(line + "\n" for line in lines))
    write_json(folder / "proposal.json", "wholejob/proposal@1", document(task, answer))


def document(task: Task, answer: Answer) -> dict[str, Any]:
    """`proposal.json` without its schema line."""
    return {
        "status": answer.status,
        "reason": None if answer.status == "patch" else answer.reason,
        "proposer": task.proposer,
        "model": answer.model,
        "round": task.round,
        "candidate": task.candidate,
        "base_tree": task.base_tree,
        "findings_used": answer.findings_used,
        "fix": answer.fix,
        "title": answer.title,
        "hypothesis": answer.hypothesis,
        "expected_gain": answer.expected_gain,
        "risk": answer.risk,
        "classes": answer.classes,
        "needs_flag": answer.needs_flag,
        "untested": answer.untested,
        "usage": answer.usage,
        "prompt_hash": answer.prompt_hash,
    }


def gain(finding: dict[str, Any]) -> dict[str, Any] | None:
    """The expected gain of removing a finding: its ceiling, never a guess."""
    ceiling = finding.get("ceiling")
    if not ceiling:
        return None
    return {
        "fraction": ceiling.get("fraction"),
        "speedup": ceiling.get("speedup"),
        "derivation": f"at most the ceiling of {finding['id']}: {ceiling.get('derivation') or 'no derivation given'}",
    }
