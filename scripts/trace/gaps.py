"""Idle intervals of the device, cut by what the host did: the table that the views of lost time aggregate.

A gap lies between two stretches of GPU work within the rank's window. The kernel after it was launched at some time:
until then the device was starved by the host, afterwards it waited on its own (queue, other streams).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import intervals
from scripts.trace.capture import Capture
from scripts.trace.columns import at
from scripts.trace.frames import DATA
from scripts.trace.timeline import IN_DATA, IN_PYTHON, blocking, main_timeline

Ints = NDArray[Any]

KINDS = ("launch_bound", "host_busy", "synchronisation", "data", "device", "unknown", "python")
LAUNCH_BOUND, HOST_BUSY, SYNCHRONISATION, IN_LOADER, ON_DEVICE, UNKNOWN, PYTHON_TIME = range(7)
# Launching takes 3-10 us, dispatch of an operator from Python 10-50 us, twice that under a profiler with stacks: a
# shorter wait is
# the pace of one launch after another, a longer one is work of its own.
LAUNCH_PACE_NS = 100_000


@dataclass
class Pieces:
    """Rows are pieces of gaps.

    `event` is the host's innermost event then (-1 none), `step` the step's index, `number` its number.
    """

    rank: Ints
    gap: Ints
    gap_start: Ints
    length: Ints
    kind: Ints
    event: Ints
    step: Ints
    number: Ints
    before: Ints
    after: Ints

    def take(self, rows: Ints) -> Pieces:
        """Those rows."""
        return Pieces(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def pieces(capture: Capture) -> Pieces:
    """The lost time of all ranks. Computed once a capture."""
    cached = capture.__dict__.get("_pieces")
    if cached is None:
        parts, count = [], 0
        for rank in capture.ranks:
            rows = capture.rows(rank)
            part = _of_device(capture, rank) if rows.stop > rows.start else _of_host(capture, rank)
            part.gap += count
            count = int(part.gap.max(initial=count - 1)) + 1
            parts.append(part)
        empty = np.empty(0, np.int64)
        cached = Pieces(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts] or [empty])
                for field in fields(Pieces)
            }
        )
        capture.__dict__["_pieces"] = cached
    return cached


def _of_device(capture: Capture, rank: int) -> Pieces:
    gpu, host, rows = capture.gpu, capture.host, capture.rows(rank)
    low, high = capture.span(rank)
    start, end = gpu.start[rows], gpu.end[rows]
    gap_start, gap_end = intervals.complement(intervals.merge(start, end), low, high)
    after = np.searchsorted(start, gap_end, side="left")
    known = (after < len(start)) & (start[np.minimum(after, len(start) - 1)] == gap_end)
    after = np.where(known, after, -1)
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], gap_start, side="right") - 1
    before = np.where(last >= 0, by_end[np.maximum(last, 0)], -1)
    launch = at(capture.launch[rows], after)
    launched = np.clip(at(host.end, launch, 0), gap_start, gap_end)
    thread = at(host.thread, launch)
    if rank in host.main:
        # After the last kernel nothing is launched any more: what the main thread did explains the end of the window.
        at_end = after < 0
        launched, thread = np.where(at_end, gap_end, launched), np.where(at_end, host.main[rank], thread)
    starved = _starved(capture, rank, gap_start, launched, thread)
    gap, event, length = starved
    kind = _kinds(capture, event, (launched - gap_start)[gap])
    unknown = (launch < 0) & (thread < 0)
    rest = np.where(unknown, gap_end - gap_start, gap_end - launched)
    waits = np.flatnonzero(rest > 0)
    gap = np.concatenate([gap, waits])
    count = len(waits)
    offset = rows.start
    steps = capture.steps[rank]
    step = steps.of(gap_start, cpu=steps.window == "cpu")
    return Pieces(
        rank=np.full(len(gap), rank),
        gap=gap,
        gap_start=gap_start[gap],
        length=np.concatenate([length, rest[waits]]),
        kind=np.concatenate([kind, np.where(unknown[waits], UNKNOWN, ON_DEVICE)]),
        event=np.concatenate([event, np.full(count, -1)]),
        step=step[gap],
        number=at(steps.number, step[gap]),
        before=np.where(before >= 0, before + offset, -1)[gap],
        after=np.where(after >= 0, after + offset, -1)[gap],
    )


def _starved(capture: Capture, rank: int, start: Ints, end: Ints, thread: Ints) -> tuple[Ints, Ints, Ints]:
    """(gap, host event, ns).

    [start, end) of each gap cut by the segments of its thread, what is left by the main thread's.
    """
    host = capture.host
    found: list[tuple[Ints, Ints, Ints]] = []
    left_gap, left_start, left_end = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for one in np.unique(thread[thread >= 0]).tolist():
        mine = np.flatnonzero((thread == one) & (end > start))
        bounds, event = host.segments(one)
        query, item, part = intervals.overlaps(start[mine], end[mine], bounds)
        found.append((mine[query], event[item].astype(np.int64), part))
        query, item, _ = intervals.overlaps(start[mine], end[mine], _holes(bounds, start[mine], end[mine]))
        holes = _holes(bounds, start[mine], end[mine])
        left_gap.append(mine[query])
        left_start.append(np.maximum(holes[0][item], start[mine][query]))
        left_end.append(np.minimum(holes[1][item], end[mine][query]))
    gap, begin, finish = (np.concatenate(parts) for parts in (left_gap, left_start, left_end))
    main = host.main.get(rank, -1)
    if main >= 0 and len(gap):
        bounds, event = host.segments(main)
        query, item, part = intervals.overlaps(begin, finish, bounds)
        found.append((gap[query], event[item].astype(np.int64), part))
        rest = (finish - begin) - np.bincount(query, part, len(gap)).astype(np.int64)
    else:
        rest = finish - begin
    bare = np.flatnonzero(rest > 0)
    found.append((gap[bare], np.full(len(bare), -1), rest[bare]))
    gap, event, length = (np.concatenate(parts) for parts in zip(*found))
    return gap, event, length


def _holes(bounds: intervals.Merged, start: Ints, end: Ints) -> intervals.Merged:
    low = int(start.min(initial=0)) if len(start) else 0
    high = int(end.max(initial=0)) if len(end) else 0
    return intervals.complement(bounds, low, high)


def _kinds(capture: Capture, event: Ints, starved: Ints) -> Ints:
    kind = np.where(starved < LAUNCH_PACE_NS, LAUNCH_BOUND, np.where(event >= 0, HOST_BUSY, UNKNOWN))
    waits = at(blocking(capture), at(capture.host.call, event), 0).astype(bool)
    kind = np.where(waits, SYNCHRONISATION, kind)
    return np.where(at(capture.phase, event, 0) == DATA, IN_LOADER, kind)


def _of_host(capture: Capture, rank: int) -> Pieces:
    """Without a device: the main thread's time in the loader, and outside every operator, within the steps."""
    steps = capture.steps[rank]
    timeline = main_timeline(capture, rank)
    window, piece, part = timeline.cut(steps.cpu_start, steps.cpu_end)
    state = timeline.state[piece]
    kept = (state == IN_DATA) | (state == IN_PYTHON)
    window, piece, part, state = window[kept], piece[kept], part[kept], state[kept]
    event = timeline.event[piece]
    kind = np.where(state == IN_DATA, IN_LOADER, np.where(event < 0, UNKNOWN, PYTHON_TIME))
    none = np.full(len(piece), -1)
    start = np.maximum(timeline.start[piece], steps.cpu_start[window])
    # Pieces that follow each other without a break are one stretch.
    new = np.append(True, (start[1:] != (start + part)[:-1]) | (kind[1:] != kind[:-1]))[: len(start)]
    gap = np.cumsum(new) - 1
    return Pieces(
        rank=np.full(len(piece), rank),
        gap=gap,
        gap_start=start,
        length=part,
        kind=kind,
        event=event,
        step=window,
        number=at(steps.number, window),
        before=none,
        after=none,
    )
