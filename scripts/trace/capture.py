"""One parsed trace as numpy columns: GPU events, host events nested by thread, steps, and who launched what.

Every view starts here. Columns are loaded and derived on first use, so that a view of GPU events alone never reads host
events. Cost: the host side sorts and sweeps all host events once (about 0.5 microseconds an event); the GPU side is
linear in its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scripts.common.errors import InputError
from scripts.trace import intervals, nesting
from scripts.trace.frames import (
    BACKWARD,
    DATA,
    FORWARD,
    NO_PHASE,
    OTHER,
    STEP_MARKS,
    Frame,
    is_engine,
    is_module,
    parse_frame,
    phase_of_annotation,
    phase_of_frame,
)

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[Any]
Read = Callable[[str, list[str]], "pa.Table"]

KERNEL, MEMCPY, MEMSET = 0, 1, 2
ANNOTATION, PYTHON, OP, CALL = 0, 1, 2, 3
COPIES = {"gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET}
# Kernels of NCCL, RCCL, oneCCL, and of the custom all-reduce of vLLM and SGLang, which carry no collective arguments.
COMMUNICATION = ("nccl", "rccl", "oneccl", "cross_device_reduce", "custom_all_reduce", "allreduce_fusion")


@dataclass
class Gpu:
    """GPU activity sorted by (rank, start): kernels, copies, fills. Times in ns; -1 where an argument is absent."""

    rank: Ints
    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    names: list[str]
    communication: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    external_id: Ints
    bytes: Ints
    row: Ints  # row in the class's own table

    def __len__(self) -> int:
        return len(self.start)


@dataclass
class Host:
    """Host events of all threads, sorted by (thread, start, longest first), and what encloses each one (indices, -1
    none).
    """

    thread: Ints
    kind: Ints
    start: Ints
    end: Ints
    name: Ints
    names: list[str]
    row: Ints  # row in the class's own table
    parent: Ints
    threads: list[tuple[int, str, str]]  # (rank, pid, tid)
    main: dict[int, int]  # rank -> thread
    frames: list[Frame | None]  # per name
    first_row: dict[int, Ints]  # kind -> index by row, -1 where the row is no host event
    marks: dict[str, Ints]  # step marks: thread, name, start, end by start; they are windows, not part of the nesting

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def rank(self) -> Ints:
        """Rank of each event."""
        return np.array([rank for rank, _, _ in self.threads], np.int32)[self.thread] if len(self) else self.thread

    @cached_property
    def _segments(self) -> tuple[Ints, Ints, Ints]:
        return nesting.segments(self.thread, self.start, self.end)

    @cached_property
    def segment_bounds(self) -> dict[int, tuple[int, int]]:
        """For each thread the range of its segments."""
        threads = self.thread[self._segments[2]]
        edges = np.searchsorted(threads, np.arange(len(self.threads) + 1))
        return {thread: (int(edges[thread]), int(edges[thread + 1])) for thread in range(len(self.threads))}

    def segments(self, thread: int) -> tuple[intervals.Merged, Ints]:
        """Disjoint sorted pieces of a thread's time and the innermost event of each."""
        low, high = self.segment_bounds[thread]
        start, end, event = self._segments
        return (start[low:high], end[low:high]), event[low:high]

    @cached_property
    def all_segments(self) -> tuple[Ints, Ints, Ints]:
        """(start, end, innermost event) of all threads."""
        return self._segments

    @cached_property
    def self_ns(self) -> Ints:
        """Time in which an event is the innermost one of its thread."""
        start, end, event = self._segments
        return np.bincount(event, end - start, len(self)).astype(np.int64)

    @cached_property
    def op(self) -> Ints:
        """Innermost operator around each event, itself included."""
        return nesting.inherit(self.kind == OP, self.parent)

    @cached_property
    def top_op(self) -> Ints:
        """Outermost operator around each event."""
        return nesting.outermost(self.kind == OP, self.parent)

    @cached_property
    def call(self) -> Ints:
        """Innermost runtime call around each event."""
        return nesting.inherit(self.kind == CALL, self.parent)

    @cached_property
    def annotation(self) -> Ints:
        """Innermost annotation (step marks are none)."""
        return nesting.inherit(self.kind == ANNOTATION, self.parent)

    @cached_property
    def frame(self) -> Ints:
        """Innermost python frame."""
        return nesting.inherit(
            (self.kind == PYTHON) & self._flags([f is not None and not f.builtin for f in self.frames]), self.parent
        )

    @cached_property
    def own(self) -> Ints:
        """Innermost python frame of the job's own source."""
        return nesting.inherit(
            (self.kind == PYTHON) & self._flags([f is not None and f.own for f in self.frames]), self.parent
        )

    @cached_property
    def module(self) -> Ints:
        """Innermost nn.Module."""
        return nesting.inherit((self.kind == PYTHON) & self.flag(is_module), self.parent)

    @cached_property
    def module_types(self) -> tuple[Ints, list[str]]:
        """For each name the code of its module type (`nn.Module: Linear_3` -> `Linear`), -1 for other names.

        And the types.
        """
        types: dict[str, int] = {}
        found = np.full(len(self.names) + 1, -1, np.int64)
        for code, name in enumerate(self.names):
            if is_module(name):
                word = name.removeprefix("nn.Module: ").rpartition("_")[0]
                found[code] = types.setdefault(word, len(types))
        return found, list(types)

    def module_type(self, events: Ints) -> Ints:
        """Code of the type of the innermost module around each event, -1 for none."""
        events = np.asarray(events)
        if not len(self):
            return np.full(len(events), -1, np.int64)
        module = np.where(events >= 0, self.module[np.maximum(events, 0)], -1)
        return np.where(module >= 0, self.module_types[0][self.name[np.maximum(module, 0)]], -1)

    @cached_property
    def grad(self) -> Ints:
        """Innermost node of the autograd engine."""
        return nesting.inherit((self.kind == OP) & self.flag(is_engine), self.parent)

    def flag(self, test: Callable[[str], bool]) -> Ints:
        """`test(name)` of each event, evaluated once a distinct name."""
        return self._flags([test(name) for name in self.names])

    def _flags(self, values: list[bool]) -> Ints:
        return np.array(values, bool)[self.name] if len(self) else np.zeros(0, bool)


