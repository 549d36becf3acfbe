"""Step windows: from the marks on the host, moved to the GPU side where the step launched GPU work.

A step's kernels run after the host has gone on. So a window begins with the first kernel that the step launched and
ends where the next step's window begins: asynchronous work stays with the step that asked for it. The last window ends
with its last kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace.capture import ANNOTATION, OP, Capture, Host, Steps
from scripts.trace.frames import STEP_MARKS

Ints = NDArray[Any]
Marks = tuple[str, Ints, list[str], Ints, Ints]


def steps(capture: Capture, rank: int) -> Steps:
    """The steps of a rank.

    Profiler marks, else numbered annotations, else `Optimizer.step#`, else the capture as one window.
    """
    source, number, label, cpu_start, cpu_end = _marks(capture, rank)
    start, end = cpu_start.copy(), cpu_end.copy()
    window = "cpu"
    rows = capture.rows(rank)
    gpu = capture.gpu
    if rows.stop > rows.start:
        if source == "capture":
            low, high = gpu.start[rows].min(keepdims=True), gpu.end[rows].max(keepdims=True)
            launch = capture.launch[rows]
            first = capture.host.start[launch[launch >= 0]].min(initial=int(low[0]))
            return Steps(source, "gpu", number, label, low, high, np.array([first]), high)
        moved = _gpu_side(capture, rows, cpu_start, cpu_end)
        if moved is not None:
            start, end = moved
            window = "gpu"
    return Steps(source, window, number, label, start, end, cpu_start, cpu_end)


def _gpu_side(capture: Capture, rows: slice, cpu_start: Ints, cpu_end: Ints) -> tuple[Ints, Ints] | None:
    gpu, host = capture.gpu, capture.host
    launch = capture.launch[rows]
    at = np.where(launch >= 0, host.start[np.maximum(launch, 0)], -1)
    index = np.searchsorted(cpu_start, at, side="right") - 1
    inside = (launch >= 0) & (index >= 0) & (at < cpu_end[np.maximum(index, 0)])
    if not inside.any():
        return None
    count = len(cpu_start)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, index[inside], gpu.start[rows][inside])
    np.maximum.at(last, index[inside], gpu.end[rows][inside])
    none = first == np.iinfo(np.int64).max
    start = np.maximum.accumulate(np.where(none, cpu_start, first))
    follows = np.append(start[1:], max(int(last.max()), int(start[-1])))
    # Where the host marks leave a hole (evaluation between two steps), the window must not swallow it.
    hole = np.append(cpu_start[1:] - cpu_end[:-1] > (cpu_end - cpu_start)[:-1] // 20, False)
    end = np.where(hole, np.minimum(follows, np.maximum(np.where(none, cpu_end, last), start)), follows)
    end[-1] = max(int(end[-1]), int(cpu_end[-1])) if none[-1] else end[-1]
    return start, np.maximum(end, start)


def _marks(capture: Capture, rank: int) -> Marks:
    host = capture.host
    if rank in host.main:
        found = _numbered(host, rank) or _optimizer(host, np.flatnonzero(host.thread == host.main[rank]))
        if found is not None:
            return found
    return _whole(capture, rank)


def _numbered(host: Host, rank: int) -> Marks | None:
    mine = np.flatnonzero(host.marks["thread"] == host.main[rank])
    if len(mine) == 0:
        return None
    labels = np.array([host.names[code] for code in host.marks["name"][mine]], object)
    profiler = np.array([label.startswith("ProfilerStep") for label in labels])
    source = "profiler_step" if profiler.any() else "annotation"
    kept = profiler if profiler.any() else np.ones(len(mine), bool)
    mine, labels = mine[kept], labels[kept]
    start, end = host.marks["start"][mine], host.marks["end"][mine]
    outer = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
    numbers = [int(match[1]) for match in map(STEP_MARKS.match, labels[outer]) if match]
    return source, np.array(numbers, np.int64), labels[outer].tolist(), start[outer], end[outer]


def _optimizer(host: Host, mine: Ints) -> Marks | None:
    """A step runs from the end of one `Optimizer.step#` to the end of the next, the first from the thread's first
    event.

    Several optimizers that step together (a GAN has two) count as one step: the most frequent name marks it.
    """
    flags = np.array([name.startswith("Optimizer.step#") for name in host.names], bool)
    events = mine[flags[host.name[mine]]]
    if len(events) == 0:
        return None
    names, counts = np.unique(host.name[events], return_counts=True)
    events = events[host.name[events] == names[np.argmax(counts)]]
    end = host.end[events]
    wanted = np.append(True, host.start[events][1:] >= np.maximum.accumulate(end)[:-1])
    events, end = events[wanted], end[wanted]
    # The profiler may start in the middle of a frame that began long ago; operators say when work began.
    begin = host.start[mine[(host.kind[mine] == OP) | (host.kind[mine] == ANNOTATION)]].min()
    start = np.concatenate(([min(int(begin), int(host.start[events[0]]))], end[:-1]))
    return "optimizer_step", np.arange(len(events)), [host.names[code] for code in host.name[events]], start, end


def _whole(capture: Capture, rank: int) -> Marks:
    host = capture.host
    edges: list[int] = []
    if len(host):
        mine = host.rank == rank
        if mine.any():
            edges = [int(host.start[mine].min()), int(host.end[mine].max())]
    rows = capture.rows(rank)
    if not edges and rows.stop > rows.start:
        edges = [int(capture.gpu.start[rows].min()), int(capture.gpu.end[rows].max())]
    edges = edges or [0, 0]
    return "capture", np.zeros(1, np.int64), ["capture"], np.array(edges[:1]), np.array(edges[1:])
