"""The numbers of HolisticTraceAnalysis 0.5.0, its rounding and filters included, so that both can be compared. No view
of ours uses this.

What HTA does differently from the views (docs/traces.md explains the effects): times are float microseconds, starts
rounded up and ends down; every row that has a `stream` argument is a GPU event (synchronisation records and Triton's
operator rows among them); GPU events launched from the start of the last `ProfilerStep` on are dropped; the class of a
kernel comes from its name. Times here are microseconds, as in HTA. Source of the methods:
facebookresearch/HolisticTraceAnalysis (MIT), hta/analyzers. The code is ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import nesting
from scripts.trace.capture import CALL, OP, Capture, absent, codes, integers_of

Array = NDArray[Any]
COMPUTATION, COMMUNICATION, MEMORY, OTHER = "COMPUTATION", "COMMUNICATION", "MEMORY", "OTHER"
_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NOT_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
_MTIA_LAUNCH = "runFunction - job_prep_and_submit_for_execution"
_STATISTICS = ("cudaLaunchKernel", "cudaLaunchKernelExC", _MTIA_LAUNCH, "cudaMemcpyAsync", "cudaMemsetAsync")
_QUEUE = (
    *_STATISTICS,
    "cuLaunchKernel",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
)
KERNEL_WAIT_US = 30
_STATISTIC = ("sum", "max", "min", "mean", "std")


class Words:
    """A text column as codes and distinct words, so that millions of rows are millions of integers."""

    def __init__(self, code: Array, words: list[str]) -> None:
        self.code, self.words = code, words

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, row: int) -> str:
        return self.words[self.code[row]]

    def __iter__(self) -> Iterator[str]:
        return (self.words[code] for code in self.code.tolist())

    def where(self, test: Callable[[str], bool]) -> Array:
        """Rows whose word passes, tested once a word."""
        return np.array([test(word) for word in self.words] or [False])[self.code] if len(self) else np.zeros(0, bool)

    def isin(self, words: Collection[str]) -> Array:
        """Rows whose word is one of these."""
        return self.where(lambda word: word in words)

    def take(self, rows: Array) -> Words:
        """Those rows."""
        return Words(self.code[rows], self.words)

    @staticmethod
    def concatenate(parts: list[Words]) -> Words:
        """Rows of all parts, in order."""
        known: dict[str, int] = {}
        codes_ = [
            np.array([known.setdefault(word, len(known)) for word in part.words] or [0])[part.code] for part in parts
        ]
        return Words(np.concatenate(codes_), list(known))


@dataclass
class Rows:
    """Events of one rank as HTA keeps them: float microseconds rounded its way, stream -1 on the host."""

    start: Array
    end: Array
    name: Words
    cat: Words
    stream: Array
    correlation: Array
    pid: Words
    tid: Words
    bandwidth: Array

    @property
    def duration(self) -> Array:
        """May be negative: rounding makes it so for kernels within one microsecond."""
        return self.end - self.start

    def take(self, rows: Array) -> Rows:
        """Those rows (a mask or indices), in that order."""
        index = np.asarray(rows)
        index = np.flatnonzero(index) if index.dtype == bool else index
        fields: dict[str, Any] = {}
        for key in self.__dataclass_fields__:
            column = getattr(self, key)
            fields[key] = column.take(index) if isinstance(column, Words) else column[index]
        return Rows(**fields)


def rows(capture: Capture, rank: int, *, last_step: bool = False) -> tuple[Rows, Rows]:
    """(GPU rows, host rows) of a rank after HTA's filter of the last step, which `last_step=True` leaves out."""
    gpu, host = _read(capture, rank)
    mark = host.name.where(lambda name: "ProfilerStep" in name)
    marks = {host.name[row] for row in np.flatnonzero(mark).tolist()}
    if len(marks) < 2:
        return gpu, host
    device = (gpu.stream >= 0) & (gpu.correlation >= 0)
    synchronisation = gpu.name.isin(("Event Sync", "Context Sync"))
    stray = gpu.take(~device & ~synchronisation)
    gpu = gpu.take(device | synchronisation)
    limit = host.end[mark].max() if last_step else host.start[mark].max()
    host = host.take(host.start <= limit if last_step else host.start < limit)
    known = np.concatenate([host.correlation, stray.correlation])
    return gpu.take(np.isin(gpu.correlation, known)), host


