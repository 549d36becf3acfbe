"""The critical path of a window: which host calls, launch delays and device work made it as long as it was.

The graph is that of HolisticTraceAnalysis (hta/analyzers/critical_path_analysis.py, MIT), on exact nanoseconds. Every
operator, runtime call and GPU event of the window is two instants. An edge is a stretch of a thread inside an
outermost operator, a GPU event, the delay from a launch call to its event where the stream was empty, or the wait
behind the event before on the stream: it weighs what it lasts. Dependencies weigh nothing: from one outermost operator
of a thread to the next, from a launch to an event that also waited, from an event to the call or event that
synchronised with it. A blocking call weighs nothing itself, so that its time is what it waited for. The path is the
heaviest one.

What that definition leaves out: time of a thread between outermost operators (`runtime` has it, `python_ns`).
Unlike HTA's, every kernel of a replayed CUDA graph is there. Cost: linear in the events of the window; synchronisation
records go through a loop in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import nesting
from scripts.trace.capture import CALL, OP, Capture, codes, integers_of
from scripts.trace.columns import at
from scripts.trace.nesting import njit

Ints = NDArray[Any]
HOST, DEVICE, LAUNCH, QUEUE, DEPENDENCY, SYNCHRONISATION = range(6)
KINDS = ("host", "device", "launch_delay", "queue_delay", "dependency", "synchronisation")
BLOCKING = (
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventQuery", "cudaEventSynchronize", "cudaMemcpy",
    "cudaMemcpyAsync", "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventQuery", "hipEventSynchronize",
    "hipMemcpy", "hipMemcpyAsync", "hipMemcpyWithStream",
)  # fmt: skip
_NEVER = np.iinfo(np.int64).min


@dataclass
class Graph:
    """Events of a window (host first, then GPU) and edges between their instants, 2 i the start of event i, 2 i + 1
    its end. `owner` is the event that an edge belongs to, -1 for a dependency."""

    host: Ints  # indices into capture.host
    gpu: Ints  # indices into capture.gpu
    time: Ints
    source: Ints
    target: Ints
    weight: Ints
    kind: Ints
    owner: Ints


@dataclass
class Path:
    """The heaviest path: its instants in order, and the edges between them (indices into the graph's)."""

    nodes: Ints
    edges: Ints


class Builder:
    """What every window of one rank needs once: launches, queues, synchronisation records."""

    def __init__(self, capture: Capture, rank: int) -> None:
        self.capture, self.rank = capture, rank
        host, gpu = capture.host, capture.gpu
        self.calls = np.flatnonzero((host.rank == rank) & (host.kind >= OP) & (host.end > host.start))
        rows = capture.rows(rank)
        self.events = np.arange(rows.start, rows.stop)
        self.launch = capture.launch[rows]
        tracks = np.stack([gpu.device[rows], gpu.stream[rows]], axis=1)
        pairs, number = np.unique(tracks, axis=0, return_inverse=True)
        self.track: Ints = number.reshape(-1)
        self.track_of = {(int(device), int(stream)): number for number, (device, stream) in enumerate(pairs.tolist())}
        self.alone = self._alone()
        self.blocking = host.flag(lambda name: name in BLOCKING)
        self.records = self._records() if len(self.events) else []

    def windows(self) -> list[tuple[Ints, Ints]]:
        """For each step its (host events, GPU events); the GPU events are those that its calls launched."""
        steps, host = self.capture.steps[self.rank], self.capture.host
        step = steps.of(host.start[self.calls])
        launched = self.launch >= 0
        usable = launched & (at(host.end - host.start, self.launch) > 0)
        step_of_event = np.where(usable, steps.of(at(host.start, self.launch)), -1)
        return [
            (self.calls[mine], self.events[theirs])
            for mine, theirs in zip(_split(step, len(steps)), _split(step_of_event, len(steps)))
        ]

    def window(self, low: int, high: int) -> tuple[Ints, Ints]:
        """Host events that start in [low, high], and the GPU events that they launched."""
        host = self.capture.host
        start = host.start[self.calls]
        mine = self.calls[(start >= low) & (start <= high)]
        return mine, self.events[np.isin(self.launch, mine)]

    def graph(self, calls: Ints, events: Ints) -> Graph:
        """The graph over these host events (sorted as in the capture) and GPU events."""
        host, gpu = self.capture.host, self.capture.gpu
        count = len(calls)
        time = np.empty(2 * (count + len(events)), np.int64)
        time[: 2 * count : 2], time[1 : 2 * count : 2] = host.start[calls], host.end[calls]
        time[2 * count :: 2], time[2 * count + 1 :: 2] = gpu.start[events], gpu.end[events]
        parts = [*self._threads(calls, time), *self._device(calls, events, time)]
        source, target, weight, kind, owner = (np.concatenate(column) for column in zip(*parts))
        return Graph(calls, events, time, source, target, np.maximum(weight, 0), kind, owner)

    def _threads(self, calls: Ints, time: Ints) -> list[tuple[Ints, ...]]:
        """Edges along each thread, from instant to instant."""
        host = self.capture.host
        thread = host.thread[calls]
        parent = nesting.parents(thread, host.start[calls], host.end[calls])
        nodes, level = _walk(thread, parent)
        source, target = nodes[:-1], nodes[1:]
        same = thread[source >> 1] == thread[target >> 1]
        source, target, outside = source[same], target[same], (level[:-1] == 0)[same]
        leaving = (target & 1) == 1
        weight = np.where(outside | (leaving & self.blocking[calls][target >> 1]), 0, time[target] - time[source])
        inner = np.where((source & 1) == 0, source >> 1, np.where(leaving, target >> 1, parent[target >> 1]))
        owner = np.where(outside, -1, inner)
        return [(source, target, weight, np.where(outside, DEPENDENCY, HOST), owner)]

    def _device(self, calls: Ints, events: Ints, time: Ints) -> list[tuple[Ints, ...]]:
        """GPU events, what delayed each one, and what waited for it."""
        host, gpu, count = self.capture.host, self.capture.gpu, len(calls)
        if not len(events):
            return []
        first = int(self.events[0])
        order = np.lexsort((gpu.start[events], self.track[events - first]))
        track = self.track[events - first]
        begin = 2 * (count + np.arange(len(events)))
        before = np.full(len(events), -1, np.int64)  # the event before on the stream
        follows = track[order][1:] == track[order][:-1]
        before[order[1:][follows]] = order[:-1][follows]
        last = at(gpu.end[events], before, _NEVER)
        call = np.searchsorted(calls, self.launch[events - first])  # both sorted
        launched = host.start[calls][call]
        awaited, waits = self._synchronisations(calls, events, order, count)
        ready = at(gpu.end[events], awaited, _NEVER)
        delayed = self.alone[events - first] & (last < launched) & (ready < launched)
        queued = ~delayed & (before >= 0) & ((awaited < 0) | (ready < last))
        number = count + np.arange(len(events))
        edges: list[tuple[Ints, ...]] = [
            (begin, begin + 1, time[begin + 1] - time[begin], np.full(len(events), DEVICE), number)
        ]
        some = np.flatnonzero(awaited >= 0)
        edges.append(_free(2 * (count + awaited[some]) + 1, begin[some], SYNCHRONISATION))
        edges.append(
            (2 * call, begin, np.where(delayed, time[begin] - launched, 0),
             np.where(delayed, LAUNCH, DEPENDENCY), np.where(delayed, number, -1))
        )  # fmt: skip
        some = np.flatnonzero(queued)
        previous = 2 * (count + before[some]) + 1
        edges.append(
            (previous, begin[some], time[begin[some]] - time[previous], np.full(len(some), QUEUE), number[some])
        )
        edges.append(_free(waits[0], waits[1], SYNCHRONISATION))
        return edges

    def _synchronisations(self, calls: Ints, events: Ints, order: Ints, count: int) -> tuple[Ints, tuple[Ints, Ints]]:
        """For each GPU event the one of another stream that it had to wait for, -1 none; and edges (end of an event,
        end of the call that waited for it)."""
        gpu = self.capture.gpu
        first = int(self.events[0])
        place = {int(event): position for position, event in enumerate(events.tolist())}
        on_track: dict[int, tuple[Ints, Ints]] = {}
        track = self.track[events - first][order]
        for one in np.unique(track).tolist():
            mine = order[track == one]
            on_track[one] = (gpu.start[events][mine], mine)
        position_of_call = {int(call): position for position, call in enumerate(calls.tolist())}
        awaited = np.full(len(events), -1, np.int64)
        sources, targets = [], []
        for record in self.records:
            if record.kind == "Stream Wait Event":
                earlier, later = place.get(record.source), place.get(record.target)
                if earlier is not None and later is not None and earlier != later:
                    awaited[later] = earlier
                continue
            call = position_of_call.get(record.call)
            if call is None:
                continue
            if record.kind == "Event Sync":
                waited = [place.get(record.source)]
            else:
                tracks = on_track if record.track is None else [record.track]
                waited = [_last_before(on_track.get(one), record.end) for one in tracks]
            for one in waited:
                if one is not None:
                    sources.append(2 * (count + one) + 1)
                    targets.append(2 * call + 1)
        return awaited, (np.array(sources, np.int64), np.array(targets, np.int64))

    def _alone(self) -> Ints:
        """Whether each event's stream was empty when it was launched, and nothing else was queued when it began."""
        host, gpu, count = self.capture.host, self.capture.gpu, len(self.events)
        known = np.flatnonzero(self.launch >= 0)
        alone = np.zeros(count, bool)
        if not len(known):
            return alone
        when = np.concatenate([host.start[self.launch[known]], gpu.start[self.events[known]]])
        change = np.repeat([1, -1], len(known))
        track = np.tile(self.track[known], 2)
        order = np.lexsort((when, track))
        total = np.cumsum(change[order])  # every stream's changes sum to zero: no need to begin anew
        length = np.empty(2 * len(known), np.int64)
        length[order] = total
        alone[known] = (length[: len(known)] == 1) & (length[len(known) :] == 0)
        return alone

    def _records(self) -> list[Record]:
        """The synchronisation records of the rank, with the calls and GPU events that they connect, in order of their
        ends."""
        columns = ["rank", "ts_ns", "dur_ns", "name", "cat", "device", "stream", "correlation", "wait_on_stream",
                   "wait_on_correlation"]  # fmt: skip
        table = self.capture.table("runtime", columns)
        category, cats = codes(table, "cat")
        name, names = codes(table, "name")
        found = np.flatnonzero(np.array([one == "cuda_sync" for one in cats])[category])
        found = found[integers_of(table, "rank")[found] == self.rank]
        if not len(found):
            return []
        values = {key: integers_of(table, key) for key in columns if key not in ("name", "cat")}
        end = values["ts_ns"] + np.maximum(values["dur_ns"], 0)
        host = self.capture.host
        index = host.first_row[CALL]
        by_correlation: dict[int, int] = {}
        for row in np.flatnonzero((index >= 0) & (values["correlation"] > 0) & (values["rank"] == self.rank)).tolist():
            by_correlation.setdefault(int(values["correlation"][row]), int(index[row]))
        launches = _Launches(self)
        records = []
        for row in found[np.argsort(end[found], kind="stable")].tolist():
            kind = names[name[row]]
            call = by_correlation.get(int(values["correlation"][row]), -1)
            device, stream = int(values["device"][row]), int(values["stream"][row])
            record = Record(kind, int(end[row]), call, None, -1, -1)
            if kind == "Stream Sync":
                record.track = self.track_of.get((device, stream), -1)
            if kind in ("Event Sync", "Stream Wait Event"):
                made = by_correlation.get(int(values["wait_on_correlation"][row]), -1)
                track = self.track_of.get((device, int(values["wait_on_stream"][row])), -1)
                record.source = launches.before(track, int(host.start[made])) if made >= 0 else -1
            if kind == "Stream Wait Event":
                track = self.track_of.get((device, stream), -1)
                record.target = launches.after(track, host, call) if call >= 0 else -1
            records.append(record)
        return records


@dataclass
class Record:
    """A synchronisation: `source` had to end before `target` began, or before the call returned (`track` None: every
    stream)."""

    kind: str
    end: int
    call: int
    track: int | None
    source: int
    target: int


class _Launches:
    """GPU events of a rank by stream, in the order in which they were launched."""

    def __init__(self, builder: Builder) -> None:
        host = builder.capture.host
        known = np.flatnonzero(builder.launch >= 0)
        order = known[np.argsort(host.start[builder.launch[known]], kind="stable")]
        self.by_track = {}
        for track in np.unique(builder.track).tolist():
            mine = order[builder.track[order] == track]
            calls = builder.launch[mine]
            self.by_track[track] = (host.start[calls], builder.events[mine], host.thread[calls])

    def before(self, track: int, time: int) -> int:
        """The last event that was launched on a stream before an instant, -1 none."""
        if track not in self.by_track:
            return -1
        times, events, _ = self.by_track[track]
        place = int(np.searchsorted(times, time, "left")) - 1
        return int(events[place]) if place >= 0 else -1

    def after(self, track: int, host: Any, call: int) -> int:
        """The next event that the thread of a call launched on a stream, -1 none."""
        if track not in self.by_track:
            return -1
        times, events, threads = self.by_track[track]
        for place in range(int(np.searchsorted(times, host.start[call], "left")), len(times)):
            if threads[place] == host.thread[call]:
                return int(events[place])
        return -1


def heaviest(graph: Graph) -> Path:
    """The heaviest path; of equals the one whose edges were made first."""
    order = np.argsort(graph.target, kind="stable")
    if not len(order):
        return Path(np.empty(0, np.int64), order)
    nodes, edges = _longest(len(graph.time), graph.source[order], graph.target[order], graph.weight[order])
    return Path(nodes, order[edges])


def warm() -> None:
    """Compile what a trace without GPU events never calls, with the types of real ones."""
    _walk(np.zeros(1, np.int32), np.full(1, -1, np.int32))
    one = np.ones(1, np.int64)
    _longest(2, one - 1, one, one)


def _free(source: Ints, target: Ints, kind: int) -> tuple[Ints, ...]:
    return source, target, np.zeros(len(source), np.int64), np.full(len(source), kind), np.full(len(source), -1)


def _split(group: Ints, count: int) -> list[Ints]:
    """Positions of each of `count` groups, in order; -1 is none."""
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(count + 1))
    return [order[edges[one] : edges[one + 1]] for one in range(count)]


