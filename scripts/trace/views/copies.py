"""Copies and fills by direction, memory, size and place; which ones repeat.

Columns: rank, kind (HtoD, DtoH, DtoD, PtoP, HtoH, memset, other), source, destination (pageable, pinned, device, ... as
the profiler names them), bytes (of one; null unknown), op, module, phase, path, line, function, count, total_ns,
total_bytes, bytes_per_s, exposed_ns (of total_ns, no kernel ran), host_ns (spent in the launching calls), steps,
repeated (equal kind, size and place in more than one step).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import intervals
from scripts.trace.capture import KERNEL, Capture
from scripts.trace.columns import at, integers, place, ratio, words
from scripts.trace.frames import PHASES
from scripts.trace.grouping import Groups

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "copies"
_KIND = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH|HostToDevice|DeviceToHost|DeviceToDevice|PeerToPeer)", re.IGNORECASE)
_LONG = {"hosttodevice": "HtoD", "devicetohost": "DtoH", "devicetodevice": "DtoD", "peertopeer": "PtoP"}
_SIDES = re.compile(r"\((\w+) -> (\w+)\)")
WEIGHT_BYTES = 1 << 20


def view(capture: Capture) -> pa.Table:
    """One row a kind, size and place, the longest in all first."""
    import pyarrow as pa

    from scripts.trace.views.kernels import Origins

    gpu, host = capture.gpu, capture.host
    rows = np.flatnonzero(gpu.kind != KERNEL)
    origins = Origins(capture)
    described = [describe(name) for name in gpu.names]
    kinds = list(dict.fromkeys(kind for kind, _, _ in described))
    sides = list(dict.fromkeys(side for _, *both in described for side in both if side))
    kind = np.array([kinds.index(one) for one, _, _ in described], np.int64)[gpu.name[rows]]
    source, destination = (
        np.array([sides.index(one[at_]) if one[at_] else -1 for one in described], np.int64)[gpu.name[rows]]
        for at_ in (1, 2)
    )
    length = (gpu.end - gpu.start)[rows]
    step = capture.gpu_step[rows]
    groups = Groups(
        gpu.rank[rows],
        kind,
        source,
        destination,
        gpu.bytes[rows],
        *(one[rows] for one in (origins.op, origins.module, origins.phase, origins.own)),
    )
    first = groups.first
    total, moved = groups.sum(length), groups.sum(np.maximum(gpu.bytes[rows], 0))
    size = gpu.bytes[rows][first]
    launch = capture.launch[rows]
    call_ns = np.where(launch >= 0, at(host.end, launch, 0) - at(host.start, launch, 0), 0)
    steps = groups.distinct(step)
    table = pa.table(
        {
            "rank": pa.array(gpu.rank[rows][first].astype(np.int32)),
            "kind": words(kind[first], kinds),
            "source": words(source[first], sides),
            "destination": words(destination[first], sides),
            "bytes": integers(size, size < 0),
            "op": words(origins.op[rows][first], host.names),
            "module": words(origins.module[rows][first], host.module_types[1]),
            "phase": words(origins.phase[rows][first], list(PHASES)),
            **place(host, origins.own[rows][first]),
            "count": integers(groups.count),
            "total_ns": integers(total),
            "total_bytes": integers(moved, size < 0),
            "bytes_per_s": ratio(moved, np.where(size < 0, 0, total) / 1e9),
            "exposed_ns": integers(groups.sum(_exposed(capture)[rows])),
            "host_ns": integers(groups.sum(call_ns)),
            "steps": integers(steps),
            "repeated": pa.array(steps > 1),
        }
    )
    return table.take(pa.array(np.lexsort((-total, gpu.rank[rows][first]))))


def headline(table: pa.Table, capture: Capture) -> dict[str, Any]:
    """Copies of a megabyte or more between host and device that come back step after step, and the time that copies
    alone filled.
    """
    steps = sum(len(one) for one in capture.steps.values() if one.source != "capture")
    wall = sum(high - low for low, high in map(capture.span, capture.ranks))
    rows = table.select(
        ["kind", "bytes", "total_bytes", "exposed_ns", "repeated", "source", "destination", "total_ns"]
    ).to_pylist()
    again = [
        row
        for row in rows
        if row["repeated"] and (row["bytes"] or 0) >= WEIGHT_BYTES and row["kind"] in ("HtoD", "DtoH")
    ]
    pageable = [
        row for row in rows if "Pageable" in (row["source"], row["destination"]) and row["kind"] in ("HtoD", "DtoH")
    ]
    none = not len(capture.gpu)
    return {
        "repeated_copy_bytes_per_step": None if none or not steps else sum(row["total_bytes"] for row in again) / steps,
        "pageable_copy_bytes_per_step": None
        if none or not steps
        else sum(row["total_bytes"] or 0 for row in pageable) / steps,
        "exposed_copies": None if none or not wall else sum(row["exposed_ns"] for row in rows) / wall,
    }


def describe(name: str) -> tuple[str, str, str]:
    """(kind, source, destination) from `Memcpy HtoD (Pageable -> Device)`; sides "" where the name has none."""
    if "memset" in name.lower() or "fill" in name.lower():
        return "memset", "", ""
    found, sides = _KIND.search(name), _SIDES.search(name)
    kind = _LONG.get(found[1].lower(), found[1]) if found else "other"
    return kind, sides[1] if sides else "", sides[2] if sides else ""


def _exposed(capture: Capture) -> Any:
    """For each GPU event the ns of it in which no kernel ran."""
    gpu = capture.gpu
    found = gpu.end - gpu.start
    for rank in capture.ranks:
        rows = capture.rows(rank)
        kernel = gpu.kind[rows] == KERNEL
        busy = intervals.merge(gpu.start[rows][kernel], gpu.end[rows][kernel])
        found[rows] -= intervals.covered(busy, gpu.start[rows], gpu.end[rows])
    return found
