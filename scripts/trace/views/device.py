"""The device alone, from its first event to its last: busy, idle, computing, communicating, copying. No host events are
read.

Columns: rank, start_ns, end_ns, span_ns, busy_ns, idle_ns, compute_ns, communication_ns, copy_ns (unions),
exposed_communication_ns (no kernel computes), overlap (share of communication that computation hides; null without),
exposed_copy_ns (neither computation nor communication), events, kernels. compute + exposed_communication + exposed_copy
+ idle = span (a fill counts as computation here, as in TraceLens).

Unlike `runtime` this knows no steps: work before the first mark and after the last counts. Linear in GPU events, after
one sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import intervals
from scripts.trace.capture import COPIES, KERNEL, MEMCPY, Capture, absent, codes, integers_of, talks
from scripts.trace.columns import integers, words

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "device"
COLUMNS = ["rank", "ts_ns", "dur_ns", "name", "cat", "collective"]
KINDS = ("computation", "communication", "memcpy", "memset")


@dataclass
class Activity:
    """GPU events by rank and start: times in ns, name codes, and an index into KINDS."""

    rank: Any
    start: Any
    end: Any
    name: Any
    names: list[str]
    kind: Any


def activity(capture: Capture) -> Activity:
    """Six columns of the GPU table, which is all that these views need; read once a capture."""
    cached: Activity | None = capture.__dict__.get("_activity")
    if cached is not None:
        return cached
    table = capture.table("gpu", COLUMNS)
    category, cats = codes(table, "cat")
    name, names = codes(table, "name")
    copies = np.array([COPIES.get(cat.lower(), KERNEL) for cat in cats] or [0])[category]
    kind = np.where(copies == KERNEL, 0, np.where(copies == MEMCPY, 2, 3))
    kind[(talks(names)[name] | ~absent(table, "collective")) & (copies == KERNEL)] = 1
    start = integers_of(table, "ts_ns")
    end = start + np.maximum(integers_of(table, "dur_ns"), 0)
    found = capture.__dict__["_activity"] = Activity(integers_of(table, "rank"), start, end, name, names, kind)
    return found


def view(capture: Capture) -> pa.Table:
    """One row a rank that has GPU events."""
    import pyarrow as pa

    found = activity(capture)
    rows = []
    for rank in np.unique(found.rank).tolist():
        low, high = np.searchsorted(found.rank, [rank, rank + 1])
        rows.append({"rank": rank, **timeline(found.start[low:high], found.end[low:high], found.kind[low:high])})
    names = (
        "start_ns", "end_ns", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "copy_ns",
        "exposed_communication_ns", "exposed_copy_ns", "events", "kernels",
    )  # fmt: skip
    return pa.Table.from_pylist(
        rows, pa.schema([("rank", pa.int32()), *((name, pa.int64()) for name in names), ("overlap", pa.float64())])
    )


def timeline(start: Any, end: Any, kind: Any) -> dict[str, Any]:
    """The numbers of one rank's events, which are sorted by start."""
    computing, talking_, copying = (kind == 0) | (kind == 3), kind == 1, kind == 2
    compute = intervals.merge(start[computing], end[computing])
    communication = intervals.merge(start[talking_], end[talking_])
    busy = intervals.union_length(start, end)
    talking, computed = intervals.length(communication), intervals.length(compute)
    hidden = intervals.shared(communication, compute)
    first, last = int(start[0]), int(end.max())
    return {
        "start_ns": first,
        "end_ns": last,
        "span_ns": last - first,
        "busy_ns": busy,
        "idle_ns": last - first - busy,
        "compute_ns": computed,
        "communication_ns": talking,
        "copy_ns": intervals.union_length(start[copying], end[copying]),
        "exposed_communication_ns": talking - hidden,
        # What is busy, computes nothing and communicates nothing, copies.
        "exposed_copy_ns": busy - computed - (talking - hidden),
        "events": len(start),
        "kernels": int((kind < 2).sum()),
        "overlap": hidden / talking if talking else None,
    }


def kernels_by_name(capture: Capture) -> pa.Table:
    """Statistics by rank, kind and name, the longest first.

    Rank, kind, name, count, total_ns, mean_ns, min_ns, max_ns, std_ns.
    """
    import pyarrow as pa

    found = activity(capture)
    length = found.end - found.start
    ranks, rank = np.unique(found.rank, return_inverse=True)
    code = (rank * len(KINDS) + found.kind) * len(found.names) + found.name
    size = len(ranks) * len(KINDS) * len(found.names)
    count = np.bincount(code, minlength=size)
    used = np.flatnonzero(count)
    total = np.bincount(code, length, size)  # exact: floats hold 104 days of ns
    mean = np.divide(total, count, out=np.zeros(size), where=count > 0)
    square = np.bincount(code, (length - mean[code]) ** 2, size)[used]
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, code, length)
    np.maximum.at(high, code, length)
    order = used[np.lexsort((-total[used], used // (len(KINDS) * len(found.names))))]
    spread = np.zeros(size)
    spread[used] = np.sqrt(square / np.maximum(count[used] - 1, 1))
    return pa.table(
        {
            "rank": pa.array(ranks[order // (len(KINDS) * len(found.names))].astype(np.int32)),
            "kind": words(order // len(found.names) % len(KINDS), list(KINDS)),
            "name": words(order % len(found.names), found.names),
            "count": integers(count[order]),
            "total_ns": integers(total[order]),
            "mean_ns": pa.array(mean[order]),
            "min_ns": integers(low[order]),
            "max_ns": integers(high[order]),
            "std_ns": pa.array(spread[order]),
        }
    )
