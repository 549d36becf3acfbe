"""Where the time went in which the device had nothing to do, by what the host did then.

Columns: rank, kind, annotation, op (outermost), call, module (type), path, line, function (innermost own frame), gaps,
lost_ns, longest_ns,
share (of the rank's capture), steps. Kinds:
launch_bound     the device waited less than 100 us for a launch: the host issues kernels one by one and cannot keep up
host_busy        it waited longer, and the host was in recorded work (python, an operator, a call)
synchronisation  the host itself was waiting for the device when the queue ran dry
data             the host was in the data loader
device           the next kernel was already launched: queueing, dependencies between streams
unknown          no launch record, or nothing recorded of the host at that time
python, data     CPU-only captures: main thread outside every operator; in the data loader (operators included)

Each idle interval is cut by what the launching thread did, instant by instant (the main thread where the launching
thread has nothing recorded), so the rows of a rank sum to its idle time. Linear in gaps and host segments after
sorting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import Capture
from scripts.trace.columns import at, integers, name_of, place, ratio, words
from scripts.trace.gaps import KINDS, Pieces, pieces
from scripts.trace.grouping import Groups

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "lost_time"


def view(capture: Capture) -> pa.Table:
    """One row a cause, the largest first."""
    import pyarrow as pa

    host, found = capture.host, pieces(capture)
    annotation, op, call, own, module = origins(capture, found)
    groups = Groups(found.rank, found.kind, annotation, op, call, module, own)
    first, lost = groups.first, groups.sum(found.length)
    rank = found.rank[first]
    whole = {one: capture.span(one)[1] - capture.span(one)[0] for one in capture.ranks}
    table = pa.table(
        {
            "rank": pa.array(rank.astype(np.int32)),
            "kind": words(found.kind[first], list(KINDS)),
            "annotation": words(annotation[first], host.names),
            "op": words(op[first], host.names),
            "call": words(call[first], host.names),
            "module": words(module[first], host.module_types[1]),
            **place(host, own[first]),
            "gaps": integers(groups.distinct(found.gap)),
            "lost_ns": integers(lost),
            "longest_ns": integers(groups.max(found.length)),
            "share": ratio(lost, np.array([whole[one] for one in rank.tolist()], np.float64)),
            "steps": integers(groups.distinct(found.step)),
        }
    )
    return table.take(pa.array(np.lexsort((-lost, rank))))


def headline(table: pa.Table, capture: Capture) -> dict[str, Any]:
    """Shares of the capture by kind, averaged over the ranks."""
    ranks = max(len(capture.ranks), 1)
    total = dict.fromkeys(KINDS, 0.0)
    for row in table.select(["kind", "share"]).to_pylist():
        total[row["kind"]] += (row["share"] or 0.0) / ranks
    gpu = len(capture.gpu) > 0
    lost = sum(total.values())
    return {
        "launch_bound": total["launch_bound"] if gpu else None,
        "host_busy": total["host_busy"] if gpu else None,
        "lost_to_synchronisation": total["synchronisation"] if gpu else None,
        "lost_to_data": total["data"],
        "lost_on_device": total["device"] if gpu else None,
        "lost_unexplained": total["unknown"],
        "lost_explained_share": 1 - total["unknown"] / lost if lost else None,
    }


def origins(capture: Capture, found: Pieces) -> tuple[Any, Any, Any, Any, Any]:
    """Codes of annotation, outermost op, call, own frame (names) and module type of each piece's host event."""
    host = capture.host
    annotation, op, call = (name_of(host, at(one, found.event)) for one in (host.annotation, host.top_op, host.call))
    # The autograd thread has no python frames: the line is that of the forward operator.
    forward = at(capture.forward, found.event)
    here = np.where((forward >= 0) & (at(host.own, found.event) < 0), forward, found.event)
    return annotation, op, call, name_of(host, at(host.own, here)), host.module_type(here)
