"""GPU events by kernel, launching operator, module and shapes, with what the device could have done.

Columns: rank, name, class, op (innermost operator around the launch), top_op (outermost), forward_op (outermost
operator around the maker of the autograd node), module (type of the innermost nn.Module; for backward the forward
operator's), shapes, dtypes (JSON of `op`), phase, path, line, function (innermost own frame; for backward the forward
operator's), count, total_ns, mean_ns, min_ns, max_ns, share (of all GPU event time of the rank), steps, bytes, flops
(sums; null unknown), bytes_per_s, flops_per_s, bound (memory | compute), roofline (least time / measured time),
attributed (how the operator was found: correlation | external_id | graph | none).

FLOPs and bytes belong to a call of an operator; where the call launched several kernels they share it by duration, so
that sums are right and the rates are those of the call. Cost: a few sorts of the GPU rows; Python work only for each
distinct combination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import KERNEL, Capture, codes
from scripts.trace.columns import at, floats, integers, name_of, place, ratio, words
from scripts.trace.frames import OTHER, PHASES
from scripts.trace.grouping import Groups
from scripts.trace.opclasses import CLASSES, classify
from scripts.trace.roofline import best_seconds, peaks, work

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "kernels"
HOW = ("none", "external_id", "correlation", "graph")
_FILLS = ("aten::fill_", "aten::zero_")


def view(capture: Capture) -> pa.Table:
    """One row a combination of kernel and origin, the longest in all first."""
    import pyarrow as pa

    gpu, host = capture.gpu, capture.host
    events = Origins(capture)
    length = gpu.end - gpu.start
    groups = Groups(
        gpu.rank,
        gpu.name,
        events.kind,
        events.op,
        events.top_op,
        events.forward_op,
        events.module,
        events.shapes,
        events.types,
        events.phase,
        events.own,
        events.how,
    )
    first, total = groups.first, groups.sum(length)
    flops, traffic, least, bound = _work(capture, events, groups, length)
    all_ns = {rank: int(length[capture.rows(rank)].sum()) for rank in capture.ranks}
    rank = gpu.rank[first]
    columns: dict[str, Any] = {
        "rank": pa.array(rank.astype(np.int32)),
        "name": words(gpu.name[first], gpu.names),
        "class": words(events.kind[first], list(CLASSES)),
        "op": words(events.op[first], host.names),
        "top_op": words(events.top_op[first], host.names),
        "forward_op": words(events.forward_op[first], host.names),
        "module": words(events.module[first], host.module_types[1]),
        "shapes": words(events.shapes[first], events.shape_words),
        "dtypes": words(events.types[first], events.type_words),
        "phase": words(events.phase[first], list(PHASES)),
        **place(host, events.own[first]),
        "count": integers(groups.count),
        "total_ns": integers(total),
        "mean_ns": ratio(total, groups.count),
        "min_ns": integers(groups.min(length)),
        "max_ns": integers(groups.max(length)),
        "share": ratio(total, np.array([all_ns[one] for one in rank.tolist()], np.float64)),
        "steps": integers(groups.distinct(capture.gpu_step)),
        "bytes": floats(traffic),
        "flops": floats(flops),
        "bytes_per_s": ratio(traffic, total / 1e9),
        "flops_per_s": ratio(flops, total / 1e9),
        "bound": words(bound, ["memory", "compute"]),
        "roofline": ratio(least, total / 1e9),
        "attributed": words(events.how[first], list(HOW)),
    }
    order = np.lexsort((-total, rank))
    return pa.table(columns).take(pa.array(order))


def headline(table: pa.Table, capture: Capture) -> dict[str, Any]:
    """Fills a step, and the share of GPU time whose launching operator is known."""
    if not table.num_rows:
        return {"fill_kernels_per_step": None, "kernel_time_attributed": None, "class_shares": None}
    rows = table.select(["class", "op", "name", "count", "total_ns"]).to_pylist()
    steps = sum(len(one) for one in capture.steps.values() if one.source != "capture")
    fills = sum(row["count"] for row in rows if row["op"] in _FILLS or "FillFunctor" in row["name"])
    total = sum(row["total_ns"] for row in rows) or 1
    known = sum(row["total_ns"] for row in rows if row["op"])
    shares = {kind: sum(row["total_ns"] for row in rows if row["class"] == kind) / total for kind in CLASSES}
    return {
        "fill_kernels_per_step": fills / steps if steps else None,
        "kernel_time_attributed": known / total,
        "class_shares": shares,
    }


class Origins:
    """Where each GPU event came from, as codes: names of the host table (-1 none), classes, shapes, phase."""

    def __init__(self, capture: Capture) -> None:
        host = capture.host
        context = capture.context
        self.event = at(host.op, context)
        forward = at(capture.forward, context)
        here = np.where(forward >= 0, forward, context)
        self.op = name_of(host, self.event)
        self.top_op = name_of(host, at(host.top_op, context))
        self.forward_op = name_of(host, at(host.top_op, forward))
        self.node = name_of(host, at(host.grad, context))
        self.module = host.module_type(here)
        self.own = name_of(host, at(host.own, here))
        self.phase = at(capture.phase, context, OTHER)
        how = capture.attributed
        self.how = np.array([HOW.index(word) for word in how], np.int64) if how else np.zeros(0, np.int64)
        table = capture.op_columns
        row = np.where(self.event >= 0, at(host.row, self.event), -1)
        shape, self.shape_words = codes(table, "input_dims")
        kind, self.type_words = codes(table, "input_types")
        concrete, self.concrete_words = codes(table, "concrete_inputs")
        self.shapes, self.types, self.concrete = (
            _present(at(one, row), names)
            for one, names in ((shape, self.shape_words), (kind, self.type_words), (concrete, self.concrete_words))
        )
        self.kind = self._classes(capture)

    def _classes(self, capture: Capture) -> Any:
        gpu, host = capture.gpu, capture.host
        groups = Groups(gpu.name, self.op, self.node, gpu.kind, gpu.communication.astype(np.int64))
        found = []
        for row in groups.first.tolist():
            op, node = self.op[row], self.node[row]
            name = classify(
                host.names[op] if op >= 0 else None,
                host.names[node] if node >= 0 else None,
                gpu.names[gpu.name[row]],
                copy=bool(gpu.kind[row] != KERNEL),
                communication=bool(gpu.communication[row]),
            )
            found.append(CLASSES.index(name))
        return np.array(found, np.int64)[groups.of] if found else np.zeros(0, np.int64)


def _present(values: Any, names: list[str]) -> Any:
    """Codes with -1 for the empty word."""
    empty = [code for code, word in enumerate(names) if not word]
    return np.where(np.isin(values, empty), -1, values) if empty else values


def _work(capture: Capture, events: Origins, groups: Groups, length: Any) -> tuple[Any, Any, Any, Any]:
    """Per group: FLOPs, bytes, least seconds on this device (NaN unknown), and the bound's code."""
    gpu, host = capture.gpu, capture.host
    count = len(length)
    flops, traffic = np.full(count, np.nan), np.full(count, np.nan)
    computing = (gpu.kind == KERNEL) & (events.event >= 0) & ~gpu.communication
    combos = Groups(np.where(computing, events.op, -1), events.shapes, events.types, events.concrete)
    dtype_of: list[str | None] = []
    rows = [row for row in combos.first.tolist() if computing[row]]
    numbers = _numbers(events, rows)
    for row in combos.first.tolist():
        found = None
        if computing[row] and events.shapes[row] >= 0 and events.types[row] >= 0:
            found = work(
                host.names[events.op[row]],
                events.shape_words[events.shapes[row]],
                events.type_words[events.types[row]],
                numbers[row],
            )
        dtype_of.append(found.dtype if found else None)
        if found:
            flops[row] = np.nan if found.flops is None else found.flops
            traffic[row] = np.nan if found.bytes is None else found.bytes
    # Each call's work, split over the kernels that it launched.
    per_call = Groups(np.where(computing, events.event, -1 - np.arange(count)))
    part = length / np.maximum(per_call.sum(length)[per_call.of], 1)
    flops, traffic = (values[combos.first][combos.of] * part for values in (flops, traffic))
    copies = gpu.kind != KERNEL
    traffic = np.where(copies, np.where(gpu.bytes >= 0, gpu.bytes, np.nan), traffic)
    total_flops, total_bytes = groups.sum(flops), groups.sum(traffic)
    device = peaks(_device_name(capture))
    least, bound = np.full(len(groups), np.nan), np.full(len(groups), -1)
    if device is not None:
        for index, row in enumerate(groups.first.tolist()):
            if copies[row]:
                continue
            whole = [None if np.isnan(value) else float(value) for value in (total_flops[index], total_bytes[index])]
            best = best_seconds(whole[0], whole[1], dtype_of[combos.of[row]], gpu.names[gpu.name[row]], device)
            if best:
                least[index], bound[index] = best[0], int(best[1] == "compute")
    return total_flops, total_bytes, least, bound


def _numbers(events: Origins, rows: list[int]) -> dict[int, str | None]:
    """The number arguments of each row's call as JSON; a call without its lists has those of the calls like it.

    The recorder keeps lists in the last step of a window only. Where calls alike in operator, shapes and types were given
    different lists, what a call without them was given stays unknown.
    """
    told = {row: events.concrete_words[events.concrete[row]] if events.concrete[row] >= 0 else None for row in rows}
    alike: dict[tuple[int, int, int], set[str]] = {}
    for row, word in told.items():
        if word and '"[' in word:
            alike.setdefault((events.op[row], events.shapes[row], events.types[row]), set()).add(word)
    for row, word in told.items():
        others = alike.get((events.op[row], events.shapes[row], events.types[row]), set())
        if not (word and '"[' in word) and len(others) == 1:
            told[row] = next(iter(others))
    return told


def _device_name(capture: Capture) -> str | None:
    names = [str(device.get("name")) for device in capture.devices if device.get("name")]
    return names[0] if names else None
