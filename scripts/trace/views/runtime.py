"""Where the wall time of each step went: busy and idle GPU, and what the main thread did meanwhile.

Columns (ns, null where the trace cannot say): rank, step (null: the whole capture), label, source (of the marks),
window (gpu: from the first kernel that the step launched to that of the next step; cpu: the mark itself), start_ns,
end_ns, wall_ns; cpu_wall_ns (the mark); busy_ns, idle_ns, compute_ns, communication_ns, copy_ns (unions of intervals in
the window); kernels, launches; op_ns, python_ns, data_ns, blocked_ns (main thread; they sum to cpu_wall_ns);
ratio_to_median, slow; own_ns (wall less exposed communication), behind_ns (own_ns less the median of the ranks),
straggler.

Cost: linear in GPU events and in host segments of the main thread, after sorting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import intervals
from scripts.trace.capture import KERNEL, Capture, Steps
from scripts.trace.columns import floats, integers
from scripts.trace.timeline import IN_BLOCKED, IN_DATA, IN_OP, IN_PYTHON, main_timeline

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "runtime"
# A step is slow where it takes a quarter more than the median and stands out of the spread: 3 robust standard
# deviations.
SLOW, DEVIATIONS = 1.25, 3 * 1.4826
STRAGGLER = 1.05


def view(capture: Capture) -> pa.Table:
    """One row a step and one for the capture, for each rank."""
    import pyarrow as pa

    parts = [_rank(capture, rank) for rank in capture.ranks]
    if not parts:
        parts = [_empty()]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    _stragglers(columns)
    no_gpu = columns["kernels"] < 0
    no_host = columns["op_ns"] < 0
    missing = {
        **dict.fromkeys(
            ("busy_ns", "idle_ns", "compute_ns", "communication_ns", "copy_ns", "kernels", "launches"), no_gpu
        ),
        **dict.fromkeys(("op_ns", "python_ns", "data_ns", "blocked_ns"), no_host),
        "step": columns["step"] < 0,
        "own_ns": no_gpu,
        "behind_ns": columns["behind_ns"] == _NONE,
    }
    texts = ("label", "source", "window")
    arrays: dict[str, Any] = {"rank": pa.array(columns["rank"].astype(np.int32))}
    for key in _ORDER:
        if key in texts:
            arrays[key] = pa.array(columns[key].tolist(), pa.string())
        elif key in ("slow", "straggler"):
            whole = columns["step"] < 0
            arrays[key] = pa.array(
                columns[key].astype(bool), mask=whole if key == "slow" else columns["behind_ns"] == _NONE
            )
        elif key == "ratio_to_median":
            arrays[key] = floats(columns[key])
        else:
            arrays[key] = integers(columns[key], missing.get(key))
    return pa.table(arrays)


_NONE = np.iinfo(np.int64).min
_ORDER = (
    "step", "label", "source", "window", "start_ns", "end_ns", "wall_ns", "cpu_wall_ns", "busy_ns", "idle_ns",
    "compute_ns", "communication_ns", "copy_ns", "kernels", "launches", "op_ns", "python_ns", "data_ns",
    "blocked_ns", "ratio_to_median", "slow", "own_ns", "behind_ns", "straggler",
)  # fmt: skip


def headline(table: pa.Table, _: Capture) -> dict[str, Any]:
    """Shares of the capture over all ranks, the median step and the slow ones."""
    rows = table.to_pylist()
    whole = [row for row in rows if row["step"] is None]
    steps = [row for row in rows if row["step"] is not None and row["source"] != "capture"]
    wall = sum(row["wall_ns"] for row in whole)
    cpu_wall = sum(row["cpu_wall_ns"] for row in whole)
    walls = [row["wall_ns"] for row in steps]
    median = int(np.median(walls)) if walls else None
    slow = [row for row in steps if row["slow"]]

    def share(key: str, of: int) -> float | None:
        values = [row[key] for row in whole if row[key] is not None]
        return sum(values) / of if values and of else None

    kernels = [row["kernels"] for row in whole if row["kernels"] is not None]
    return {
        "capture_ns": max((row["wall_ns"] for row in whole), default=0),
        "ranks": len(whole),
        "steps": len(steps),
        "median_step_ns": median,
        "slow_steps": len(slow) if steps else None,
        "slow_step_excess_ns": sum(row["wall_ns"] - median for row in slow) if steps and median else None,
        "gpu_busy": share("busy_ns", wall),
        "gpu_idle": share("idle_ns", wall),
        "op_share": share("op_ns", cpu_wall),
        "python_share": share("python_ns", cpu_wall),
        "data_wait": share("data_ns", cpu_wall),
        "synchronisation": share("blocked_ns", cpu_wall),
        "kernels_per_step": sum(kernels) / len(steps) if kernels and steps else None,
    }


def slow_steps(wall: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of one rank's steps are slow; fewer than three steps have none."""
    if len(wall) < 3:
        return np.zeros(len(wall), bool)
    median = np.median(wall)
    spread = np.median(np.abs(wall - median))
    return np.asarray((wall > SLOW * median) & (wall > median + DEVIATIONS * spread))


