"""Communication: how much of it is exposed, and how much waits for other ranks.

Columns: rank, group (process group), collective, group_size, count, bytes (sum of the messages), total_ns, union_ns
(instants with any of them), exposed_ns (instants with no compute and no copy), hidden_compute_ns, hidden_copy_ns
(instants with compute; with copies but no compute), wait_ns, transfer_ns (total_ns split by when the last rank of the
group began; null where the other ranks are not there), algorithm_bytes_per_s. A row for each (group, collective) and
one with both null for all communication of the rank. union = exposed + hidden_compute + hidden_copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import intervals
from scripts.trace.capture import KERNEL, Capture, codes, integers_of
from scripts.trace.grouping import Groups
from scripts.trace.opclasses import bare_op

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "overlap"
_SIZES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "long": 8,
    "int": 4,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def view(capture: Capture) -> pa.Table:
    """Rows by (rank, group, collective), and the rank's total."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    labels = _labels(capture)
    wait = _wait(capture, labels)
    for rank in capture.ranks:
        rows += _rank(capture, rank, labels, wait)
    integers = (
        "group_size", "count", "bytes", "total_ns", "union_ns", "exposed_ns", "hidden_compute_ns",
        "hidden_copy_ns", "wait_ns", "transfer_ns",
    )  # fmt: skip
    schema = pa.schema(
        [
            ("rank", pa.int32()),
            ("group", pa.string()),
            ("collective", pa.string()),
            *((name, pa.int64()) for name in integers),
            ("algorithm_bytes_per_s", pa.float64()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def headline(table: pa.Table, capture: Capture) -> dict[str, Any]:
    """Exposed communication as a share of the capture, averaged over ranks; of it, what was waiting."""
    rows = [row for row in table.to_pylist() if row["collective"] is None and row["group"] is None]
    walls = [high - low for low, high in (capture.span(row["rank"]) for row in rows)]
    share = sum(row["exposed_ns"] / wall for row, wall in zip(rows, walls) if wall) / len(rows) if rows else None
    waits = [row["wait_ns"] for row in rows if row["wait_ns"] is not None]
    total = sum(row["total_ns"] for row in rows if row["wait_ns"] is not None)
    return {"exposed_communication": share, "communication_waiting": sum(waits) / total if waits and total else None}


class _Labels:
    """Columns of the communication kernels: row, group, collective, size and message bytes; words beside them."""

    def __init__(self, capture: Capture) -> None:
        table = capture.table(
            "gpu", ["dur_ns", "group", "collective", "group_size", "in_nelems", "out_nelems", "dtype"]
        )
        kept = capture.gpu.row
        self.row = np.flatnonzero(capture.gpu.communication)
        raw = kept[self.row]
        group, self.groups = codes(table, "group")
        collective, self.collectives = codes(table, "collective")
        dtype, dtypes = codes(table, "dtype")
        width = np.array([_SIZES.get(word.lower().removeprefix("c10::"), 0) for word in dtypes], np.int64)[dtype[raw]]
        elements = np.maximum(integers_of(table, "in_nelems")[raw], integers_of(table, "out_nelems")[raw])
        self.group = group[raw]
        self.size = integers_of(table, "group_size")[raw]
        self.bytes = np.where((width > 0) & (elements >= 0), width * elements, -1)
        self.collective = collective[raw].copy()
        self._from_operators(capture)

    def _from_operators(self, capture: Capture) -> None:
        """Old traces name no collective on the kernel; the operator around the launch or the kernel's own name does."""
        known: dict[str, int] = {word: code for code, word in enumerate(self.collectives)}
        gpu, host = capture.gpu, capture.host
        bare = np.array([not self.collectives[code] for code in self.collective.tolist()], bool)
        context = capture.context[self.row] if bare.any() else np.empty(0, np.int64)
        for place in np.flatnonzero(bare).tolist():
            op = host.top_op[context[place]] if context[place] >= 0 else -1
            word = collective_of(gpu.names[gpu.name[self.row[place]]], host.names[host.name[op]] if op >= 0 else None)
            self.collective[place] = known.setdefault(word, len(known))
        self.collectives = list(known)


def collective_of(kernel: str, op: str | None) -> str:
    """`ncclKernel_AllReduce_RING_LL_Sum_float` -> `allreduce`; the operator's name where the kernel's says nothing."""
    low = kernel.lower().replace("_", "")
    for word in ("allreduce", "reducescatter", "allgather", "alltoall", "broadcast", "sendrecv", "reduce"):
        if word in low:
            return word
    return bare_op(op).strip("_") if op else "communication"


def _labels(capture: Capture) -> _Labels | None:
    return _Labels(capture) if capture.gpu.communication.any() else None


def _rank(capture: Capture, rank: int, labels: _Labels | None, wait: Any) -> list[dict[str, Any]]:
    gpu, rows = capture.gpu, capture.rows(rank)
    if labels is None:
        return []
    mine = np.flatnonzero((labels.row >= rows.start) & (labels.row < rows.stop))
    if len(mine) == 0:
        return []
    start, end, kernel, talk = gpu.start[rows], gpu.end[rows], gpu.kind[rows] == KERNEL, gpu.communication[rows]
    compute = intervals.merge(start[kernel & ~talk], end[kernel & ~talk])
    copies = intervals.subtract(intervals.merge(start[~kernel], end[~kernel]), compute)
    groups = Groups(labels.group[mine], labels.collective[mine])
    found = []
    for index in [*range(len(groups)), None]:
        chosen = mine if index is None else mine[groups.of == index]
        events = labels.row[chosen]
        union = intervals.merge(gpu.start[events], gpu.end[events])
        whole = intervals.length(union)
        by_compute, by_copy = intervals.shared(union, compute), intervals.shared(union, copies)
        total = int((gpu.end[events] - gpu.start[events]).sum())
        size, sent = labels.size[chosen], labels.bytes[chosen]
        waited = wait[chosen] if wait is not None else None
        known = waited is not None and (waited >= 0).all()
        waiting = int(waited.sum()) if known and waited is not None else None
        moved = int(sent.sum()) if (sent >= 0).all() else None
        transfer = total - waiting if waiting is not None else None
        busy = transfer if transfer is not None else total
        found.append(
            {
                "rank": rank,
                "group": None if index is None else labels.groups[labels.group[chosen[0]]] or None,
                "collective": None if index is None else labels.collectives[labels.collective[chosen[0]]],
                "group_size": int(size[0]) if index is not None and size[0] >= 0 else None,
                "count": len(chosen),
                "bytes": moved,
                "total_ns": total,
                "union_ns": whole,
                "exposed_ns": whole - by_compute - by_copy,
                "hidden_compute_ns": by_compute,
                "hidden_copy_ns": by_copy,
                "wait_ns": waiting,
                "transfer_ns": transfer,
                "algorithm_bytes_per_s": moved / (busy / 1e9) if moved is not None and busy else None,
            }
        )
    return found


def _wait(capture: Capture, labels: _Labels | None) -> Any:
    """For each collective how long it waited for the last rank to begin; -1 where the ranks' sequences do not match.

    The n-th collective of a kind in a group is the same one on every rank. Needs the ranks on one clock.
    """
    if labels is None or len(capture.ranks) < 2:
        return None
    gpu = capture.gpu
    begin, end, rank = gpu.start[labels.row], gpu.end[labels.row], gpu.rank[labels.row]
    per_rank = Groups(rank, labels.group, labels.collective)
    order = np.lexsort((begin, per_rank.of))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - per_rank.starts[per_rank.of[order]]
    same = Groups(labels.group, labels.collective, turn)
    present = same.count[same.of]
    members = same.distinct(rank)[same.of]
    needed = np.where(labels.size > 0, labels.size, len(capture.ranks))
    last = same.max(begin)[same.of]
    first_end = same.min(end)[same.of]
    matched = (present == members) & (members == needed) & (last <= first_end)
    return np.where(matched, np.clip(last - begin, 0, end - begin), -1)
