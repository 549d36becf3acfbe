"""Each step against its input shapes: is a slow step one that met new shapes, compiled, built plans, or allocated?

Columns: rank, step, wall_ns, excess_ns (over the rank's median), slow, signature (hash of the set of operator input
shapes), new_signature (no earlier step had it), new_shapes (pairs of operator and shapes that no earlier step had),
example (one of them), new_kernels, compile_ns, compile_calls (module loads, JIT, plan builds, profiler overhead of lazy
loading excluded), host_allocations (cudaMalloc, cudaHostAlloc, cudaFree...), cause_kind, cause, cause_ns (the operator,
frame or call whose self time exceeds its own median over the steps by most), path, line, function (own frame of the
cause).

The first step has every shape new and is compared with nothing: its new_* columns are null. Null without shapes in the
trace.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import intervals
from scripts.trace.capture import KERNEL, OP, PYTHON, Capture, codes
from scripts.trace.grouping import Groups
from scripts.trace.views.cpu import KINDS, shapes
from scripts.trace.views.runtime import slow_steps

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "steps"
_COMPILE = re.compile(
    r"ModuleLoad|LibraryLoad|LinkCreate|LinkComplete|nvrtc|hiprtc|ModuleGetFunction|LibraryGetKernel|"
    r"torch/_dynamo/convert_frame|torch/_inductor/(compile_fx|async_compile|codecache)|CompiledFunction.*compile|"
    r"triton/compiler|cudnn.*(plan|build|finalize)|cudnnBackendFinalize|TorchDynamo|_compile_fx|autotune|benchmark_all_configs|graph_break"
)
_ALLOCATE = re.compile(
    r"^(cuda|cu|hip)(Malloc|MemAlloc|HostAlloc|MemHostAlloc|HostRegister|HostMalloc|Free|MemFree|FreeHost|HostFree|MemCreate|MemMap)"
)


def view(capture: Capture) -> pa.Table:
    """One row a step of each rank."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for rank in capture.ranks:
        rows += _rank(capture, rank)
    kinds = {
        "rank": pa.int32(),
        "slow": pa.bool_(),
        "new_signature": pa.bool_(),
        **dict.fromkeys(("signature", "example", "cause_kind", "cause", "path", "function"), pa.string()),
    }
    names = (
        "rank", "step", "wall_ns", "excess_ns", "slow", "signature", "new_signature", "new_shapes", "example",
        "new_kernels", "compile_ns", "compile_calls", "host_allocations", "cause_kind", "cause", "cause_ns",
        "path", "line", "function",
    )  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds.get(name, pa.int64())) for name in names]))


def headline(table: pa.Table, _: Capture) -> dict[str, Any]:
    """How many slow steps met new shapes, and how many of the others did."""
    rows = [row for row in table.to_pylist() if row["new_shapes"] is not None]
    slow = [row for row in rows if row["slow"]]
    other = [row for row in rows if not row["slow"]]
    return {
        "slow_steps_with_new_shapes": sum(row["new_shapes"] > 0 for row in slow) if rows else None,
        "other_steps_with_new_shapes": sum(row["new_shapes"] > 0 for row in other) if rows else None,
        "slow_steps_compiling": sum(row["compile_ns"] > row["excess_ns"] / 2 for row in slow) if rows else None,
    }


def _rank(capture: Capture, rank: int) -> list[dict[str, Any]]:
    steps = capture.steps[rank]
    if steps.source == "capture":
        return []
    count = len(steps)
    wall = (steps.end - steps.start).astype(np.int64)
    median = int(np.median(wall))
    signature, fresh, example, known = _shapes(capture, rank, count)
    new_kernels = _new_kernels(capture, rank, count)
    compile_ns, compile_calls, allocations = _compiling(capture, rank)
    cause = _causes(capture, rank, count)
    slow = slow_steps(wall)
    seen: set[str] = set()
    rows = []
    for index in range(count):
        first = index == 0
        word = signature[index] if known else None
        rows.append(
            {
                "rank": rank,
                "step": int(steps.number[index]),
                "wall_ns": int(wall[index]),
                "excess_ns": int(wall[index]) - median,
                "slow": bool(slow[index]),
                "signature": word,
                "new_signature": None if first or not known else word not in seen,
                "new_shapes": None if first or not known else int(fresh[index]),
                "example": None if first else example[index],
                "new_kernels": None if first or new_kernels is None else int(new_kernels[index]),
                "compile_ns": int(compile_ns[index]),
                "compile_calls": int(compile_calls[index]),
                "host_allocations": int(allocations[index]),
                **cause[index],
            }
        )
        if word:
            seen.add(word)
    return rows


