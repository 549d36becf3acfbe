"""Patches of the red team: search-and-replace edits of the demo job, from which real git diffs are made.

An edit that no longer matches its file fails loudly, so that a change of the job cannot turn a bad patch into an
empty one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.common import tree

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "workloads" / "minigpt"


@dataclass(frozen=True)
class Patch:
    """`edits` are (path, old, new); old None writes the whole file, new None deletes it. `change` edits a copy by hand.

    A bad patch names the rules of which one must refuse it (`rules`), or the run-time checks of which one must fail
    (`checks`). `pattern` is its number in the catalogue of false wins. One with `past_guard` also runs although the
    guard refuses it, and one of its checks must fail then: a run does not lean on the guard.
    """

    name: str
    pattern: str
    what: str
    edits: Sequence[tuple[str, str | None, str | None]] = ()
    rules: frozenset[str] = frozenset()
    checks: frozenset[str] = frozenset()
    constraints: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Path], None] | None = None
    text: Callable[[str], str] | None = None
    runs: bool = True
    past_guard: bool = False

    def diff(self) -> str:
        """The canonical git diff of this patch against the demo job."""
        with tempfile.TemporaryDirectory(prefix="wholejob-redteam-") as folder:
            work = tree.copy(JOB, Path(folder) / "tree")
            for path, old, new in self.edits:
                _edit(self.name, work / path, old, new)
            if self.change:
                self.change(work)
            text = tree.diff(JOB, work)
        text = self.text(text) if self.text else text
        if not text.strip():
            raise AssertionError(f"{self.name}: the edits change nothing")
        return text


def spec(patch: Patch | None = None) -> dict[str, Any]:
    """The demo workload's spec as the guard needs it, with the constraints of one patch on top."""
    workload = yaml.safe_load((ROOT / "workloads" / "minigpt.yaml").read_text(encoding="utf-8"))
    if patch:
        workload["constraints"] = {**workload["constraints"], **patch.constraints}
    return workload


def _edit(name: str, path: Path, old: str | None, new: str | None) -> None:
    if new is None and old is None:
        path.unlink()
    elif old is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new or "", encoding="utf-8")
    else:
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise AssertionError(
                f"{name}: {old!r} stands {text.count(old)} times in {path.name}; the job changed, so must the patch"
            )
        path.write_text(text.replace(old, new or ""), encoding="utf-8")
