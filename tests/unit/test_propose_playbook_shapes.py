"""Every fix on every shape of code that people write: what it changes or why it refuses, twice, comments kept.

`shapes/` holds the sources (plain loops, Hugging Face examples, Lightning modules, engines of toolboxes, pipelines) and
`shapes/expected.txt` what each fix makes of each of them, as read and judged by a person. A new fix or a new shape has no
section yet and fails here: `python -m tests.unit.test_propose_playbook_shapes` writes the file again, the diff is to
be read.
"""

from __future__ import annotations

import ast
import difflib
import io
import tempfile
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts.propose.codemod import Refusal
from scripts.propose.playbook import fixes

SHAPES = Path(__file__).with_name("shapes")
EXPECTED = SHAPES / "expected.txt"
SPEC: dict[str, Any] = {
    "source": {"editable": ["**"], "protected": []},
    "resources": {"gpus": 1, "cpus": 8},
    "constraints": {"precision": "tf32", "memory_growth": 2.0, "data_order": "free"},
    "measure": {"horizon": {"steps": 100_000}},
}
NAMES = sorted(path.stem for path in SHAPES.glob("*.job"))
KINDS = {"plain_loop", "hf_example", "lightning_module", "engine_trainer"}
GONE = {"keep_on_device": {"# make room"}}
"""Comments that go with the line that they are about."""


@cache
def source(shape: str) -> str:
    return (SHAPES / f"{shape}.job").read_text(encoding="utf-8")


@cache
def applied(fix: str, shape: str, times: int = 1) -> str | Refusal:
    """The text after the fix, or its refusal; with `times` = 2 what a second application says."""
    text = source(shape)
    if times == 2:
        first = applied(fix, shape)
        assert isinstance(first, str)
        text = first
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(text, encoding="utf-8")
        module = fixes()[fix]
        try:
            edits = module.fix(Path(folder), {"id": module.FINDINGS[0], "anchors": []}, SPEC)
        except Refusal as refusal:
            return refusal
    assert set(edits) == {"train.py"}
    return str(edits["train.py"])


def section(fix: str, shape: str) -> str:
    """What the fix makes of the shape, as the file of expectations says it."""
    after = applied(fix, shape)
    if isinstance(after, Refusal):
        return f"refused: {after}"
    lines = difflib.unified_diff(source(shape).splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


@cache
def expected() -> dict[str, str]:
    """Sections by their title, `fix on shape`."""
    found = {}
    for part in EXPECTED.read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, body = part.partition("\n")
        found[title] = body.rstrip("\n")
    return found


def comments(text: str) -> Counter[str]:
    """Comments of a source, each as often as it stands there."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


PAIRS = [(fix, shape) for fix in fixes() for shape in NAMES]
APPLIED = [(fix, shape) for fix, shape in PAIRS if isinstance(applied(fix, shape), str)]


@pytest.mark.parametrize(("fix", "shape"), PAIRS)
def test_a_fix_does_to_a_shape_what_was_judged_right(fix: str, shape: str) -> None:
    title = f"{fix} on {shape}"
    assert title in expected(), "no expectation yet: write the file again and read the diff"
    assert section(fix, shape) == expected()[title]


@pytest.mark.parametrize(("fix", "shape"), APPLIED)
def test_a_second_application_finds_nothing_to_do(fix: str, shape: str) -> None:
    assert isinstance(applied(fix, shape, 2), Refusal)


@pytest.mark.parametrize(("fix", "shape"), APPLIED)
def test_comments_and_the_text_around_the_change_stay(fix: str, shape: str) -> None:
    before, after = source(shape), applied(fix, shape)
    assert isinstance(after, str)
    ast.parse(after)
    assert set(comments(before) - comments(after)) == GONE.get(fix, set())
    assert after.endswith("\n") and not after.endswith("\n\n")
    added = set(after.splitlines()) - set(before.splitlines())
    assert not [line for line in added if line != line.rstrip() or "\t" in line]


def test_each_fix_applies_to_a_shape_and_each_shape_is_there() -> None:
    """What no shape here can show has its own case in test_propose_playbook.py."""
    assert set(NAMES) >= KINDS
    elsewhere = {"cudnn_benchmark"}  # no shape without deterministic mode has a convolution
    assert {fix for fix, _ in APPLIED} | elsewhere == set(fixes())
    assert set(expected()) == {f"{fix} on {shape}" for fix, shape in PAIRS}


if __name__ == "__main__":
    text = "".join(f"=== {fix} on {shape}\n{section(fix, shape)}\n" for fix, shape in PAIRS)
    EXPECTED.write_text(text, encoding="utf-8")
