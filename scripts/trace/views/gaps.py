"""The longest single idle intervals of the device, each with its main cause.

Columns: rank, step, kind (as in lost_time: the one with the largest part of the gap), start_ns, dur_ns, before, after
(names of the GPU events around it), annotation, op, call, path, line, function. At most 1,000 rows, the longest first.
CPU-only captures have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scripts.trace.capture import Capture
from scripts.trace.columns import at, integers, place, words
from scripts.trace.gaps import KINDS, pieces
from scripts.trace.grouping import Groups
from scripts.trace.views.lost_time import origins

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "gaps"
MOST = 1000


def view(capture: Capture) -> pa.Table:
    """One row a gap."""
    import pyarrow as pa

    gpu, host, found = capture.gpu, capture.host, pieces(capture)
    if not len(gpu):
        found = found.take(np.empty(0, np.int64))
    groups = Groups(found.gap)
    length = groups.sum(found.length)
    # The piece that explains most of a gap stands for it.
    order = np.lexsort((found.length, groups.of))
    main = order[np.append(groups.starts[1:], len(order))[: len(groups)] - 1]
    chosen = np.argsort(-length, kind="stable")[:MOST]
    main = main[chosen]
    annotation, op, call, own, _ = origins(capture, found)
    start = found.gap_start[main]
    return pa.table(
        {
            "rank": pa.array(found.rank[main].astype(np.int32)),
            "step": integers(found.number[main], found.step[main] < 0),
            "kind": words(found.kind[main], list(KINDS)),
            "start_ns": integers(start),
            "dur_ns": integers(length[chosen]),
            "before": words(at(gpu.name, found.before[main]), gpu.names),
            "after": words(at(gpu.name, found.after[main]), gpu.names),
            "annotation": words(annotation[main], host.names),
            "op": words(op[main], host.names),
            "call": words(call[main], host.names),
            **place(host, own[main]),
        }
    )
