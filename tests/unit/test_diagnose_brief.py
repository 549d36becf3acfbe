"""The brief keeps its budget, says what it left out, and tells what was tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.common.errors import InputError
from scripts.diagnose import brief, show


def block(name: str, size: int, worth: float) -> brief.Block:
    return brief.Block(name + " " + "x" * size, name, worth)


def note(dropped: list[str]) -> str:
    return "left out: " + ", ".join(dropped)


def test_the_least_valuable_goes_first_and_is_named() -> None:
    blocks = [block("goal", 300, brief.KEEP), block("small", 300, 5), block("large", 300, 50)]
    assert "left out" not in brief.within(blocks, 1000, note)
    text = brief.within(blocks, 230, note)
    assert "left out: small" in text
    assert "large" in text
    assert brief.tokens(text) <= 230


def test_what_must_stay_and_does_not_fit_is_an_error() -> None:
    with pytest.raises(InputError, match="--tokens: 50 is too small"):
        brief.within([block("goal", 3000, brief.KEEP)], 50, note)


def documents(count: int = 2) -> dict[str, Any]:
    finding = {
        "id": "optimizer_unfused",
        "title": "slow",
        "evidence": [{"what": "step", "value": 1.5, "unit": "ms", "source": "events"}],
        "anchors": [{"path": "train.py", "line": 2, "code": "b = 2"}],
        "cause": "Because.",
        "ceiling": {"fraction": 0.25, "speedup": 1.333, "derivation": "measured"},
        "confidence": "high",
        "classes": ["config"],
        "fixes": ["fused"],
    }
    return {
        "spec": {
            "title": "A job",
            "name": "job",
            "kind": "training",
            "source": {"editable": ["*.py"], "protected": ["data/**"]},
            "constraints": {"classes": ["config"], "data_order": "fixed", "memory_growth": 1.5},
        },
        "structure": {
            "computed": {"modules": [], "parameters": 10, "optimizer": [], "compile": {"sites": []}},
            "data_path": {"loaders": []},
            "phases": [],
            "functions": [],
        },
        "findings": {
            "horizon": {
                "steps": 10,
                "total_s": 2.0,
                "startup_s": 1.0,
                "step_s": 0.1,
                "slow_steps_s": 0.0,
                "tail_s": 0.0,
            },
            "findings": [{**finding, "title": f"slow {i}"} for i in range(count)],
            "looked_for": [{"id": "tf32_off", "result": "not_applicable", "why": "no device"}],
        },
    }


def compose(tmp_path: Path, count: int = 2, budget: int = 12_000, history: list[dict[str, Any]] | None = None) -> str:
    (tmp_path / "train.py").write_text("a = 1\nb = 2\nc = 3\n")
    summary = {"device": None, "headline": {}, "notes": [], "views": {}}
    return brief.compose(**documents(count), tree=tmp_path, summary=summary, history=history or [], budget=budget)


def test_the_brief_has_its_parts(tmp_path: Path) -> None:
    text = compose(tmp_path)
    for part in (
        "# A job",
        "2.00 s now",
        "never: data/**",
        "### 1. slow 0 (`optimizer_unfused`)",
        "At most 25.0 % of the job (1.33x)",
        ">    2  b = 2",
        "tf32_off: not applicable. no device",
        "## What an answer must be",
        "Known fixes: fused",
    ):
        assert part in text, part


def test_many_findings_keep_the_budget_and_the_largest(tmp_path: Path) -> None:
    text = compose(tmp_path, count=60, budget=3000)
    assert brief.tokens(text) <= 3000
    assert "### 1. slow 0" in text
    assert "_Left out to keep 3000 tokens: " in text
    assert "finding 60 (optimizer_unfused)" in text
    assert "## What an answer must be" in text


def test_history_is_told_oldest_first_with_intervals(tmp_path: Path) -> None:
    rows = [
        {
            "round": 0,
            "candidate": 0,
            "fix": "sdpa",
            "hypothesis": "fuse it",
            "verdict": "faster",
            "reason": None,
            "ratio": 1.25,
            "low": 1.2,
            "high": 1.3,
        },
        {
            "round": 0,
            "candidate": 1,
            "fix": None,
            "hypothesis": "skip it",
            "verdict": "invalid_parity",
            "reason": "loss parts at step 3",
            "ratio": None,
            "low": None,
            "high": None,
        },
    ]
    text = compose(tmp_path, history=rows)
    first, second = (
        text.index("**faster** 1.250x [1.200, 1.300]"),
        text.index("**invalid_parity**: loss parts at step 3"),
    )
    assert first < second
    assert text.count("## What was tried before") == 1


def test_a_verdict_is_read_with_the_proposal_beside_it(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("ratio", "low", "high", "confidence", "pairs", "tree", "race"))
    verdict = {
        "verdict": "not_measured",
        "reason": "screened out",
        "gates": [],
        "classes": [],
        "side_effects": [],
        "review": [],
    }
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps({"schema": "wholejob/verdict@1", **nothing, **verdict}))
    row = brief.tried(path)
    assert (row["verdict"], row["reason"], row["hypothesis"]) == ("not_measured", "screened out", None)


def test_show_lists_findings_and_names_the_command_when_there_are_none(tmp_path: Path) -> None:
    assert show.lines(documents(1)["findings"]) == [("25.0 %", "optimizer_unfused", "slow 0", "train.py:2")]
    with pytest.raises(InputError, match="run: snakemake diagnose --config workload=minigpt"):
        show.main([str(tmp_path / "minigpt-64")])