@dataclass
class Steps:
    """Windows of the steps of one rank. `start` and `end` are the GPU side where the rank has GPU events in it."""

    source: str
    window: str
    number: Ints
    label: list[str]
    start: Ints
    end: Ints
    cpu_start: Ints
    cpu_end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def of(self, at: Ints, cpu: bool = True) -> Ints:
        """Index of the step that each instant lies in, -1 outside; by the marks, or by the windows with `cpu=False`."""
        start, end = (self.cpu_start, self.cpu_end) if cpu else (self.start, self.end)
        if len(start) == 0:
            return np.full(len(at), -1, np.int64)
        index = np.searchsorted(start, at, side="right") - 1
        return np.where((index >= 0) & (at < end[np.maximum(index, 0)]), index, -1)


class Capture:
    """A parsed trace, all ranks.

    `read(class, columns)` gives the table of an event class; `devices` is `deviceProperties`.
    """

    def __init__(self, read: Read, devices: list[dict[str, Any]] | None = None) -> None:
        self._read = read
        self.devices = devices or []
        self.losses: list[str] = []

    @classmethod
    def open(cls, folder: str | Path) -> Capture:
        """The parsed trace in a folder that `scripts.trace.parse` wrote. Raises InputError where there is none."""
        from scripts.trace import dataset

        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; write it with `python -m scripts.trace.parse TRACE -o DIR`")
        quality = dataset.quality(folder)
        several = len(quality.get("ranks", [])) > 1

        def read(name: str, columns: list[str]) -> pa.Table:
            return dataset.read(folder, name, columns, aligned=several)

        capture = cls(read, _devices(quality))
        capture.losses = _losses(quality)
        return capture

    def table(self, name: str, columns: list[str]) -> pa.Table:
        """Columns of an event class, sorted by (rank, ts_ns)."""
        return self._read(name, columns)

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks that have any GPU or host event."""
        return sorted(set(np.unique(self.gpu.rank).tolist()) | {rank for rank, _, _ in self.host.threads})

    @cached_property
    def gpu(self) -> Gpu:
        """Kernels, copies and fills. Annotations and synchronisation records on GPU tracks are not activity."""
        table = self.table(
            "gpu",
            [
                "rank",
                "ts_ns",
                "dur_ns",
                "name",
                "cat",
                "device",
                "stream",
                "correlation",
                "external_id",
                "bytes",
                "collective",
            ],
        )
        category, cats = codes(table, "cat")
        kinds = np.array([COPIES.get(cat.lower(), KERNEL) for cat in cats], np.int8)[category]
        kept = np.flatnonzero(~absent(table, "dur_ns"))
        start = integers_of(table, "ts_ns")[kept]
        name, names = codes(table, "name")
        communication = (talks(names)[name] | ~absent(table, "collective"))[kept] & (kinds[kept] == KERNEL)
        return Gpu(
            rank=integers_of(table, "rank")[kept],
            start=start,
            end=start + np.maximum(integers_of(table, "dur_ns")[kept], 0),
            kind=kinds[kept],
            name=name[kept],
            names=names,
            communication=communication,
            row=kept,
            **{
                key: integers_of(table, key)[kept]
                for key in ("device", "stream", "correlation", "external_id", "bytes")
            },
        )

    @cached_property
    def host(self) -> Host:
        """Annotations, python frames, operators and runtime calls, nested."""
        return _host(self)

    @cached_property
    def op_columns(self) -> pa.Table:
        """External id, sequence and input arguments of the operators, by row."""
        return self.table(
            "cpu_op", ["external_id", "sequence", "forward_thread", "input_dims", "input_types", "concrete_inputs"]
        )

    @cached_property
    def sequence(self) -> Ints:
        """Autograd sequence number of each host event, -1 none."""
        host = self.host
        found = np.full(len(host), -1, np.int64)
        rows = host.first_row.get(OP, np.empty(0, np.int64))
        found[rows[rows >= 0]] = integers_of(self.op_columns, "sequence")[rows >= 0]
        return found

    @cached_property
    def forward(self) -> Ints:
        """For each host event inside the autograd engine the forward operator that made its node, -1 unknown.

        The node takes the sequence number that was current, so its maker is the last operator outside the engine that
        started with it.
        """
        host, sequence = self.host, self.sequence
        found = np.full(len(host), -1, np.int32)
        nodes = np.flatnonzero(host.grad == np.arange(len(host)))
        makers = np.flatnonzero((host.kind == OP) & (host.grad < 0) & (sequence >= 0))
        if len(nodes) == 0 or len(makers) == 0:
            return found
        span = int(sequence.max()) + 2
        key = host.rank[makers].astype(np.int64) * span + sequence[makers]
        order = np.lexsort((host.start[makers], key))
        key, makers = key[order], makers[order]
        wanted = host.rank[nodes].astype(np.int64) * span + sequence[nodes]
        place = np.searchsorted(key, wanted, side="right") - 1
        good = (place >= 0) & (key[np.maximum(place, 0)] == wanted) & (sequence[nodes] >= 0)
        node_forward = np.full(len(host), -1, np.int32)
        node_forward[nodes[good]] = makers[place[good]]
        inside = host.grad >= 0
        found[inside] = node_forward[host.grad[inside]]
        return found

    @cached_property
    def phase(self) -> Ints:
        """Phase of each host event: an index into PHASES."""
        host = self.host
        by_name = np.zeros((4, len(host.names) + 1), np.int8)
        for code, (name, frame) in enumerate(zip(host.names, host.frames)):
            by_name[ANNOTATION, code] = phase_of_annotation(name)
            by_name[PYTHON, code] = phase_of_frame(name, frame)
            by_name[OP, code] = BACKWARD if is_engine(name) else NO_PHASE
        own = by_name[host.kind, host.name]
        found = nesting.inherit_value(own, host.parent, 1 << BACKWARD | 1 << DATA)
        differentiated = np.unique(self.forward[self.forward >= 0])
        marked = np.zeros(len(host), bool)
        marked[host.top_op[differentiated]] = True
        under = nesting.inherit(marked, host.parent) >= 0
        found[(found == NO_PHASE) & under] = FORWARD
        if not (found == BACKWARD).any():  # inference: an operator outside every other phase is the model's
            found[(found == NO_PHASE) & (host.op >= 0)] = FORWARD
        return self._surrounded(np.where(found == NO_PHASE, OTHER, found))

    def _surrounded(self, phase: Ints) -> Ints:
        """Without python frames an operator without gradient between two forward operators is forward as well."""
        from scripts.trace.timeline import surroundings

        host = self.host
        for thread in host.main.values():
            mine = np.flatnonzero((host.thread == thread) & (host.kind >= OP))
            if len(mine):
                phase[mine] = surroundings(phase[mine], (phase[mine] == OTHER) & (host.frame[mine] < 0))
        return phase

    @cached_property
    def launch(self) -> Ints:
        """For each GPU event the host index of the runtime call that launched it, -1 unknown."""
        gpu, host = self.gpu, self.host
        rows = host.first_row.get(CALL, np.empty(0, np.int64))
        calls = rows[rows >= 0]
        correlation = integers_of(self.table("runtime", ["correlation"]), "correlation")[rows >= 0]
        weak = ~host.flag(lambda n: any(w in n.lower() for w in ("launch", "memcpy", "memset", "mtia")))[calls]
        return _join(
            host.rank[calls],
            np.where(correlation > 0, correlation, -1),
            calls,
            wanted_rank=gpu.rank,
            wanted=gpu.correlation,
            prefer=~weak,
        )

    @cached_property
    def context(self) -> Ints:
        """For each GPU event the host event to read operator, frame and phase from.

        Its launch, else the operator of its external id.
        """
        gpu, host = self.gpu, self.host
        launch = self.launch
        orphan = (launch < 0) | (host.op[np.maximum(launch, 0)] < 0) if len(host) else launch < 0
        if not orphan.any() or not len(host):
            return launch
        rows = host.first_row.get(OP, np.empty(0, np.int64))
        ops = rows[rows >= 0]
        external = integers_of(self.op_columns, "external_id")[rows >= 0]
        known = np.where(external > 0, external, -1)
        by_id = _join(host.rank[ops], known, ops, wanted_rank=gpu.rank, wanted=gpu.external_id, prefer=None)
        return np.where(orphan & (by_id >= 0), by_id, launch).astype(np.int32)

    @cached_property
    def attributed(self) -> list[str]:
        """How each GPU event found its operator: correlation, external_id, graph or none."""
        host, launch, context = self.host, self.launch, self.context
        if not len(host):
            return ["none"] * len(self.gpu)
        graph = host.flag(lambda n: "GraphLaunch" in n)
        words = np.where(context < 0, "none", np.where(context != launch, "external_id", "correlation"))
        replayed = (launch >= 0) & graph[np.maximum(launch, 0)]
        return np.where(replayed, "graph", words).tolist()

    @cached_property
    def steps(self) -> dict[int, Steps]:
        """Step windows of each rank; without marks one window, the capture."""
        from scripts.trace.windows import steps

        return {rank: steps(self, rank) for rank in self.ranks}

    def rows(self, rank: int) -> slice:
        """Rows of a rank in the GPU columns."""
        low, high = np.searchsorted(self.gpu.rank, [rank, rank + 1])
        return slice(int(low), int(high))

    def span(self, rank: int) -> tuple[int, int]:
        """The window that totals refer to: all steps from first to last."""
        steps = self.steps[rank]
        return int(steps.start.min()), int(steps.end.max())

    def step_of(self, rank: Ints, at: Ints) -> Ints:
        """Index of the step (by the marks of the rank) of each host instant, -1 outside."""
        found = np.full(len(at), -1, np.int64)
        for one, steps in self.steps.items():
            mine = rank == one
            found[mine] = steps.of(at[mine])
        return found

    @cached_property
    def gpu_step(self) -> Ints:
        """Step of each GPU event: the one that launched it, else the window that it starts in."""
        gpu, host = self.gpu, self.host
        found = np.full(len(gpu), -1, np.int64)
        for rank, steps in self.steps.items():
            rows = self.rows(rank)
            found[rows] = steps.of(gpu.start[rows], cpu=False)
            launch = self.launch[rows]
            known = launch >= 0
            found[rows][known] = steps.of(host.start[launch[known]])
        return found


def talks(names: list[str]) -> Ints:
    """Which kernel names are those of communication libraries."""
    return np.array([any(word in name.lower() for word in COMMUNICATION) for name in names] or [False])


def _host(capture: Capture) -> Host:
    columns = ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid"]
    parts: list[dict[str, Ints]] = []
    names: dict[str, int] = {}
    threads: dict[tuple[int, str, str], int] = {}
    totals = {}
    for kind, table_name in ((ANNOTATION, "annotation"), (PYTHON, "python"), (OP, "cpu_op"), (CALL, "runtime")):
        table: pa.Table = capture.table(table_name, columns)
        totals[kind] = table.num_rows
        if not table.num_rows:
            continue
        kept = _kept(table, kind)
        local, words = codes(table, "name")
        clean = np.array([names.setdefault(_without_address(word), len(names)) for word in words] or [0], np.int32)
        rank = integers_of(table, "rank")
        pid, pids = codes(table, "pid")
        tid, tids = codes(table, "tid")
        key = (rank * len(pids) + pid) * len(tids) + tid
        distinct, inverse = np.unique(key[kept], return_inverse=True)
        ids = [
            threads.setdefault(
                (int(k // (len(pids) * len(tids))), pids[k // len(tids) % len(pids)], tids[k % len(tids)]), len(threads)
            )
            for k in distinct.tolist()
        ]
        start = integers_of(table, "ts_ns")[kept]
        end = start + np.maximum(integers_of(table, "dur_ns")[kept], 0)
        if kind == ANNOTATION:
            end = np.minimum(end, np.maximum(_recorded_until(table)[rank[kept]], start)) if len(kept) else end
        parts.append(
            {
                "thread": np.array(ids or [0], np.int32)[inverse],
                "kind": np.full(len(kept), kind, np.int8),
                "start": start,
                "end": end,
                "name": clean[local[kept]],
                "row": kept,
            }
        )
    merged: dict[str, Ints] = {
        key: np.concatenate([part[key] for part in parts]) if parts else np.empty(0, dtype)
        for key, dtype in (
            ("thread", np.int32),
            ("kind", np.int8),
            ("start", np.int64),
            ("end", np.int64),
            ("name", np.int32),
            ("row", np.int64),
        )
    }
    order = np.lexsort((merged["kind"], -merged["end"], merged["start"], merged["thread"]))
    is_mark = np.array([bool(STEP_MARKS.match(name)) for name in names] or [False])[merged["name"]] & (
        merged["kind"] != PYTHON
    )
    marks = np.flatnonzero(is_mark)
    marks = marks[np.argsort(merged["start"][marks], kind="stable")]
    marked = {key: merged[key][marks] for key in ("thread", "name", "start", "end")}
    order = order[~is_mark[order]]
    merged = {key: values[order] for key, values in merged.items()}
    first_row = {}
    for kind, total in totals.items():
        mine = np.flatnonzero(merged["kind"] == kind)
        place = np.full(total, -1, np.int64)
        place[merged["row"][mine]] = mine
        first_row[kind] = place
    words = list(names)
    return Host(
        **merged,
        names=words,
        parent=nesting.parents(merged["thread"], merged["start"], merged["end"]),
        threads=list(threads),
        main=_main_threads(merged, marked, list(threads)),
        frames=[parse_frame(word) for word in words],
        first_row=first_row,
        marks=marked,
    )


def _kept(table: pa.Table, kind: int) -> Ints:
    """Rows with a duration; annotations on GPU tracks and profiler overhead are no host events."""
    wanted = ~absent(table, "dur_ns")
    category, cats = codes(table, "cat")
    if kind in (ANNOTATION, CALL):
        wanted &= np.array(
            [
                not c.lower().startswith("gpu_") and c.lower() not in ("overhead", "trace", "cuda_sync", "cuda_event")
                for c in cats
            ]
            or [True]
        )[category]
    return np.flatnonzero(wanted)


def _recorded_until(table: pa.Table) -> Ints:
    """By rank the end of the profiler's own span: what was open then gets the time of the export as its end."""
    rank = integers_of(table, "rank")
    until = np.full(int(rank.max(initial=0)) + 1, np.iinfo(np.int64).max)
    category, cats = codes(table, "cat")
    name, names = codes(table, "name")
    spans = (
        np.array([c.lower() == "trace" for c in cats])[category]
        & np.array([n.startswith("PyTorch Profiler") for n in names])[name]
    )
    for row in np.flatnonzero(spans & ~absent(table, "dur_ns")).tolist():
        until[rank[row]] = integers_of(table, "ts_ns")[row] + integers_of(table, "dur_ns")[row]
    return until


