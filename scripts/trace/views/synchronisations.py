"""Calls in which the host waited for the device, and the place in the job that made them.

Columns: rank, call, op (outermost), annotation, phase, path, line, function (innermost own frame), count, total_ns,
longest_ns, steps. Counted are *Synchronize calls, and memcpy calls of 100 us or more (a copy that is not pinned
blocks). CPU-only captures have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import Capture
from scripts.trace.columns import at, integers, name_of, place, words
from scripts.trace.frames import PHASES
from scripts.trace.grouping import Groups
from scripts.trace.timeline import blocking

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "synchronisations"


def view(capture: Capture) -> pa.Table:
    """One row a call and place, the longest in all first."""
    import pyarrow as pa

    host = capture.host
    calls = np.flatnonzero(blocking(capture)) if len(host) else np.empty(0, np.int64)
    op, annotation, own = (name_of(host, at(one, calls)) for one in (host.top_op, host.annotation, host.own))
    rank, phase = host.rank[calls], capture.phase[calls]
    length = host.end[calls] - host.start[calls]
    groups = Groups(rank, host.name[calls], op, annotation, phase, own)
    first, total = groups.first, groups.sum(length)
    table = pa.table(
        {
            "rank": pa.array(rank[first].astype(np.int32)),
            "call": words(host.name[calls][first], host.names),
            "op": words(op[first], host.names),
            "annotation": words(annotation[first], host.names),
            "phase": words(phase[first], list(PHASES)),
            **place(host, own[first]),
            "count": integers(groups.count),
            "total_ns": integers(total),
            "longest_ns": integers(groups.max(length)),
            "steps": integers(groups.distinct(capture.step_of(rank, host.start[calls]))),
        }
    )
    return table.take(pa.array(np.lexsort((-total, rank[first]))))


def headline(table: pa.Table, capture: Capture) -> dict[str, Any]:
    """How many a step."""
    steps = sum(len(one) for one in capture.steps.values() if one.source != "capture")
    count = sum(table.column("count").to_pylist())
    return {"synchronisations_per_step": count / steps if steps and len(capture.gpu) else None}
