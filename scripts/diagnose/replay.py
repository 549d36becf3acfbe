"""What if: the window's launches, kernels and waits replayed at the speed of the unprofiled job, with or without some.

Profiling slows the host several times and the device not at all, so that a recorded window shows a device that waits for
launches where the job itself keeps it busy. The replay has one free number, the host's pace: recorded host time times
the pace, kernels as recorded and in order on their streams, takes as long as the unprofiled steps. What a wait costs is
then the difference to a replay without it: the bubble while the queue fills again, and nothing where the host is late
anyway. The method is that of Daydream (Zhu et al., USENIX ATC 2020), with one pace instead of measured overheads.
Cost: a pass over the runtime calls a replay, 20 of them, about 1 us a call.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scripts.trace.dataset import BLOCKING_COPY_NS

LAUNCH_LATENCY_NS = 1_500.0  # from a launch's return to its kernel on an idle device; 0.9 to 2 us on an H200
QUEUED_NS = 20_000  # a kernel launched so long before its predecessor ended waited for that, not for its launch
RETURN_NS = 2_000.0  # from the last kernel's end to the host's return from a wait
VALUE_BYTES = 4096  # a copy to the host of at most this much reads values; more is data
FREEING = ("cudaFree", "hipFree")  # wait for the device as well
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "graph")


@dataclass(frozen=True)
class Call:
    """A runtime call: when it began (trace clock), host ns before and in it, whether it waits for the device, only to
    read a value, whether it copies data between host and device, and the device work that it enqueued."""

    start_ns: int
    before_ns: float
    own_ns: float
    waits: bool
    reads: bool
    moves: bool
    kernel_ns: float | None
    kernel_start_ns: int
    stream: Any


@dataclass(frozen=True)
class Replay:
    """Calls of one rank in the order of their start; `pace` and `total_ns` as fitted to the unprofiled job."""

    calls: list[Call]
    pace: float
    total_ns: float
    gap_ns: float

    def without_reads(self, dropped: Sequence[tuple[int, int]] = ()) -> float:
        """Duration in ns, had the host never waited for a value to read, nor made the calls in `dropped` (sorted,
        disjoint spans of time). A span in which data is copied is more than reading, and stays."""
        moving = [call.start_ns for call in self.calls if call.moves]
        kept = [(a, b) for a, b in dropped if bisect_right(moving, b) == bisect_left(moving, a)]
        return duration(self.calls, self.pace, self.gap_ns, reads=False, dropped=kept)

    def late_ns(self) -> float:
        """What a host that launches at once would save, were there no waits for values: the time behind those is
        theirs."""
        return self.without_reads() - duration(self.calls, 0.0, self.gap_ns, reads=False)


def fit(calls: list[Call], wanted_ns: float) -> Replay | None:
    """The replay that lasts `wanted_ns`; None where no call launched anything.

    A window that is shorter than wanted even as recorded keeps its own duration, at a pace of 1; one whose device work
    alone is longer keeps that, at a pace of 0.
    """
    if not any(call.kernel_ns is not None for call in calls):
        return None
    low, high = 0.0, 1.0
    gap = spacing(calls)
    total = duration(calls, high, gap)
    if total > wanted_ns:
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if duration(calls, middle, gap) < wanted_ns else (low, middle)
        total = duration(calls, high, gap)
    return Replay(calls, high, total, gap)


def spacing(calls: Sequence[Call]) -> float:
    """Median time in ns between two pieces of work of a stream of which the second was launched long before: what the
    device itself needs between them (1.2 to 1.6 us on an H200); 0 where none was."""
    gaps: list[float] = []
    ended: dict[Any, float] = {}
    for call in sorted((c for c in calls if c.kernel_ns is not None), key=lambda c: c.kernel_start_ns):
        before = ended.get(call.stream)
        if before is not None and before - (call.start_ns + call.own_ns) > QUEUED_NS:
            gaps.append(max(0.0, call.kernel_start_ns - before))
        ended[call.stream] = call.kernel_start_ns + (call.kernel_ns or 0.0)
    return statistics.median(gaps) if gaps else 0.0


def read(tables: dict[str, Any]) -> list[Call]:
    """Runtime calls by start of the tables `runtime` and `gpu` (docs/formats.md), of the first rank and the threads that
    launch, joined to device work by correlation; host time between two calls is the later one's.

    All work of a graph's launch has its correlation and counts as one piece, from its first start to its last end. A copy
    of a value to pageable memory that blocks in its own call is a launch and a wait.
    """
    runtime, device = tables.get("runtime"), tables.get("gpu")
    if runtime is None or device is None or not runtime.num_rows or not device.num_rows:
        return []
    rank = min(runtime.column("rank").to_pylist())
    work = _device_work(device, rank)
    columns = ("ts_ns", "dur_ns", "name", "cat", "pid", "tid", "correlation")
    rows = [row for row in _rows(runtime, rank, columns) if row[0] is not None]
    launching = {(pid, tid) for _, _, _, _, pid, tid, correlation in rows if correlation in work}
    calls: list[Call] = []
    end: int | None = None
    after_value: dict[Any, bool] = {}
    for start, took, name, kind, pid, tid, correlation in sorted(rows, key=lambda row: row[0]):
        thread = (pid, tid)
        if thread not in launching or not str(kind).endswith(("_runtime", "_driver")):
            continue
        spent = took or 0
        before = 0 if end is None else max(0, start - end)
        end = start + spent if end is None else max(end, start + spent)
        done = work.get(correlation)
        synchronises = "Synchronize" in (name or "")
        blocks = done is not None and done.value and spent >= BLOCKING_COPY_NS
        waits = synchronises or name in FREEING
        calls.append(
            Call(
                start,
                float(before),
                0.0 if synchronises else RETURN_NS if blocks else float(spent),
                waits=waits,
                reads=waits and after_value.get(thread, False),
                moves=done is not None and done.moves,
                kernel_ns=float(done.end - done.start) if done is not None else None,
                kernel_start_ns=done.start if done is not None else 0,
                stream=done.stream if done is not None else None,
            )
        )
        if blocks:
            calls.append(
                Call(
                    start, 0.0, 0.0, waits=True, reads=True, moves=False, kernel_ns=None, kernel_start_ns=0, stream=None
                )
            )
        after_value[thread] = done is not None and done.value
    return calls


class _Work(NamedTuple):
    """Device work of one correlation: its span, where it ran, whether it reads a value, whether it moves data."""

    start: int
    end: int
    stream: Any
    value: bool
    moves: bool


def _device_work(device: Any, rank: int) -> dict[int, _Work]:
    """What each correlation of a rank started on the device."""
    work: dict[int, _Work] = {}
    names = ("correlation", "ts_ns", "dur_ns", "cat", "device", "stream", "name", "bytes")
    for correlation, begun, took, kind, place, stream, name, size in _rows(device, rank, names):
        if kind not in DEVICE_WORK or correlation is None or begun is None:
            continue
        end, small = begun + (took or 0), size is not None and size <= VALUE_BYTES
        if correlation in work:
            first = work[correlation]
            work[correlation] = first._replace(start=min(first.start, begun), end=max(first.end, end))
            continue
        to_host, from_host = "DtoH" in (name or ""), "HtoD" in (name or "")
        work[correlation] = _Work(
            begun, end, (place, stream), value=to_host and small, moves=(to_host or from_host) and not small
        )
    return work


def _rows(table: Any, rank: int, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows of one rank, a tuple of the columns each."""
    rows = zip(*(table.column(name).to_pylist() for name in ("rank", *columns)), strict=True)
    return [row[1:] for row in rows if row[0] == rank]


def duration(
    calls: Sequence[Call], pace: float, gap_ns: float, *, reads: bool = True, dropped: Sequence[tuple[int, int]] = ()
) -> float:
    """Replayed duration in ns: the host goes on at `pace` and waits for all streams where it did; a stream runs its work
    in order, each piece no earlier than it was launched and `gap_ns` after the one before."""
    host, last = 0.0, 0.0
    free: dict[Any, float] = {}
    spans, at = list(dropped), 0
    for call in calls:
        while at < len(spans) and spans[at][1] < call.start_ns:
            at += 1
        if at < len(spans) and spans[at][0] <= call.start_ns:
            begun = call.start_ns - call.before_ns  # what the host did before the span stays
            host += min(call.before_ns, max(0.0, spans[at][0] - begun)) * pace
            continue
        host += (call.before_ns + call.own_ns) * pace
        if call.waits:
            host = max(host, last) + RETURN_NS if reads or not call.reads else host
        elif call.kernel_ns is not None:
            done = max(host + LAUNCH_LATENCY_NS, free.get(call.stream, 0.0) + gap_ns) + call.kernel_ns
            free[call.stream] = done
            last = max(last, done)
    return max(host, last)