def _main_threads(
    merged: dict[str, Ints], marks: dict[str, Ints], threads: list[tuple[int, str, str]]
) -> dict[int, int]:
    """The main thread of each rank.

    The one with the step marks, else with the most time in annotations, frames and operators.
    """
    length = (merged["end"] - merged["start"]).astype(np.float64)
    # A worker thread may sleep in one frame for the whole capture: operators and annotations outweigh bare frames.
    weight = np.choose(merged["kind"], [1e3, 1e-3, 1.0, 1e-2]) * length
    total = np.bincount(merged["thread"], weight, len(threads)) + 1e18 * np.bincount(
        marks["thread"], minlength=len(threads)
    )
    best: dict[int, int] = {}
    for thread, (rank, _, _) in enumerate(threads):
        if rank not in best or total[thread] > total[best[rank]]:
            best[rank] = thread
    return best


def _join(rank: Ints, key: Ints, index: Ints, *, wanted_rank: Ints, wanted: Ints, prefer: Ints | None) -> Ints:
    """For each (rank, key) wanted, the `index` of a row with that pair, a preferred one if any; -1 without.

    Keys below 0 match nothing.
    """
    found = np.full(len(wanted), -1, np.int32)
    usable = np.flatnonzero((key >= 0) & (index >= 0))
    if len(usable) == 0 or len(wanted) == 0:
        return found
    span = int(max(key.max(), wanted.max())) + 1
    if span > (1 << 62) // (int(max(rank.max(), wanted_rank.max())) + 1):
        everything, codes = np.unique(np.concatenate([key, wanted]), return_inverse=True)
        shift = -int(np.searchsorted(everything, 0))
        key, wanted = codes[: len(key)] + shift, codes[len(key) :] + shift
        span = len(everything) + 1
    full = rank[usable].astype(np.int64) * span + key[usable]
    order = np.argsort(full, kind="stable") if prefer is None else np.lexsort((prefer[usable], full))
    full, rows = full[order], index[usable][order]
    goal = wanted_rank.astype(np.int64) * span + wanted
    place = np.searchsorted(full, goal, side="right") - 1
    good = (wanted >= 0) & (place >= 0) & (full[np.maximum(place, 0)] == goal)
    found[good] = rows[place[good]]
    return found