def gpu_rows(capture: Capture, rank: int, *, last_step: bool = False) -> Rows:
    """The GPU rows alone."""
    return rows(capture, rank, last_step=last_step)[0]


def temporal_breakdown(gpu: Rows) -> dict[str, float]:
    """idle, compute, non_compute, kernel_time (us) and percentages; kernel_time is first start to last end.

    Raises ValueError without GPU rows.
    """
    if not len(gpu.start):
        raise ValueError("no GPU events")
    start, end = _merge(gpu.start, gpu.end)
    kernel_time = float(end[-1] - start[0])
    idle = kernel_time - float((end - start).sum())
    chosen = _of_type(gpu, COMPUTATION)
    begin, finish = _merge(gpu.start[chosen], gpu.end[chosen])
    compute = float((finish - begin).sum())
    rest = kernel_time - compute - idle
    found = {"idle_us": idle, "compute_us": compute, "non_compute_us": rest, "kernel_us": kernel_time}
    return {
        **found,
        **{f"{key[:-3]}_percent": round(100 * value / kernel_time, 2) for key, value in list(found.items())[:3]},
    }


def communication_overlap(gpu: Rows) -> float:
    """Percent of communication time during which a computation kernel ran; NaN without communication."""
    begin, finish = (
        _merge(gpu.start[chosen], gpu.end[chosen])
        for chosen in (_of_type(gpu, COMMUNICATION), _of_type(gpu, COMPUTATION))
    )
    total = float((begin[1] - begin[0]).sum())
    both = _running([begin, finish]).get(3, 0.0)
    return round(100 * both / total, 2) if total else float("nan")


def kernel_type_breakdown(ranks: list[Rows], *, memory: bool = False) -> list[dict[str, Any]]:
    """Time by type and by overlap of types (`COMPUTATION overlapping COMMUNICATION`), over all ranks, the longest
    first.
    """
    types = [COMPUTATION, COMMUNICATION, *([MEMORY] if memory else [])]
    total: dict[str, float] = {}
    for gpu in ranks:
        merged = [_merge(gpu.start[chosen], gpu.end[chosen]) for chosen in (_of_type(gpu, kind) for kind in types)]
        for value, length in _running(merged).items():
            label = " overlapping ".join(kind for bit, kind in enumerate(types) if value & (1 << bit))
            total[label] = total.get(label, 0.0) + length
    whole = sum(total.values())
    found = [
        {"kernel_type": kind, "sum": length, "percentage": round(100 * length / whole, 1)}
        for kind, length in total.items()
    ]
    return sorted(found, key=lambda row: -row["sum"])


def kernel_breakdown(
    ranks: dict[int, Rows], *, memory: bool = False, share: float = 0.8, most: int = 10
) -> list[dict[str, Any]]:
    """Statistics by kernel name, type and rank, small ones summed as `others`; sorted by (type, name, rank)."""
    found: list[dict[str, Any]] = []
    for rank, gpu in ranks.items():
        for kind in (COMPUTATION, COMMUNICATION, *((MEMORY,) if memory else ())):
            chosen = np.flatnonzero(_of_type(gpu, kind))
            grouped = aggregate(gpu.name.take(chosen), gpu.duration[chosen], share=share, most=most)
            found += [{**row, "kernel_type": kind, "rank": rank} for row in grouped]
    return sorted(found, key=lambda row: (row["kernel_type"], row["name"], row["rank"]))