def _shapes(capture: Capture, rank: int, count: int) -> tuple[list[str], Any, list[str | None], bool]:
    """Per step: signature, number of (op, shapes) pairs not seen before, one of them.

    And whether shapes were recorded.
    """
    host = capture.host
    code = shapes(capture)
    mine = np.flatnonzero((host.kind == OP) & (host.rank == rank) & (code >= 0))
    step = capture.steps[rank].of(host.start[mine])
    mine, step = mine[step >= 0], step[step >= 0]
    fresh, example = np.zeros(count, np.int64), [None] * count
    if len(mine) == 0:
        return [""] * count, fresh, list(example), False
    _, dims = codes(capture.op_columns, "input_dims")
    pairs = Groups(host.name[mine], code[mine])
    first = pairs.min(step)
    fresh = np.bincount(first, minlength=count)
    found: list[str | None] = list(example)
    for index in np.argsort(first, kind="stable")[::-1].tolist():
        row = mine[pairs.first[index]]
        found[int(first[index])] = f"{host.names[host.name[row]]} {dims[code[row]]}"
    words = [f"{host.names[host.name[row]]} {dims[code[row]]}".encode() for row in mine[pairs.first].tolist()]
    digest = np.array([int.from_bytes(hashlib.sha256(word).digest()[:8], "little") for word in words], np.uint64)
    present = Groups(step, pairs.of)
    hashes = []
    of_step, pair = step[present.first], pairs.of[present.first]
    edges = np.searchsorted(of_step, np.arange(count + 1))
    for index in range(count):
        chosen = np.sort(digest[pair[edges[index] : edges[index + 1]]])
        hashes.append(hashlib.sha256(chosen.tobytes()).hexdigest()[:16])
    return hashes, fresh, found, True


def _new_kernels(capture: Capture, rank: int, count: int) -> Any:
    rows = capture.rows(rank)
    if rows.stop == rows.start:
        return None
    step, kernel = capture.gpu_step[rows], capture.gpu.kind[rows] == KERNEL
    kept = (step >= 0) & kernel
    names = Groups(capture.gpu.name[rows][kept])
    return np.bincount(names.min(step[kept]), minlength=count) if len(names) else np.zeros(count, np.int64)


def _compiling(capture: Capture, rank: int) -> tuple[Any, Any, Any]:
    host, steps = capture.host, capture.steps[rank]
    mine = host.rank == rank
    compiling = host.flag(lambda n: bool(_COMPILE.search(n))) & mine if len(host) else np.zeros(0, bool)
    busy = intervals.merge(host.start[compiling], host.end[compiling])
    index = steps.of(host.start[compiling])
    calls = np.bincount(index[index >= 0], minlength=len(steps))
    allocating = (
        np.flatnonzero(host.flag(lambda n: bool(_ALLOCATE.match(n))) & mine & (host.kind == 3))
        if len(host)
        else np.zeros(0, np.int64)
    )
    made = steps.of(host.start[allocating])
    return (
        intervals.covered(busy, steps.cpu_start, steps.cpu_end),
        calls,
        np.bincount(made[made >= 0], minlength=len(steps)),
    )


def _causes(capture: Capture, rank: int, count: int) -> list[dict[str, Any]]:
    """Per step the (kind, name) whose self time exceeds its own median over the steps by most."""
    host, steps = capture.host, capture.steps[rank]
    none: dict[str, Any] = {
        "cause_kind": None,
        "cause": None,
        "cause_ns": None,
        "path": None,
        "line": None,
        "function": None,
    }
    start, end, event = host.all_segments
    mine = host.rank[event] == rank if len(host) else np.zeros(0, bool)
    mine &= host.thread[event] == host.main.get(rank, -1) if len(host) else mine
    # The autograd thread works while the main thread waits in backward: its operators count, its idle frames do not
    # exist.
    if len(host):
        waiting = host.flag(lambda n: "run_backward" in n) & (host.kind == PYTHON)
        mine = (mine & ~waiting[event]) | ((host.rank[event] == rank) & (host.kind[event] >= OP))
    start, end, event = start[mine], end[mine], event[mine]
    step = steps.of(start)
    kept = step >= 0
    event, step, part = event[kept], step[kept], (end - start)[kept]
    if len(event) == 0 or count < 2:
        return [none] * count
    things = Groups(host.kind[event], host.name[event])
    cells = Groups(things.of, step)
    total = cells.sum(part)
    thing, when = things.of[cells.first], step[cells.first]
    median = _medians(thing, total, count, len(things))
    excess = total - median[thing]
    found = []
    for index in range(count):
        here = np.flatnonzero(when == index)
        if len(here) == 0 or excess[here].max() <= 0:
            found.append(none)
            continue
        best = here[np.argmax(excess[here])]
        # The event of that thing which took longest in the step shows the place.
        rows = event[(things.of == thing[best]) & (step == index)]
        longest = rows[np.argmax(host.self_ns[rows])]
        forward = capture.forward[longest]
        own = int(host.own[longest] if host.own[longest] >= 0 or forward < 0 else host.own[forward])
        frame = host.frames[host.name[own]] if own >= 0 else None
        found.append(
            {
                "cause_kind": KINDS[host.kind[longest]],
                "cause": host.names[host.name[longest]],
                "cause_ns": int(excess[best]),
                "path": frame.path if frame else None,
                "line": frame.line if frame else None,
                "function": frame.function if frame else None,
            }
        )
    return found


def _medians(thing: Any, total: Any, count: int, things: int) -> Any:
    """Median over all steps; a step without the thing counts as 0."""
    order = np.lexsort((total, thing))
    starts = np.searchsorted(thing[order], np.arange(things))
    present = np.bincount(thing, minlength=things)
    place = (count - 1) // 2 - (count - present)
    index = np.clip(starts + np.maximum(place, 0), 0, len(order) - 1)
    return np.where(place < 0, 0, total[order][index])