def _without_address(name: str) -> str:
    """`<built-in method append of list object at 0x7f...>` without the address, which differs at each call."""
    head, found, tail = name.partition(" at 0x")
    return head + (">" if tail.endswith(">") else "") if found and name.startswith("<") else name


def integers_of(table: pa.Table, name: str) -> Ints:
    """A column as int64, -1 for null."""
    if name not in table.column_names:
        return np.full(table.num_rows, -1, np.int64)
    column = table.column(name)
    if column.null_count:
        import pyarrow.compute as pc

        column = pc.fill_null(column, -1)
    if column.type in ("null",):
        return np.full(table.num_rows, -1, np.int64)
    return column.to_numpy().astype(np.int64, copy=False)


def absent(table: pa.Table, name: str) -> Ints:
    if name not in table.column_names:
        return np.ones(table.num_rows, bool)
    column = table.column(name)
    if column.null_count == 0:
        return np.zeros(table.num_rows, bool)
    return column.is_null().to_numpy()


def codes(table: pa.Table, name: str) -> tuple[Ints, list[str]]:
    """A string column as codes and words; null is the word ""."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in table.column_names or table.num_rows == 0:
        return np.zeros(table.num_rows, np.int64), [""]
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    column = column.unify_dictionaries().combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    words = [word or "" for word in column.dictionary.to_pylist()]
    indices = column.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(words))
        words.append("")
    return indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), words or [""]


def _devices(quality: dict[str, Any]) -> list[dict[str, Any]]:
    """`deviceProperties` of the first input that has them."""
    for source in quality.get("inputs", []):
        found = (source.get("header") or {}).get("deviceProperties")
        if isinstance(found, list) and found:
            return [device for device in found if isinstance(device, dict)]
    return []


def _losses(quality: dict[str, Any]) -> list[str]:
    """What the trace lost before or while it was read, one line an input and kind."""
    found = []
    for source in quality.get("inputs", []):
        dropped = sum(value for value in (source.get("dropped_by_profiler") or {}).values() if value)
        for count, what in (
            (dropped, "records that the profiler dropped: busy time is a lower bound"),
            (source.get("bad"), "events that could not be read"),
            (source.get("truncated"), "events cut off at the end"),
        ):
            if count:
                found.append(f"{source.get('file')}: {count} {what}")
    return found