def aggregate(
    names: Words, duration: Array, *, share: float, most: int, kept: set[str] | None = None
) -> list[dict[str, Any]]:
    """Statistics by name.

    With more than `most` names those past the `share` quantile of the running sum, or past the first `most`, become
    `others`.
    """
    used, code = np.unique(names.code, return_inverse=True)
    words = [names.words[one] for one in used.tolist()]
    count = np.bincount(code, minlength=len(words))
    total = np.bincount(code, duration, len(words))
    top, low = np.full(len(words), -np.inf), np.full(len(words), np.inf)
    np.maximum.at(top, code, duration)
    np.minimum.at(low, code, duration)
    square = np.bincount(code, (duration - (total / np.maximum(count, 1))[code]) ** 2, len(words))
    spread = np.sqrt(np.divide(square, count - 1, out=np.zeros(len(words)), where=count > 1))
    order = np.argsort(-total, kind="stable").tolist()
    mean = total / np.maximum(count, 1)
    columns = (total, top, low, mean, spread)
    rows: list[dict[str, Any]] = [
        dict(zip(("name", *_STATISTIC), (str(words[i]), *(float(one[i]) for one in columns)))) for i in order
    ]
    if len(rows) <= most:
        return rows
    running = np.cumsum(total[order])
    limit = np.quantile(running, share)
    groups: dict[str, list[float]] = {}
    for index, row in enumerate(rows):
        hidden = (running[index] > limit or index >= most) and row["name"] not in (kept or ())
        groups.setdefault("others" if hidden else row["name"], []).append(row["sum"])
    return [dict(zip(("name", *_STATISTIC), (name, *_of(sums)))) for name, sums in sorted(groups.items())]


def _of(sums: list[float]) -> tuple[float, ...]:
    spread = float(np.std(sums, ddof=1)) if len(sums) > 1 else 0.0
    return sum(sums), max(sums), min(sums), sum(sums) / len(sums), spread


def launch_statistics(gpu: Rows, host: Rows) -> list[dict[str, float]]:
    """Duration of the launch call, of the kernel, and the delay between them (at least 0), by correlation."""
    calls = {}
    for i in np.flatnonzero(host.name.isin(_STATISTICS)).tolist():
        calls[int(host.correlation[i])] = i
    found = []
    for i, correlation in enumerate(gpu.correlation.tolist()):
        call = calls.get(int(correlation))
        if call is not None and correlation >= 0:
            delay = gpu.start[i] - host.end[call]
            found.append(
                {
                    "correlation": int(correlation),
                    "cpu_duration": float(host.duration[call]),
                    "gpu_duration": float(gpu.duration[i]),
                    "launch_delay": max(float(delay), 0.0),
                }
            )
    return found


def queue_length(gpu: Rows, host: Rows) -> dict[int, tuple[Array, Array]]:
    """For each stream the instants at which its queue of launched work changes, and the length from then on."""
    on_gpu = {int(c): i for i, c in enumerate(gpu.correlation.tolist()) if c > 0}
    calls = [i for i in np.flatnonzero(host.name.isin(_QUEUE)).tolist() if int(host.correlation[i]) in on_gpu]
    launched = {int(host.correlation[i]) for i in calls}
    kernels = [i for i, c in enumerate(gpu.correlation.tolist()) if int(c) in launched]
    stream = np.array(
        [gpu.stream[on_gpu[int(host.correlation[i])]] for i in calls] + [gpu.stream[i] for i in kernels], np.int64
    )
    when = np.concatenate([host.start[calls], gpu.start[kernels]]) if calls else np.empty(0)
    change = np.concatenate([np.ones(len(calls), np.int64), -np.ones(len(kernels), np.int64)])
    order = np.argsort(when, kind="stable")
    found = {}
    for one in np.unique(stream).tolist():
        mine = order[stream[order] == one]
        found[int(one)] = (when[mine], np.cumsum(change[mine]))
    return found


def blocked_on_queue(
    series: dict[int, tuple[Array, Array]], least: int, trace_us: float
) -> dict[int, tuple[float, float]]:
    """By stream the time with at least that many waiting, and its share of the trace.

    Streams without any are left out.
    """
    found = {}
    for stream, (when, length) in series.items():
        full = np.flatnonzero(length >= least)
        if len(full):
            until = np.append(when[1:], np.nan)
            spent = float(np.nansum(until[full] - when[full]))
            found[stream] = (spent, spent / trace_us)
    return found


