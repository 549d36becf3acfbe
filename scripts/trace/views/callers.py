"""Outermost operators under the own frame that called them: which line of the job asks for which work of the host.

Columns: rank, role (of the thread), op (outermost), module (type of the innermost nn.Module), phase, path, line,
function (innermost own frame; for backward that of the forward operator), count, total_ns (of the host), steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scripts.trace.capture import OP, Capture
from scripts.trace.columns import at, integers, name_of, place, words
from scripts.trace.frames import PHASES
from scripts.trace.grouping import Groups
from scripts.trace.views.cpu import ROLES, roles

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "callers"


def view(capture: Capture) -> pa.Table:
    """One row an operator and place, the longest in all first."""
    import pyarrow as pa

    host = capture.host
    top = np.flatnonzero((host.kind == OP) & (host.top_op == np.arange(len(host))))
    forward = at(capture.forward, top)
    here = np.where(forward >= 0, forward, top)
    module, own = host.module_type(here), name_of(host, at(host.own, here))
    rank, phase = host.rank[top], capture.phase[top]
    role = np.array(roles(capture) or [0])[host.thread[top]]
    groups = Groups(rank, role, host.name[top], module, phase, own)
    first, total = groups.first, groups.sum(host.end[top] - host.start[top])
    table = pa.table(
        {
            "rank": pa.array(rank[first].astype(np.int32)),
            "role": words(role[first], list(ROLES)),
            "op": words(host.name[top][first], host.names),
            "module": words(module[first], host.module_types[1]),
            "phase": words(phase[first], list(PHASES)),
            **place(host, own[first]),
            "count": integers(groups.count),
            "total_ns": integers(total),
            "steps": integers(groups.distinct(capture.step_of(rank, host.start[top]))),
        }
    )
    return table.take(pa.array(np.lexsort((-total, rank[first]))))
