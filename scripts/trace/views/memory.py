"""Peaks of allocated and reserved memory, by step and in all.

Columns: rank, step (null: the capture), device (-1: host), peak_allocated_bytes, peak_reserved_bytes (null for the
host), peak_ts_ns (when allocated peaked), allocations, frees, allocated_bytes (sum of the allocations), capacity_bytes,
headroom_bytes (capacity less the reserved peak). Needs a profile with memory; other captures have no rows. The
allocator's own totals are used: they count what was allocated before the capture as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import Capture, integers_of
from scripts.trace.grouping import Groups

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "memory"
HOST_DEVICE = 0  # c10::DeviceType::CPU


def view(capture: Capture) -> pa.Table:
    """Rows of (rank, device, step) and (rank, device, null)."""
    import pyarrow as pa

    found = events(capture)
    step = np.full(len(found["ts"]), -1, np.int64)
    for rank, steps in capture.steps.items():
        mine = found["rank"] == rank
        step[mine] = steps.of(found["ts"][mine])
    rows = _rows(capture, found, step, np.flatnonzero(step >= 0)) + _rows(
        capture, found, np.full_like(step, -1), np.arange(len(step))
    )
    integers = (
        "device", "peak_allocated_bytes", "peak_reserved_bytes", "peak_ts_ns", "allocations", "frees",
        "allocated_bytes", "capacity_bytes", "headroom_bytes",
    )  # fmt: skip
    return pa.Table.from_pylist(
        rows, pa.schema([("rank", pa.int32()), ("step", pa.int64()), *((name, pa.int64()) for name in integers)])
    )


def headline(table: pa.Table, _: Capture) -> dict[str, Any]:
    """The largest peaks of any device."""
    rows = [row for row in table.to_pylist() if row["step"] is None and row["device"] >= 0]
    return {
        "peak_allocated_bytes": max((row["peak_allocated_bytes"] for row in rows), default=None),
        "peak_reserved_bytes": max(
            (row["peak_reserved_bytes"] for row in rows if row["peak_reserved_bytes"] is not None), default=None
        ),
        "headroom_bytes": min(
            (row["headroom_bytes"] for row in rows if row["headroom_bytes"] is not None), default=None
        ),
    }


def events(capture: Capture) -> dict[str, Any]:
    """Allocator events sorted by (rank, time): rank, ts, device (-1 host), bytes, allocated, reserved (-1 unknown)."""
    table = capture.table(
        "memory", ["rank", "ts_ns", "bytes", "total_allocated", "total_reserved", "device", "device_type"]
    )
    device, kind = integers_of(table, "device"), integers_of(table, "device_type")
    return {
        "rank": integers_of(table, "rank"),
        "ts": integers_of(table, "ts_ns"),
        "device": np.where(kind == HOST_DEVICE, -1, device),
        "bytes": integers_of(table, "bytes"),
        "allocated": integers_of(table, "total_allocated"),
        "reserved": integers_of(table, "total_reserved"),
    }


def _rows(capture: Capture, found: dict[str, Any], step: Any, kept: Any) -> list[dict[str, Any]]:
    if len(kept) == 0:
        return []
    columns = {key: values[kept] for key, values in found.items()}
    step = step[kept]
    groups = Groups(columns["rank"], columns["device"], step)
    allocated, reserved = groups.max(columns["allocated"]), groups.max(columns["reserved"])
    at_peak = np.where(columns["allocated"] == allocated[groups.of], columns["ts"], np.iinfo(np.int64).max)
    when = groups.min(at_peak)
    more = columns["bytes"] > 0
    churn, made, freed = (
        groups.sum(np.where(more, columns["bytes"], 0)),
        groups.sum(more.astype(np.int64)),
        groups.sum((columns["bytes"] < 0).astype(np.int64)),
    )
    rows = []
    for index, row in enumerate(groups.first.tolist()):
        rank, device = int(columns["rank"][row]), int(columns["device"][row])
        capacity = _capacity(capture, device)
        known = device >= 0 and reserved[index] >= 0
        number = int(capture.steps[rank].number[step[row]]) if step[row] >= 0 else None
        rows.append(
            {
                "rank": rank,
                "step": number,
                "device": device,
                "peak_allocated_bytes": int(allocated[index]) if allocated[index] >= 0 else None,
                "peak_reserved_bytes": int(reserved[index]) if known else None,
                "peak_ts_ns": int(when[index]),
                "allocations": int(made[index]),
                "frees": int(freed[index]),
                "allocated_bytes": int(churn[index]),
                "capacity_bytes": capacity,
                "headroom_bytes": capacity - int(reserved[index]) if capacity is not None and known else None,
            }
        )
    return rows


def _capacity(capture: Capture, device: int) -> int | None:
    if device < 0:
        return None
    for properties in capture.devices:
        if properties.get("id") == device and properties.get("totalGlobalMem"):
            return int(properties["totalGlobalMem"])
    return None