def _last_before(track: tuple[Ints, Ints] | None, time: int) -> int | None:
    """The last event of a stream that began by an instant."""
    if track is None:
        return None
    place = int(np.searchsorted(track[0], time, "right")) - 1
    return int(track[1][place]) if place >= 0 else None


@njit(cache=True)
def _walk(thread: Any, parent: Any) -> Any:
    """Starts and ends in the order in which nesting passes them, and the depth after each. int64[2 n], int64[2 n]."""
    count = len(parent)
    nodes, level = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    stack = np.empty(count + 1, np.int64)
    depth, made = 0, 0
    for i in range(count + 1):
        fresh = i == count or (i > 0 and thread[i] != thread[i - 1])
        while depth > 0 and (fresh or stack[depth - 1] != parent[i]):
            depth -= 1
            nodes[made], level[made] = 2 * stack[depth] + 1, depth
            made += 1
        if i == count:
            break
        stack[depth] = i
        depth += 1
        nodes[made], level[made] = 2 * i, depth
        made += 1
    return nodes, level


@njit(cache=True)
def _longest(count: Any, source: Any, target: Any, weight: Any) -> Any:
    """(nodes, edges) of the heaviest path; edges sorted by target. Nodes of a cycle (clocks that contradict each other)
    are left out. O(nodes + edges)."""
    first = np.zeros(count + 1, np.int64)  # edges into each node
    leaving = np.zeros(count + 1, np.int64)
    for e in range(len(source)):
        first[target[e] + 1] += 1
        leaving[source[e] + 1] += 1
    waiting = first[1:].copy()
    for n in range(count):
        first[n + 1] += first[n]
        leaving[n + 1] += leaving[n]
    out = np.empty(len(source), np.int64)
    free = leaving[:-1].copy()
    for e in range(len(source)):
        out[free[source[e]]] = target[e]
        free[source[e]] += 1
    queue = np.empty(count, np.int64)
    head, tail = 0, 0
    for n in range(count):
        if waiting[n] == 0:
            queue[tail] = n
            tail += 1
    distance, through = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    best = -1
    while head < tail:
        n = queue[head]
        head += 1
        for e in range(first[n], first[n + 1]):
            reach = distance[source[e]] + weight[e]
            if through[n] < 0 or reach > distance[n]:
                distance[n], through[n] = reach, e
        if best < 0 or distance[n] > distance[best]:
            best = n
        for k in range(leaving[n], leaving[n + 1]):
            waiting[out[k]] -= 1
            if waiting[out[k]] == 0:
                queue[tail] = out[k]
                tail += 1
    length, n = 1, best
    while through[n] >= 0:
        length += 1
        n = source[through[n]]
    nodes, edges = np.empty(length, np.int64), np.empty(length - 1, np.int64)
    n = best
    for k in range(length - 1, -1, -1):
        nodes[k] = n
        if k > 0:
            edges[k - 1] = through[n]
            n = source[through[n]]
    return nodes, edges
