"""What made each step as long as it was: the time on the critical path by event, and by kind of delay.

Columns: rank, step (null: all steps), kind host|compute|communication|copy|launch_delay|queue_delay, name (of the
operator, call or GPU event; a delay has the name of the event that it delayed), op (outermost), path, line, function
(innermost own frame), count (stretches on the path), critical_ns, share (of the path), steps. A step has one row a
kind, without names; `step` null has one a kind, name and place. Definition and what it leaves out:
`scripts.trace.critical`. Without GPU events there are no rows: one thread has no other path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import critical
from scripts.trace.capture import KERNEL, Capture
from scripts.trace.columns import at, integers, name_of, place, ratio, words
from scripts.trace.grouping import Groups

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[Any]
NAME = "critical_path"
KINDS = ("host", "compute", "communication", "copy", "launch_delay", "queue_delay")
_HOST, _COMPUTE, _COMMUNICATION, _COPY, _LAUNCH, _QUEUE = range(6)
_FIELDS = ("rank", "step", "number", "kind", "host", "gpu", "ns")


def view(capture: Capture) -> pa.Table:
    """The kinds of each step, then the whole capture, the most critical first."""
    import pyarrow as pa

    found = _stretches(capture)
    total = np.bincount(found["rank"], found["ns"]) if len(found["ns"]) else np.zeros(1)
    marked = {field: column[found["step"] >= 0] for field, column in found.items()}
    by_kind, by_step = (Groups(marked["rank"], marked["number"], *rest) for rest in ([marked["kind"]], []))
    steps = _table(capture, marked, by_kind, named=False)
    share = ratio(by_kind.sum(marked["ns"]), by_step.sum(marked["ns"])[by_step.of[by_kind.first]])
    steps = steps.append_column("share", share).append_column("steps", integers(np.ones(len(by_kind))))
    name, op, own = _names(capture, found)
    groups = Groups(found["rank"], found["kind"], name, op, own)
    whole = _table(capture, found, groups, named=True)
    whole = whole.append_column("share", ratio(groups.sum(found["ns"]), total[found["rank"][groups.first]]))
    whole = whole.append_column("steps", integers(groups.distinct(found["number"])))
    order = np.lexsort((-groups.sum(found["ns"]), found["rank"][groups.first]))
    return pa.concat_tables([_plain(steps), _plain(whole.take(pa.array(order)))])


def _stretches(capture: Capture) -> dict[str, Ints]:
    """The edges with a length on each step's path: rank, step (its number), kind, the host event and the GPU event."""
    parts: list[tuple[Ints, ...]] = []
    gpu = capture.gpu
    for rank in capture.ranks:
        rows = capture.rows(rank)
        if rows.stop == rows.start or not len(capture.host):
            continue
        builder = critical.Builder(capture, rank)
        steps = capture.steps[rank]
        for index, (calls, events) in enumerate(builder.windows()):
            if not len(events):
                continue
            graph = builder.graph(calls, events)
            edges = critical.heaviest(graph).edges
            edges = edges[graph.weight[edges] > 0]
            owner, kind = graph.owner[edges], graph.kind[edges]
            on_host = owner < len(calls)
            event = np.where(on_host, -1, events[np.where(on_host, 0, owner - len(calls))])
            call = np.where(on_host, calls[np.where(on_host, owner, 0)], at(capture.context, event))
            device = np.where(gpu.kind[np.maximum(event, 0)] != KERNEL, _COPY, _COMPUTE)
            device = np.where(gpu.communication[np.maximum(event, 0)], _COMMUNICATION, device)
            what = np.select(
                [kind == critical.HOST, kind == critical.LAUNCH, kind == critical.QUEUE],
                [_HOST, _LAUNCH, _QUEUE],
                device,
            )
            number = -1 if steps.source == "capture" else int(steps.number[index])
            count = len(edges)
            parts.append(
                (np.full(count, rank), np.full(count, number), np.full(count, index), what, call, event,
                 graph.weight[edges])
            )  # fmt: skip
    if not parts:
        return {field: np.empty(0, np.int64) for field in _FIELDS}
    return {field: np.concatenate(column).astype(np.int64) for field, column in zip(_FIELDS, zip(*parts))}


def _names(capture: Capture, found: dict[str, Ints]) -> tuple[Ints, Ints, Ints]:
    """Codes of name (GPU names follow the host's), outermost operator and own frame of each stretch."""
    host, gpu = capture.host, capture.gpu
    event, call = found["gpu"], found["host"]
    name = np.where(event >= 0, len(host.names) + at(gpu.name, event), name_of(host, call))
    op, own = (name_of(host, at(of, call)) for of in (host.top_op, host.own))
    return name, op, own


def _table(capture: Capture, found: dict[str, Ints], groups: Groups, *, named: bool) -> pa.Table:
    import pyarrow as pa

    host, first = capture.host, groups.first
    name, op, own = _names(capture, found)
    nothing = np.full(len(first), -1)
    step = found["step"][first]
    return pa.table(
        {
            "rank": pa.array(found["rank"][first].astype(np.int32)),
            "step": integers(step, np.ones(len(step), bool) if named else step < 0),
            "kind": words(found["kind"][first], list(KINDS)),
            "name": words(name[first] if named else nothing, host.names + capture.gpu.names),
            "op": words(op[first] if named else nothing, host.names),
            **place(host, own[first] if named else nothing),
            "count": integers(groups.count),
            "critical_ns": integers(groups.sum(found["ns"])),
        }
    )


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as text, so that the two tables have one schema."""
    import pyarrow as pa

    fields = [pa.field(one.name, pa.string() if pa.types.is_dictionary(one.type) else one.type) for one in table.schema]
    return table.cast(pa.schema(fields))
