"""The proposer `playbook`: known fixes for the findings, no model, one change a candidate."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from scripts.propose import playbook
from scripts.propose.codemod import Refusal
from scripts.propose.proposal import Answer, Attempt, Task, gain

ELSEWHERE = 2  # the distance of an edit that touches no anchored file


@dataclass(frozen=True)
class Pair:
    """A finding, a fix that applies to it, and what the two are worth in the order of trial."""

    finding: dict[str, Any]
    name: str
    fix: ModuleType
    edits: dict[str, str]
    worth: float
    elsewhere: bool = False
    """It changes none of the files that the finding points at: the finding's ceiling is not its own."""

    @property
    def gain(self) -> dict[str, Any] | None:
        """What the proposal expects: the finding's ceiling, where the fix is about the finding's places."""
        if not self.elsewhere:
            return gain(self.finding)
        text = f"unknown: none of the files that {self.finding['id']} points at is changed"
        return {"fraction": None, "speedup": None, "derivation": text}


def propose(task: Task) -> Answer:
    """The candidate-th best applicable pair that has not been tried; `nothing` when there is no such pair."""
    transcript: list[dict[str, Any]] = []
    pairs = ranked(task, transcript)
    worth, too_small = _worth_a_trial(task, pairs, transcript)
    left = [pair for pair in worth if not _done(task, pair, transcript)]
    answer = Answer(transcript=transcript)
    if task.candidate >= len(left):
        answer.reason = f"{len(left)} applicable fixes are left, this is candidate {task.candidate}"
        if too_small:
            answer.reason += f"; not proposed: {', '.join(too_small)} (expected gain below min_effect)"
        return answer
    pair = left[task.candidate]
    answer.status = "patch"
    answer.edits = pair.edits
    answer.fix, answer.title = pair.name, pair.fix.TITLE
    answer.findings_used = [pair.finding["id"]]
    answer.hypothesis = pair.fix.HYPOTHESIS
    answer.expected_gain = pair.gain
    answer.risk, answer.classes, answer.untested = pair.fix.RISK, list(pair.fix.CLASSES), list(pair.fix.UNTESTED)
    transcript.append({"event": "chosen", "finding": pair.finding["id"], "fix": pair.name, "candidate": task.candidate})
    return answer


def ranked(task: Task, transcript: list[dict[str, Any]]) -> list[Pair]:
    """Applicable pairs, best first; the same edits under two findings count once, for the finding that is worth more.

    A finding's ceiling is shared by its fixes, so the k-th applicable fix of one finding counts for ceiling / k: the
    first fixes of the smaller findings come before the third fix of the largest. Within a finding a fix that changes
    the lines that the finding points at comes before one that changes others; one that changes none of the files that
    it points at can hardly be worth its ceiling and counts for a tenth.
    """
    pairs: list[Pair] = []
    answers: dict[tuple[str, str], Any] = {}
    for finding in task.findings:
        applicable = []
        for name in _names(finding):
            fix = playbook.fixes()[name]
            anchors = json.dumps([anchor.get("path") for anchor in finding.get("anchors") or []])
            if (name, anchors) not in answers:
                answers[name, anchors] = _attempt(task, fix, finding)
            edits = answers[name, anchors]
            if isinstance(edits, str):
                transcript.append({"event": "fix", "finding": finding["id"], "fix": name, "refused": edits})
                continue
            applicable.append((_distance(task, finding, edits), name, fix, edits))
        applicable.sort(key=lambda entry: entry[0])
        for place, (distance, name, fix, edits) in enumerate(applicable, start=1):
            worth = ((finding.get("ceiling") or {}).get("fraction") or 0.0) / place
            if distance == ELSEWHERE:
                worth /= 10
            entry = {"event": "fix", "finding": finding["id"], "fix": name, "applies": sorted(edits)}
            transcript.append({**entry, "distance": distance, "worth": worth})
            pairs.append(Pair(finding, name, fix, edits, worth, distance == ELSEWHERE))
    pairs.sort(key=lambda pair: -pair.worth)
    return list(_once(pairs))


