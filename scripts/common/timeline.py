"""What the recorder left of a run: step marks, and where the wall time went by them; final loss and versions."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from pathlib import Path
from typing import Any


def timeline(records: Path, launched_ns: int, ended_ns: int, warmup: int) -> dict[str, Any]:
    """Where the wall time of a run went, from rank 0's step marks; every value is null where the job has no steps.

    `first_step_s`, `last_step_s`: from the launch to the begin of the first and the end of the last step. `phases` adds
    up to the wall time: `startup_s` (launch to first step), `warmup_s` (what the first `warmup` steps take beyond the
    median), `steady_s` (steps x median period), `slow_s` (what later periods take beyond the median), `tail_s`.
    A period runs from the end of one step to the end of the next, so that loading and evaluation belong to it;
    `periodic` says where slow ones come back.
    """
    marks = step_marks(records / "steps.jsonl")
    unknown = {"startup_s": None, "warmup_s": None, "steady_s": None, "slow_s": None, "tail_s": None}
    if not marks:
        none = dict.fromkeys(("first_step_s", "last_step_s", "median_step_s", "periodic"))
        return {**none, "steps": 0, "phases": unknown}
    begin, end = marks[0][0], marks[-1][1]
    periods = [(marks[0][1] - begin) / 1e9] + [(b[1] - a[1]) / 1e9 for a, b in zip(marks, marks[1:], strict=False)]
    late = periods[warmup:] or periods
    median = statistics.median(late)
    early = periods[: len(periods) - len(late)]
    return {
        "first_step_s": (begin - launched_ns) / 1e9,
        "last_step_s": (end - launched_ns) / 1e9,
        "median_step_s": median,
        "steps": len(marks),
        "periodic": periodic(periods, median, len(early)),
        "phases": {
            "startup_s": (begin - launched_ns) / 1e9,
            "warmup_s": sum(early) - median * len(early),
            "steady_s": median * len(periods),
            "slow_s": sum(late) - median * len(late),
            "tail_s": (ended_ns - end) / 1e9,
        },
    }


def marks_per_step(measure: dict[str, Any], marked: int) -> float:
    """Steps that the recorder marks for each of the contract's; 1 where the contract does not say how many were asked for.

    The contract counts what the command's `{steps}` counts, requests for example; each may be several marked calls.
    """
    asked = measure.get("steps")
    return marked / asked if asked and marked else 1.0


def periodic(periods: list[float], median: float, start: int) -> dict[str, Any] | None:
    """Slow steps that come back at equal distances (evaluation, checkpoints): `{"every", "first", "extra_s"}`, or None.

    Slow is a late period of more than 1.3 medians; `extra_s` is the median of what they take beyond the median.
    """
    slow = [number for number, period in enumerate(periods) if number >= start and period > 1.3 * median]
    gaps = {after - before for before, after in zip(slow, slow[1:], strict=False)}
    if len(slow) < 2 or len(gaps) != 1 or gaps == {1}:
        return None
    extra = statistics.median(periods[number] - median for number in slow)
    return {"every": gaps.pop(), "first": slow[0], "extra_s": extra}


def step_marks(path: Path) -> list[tuple[int, int]]:
    """`(begin, end)` of each step in monotonic nanoseconds, from `steps.jsonl`; empty where it is missing or torn."""
    marks = []
    with contextlib.suppress(OSError, ValueError, KeyError), path.open(encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if "begin_ns" in entry and "schema" not in entry:
                marks.append((entry["begin_ns"], entry["end_ns"]))
    return marks


def final_loss(records: Path) -> float | None:
    """The last loss that rank 0 recorded; None where the job has none."""
    last = None
    with contextlib.suppress(OSError, ValueError), (records / "rank0.jsonl").open(encoding="utf-8") as file:
        for line in file:
            if '"loss"' in line:
                record = json.loads(line)
                if record.get("tag") == "loss" and record.get("kind") in ("float", "int"):
                    last = float(record["value"])
    return last if last is not None and math.isfinite(last) else None


def software(records: Path) -> dict[str, Any] | None:
    """Versions and backend flags as rank 0's recorder saw them inside the job; None where it recorded nothing."""
    with contextlib.suppress(OSError, ValueError), (records / "rank0.jsonl").open(encoding="utf-8") as file:
        header = json.loads(file.readline())
        return {name: header.get(name) for name in ("python", "torch", "numpy", "cuda", "cudnn", "driver", "backend")}
    return None
