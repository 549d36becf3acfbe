"""Host time by operator, python frame, runtime call and annotation, for each thread.

Columns: rank, thread (pid/tid), role (main, backward, other), kind (op, frame, call, annotation), name, path, line,
function (frames), own (a frame of the job's own source), count, total_ns (inclusive; recursion counts once), self_ns
(no recorded child), source_ns (own frames: all time in which this is the innermost own frame, so libraries and
operators that it called are included), shapes (distinct input shapes of an operator), share (self_ns of the rank's
marked wall), steps.

The self times of a thread's rows sum to the time in which anything was recorded on it. Built-in functions are frames
without a path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import nesting
from scripts.trace.capture import OP, PYTHON, Capture, codes
from scripts.trace.columns import at, integers, place, ratio, words
from scripts.trace.frames import BACKWARD
from scripts.trace.grouping import Groups

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "cpu"
KINDS = ("annotation", "frame", "op", "call")
ROLES = ("main", "backward", "other")


def view(capture: Capture) -> pa.Table:
    """One row a (thread, kind, name): the main thread first, the largest self time first."""
    import pyarrow as pa

    host = capture.host
    groups = Groups(host.thread, host.kind, host.name)
    first, code = groups.first, host.name[groups.first]
    thread, kind = host.thread[first], host.kind[first]
    length = host.end - host.start
    outer = nesting.not_recursive(host.thread, host.name, host.start, host.end, len(host.names) + 1)
    self_ns = groups.sum(host.self_ns)
    own = np.array([frame is not None and frame.own for frame in host.frames] or [False])[code] & (kind == PYTHON)
    source = groups.sum(_innermost_own(capture))
    rank = host.rank[first]
    marked = {one: int((steps.cpu_end - steps.cpu_start).sum()) for one, steps in capture.steps.items()}
    is_frame = kind == PYTHON
    table = pa.table(
        {
            "rank": pa.array(rank.astype(np.int32)),
            "thread": words(thread, [f"{pid}/{tid}" for _, pid, tid in host.threads]),
            "role": words(np.array(roles(capture) or [0])[thread], list(ROLES)),
            "kind": words(kind, list(KINDS)),
            "name": words(code, host.names),
            **place(host, np.where(is_frame, code, -1)),
            "own": pa.array(own),
            "count": integers(groups.count),
            "total_ns": integers(groups.sum(np.where(outer, length, 0))),
            "self_ns": integers(self_ns),
            "source_ns": integers(source, ~own),
            "shapes": integers(groups.distinct(shapes(capture)), kind != OP),
            "share": ratio(self_ns, np.array([marked[one] for one in rank.tolist()], np.float64)),
            "steps": integers(groups.distinct(capture.step_of(host.rank, host.start))),
        }
    )
    return table.take(pa.array(np.lexsort((-self_ns, np.array(roles(capture) or [0])[thread], rank))))


def headline(table: pa.Table, _: Capture) -> dict[str, Any]:
    """The operator and the own frame with the most time of their own."""
    rows = table.select(["kind", "name", "own", "self_ns", "source_ns", "role"]).to_pylist()
    ops = [row for row in rows if row["kind"] == "op"]
    frames = [row for row in rows if row["own"] and row["role"] == "main"]
    return {
        "top_op": max(ops, key=lambda row: row["self_ns"])["name"] if ops else None,
        "top_frame": max(frames, key=lambda row: row["source_ns"])["name"] if frames else None,
    }


def roles(capture: Capture) -> list[int]:
    """Role of each thread: the rank's main one, one that mostly runs the autograd engine, another."""
    host = capture.host
    back = (capture.phase == BACKWARD) & (host.kind == OP)
    total = np.bincount(host.thread, host.kind == OP, len(host.threads))
    engine = np.bincount(host.thread, back, len(host.threads))
    return [
        0 if host.main.get(rank) == thread else 1 if engine[thread] * 2 > total[thread] else 2
        for thread, (rank, _, _) in enumerate(host.threads)
    ]


def shapes(capture: Capture) -> Any:
    """Code of the input shapes of each host event, -1 for none."""
    host = capture.host
    found = np.full(len(host), -1, np.int64)
    rows = host.first_row.get(OP, np.empty(0, np.int64))
    code, dims = codes(capture.op_columns, "input_dims")
    empty = [one for one, word in enumerate(dims) if not word]
    found[rows[rows >= 0]] = np.where(np.isin(code, empty), -1, code)[rows >= 0]
    return found


def _innermost_own(capture: Capture) -> Any:
    """For each event the time in which it is the innermost own frame of its thread."""
    start, end, event = capture.host.all_segments
    own = at(capture.host.own, event)
    kept = own >= 0
    return np.bincount(own[kept], (end - start)[kept], len(capture.host)).astype(np.int64)
