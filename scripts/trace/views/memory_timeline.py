"""Allocated and reserved memory over time, thinned to at most 2,000 points a device that keep every local peak.

Columns: rank, device (-1: host), ts_ns, allocated_bytes, reserved_bytes (null for the host). Each point is the largest
value of its stretch of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scripts.trace.capture import Capture
from scripts.trace.columns import integers
from scripts.trace.grouping import Groups
from scripts.trace.views.memory import events

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "memory_timeline"
MOST = 2000


def view(capture: Capture) -> pa.Table:
    """Points by (rank, device, time)."""
    import pyarrow as pa

    found = events(capture)
    device = Groups(found["rank"], found["device"])
    order = np.lexsort((found["ts"], device.of))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - device.starts[device.of[order]] if len(device) else order
    width = -(-device.count // MOST)
    buckets = Groups(device.of, turn // width[device.of] if len(device) else turn)
    best = np.lexsort((-found["ts"], found["allocated"], buckets.of))
    peak = best[np.append(buckets.starts[1:], len(best))[: len(buckets)] - 1]
    return pa.table(
        {
            "rank": pa.array(found["rank"][peak].astype(np.int32)),
            "device": integers(found["device"][peak]),
            "ts_ns": integers(found["ts"][peak]),
            "allocated_bytes": integers(found["allocated"][peak], found["allocated"][peak] < 0),
            "reserved_bytes": integers(
                found["reserved"][peak], (found["reserved"][peak] < 0) | (found["device"][peak] < 0)
            ),
        }
    )
