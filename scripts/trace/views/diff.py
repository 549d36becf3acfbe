"""Two traces, before and after: what vanished, appeared or moved, as wall time of a step.

Columns: level (phase, class, kernel, op, frame), name, status (vanished, appeared, moved, same), before_count,
after_count (a step), before_ns, after_ns, delta_ns (durations of a step, summed), before_wall_ns, after_wall_ns,
wall_delta_ns.

Wall: each instant of a step belongs to one thing of a level, so that the wall_delta_ns of a level sum to the change of
the step's wall. On the GPU an instant belongs to the event that began first among those that run, else to "(idle)"; on
the host to what the main thread did. Levels class and kernel refer to the GPU windows, the others to the marks. Values
are means over steps and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import Capture
from scripts.trace.columns import at
from scripts.trace.frames import PHASES
from scripts.trace.opclasses import CLASSES
from scripts.trace.timeline import main_timeline
from scripts.trace.views.kernels import Origins

if TYPE_CHECKING:
    import pyarrow as pa

LEVELS = ("phase", "class", "kernel", "op", "frame")
# A change below this share of a thing's time and below this length is the noise of any two captures.
MOVED_SHARE, MOVED_NS = 0.05, 10_000
Ledger = dict[tuple[str, str], list[float]]


def diff(before: Capture, after: Capture) -> pa.Table:
    """One row a thing of either trace, by level, the largest change of wall first."""
    import pyarrow as pa

    one, other = ledger(before), ledger(after)
    rows: list[dict[str, Any]] = []
    for key in {**one, **other}:
        first, second = one.get(key, [0.0, 0.0, 0.0]), other.get(key, [0.0, 0.0, 0.0])
        rows.append(
            {
                "level": key[0],
                "name": key[1],
                "status": _status(first, second),
                "before_count": first[0],
                "after_count": second[0],
                "before_ns": round(first[1]),
                "after_ns": round(second[1]),
                "delta_ns": round(second[1] - first[1]),
                "before_wall_ns": round(first[2]),
                "after_wall_ns": round(second[2]),
                "wall_delta_ns": round(second[2] - first[2]),
            }
        )
    rows.sort(
        key=lambda row: (LEVELS.index(row["level"]), -abs(row["wall_delta_ns"]), -abs(row["delta_ns"]), row["name"])
    )
    integers = ("before_ns", "after_ns", "delta_ns", "before_wall_ns", "after_wall_ns", "wall_delta_ns")
    return pa.Table.from_pylist(
        rows,
        pa.schema(
            [
                ("level", pa.string()),
                ("name", pa.string()),
                ("status", pa.string()),
                ("before_count", pa.float64()),
                ("after_count", pa.float64()),
                *((name, pa.int64()) for name in integers),
            ]
        ),
    )


def ledger(capture: Capture) -> Ledger:
    """{(level, name): [count, ns, wall ns]}, each a step (or a capture without steps), averaged over ranks."""
    found: Ledger = {}
    steps = sum(len(one) for one in capture.steps.values()) or 1
    for rank in capture.ranks:
        _host_levels(capture, rank, found)
    _gpu_levels(capture, found)
    return {key: [value / steps for value in values] for key, values in found.items()}


def _status(before: list[float], after: list[float]) -> str:
    if before[0] == 0 or after[0] == 0:
        return (
            "appeared"
            if before[0] == 0 and after[0] > 0
            else "vanished"
            if after[0] == 0 and before[0] > 0
            else _moved(before, after)
        )
    return _moved(before, after)


def _moved(before: list[float], after: list[float]) -> str:
    for first, second in zip(before[1:], after[1:]):
        if abs(second - first) >= max(MOVED_NS, MOVED_SHARE * max(first, second)):
            return "moved"
    return "same"


def _add(found: Ledger, level: str, names: list[str], code: Any, *columns: Any) -> None:
    """Sum columns (count, ns, wall) by code into the ledger; -1 is left out."""
    kept = code >= 0
    for index, values in enumerate(columns):
        total = np.bincount(code[kept], values[kept], len(names))
        for one in np.flatnonzero(total).tolist():
            found.setdefault((level, names[one]), [0.0, 0.0, 0.0])[index] += float(total[one])


def _host_levels(capture: Capture, rank: int, found: Ledger) -> None:
    host, steps = capture.host, capture.steps[rank]
    if rank not in host.main:
        return
    timeline = main_timeline(capture, rank)
    _, piece, part = timeline.cut(steps.cpu_start, steps.cpu_end)
    event, phase = timeline.event[piece], timeline.phase[piece]
    none = np.zeros(len(part))
    _add(found, "phase", list(PHASES), phase, none, part, part)
    for name in PHASES[1:]:
        if ("phase", name) in found:
            found["phase", name][0] = max(found["phase", name][0], 1.0)
    names = [*host.names, "(none)"]
    for level, nearest in (("op", host.op), ("frame", host.own)):
        own = at(nearest, event)
        code = np.where(own >= 0, at(host.name, own), len(host.names))
        inside = (
            np.flatnonzero((nearest == np.arange(len(host))) & (host.rank == rank))
            if len(host)
            else np.empty(0, np.int64)
        )
        inside = inside[steps.of(host.start[inside]) >= 0]
        _add(found, level, names, host.name[inside].astype(np.int64), np.ones(len(inside)), host.self_ns[inside])
        _add(found, level, names, code, none, none, part)


def _gpu_levels(capture: Capture, found: Ledger) -> None:
    gpu = capture.gpu
    if not len(gpu):
        return
    kind = Origins(capture).kind
    for rank in capture.ranks:
        rows, steps = capture.rows(rank), capture.steps[rank]
        if rows.stop == rows.start:
            continue
        low, high = capture.span(rank)
        start, end = np.clip(gpu.start[rows], low, high), np.clip(gpu.end[rows], low, high)
        reach = np.concatenate(([low], np.maximum.accumulate(end)[:-1]))
        wall = np.maximum(end - np.maximum(start, reach), 0)
        inside = (end > start) | ((gpu.start[rows] >= low) & (gpu.start[rows] < high))
        idle = (high - low) - int(wall.sum())
        one, length = inside.astype(float), np.where(inside, end - start, 0)
        _add(found, "class", list(CLASSES), kind[rows], one, length, wall)
        _add(found, "kernel", gpu.names, gpu.name[rows], one, length, wall)
        for level in ("class", "kernel"):
            row = found.setdefault((level, "(idle)"), [0.0, 0.0, 0.0])
            row[0], row[1], row[2] = row[0] + len(steps), row[1] + idle, row[2] + idle