def _rank(capture: Capture, rank: int) -> dict[str, Any]:
    steps = capture.steps[rank]
    low, high = capture.span(rank)
    real = steps.source != "capture"
    none = np.empty(0, np.int64)  # an empty list would make floats, which cannot hold ns since 1970
    start = np.append(steps.start if real else none, low)
    end = np.append(steps.end if real else none, high)
    cpu_start = np.append(steps.cpu_start if real else none, steps.cpu_start.min())
    cpu_end = np.append(steps.cpu_end if real else none, steps.cpu_end.max())
    count = len(start)
    wall = end - start
    median = float(np.median(wall[:-1])) if real else float("nan")
    columns: dict[str, Any] = {
        "rank": np.full(count, rank),
        "step": np.append(steps.number if real else none, -1),
        "label": np.array([*(steps.label if real else []), "capture"], object),
        "source": np.full(count, steps.source, object),
        "window": np.full(count, steps.window, object),
        "start_ns": start,
        "end_ns": end,
        "wall_ns": wall,
        "cpu_wall_ns": cpu_end - cpu_start,
        "ratio_to_median": np.append(wall[:-1] / median if real and median > 0 else np.full(count - 1, np.nan), np.nan),
        "slow": np.append(slow_steps(wall[:-1]), False),
        "behind_ns": np.full(count, _NONE),
        "straggler": np.zeros(count, bool),
    }
    return {
        **columns,
        **_device(capture, rank, steps, start=start, end=end, real=real),
        **_main(capture, rank, cpu_start, cpu_end),
    }


def _device(capture: Capture, rank: int, steps: Steps, *, start: Any, end: Any, real: bool) -> dict[str, Any]:
    gpu, rows = capture.gpu, capture.rows(rank)
    count = len(start)
    if rows.stop == rows.start:
        unknown = np.full(count, -1, np.int64)
        return {
            **dict.fromkeys(
                ("busy_ns", "idle_ns", "compute_ns", "communication_ns", "copy_ns", "kernels", "launches", "own_ns"),
                unknown,
            )
        }
    first, last, kernel, talk = gpu.start[rows], gpu.end[rows], gpu.kind[rows] == KERNEL, gpu.communication[rows]
    busy = intervals.merge(first, last)
    compute = intervals.merge(first[kernel & ~talk], last[kernel & ~talk])
    communication = intervals.merge(first[talk], last[talk])
    copies = intervals.merge(first[~kernel], last[~kernel])
    exposed = intervals.subtract(intervals.subtract(communication, compute), copies)
    within = intervals.covered(busy, start, end)
    launched = capture.gpu_step[rows]
    kernels = np.append(
        np.bincount(launched[(launched >= 0) & kernel], minlength=len(steps)) if real else [], int(kernel.sum())
    )
    if real:
        kernels[-1] = kernels[:-1].sum()
    calls = _launches(capture, rank, steps, real)
    return {
        "busy_ns": within,
        "idle_ns": end - start - within,
        "compute_ns": intervals.covered(compute, start, end),
        "communication_ns": intervals.covered(communication, start, end),
        "copy_ns": intervals.covered(copies, start, end),
        "kernels": kernels,
        "launches": calls,
        "own_ns": end - start - intervals.covered(exposed, start, end),
    }


def _launches(capture: Capture, rank: int, steps: Steps, real: bool) -> Any:
    host = capture.host
    if not len(host):
        return np.zeros((len(steps) if real else 0) + 1, np.int64)
    calls = np.flatnonzero(
        host.flag(lambda n: "aunch" in n and n.startswith(("cu", "hip"))) & (host.rank == rank) & (host.kind == 3)
    )
    index = steps.of(host.start[calls])
    inside = np.bincount(index[index >= 0], minlength=len(steps))
    return np.append(inside, inside.sum()) if real else np.array([len(calls)])


def _main(capture: Capture, rank: int, start: Any, end: Any) -> dict[str, Any]:
    if rank not in capture.host.main:
        return dict.fromkeys(("op_ns", "python_ns", "data_ns", "blocked_ns"), np.full(len(start), -1, np.int64))
    timeline = main_timeline(capture, rank)
    found = {}
    for key, state in (("op_ns", IN_OP), ("python_ns", IN_PYTHON), ("data_ns", IN_DATA), ("blocked_ns", IN_BLOCKED)):
        mine = timeline.state == state
        found[key] = intervals.covered(intervals.merge(timeline.start[mine], timeline.end[mine]), start, end)
    return found


def _stragglers(columns: dict[str, Any]) -> None:
    """In a step all ranks end together; the one whose own work took longest held the others up."""
    if len(np.unique(columns["rank"])) < 2:
        return
    for step in np.unique(columns["step"]):
        mine = np.flatnonzero((columns["step"] == step) & (columns["kernels"] >= 0))
        if len(mine) < 2:
            continue
        own = columns["own_ns"][mine]
        middle = int(np.median(own))
        columns["behind_ns"][mine] = own - middle
        columns["straggler"][mine] = (own == own.max()) & (own > STRAGGLER * middle)


def _empty() -> dict[str, Any]:
    return {key: np.empty(0, object if key in ("label", "source", "window") else np.int64) for key in ("rank", *_ORDER)}
