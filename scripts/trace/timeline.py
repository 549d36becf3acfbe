"""What the main thread of a rank did at each instant: phase of the step, and whether it ran an operator, python, or was
blocked.

While it waits in backward() for the autograd engine's thread, that thread is followed instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import dataset, intervals
from scripts.trace.capture import CALL, PYTHON, Capture
from scripts.trace.columns import at
from scripts.trace.frames import BACKWARD, DATA, OTHER

Ints = NDArray[Any]

IN_PYTHON, IN_OP, IN_BLOCKED, IN_DATA = range(4)


@dataclass
class Timeline:
    """Disjoint sorted pieces that tile the thread's time.

    `event` is the innermost host event, -1 where nothing was recorded.
    """

    start: Ints
    end: Ints
    event: Ints
    phase: Ints
    state: Ints

    def cut(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """(window, piece, shared ns) for every piece that meets a window."""
        return intervals.overlaps(start, end, (self.start, self.end))


def blocking(capture: Capture) -> Ints:
    """Host events that are calls in which the host waited for the device.

    A memcpy call counts where it took 100 microseconds or more: queueing one takes 5 to 20, a copy from pageable memory
    waits.
    """
    host = capture.host
    waits = host.flag(lambda n: n.endswith(("Synchronize", "SynchronizeWithSpin")))
    copies = host.flag(lambda n: "emcpy" in n) & (host.end - host.start >= dataset.BLOCKING_COPY_NS)
    return (host.kind == CALL) & (waits | copies)


def main_timeline(capture: Capture, rank: int) -> Timeline:
    """The main thread's timeline over everything recorded of the rank."""
    host = capture.host
    steps = capture.steps[rank]
    if rank not in host.main:
        empty = np.empty(0, np.int64)
        return Timeline(empty, empty, empty, empty, empty)
    (start, end), event = host.segments(host.main[rank])
    low = min(int(steps.cpu_start.min()), int(start[0]) if len(start) else int(steps.cpu_start.min()))
    high = max(int(steps.cpu_end.max()), int(end[-1]) if len(end) else 0)
    holes = intervals.complement((start, end), low, high)
    order = np.argsort(np.concatenate([start, holes[0]]), kind="stable")
    starts = np.concatenate([start, holes[0]])[order]
    ends = np.concatenate([end, holes[1]])[order]
    events = np.concatenate([event.astype(np.int64), np.full(len(holes[0]), -1)])[order]
    phase = _fill(capture, rank, starts, ends, events)
    starts, ends, events, phase = _follow_engine(capture, rank, (starts, ends, events, phase))
    blocked = at(blocking(capture), at(host.call, events), 0).astype(bool)
    state = np.where(at(host.op, events) >= 0, IN_OP, IN_PYTHON)
    state = np.where(blocked, IN_BLOCKED, state)
    return Timeline(starts, ends, events, phase, np.where(phase == DATA, IN_DATA, state))


def _follow_engine(capture: Capture, rank: int, pieces: tuple[Ints, Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints, Ints]:
    """While the main thread only waits in backward(), what counts is what the autograd thread does.

    Put its pieces there.
    """
    start, end, event, phase = pieces
    host = capture.host
    inside = (host.grad >= 0) & (host.thread != host.main[rank]) & (host.rank == rank)
    if not inside.any():
        return pieces
    engine = int(np.argmax(np.bincount(host.thread[inside], (host.end - host.start)[inside])))
    waiting = host.flag(lambda n: "run_backward" in n) & (host.kind == PYTHON)
    bare = (event < 0) | ((at(host.op, event) < 0) & (at(host.frame, event) < 0) & (at(host.call, event) < 0))
    waits = (phase == BACKWARD) & (bare | at(waiting, event, 0).astype(bool))
    (begin, finish), doing = host.segments(engine)
    query, item, _ = intervals.overlaps(start[waits], end[waits], (begin, finish))
    new_start = np.maximum(start[waits][query], begin[item])
    new_end = np.minimum(end[waits][query], finish[item])
    left = intervals.subtract((start[waits], end[waits]), (new_start, new_end))
    source = event[waits][np.searchsorted(start[waits], left[0], side="right") - 1]
    count = len(new_start) + len(left[0])
    starts = np.concatenate([start[~waits], new_start, left[0]])
    order = np.argsort(starts, kind="stable")
    return (
        starts[order],
        np.concatenate([end[~waits], new_end, left[1]])[order],
        np.concatenate([event[~waits], doing[item], source])[order],
        np.concatenate([phase[~waits], np.full(count, BACKWARD)])[order],
    )


def _fill(capture: Capture, rank: int, start: Ints, end: Ints, event: Ints) -> Ints:
    """Phases; time in which only a step mark or nothing was open takes the phase of its surroundings.

    Without python frames the gap between two forward operators is forward; while the autograd thread works it is
    backward.
    """
    host = capture.host
    phase = at(capture.phase, event, OTHER)
    open_ = (event < 0) | (
        (phase == OTHER) & (at(host.frame, event) < 0) & (at(host.op, event) < 0) & (at(host.annotation, event) < 0)
    )
    away = (host.thread != host.main[rank]) & (host.rank == rank) & (capture.phase == BACKWARD)
    engine = intervals.merge(host.start[away], host.end[away])
    busy = intervals.covered(engine, start, end) * 2 > end - start
    phase = np.where(open_ & busy, BACKWARD, phase)
    return surroundings(phase, open_ & ~busy)


def surroundings(phase: Ints, unknown: Ints) -> Ints:
    """Replace unknown entries of a sequence by the nearest known ones where both sides agree, else by OTHER."""
    known = np.flatnonzero(~unknown)
    if len(known) == 0:
        return np.full(len(phase), OTHER)
    place = np.searchsorted(known, np.arange(len(phase)), side="right")
    before = phase[known[np.maximum(place - 1, 0)]]
    after = phase[known[np.minimum(place, len(known) - 1)]]
    inside = (place > 0) & (place < len(known))
    return np.where(unknown, np.where(inside & (before == after), before, OTHER), phase)