def _worth_a_trial(task: Task, pairs: list[Pair], transcript: list[dict[str, Any]]) -> tuple[list[Pair], list[str]]:
    """The pairs that could make a difference that counts, and the names of the fixes of the others.

    A ceiling is the most that the whole job can gain: below `measure.min_effect` no race can end with `faster`. Where
    the fix is not about the finding's places it is what the pair is worth in the order of trial. An unknown ceiling is
    no small one.
    """
    smallest = float((task.spec.get("measure") or {}).get("min_effect") or 0.0)
    worth: list[Pair] = []
    too_small = []
    for pair in pairs:
        fraction: float | None = (pair.finding.get("ceiling") or {}).get("fraction")
        expected = pair.worth if pair.elsewhere else fraction
        if fraction is None or expected is None or expected >= smallest:
            worth.append(pair)
            continue
        too_small.append(pair.name)
        reason = "ceiling below min_effect"
        if pair.elsewhere and fraction >= smallest:
            reason = "changes none of the finding's files; its share of the ceiling is below min_effect"
        transcript.append(
            {
                "event": "not_proposed",
                "finding": pair.finding["id"],
                "fix": pair.name,
                "ceiling": fraction,
                "expected": expected,
                "min_effect": smallest,
                "reason": reason,
            }
        )
    return worth, too_small


def _distance(task: Task, finding: dict[str, Any], edits: dict[str, str]) -> int:
    """0 within 20 lines of an anchor, 1 in an anchored file or where there is no anchor, `ELSEWHERE` in any other."""
    best = ELSEWHERE if finding.get("anchors") else 1
    for anchor in finding.get("anchors") or []:
        text = edits.get(anchor.get("path") or "")
        if text is None:
            continue
        best = min(best, 1)
        old = (task.tree / anchor["path"]).read_text(encoding="utf-8").splitlines()
        line = (anchor.get("line") or 0) - 1
        for kind, first, last, _, _ in difflib.SequenceMatcher(
            None, old, text.splitlines(), autojunk=False
        ).get_opcodes():
            if kind != "equal" and first - 20 <= line <= last + 20:
                return 0
    return best


def _names(finding: dict[str, Any]) -> list[str]:
    """Fixes that answer a finding's id, those that are made for it first; then others that the finding names."""
    known = playbook.fixes()
    own = sorted(playbook.fixes_for(finding["id"]), key=lambda name: (known[name].FINDINGS.index(finding["id"]), name))
    return list(dict.fromkeys([*own, *(name for name in finding.get("fixes") or [] if name in known)]))


def _attempt(task: Task, fix: ModuleType, finding: dict[str, Any]) -> dict[str, str] | str:
    """The edits, or why there are none: the fix's own refusal, or a class of change that the workload forbids."""
    allowed = (task.spec.get("constraints") or {}).get("classes")
    if allowed is not None and not set(fix.CLASSES) <= set(allowed):
        return f"needs the classes {', '.join(fix.CLASSES)}; the workload allows {', '.join(allowed)}"
    try:
        edits: dict[str, str] = fix.fix(task.tree, finding, task.spec)
    except Refusal as refusal:
        return str(refusal)
    except RecursionError:
        return "the source nests too deeply to be followed"
    return edits


def _once(pairs: list[Pair]) -> Iterator[Pair]:
    seen = set()
    for pair in pairs:
        key = json.dumps(pair.edits, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield pair


def _done(task: Task, pair: Pair, transcript: list[dict[str, Any]]) -> bool:
    """Whether the fix was accepted or tried; one that was faster and found no place in the stack is tried again."""
    for attempt in task.history:
        if attempt.proposal.get("fix") != pair.name or not _measured(attempt):
            continue
        if attempt.verdict == "faster" and not _accepted(task, attempt):
            continue
        transcript.append({"event": "tried", "fix": pair.name, "round": attempt.round, "verdict": attempt.verdict})
        return True
    return False


def _measured(attempt: Attempt) -> bool:
    return attempt.proposal["status"] == "patch"


def _accepted(task: Task, attempt: Attempt) -> bool:
    return any(
        (entry.get("round"), entry.get("candidate")) == (attempt.round, attempt.candidate) for entry in task.accepted
    )
