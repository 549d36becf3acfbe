"""Phases of the steps: data, forward, backward, optimizer, other, on the main thread and on the GPU.

Columns: rank, step (null: all steps), phase, wall_ns (main thread; the phases of a step sum to its mark), share (of the
mark), op_ns, blocked_ns, gpu_ns (duration of the kernels and copies launched in it; null without GPU), kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace.capture import KERNEL, Capture
from scripts.trace.columns import at
from scripts.trace.frames import OTHER, PHASES
from scripts.trace.timeline import IN_BLOCKED, IN_OP, main_timeline

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "phases"
_COUNT = len(PHASES)


def view(capture: Capture) -> pa.Table:
    """Rows of (rank, step, phase) that have any time, then (rank, null, phase)."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for rank in capture.ranks:
        rows += _rank(capture, rank)
    schema = pa.schema(
        [
            ("rank", pa.int32()),
            ("step", pa.int64()),
            ("phase", pa.string()),
            ("wall_ns", pa.int64()),
            ("share", pa.float64()),
            ("op_ns", pa.int64()),
            ("blocked_ns", pa.int64()),
            ("gpu_ns", pa.int64()),
            ("kernels", pa.int64()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def _rank(capture: Capture, rank: int) -> list[dict[str, Any]]:
    steps = capture.steps[rank]
    count = len(steps)
    timeline = main_timeline(capture, rank)
    window, piece, part = timeline.cut(steps.cpu_start, steps.cpu_end)
    cell = window * _COUNT + timeline.phase[piece]

    def table(keep: Any) -> Any:
        return np.bincount(cell[keep], part[keep], count * _COUNT).reshape(count, _COUNT).astype(np.int64)

    state = timeline.state[piece]
    wall, op, blocked = table(slice(None)), table(state == IN_OP), table(state == IN_BLOCKED)
    gpu_ns, kernels = _gpu(capture, rank, count)
    length = (steps.cpu_end - steps.cpu_start).astype(np.int64)
    real = steps.source != "capture"
    numbers: list[int | None] = [*(steps.number.tolist() if real else []), None]
    has_gpu = gpu_ns is not None

    def stack(values: Any) -> Any:
        total = values.sum(axis=0, keepdims=True)
        return np.concatenate([values, total]) if real else total

    tables = [stack(values) for values in (wall, op, blocked, *((gpu_ns, kernels) if has_gpu else ()))]
    lengths = np.append(length, length.sum()) if real else length.sum(keepdims=True)
    rows = []
    for index, number in enumerate(numbers):
        for phase in range(1, _COUNT):
            values = [int(one[index, phase]) for one in tables]
            if any(values):
                rows.append(
                    {
                        "rank": rank,
                        "step": number,
                        "phase": PHASES[phase],
                        "wall_ns": values[0],
                        "share": values[0] / int(lengths[index]) if lengths[index] else None,
                        "op_ns": values[1],
                        "blocked_ns": values[2],
                        "gpu_ns": values[3] if has_gpu else None,
                        "kernels": values[4] if has_gpu else None,
                    }
                )
    return rows


def _gpu(capture: Capture, rank: int, count: int) -> tuple[Any, Any]:
    rows = capture.rows(rank)
    if rows.stop == rows.start:
        return None, None
    step = capture.gpu_step[rows]
    phase = at(capture.phase, capture.context[rows], OTHER)
    kept = step >= 0
    cell = step[kept] * _COUNT + phase[kept]
    length = (capture.gpu.end - capture.gpu.start)[rows][kept]
    kernel = capture.gpu.kind[rows][kept] == KERNEL
    return (
        np.bincount(cell, length, count * _COUNT).reshape(count, _COUNT).astype(np.int64),
        np.bincount(cell[kernel], minlength=count * _COUNT).reshape(count, _COUNT),
    )