def idle_breakdown(gpu: Rows, host: Rows) -> list[dict[str, Any]]:
    """By stream the time between consecutive kernels.

    Host_wait (launched after the previous one ended), kernel_wait (under 30 us), other.
    """
    launched = {int(c): host.start[i] for i, c in enumerate(host.correlation.tolist()) if c > 0}
    gpu = gpu.take(~gpu.cat.isin(("cuda_sync", "cpu_op")))
    found = []
    for stream in dict.fromkeys(gpu.stream.tolist()):
        mine = np.flatnonzero(gpu.stream == stream)
        mine = mine[np.argsort(gpu.start[mine], kind="stable")]
        gap = gpu.start[mine][1:] - gpu.end[mine][:-1]
        call = np.array([launched.get(int(c), np.nan) for c in gpu.correlation[mine][1:].tolist()], np.float64)
        late = call > gpu.end[mine][:-1]
        kind = np.where(late, "host_wait", np.where(gap < KERNEL_WAIT_US, "kernel_wait", "other"))
        total = float(gap.sum())
        for name in ("host_wait", "kernel_wait", "other"):
            spent = float(gap[kind == name].sum())
            if (kind == name).any() or name == "other":  # the first kernel has no gap, and HTA files it under other
                found.append(
                    {
                        "stream": int(stream),
                        "idle_category": name,
                        "idle_time": round(spent, 2),
                        "idle_time_ratio": round(spent / total, 2) if total else float("nan"),
                    }
                )
    return found


def memory_bandwidth(gpu: Rows) -> dict[str, tuple[Array, Array]]:
    """By kind of copy the instants at which its bandwidth changes, and the GB/s from then on."""
    chosen = _of_type(gpu, MEMORY)
    found = {}
    for kind in sorted({_copy_kind(gpu.name[row]) for row in np.flatnonzero(chosen).tolist()}):
        mine = np.flatnonzero(chosen & gpu.name.isin([name for name in gpu.name.words if _copy_kind(name) == kind]))
        length = np.where(gpu.duration[mine] == 0, 1, gpu.duration[mine])
        when = np.concatenate([gpu.start[mine], gpu.start[mine] + length])
        rate = np.concatenate([gpu.bandwidth[mine], -gpu.bandwidth[mine]])
        order = np.argsort(when, kind="stable")
        found[kind] = (when[order], np.cumsum(rate[order]))
    return found


def operator_delays(gpu: Rows, host: Rows) -> list[dict[str, Any]]:
    """By (innermost aten operator around the launch, sequence of its kernels).

    Count, mean delay from operator to launch, from launch to kernel.
    """
    aten = np.flatnonzero(host.name.where(lambda name: name.startswith("aten::")))
    aten = aten[np.argsort(host.start[aten], kind="stable")]
    start, end = host.start[aten], host.end[aten]
    kernel_of = {int(c): i for i, c in enumerate(gpu.correlation.tolist()) if c >= 0}
    launch = re.compile(r"LaunchKernel|runFunction - job_prep_and_submit|Memcpy|Memset")
    calls: dict[tuple[str, float, str], list[tuple[float, float, str]]] = {}
    runtime = host.cat.where(lambda cat: cat.endswith(("_runtime", "_driver", "Runtime")))
    for i in np.flatnonzero(runtime & host.name.where(lambda name: bool(launch.search(name)))).tolist():
        kernel = kernel_of.get(int(host.correlation[i]))
        place = int(np.searchsorted(start, host.start[i], side="right")) - 1
        while place >= 0 and end[place] < host.end[i]:
            place -= 1
        if kernel is None or place < 0:
            continue
        op = int(aten[place])
        calls.setdefault((host.tid[op], float(host.start[op]), host.name[op]), []).append(
            (float(host.start[i] - host.start[op]), float(gpu.start[kernel] - host.start[i]), gpu.name[kernel])
        )
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (_, _, name), launches in sorted(calls.items()):
        groups.setdefault((name, " -> ".join(kernel for *_, kernel in launches)), []).append(launches[0][:2])
    found = [
        {
            "op": op,
            "kernels": kernels,
            "count": len(delays),
            "launch_delay": round(float(np.mean([d[0] for d in delays])), 3),
            "runtime_delay": round(float(np.mean([d[1] for d in delays])), 3),
        }
        for (op, kernels), delays in groups.items()
    ]
    return sorted(found, key=lambda row: (-row["count"], -row["launch_delay"]))


def annotation_breakdown(
    host: Rows, *, gpu: bool, share: float = 0.8, most: int = 1000, allow: str | None = None
) -> list[dict[str, Any]]:
    """Statistics of the annotations of the GPU or the host by name.

    Names that match `allow` are never summed as `others`.
    """
    chosen = np.flatnonzero(host.cat.isin(("gpu_user_annotation" if gpu else "user_annotation",)))
    names = host.name.take(chosen)
    kept = {name for name in names if allow and re.search(allow, name)}
    return aggregate(names, host.duration[chosen], share=share, most=most, kept=kept)


def annotated_kernels(gpu: Rows, host: Rows) -> list[str | None]:
    """For each GPU row the shortest GPU annotation on its track that meets it, None without."""
    found: list[str | None] = [None] * len(gpu.start)
    notes = np.flatnonzero(host.cat.isin(("gpu_user_annotation",))).tolist()
    track = list(zip(gpu.pid, gpu.tid))
    for i in sorted(notes, key=lambda i: -host.duration[i]):
        meets = (gpu.start < host.end[i]) & (gpu.end > host.start[i])
        for row in np.flatnonzero(meets).tolist():
            if track[row] == (host.pid[i], host.tid[i]):
                found[row] = host.name[i]
    return found


def memory_categories(events: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Of the raw export of torch's memory timeline ([time, action, bytes, category]).

    Instants, and the bytes of each of the 8 categories from then on.
    """
    times: list[int] = []
    sizes: list[list[int]] = []
    for when, _, count, category in events:
        if not times or when != times[-1]:
            times.append(when)
            sizes.append(list(sizes[-1]) if sizes else [0] * 8)
        sizes[-1][category] += count
    return times, sizes


def performance_counters(capture: Capture) -> list[dict[str, Any]]:
    """CUPTI counters of each profiled range: name, start, one key a counter, and the operators around the launch.

    Ranges carry no correlation: the n-th range is the n-th launch of a kernel. Empty without ranges.
    """
    table = capture.table("counter", ["ts_ns", "name", "cat", "series", "value"])
    ranges: dict[tuple[int, str], dict[str, Any]] = {}
    for row in table.to_pylist():
        if row["cat"] == "cuda_profiler_range":
            known = ranges.setdefault((row["ts_ns"], row["name"]), {"start_ns": row["ts_ns"], "name": row["name"]})
            known[row["series"]] = row["value"]
    host = capture.host
    launches = np.flatnonzero(host.flag(lambda name: "LaunchKernel" in name) & (host.kind == CALL))
    launches = launches[np.argsort(host.start[launches], kind="stable")]
    found = sorted(ranges.values(), key=lambda row: row["start_ns"])
    if len(launches) == len(found):
        for row, launch in zip(found, launches.tolist()):
            for key, op in (("top_level_op", host.top_op[launch]), ("bottom_level_op", host.op[launch])):
                row[key] = host.names[host.name[op]] if op >= 0 else None
    return found


def kernel_sequences(capture: Capture, operator: str, *, least: int = 3) -> list[dict[str, Any]]:
    """Sequences of at least so many kernels under the outermost operators whose name contains `operator`, the frequent
    first.
    """
    host, gpu = capture.host, capture.gpu
    roots = nesting.outermost(host.flag(lambda name: operator in name) & (host.kind == OP), host.parent)
    launch = capture.launch
    root = np.where(launch >= 0, roots[np.maximum(launch, 0)], -1)
    kernels: dict[int, list[int]] = {}
    for event in np.flatnonzero(root >= 0).tolist():
        kernels.setdefault(int(root[event]), []).append(event)
    counts: dict[tuple[str, ...], list[int]] = {}
    for one, events in kernels.items():
        if len(events) >= least:
            pattern = (host.names[host.name[one]], *(gpu.names[gpu.name[event]] for event in events))
            length = int((gpu.end - gpu.start)[events].sum())
            total = counts.setdefault(pattern, [0, 0, 0])
            total[:] = total[0] + 1, total[1] + length, total[2] + int(host.end[one] - host.start[one])
    found = [
        {"pattern": pattern, "count": count, "gpu_ns": gpu_ns, "cpu_ns": cpu_ns}
        for pattern, (count, gpu_ns, cpu_ns) in counts.items()
    ]
    return sorted(found, key=lambda row: (-row["count"], row["pattern"]))


def kernel_type(name: str) -> str:
    """HTA's class of a GPU event, from its name."""
    if _COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NOT_COMPUTE.match(name) else COMPUTATION


def _of_type(gpu: Rows, kind: str) -> Array:
    return gpu.name.where(lambda name: kernel_type(name) == kind)


def _copy_kind(name: str) -> str:
    return "Memset" if name.startswith("Memset") else name[:11] if name.startswith("Memcpy") else "Memcpy Unknown"


def _merge(start: Array, end: Array) -> tuple[Array, Array]:
    """HTA's union: intervals that rounding made negative take part, and can shorten it."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    new = np.append(True, start[1:] > np.maximum.accumulate(end)[:-1])
    heads = np.flatnonzero(new)
    return start[heads], np.maximum.reduceat(end, heads)


def _running(merged: list[tuple[Array, Array]]) -> dict[int, float]:
    """Time in each combination of the sets, as a bit mask; 0 (none) left out."""
    edges = np.concatenate([side for one in merged for side in one])
    steps = np.concatenate(
        [np.full(len(one[0]), sign * (1 << bit)) for bit, one in enumerate(merged) for sign in (1, -1)]
    )
    order = np.argsort(edges, kind="stable")
    running = np.cumsum(steps[order])[:-1].astype(int)
    length = np.diff(edges[order])
    return {int(value): float(length[running == value].sum()) for value in np.unique(running) if value > 0}


def _microseconds(nanoseconds: Array) -> Array:
    """The double nearest to the decimal in the trace; ns since 1970 do not fit a double, whole microseconds do."""
    whole = nanoseconds // 1000
    return whole + (nanoseconds - whole * 1000) / 1000.0


def _read(capture: Capture, rank: int) -> tuple[Rows, Rows]:
    wanted = {"gpu": ["stream", "correlation", "bandwidth"], "runtime": ["stream", "correlation"], "cpu_op": ["args"]}
    parts = [_table(capture, rank, name, wanted.get(name, [])) for name in (*wanted, "annotation", "python")]
    start, end, stream, correlation, rate = (
        np.concatenate([getattr(part, key) for part in parts])
        for key in ("start", "end", "stream", "correlation", "bandwidth")
    )
    name, cat, pid, tid = (
        Words.concatenate([getattr(part, key) for part in parts]) for key in ("name", "cat", "pid", "tid")
    )
    everything = Rows(start, end, name, cat, stream, correlation, pid, tid, rate)
    device = everything.stream != -1
    return everything.take(device), everything.take(~device)


def _table(capture: Capture, rank: int, name: str, extra: list[str]) -> Rows:
    table = capture.table(name, ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid", *extra])
    category, cats = codes(table, "cat")
    kept = np.flatnonzero(
        (integers_of(table, "rank") == rank)
        & ~absent(table, "dur_ns")
        & ~np.array([cat in ("Trace", "overhead") for cat in cats])[category]
    )
    start_us = _microseconds(integers_of(table, "ts_ns")[kept])
    end_us = start_us + _microseconds(integers_of(table, "dur_ns")[kept])
    words = {}
    for key in ("name", "cat", "pid", "tid"):
        code, distinct = codes(table, key)
        words[key] = Words(code[kept], distinct)
    stream, correlation = integers_of(table, "stream")[kept], integers_of(table, "correlation")[kept]
    if "args" in extra:  # Triton's operator rows carry the stream that they launch on
        for place, text in enumerate(table["args"].take(kept).to_pylist()):
            if text and '"stream"' in text:
                stream[place] = int(json.loads(text).get("stream", -1))
    rate = table["bandwidth"].take(kept).to_numpy().astype(float) if "bandwidth" in extra else np.zeros(len(kept))
    return Rows(
        np.ceil(start_us),
        np.floor(end_us),
        words["name"],
        words["cat"],
        stream,
        correlation,
        words["pid"],
        words["tid"],
        np.nan_to_num(rate),
    )
