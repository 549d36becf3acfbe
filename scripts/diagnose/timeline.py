"""Host time of a profiled window as one tree a thread: python frames, operators and annotations, nested by time.

Profiling slows the job, and python most, so times are corrected until the window's steps take as long as the steps of
the unprofiled run: first a fixed cost for each recorded frame and operator, then interpreted code (python 3.11 slows all
of it while a profile function is set, measured 1.6 times), then operators that write to new memory (the profiler's
records lie in what was free, so that it really is new; on a CPU a page costs more than many an operator), then everything
alike. Cost: one sort and one pass over the events, about 1 us each.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from scripts.diagnose.source import Function
from scripts.diagnose.timing import SLOW

FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<name>.+)$")
BUILTIN = re.compile(r"^<(?:built-in (?:method|function) |method ')(?P<name>[^ '>]+)")
PYTHON, OPERATOR, ANNOTATION = 0, 1, 2
PARAMETRISED = tuple(
    f"aten::{name}"
    for name in (
        "linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "conv", "_convolution", "embedding", "layer_norm",
        "native_layer_norm", "batch_norm", "native_batch_norm", "group_norm", "native_group_norm", "rms_norm", "lstm",
        "gru", "prelu", "_scaled_mm",
    )
)  # fmt: skip
FRAME_COST_NS = 150  # a frame or builtin recorded with stacks; measured as the smallest of walks that do nothing else
OPERATOR_COST_NS = 1000  # an operator; 0.7 to 1.4 us in nine CPU jobs of small ones, more where memory moves as well
INTERPRETER_SLOWDOWN = 1.6  # the most that interpreted code is charged
OPERATOR_SLOWDOWN = 3.0  # the most that operators with new memory are


@dataclass
class Timeline:
    """Events of all host threads, in (thread, start, longest first) order; arrays of one length. Times in ns,
    clipped to the window.

    `parent` is an index or -1, `below` the number of events under an event, `short` the bare callee name (`item`,
    `encode`,
    `aten::mm`), `source` an index into `functions` or -1, `owner` the nearest enclosing function of the job, itself
    included.
    """

    functions: list[Function]
    name: list[str]
    short: list[str]
    kind: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    parent: np.ndarray
    below: np.ndarray
    source: np.ndarray
    owner: np.ndarray
    sequence: np.ndarray
    dims: list[str | None]
    types: list[str | None]
    own_ns: np.ndarray
    window: tuple[int, int] = (0, 0)
    steps: int = 0
    scale: float = 1.0
    by_short: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.correct(None)
        top = self.parent == -1
        threads, inverse = np.unique(self.thread[top], return_inverse=True)
        self.main_thread = int(threads[np.bincount(inverse, (self.end - self.start)[top]).argmax()])

    def correct(self, step_s: float | None) -> None:
        """Set corrected self times, so that the window's steps take `step_s` each where profiling made them longer.

        A window that is mostly slow steps (weights moved between calls of 0.3 ms) keeps what they take beyond the median.
        """
        frames = self.kind == PYTHON
        interpreted = np.array([bool(FRAME.match(n)) for n in self.name]) & frames
        spent = _self_times(self.start, self.end, self.parent) - self._overlapped_ns()
        operators = self.kind == OPERATOR
        self.own_ns = np.maximum(0.0, spent - FRAME_COST_NS * frames - OPERATOR_COST_NS * operators)
        if step_s and self.steps:
            on_main = self.thread == self.main_thread
            wanted, have = step_s * 1e9 * self.steps, float(self.own_ns[on_main].sum())
            slow_ns = self._slow_ns()
            wanted += slow_ns if slow_ns > wanted else 0.0
            fresh = operators & ~np.array([_in_place(name) for name in self.name])
            for charged, most in ((interpreted, INTERPRETER_SLOWDOWN), (fresh, OPERATOR_SLOWDOWN)):
                part = float(self.own_ns[on_main & charged].sum())
                if have > wanted and part > 0:
                    left = max(part - (have - wanted), part / most)
                    self.own_ns[charged] *= left / part
                    have += left - part
            self.scale = min(1.0, wanted / have) if have else 1.0
            self.own_ns *= self.scale
        self._sum = np.concatenate([[0.0], np.cumsum(self.own_ns)])

    def _overlapped_ns(self) -> np.ndarray:
        """The end of each annotation that lies under its successor: a mark of a step ends in the middle of the function
        that calls the model, and that time is the function's."""
        found = np.zeros(len(self.name))
        marks = (self.kind == ANNOTATION).nonzero()[0]
        after = marks + 1 + self.below[marks]
        marks, after = marks[after < len(self.name)], after[after < len(self.name)]
        same = self.thread[marks] == self.thread[after]
        found[marks] = np.where(same, np.maximum(0, self.end[marks] - self.start[after]), 0)
        return found

    def _slow_ns(self) -> float:
        """Recorded time of the window's slow steps beyond the median one; 0 where nothing marks steps."""
        marks = (self.kind == ANNOTATION).nonzero()[0].tolist()
        starts = sorted({int(self.start[i]) for i in marks if self.name[i].startswith("ProfilerStep#")})
        walls = [b - a for a, b in zip(starts, [*starts[1:], self.window[1]], strict=True)] if len(starts) > 2 else []
        walls = walls or ([] if self.trains else self.calls_ns())
        typical = statistics.median(walls) if walls else 0.0
        return float(sum(wall - typical for wall in walls if wall > SLOW * typical))

    @cached_property
    def trains(self) -> bool:
        """Whether the window holds backward passes."""
        return any(name.startswith("autograd::engine::evaluate_function") for name in self.by_short)

    @cached_property
    def model_calls(self) -> list[int]:
        """Outermost module calls of the main thread: the steps of a job that only infers. As the recorder marks only
        modules with parameters, a loss or a softmax beside the model is none."""
        calls = self.outermost([i for i in self.named("nn.Module:") if self.thread[i] == self.main_thread])
        return [i for i in calls if any(self.name[j].startswith(PARAMETRISED) for j in self.under(i))] or calls

    def calls_ns(self) -> list[int]:
        """Recorded time from each end of a model call to the next, as the recorder marks the steps of inference."""
        ends = sorted(int(self.end[i]) for i in self.model_calls)
        return [after - before for before, after in zip(ends, ends[1:], strict=False)]

    @property
    def window_ns(self) -> float:
        """Corrected length of the window: the main thread's recorded time."""
        return max(1.0, float(self.own_ns[self.thread == self.main_thread].sum()))

    def ns(self, index: int) -> float:
        """Corrected inclusive time of one event."""
        return float(self._sum[index + 1 + self.below[index]] - self._sum[index])

    def total_ns(self, indices: list[int]) -> float:
        """Corrected time of the union of subtrees: an event under another of the same list counts once."""
        return sum(self.ns(i) for i in self.outermost(indices))

    def outermost(self, indices: list[int]) -> list[int]:
        """Of the events given, those that lie under no other one given."""
        chosen, kept = set(indices), []
        for index in indices:
            above = self.parent[index]
            while above != -1 and int(above) not in chosen:
                above = self.parent[above]
            if above == -1:
                kept.append(index)
        return kept

    def under(self, index: int) -> range:
        """Indices of the events under one event: its subtree is contiguous."""
        return range(index + 1, index + 1 + int(self.below[index]))

    def of_function(self, function: int) -> list[int]:
        """Frames of one function of the job."""
        return [int(i) for i in np.flatnonzero(self.source == function)]

    def calls(self, short: str, function: int | None = None) -> list[int]:
        """Events named `short` called directly by `function` of the job (by anything when None)."""
        found = self.by_short.get(short, [])
        if function is None:
            return found
        return [i for i in found if self.parent[i] != -1 and self.source[self._frame_above(i)] == function]

    def just_before(self, index: int, names: list[str]) -> list[int]:
        """The events right before one in the same frame, as long as `names` has them; `""` stands for any operator.

        What an expression's value is made of, as far as the frame makes it itself: an event a name at most.
        """
        left, found = list(names), []
        while left:
            previous = index - 1
            while previous >= 0 and self.parent[previous] != self.parent[index] and previous != self.parent[index]:
                previous = int(self.parent[previous])
            if previous < 0 or previous == self.parent[index]:
                break
            name = self.short[previous]
            if name not in left:
                name = ""
                if name not in left or self.kind[previous] != OPERATOR:
                    break
            left.remove(name)
            found.append(previous)
            index = previous
        return found

    def named(self, *prefixes: str) -> list[int]:
        """Events whose full name starts with one of the prefixes."""
        return [i for short in self.by_short for i in self.by_short[short] if self.name[i].startswith(prefixes)]

    def _frame_above(self, index: int) -> int:
        """The nearest enclosing python frame that is no builtin and no comprehension: who made the call."""
        above = int(self.parent[index])
        while above != -1:
            if self.source[above] >= 0:
                return above
            name = self.name[above]
            if self.kind[above] == PYTHON and not BUILTIN.match(name) and not name.endswith(("comp>", "genexpr>")):
                return above
            if self.kind[above] == OPERATOR:
                return above
            above = int(self.parent[above])
        return index


def build(tables: dict[str, Any], functions: list[Function], step_s: float | None = None) -> Timeline | None:
    """A timeline of the tables `python`, `cpu_op`, `annotation` (pyarrow, docs/formats.md); None where there is no
    host event.

    `step_s` is the step time of an unprofiled run: with it, times are corrected for the cost of profiling.
    """
    names, starts, durations, threads, kinds, sequences, dims, types = _gather(tables)
    if not names:
        return None
    order = np.lexsort((kinds, -durations, starts, threads))
    names = [names[i] for i in order]
    dims = [dims[i] for i in order]
    types = [types[i] for i in order]
    starts, durations, threads = starts[order], durations[order], threads[order]
    kinds, sequences = kinds[order], sequences[order]
    ends = starts + durations
    operators = kinds == OPERATOR
    last = int(ends[operators].max()) if operators.any() else int(ends.max())
    window = (int(starts.min()), last)
    inside = starts < last
    names = [n for n, keep in zip(names, inside) if keep]
    dims = [d for d, keep in zip(dims, inside) if keep]
    types = [t for t, keep in zip(types, inside) if keep]
    starts, ends, threads = starts[inside], np.minimum(ends[inside], last), threads[inside]
    kinds, sequences = kinds[inside], sequences[inside]
    parent, below = _nest(starts, ends, threads)
    matched = _match(names, kinds, functions)
    owner = np.full(len(names), -1, dtype=np.int64)
    for i in range(len(names)):
        owner[i] = matched[i] if matched[i] >= 0 else (owner[parent[i]] if parent[i] >= 0 else -1)
    short = [_short(n) for n in names]
    by_short: dict[str, list[int]] = {}
    for i, text in enumerate(short):
        by_short.setdefault(text, []).append(i)
    timeline = Timeline(
        functions,
        names,
        short,
        kinds,
        starts,
        ends,
        threads,
        parent,
        below,
        matched,
        owner,
        sequences,
        dims,
        types,
        np.zeros(len(names)),
        window,
        by_short=by_short,
    )
    timeline.steps = _steps(timeline)
    timeline.correct(step_s)
    return timeline


def _gather(tables: dict[str, Any]) -> tuple[Any, ...]:
    names: list[str] = []
    dims: list[str | None] = []
    types: list[str | None] = []
    starts, durations, threads, kinds, sequences = [], [], [], [], []
    tids: dict[str, int] = {}
    for kind, table_name in ((PYTHON, "python"), (OPERATOR, "cpu_op"), (ANNOTATION, "annotation")):
        table = tables.get(table_name)
        if table is None or not table.num_rows:
            continue
        columns = {
            c: table.column(c).to_pylist()
            for c in ("name", "cat", "pid", "tid", "dur_ns", "ts_ns")
            if c in table.column_names
        }
        sequence = table.column("sequence").to_pylist() if "sequence" in table.column_names else [None] * table.num_rows
        shapes = (
            table.column("input_dims").to_pylist() if "input_dims" in table.column_names else [None] * table.num_rows
        )
        kinds_of = (
            table.column("input_types").to_pylist() if "input_types" in table.column_names else [None] * table.num_rows
        )
        rank = table.column("rank").to_pylist() if "rank" in table.column_names else [0] * table.num_rows
        first_rank = min(rank)
        for row, name in enumerate(columns["name"]):
            duration = columns["dur_ns"][row]
            # gpu_user_annotation is the device's side of the same range; one rank tells the host's story. The profiler's
            # own span ("Trace") covers the whole window on a thread of its own, and would be taken for the main one.
            if duration is None or rank[row] != first_rank or str(columns["cat"][row]).startswith(("gpu", "Trace")):
                continue
            names.append(name or "")
            starts.append(columns["ts_ns"][row])
            durations.append(max(0, duration))
            threads.append(tids.setdefault(f"{columns['pid'][row]}/{columns['tid'][row]}", len(tids)))
            kinds.append(kind)
            sequences.append(-1 if sequence[row] is None else sequence[row])
            dims.append(shapes[row])
            types.append(kinds_of[row])
    as_int = [np.array(values, dtype=np.int64) for values in (starts, durations, threads, kinds, sequences)]
    return names, *as_int, dims, types


def _nest(starts: np.ndarray, ends: np.ndarray, threads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parents and subtree sizes by containment; an event that only overlaps its predecessor is its sibling's
    successor."""
    count = len(starts)
    parent, below = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    stack: list[int] = []
    start_list, end_list, thread_list = starts.tolist(), ends.tolist(), threads.tolist()
    for i in range(count):
        while stack and (
            thread_list[stack[-1]] != thread_list[i]
            or end_list[stack[-1]] <= start_list[i]
            or end_list[stack[-1]] < end_list[i]
        ):
            below[stack.pop()] = i
        parent[i] = stack[-1] if stack else -1
        stack.append(i)
    for i in stack:
        below[i] = count
    return parent, np.maximum(0, below - np.arange(count) - 1)


def _self_times(starts: np.ndarray, ends: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Duration less the durations of direct children."""
    durations = (ends - starts).astype(float)
    inside = np.zeros(len(durations))
    child = parent >= 0
    np.add.at(inside, parent[child], durations[child])
    return np.maximum(0.0, durations - inside)


def _match(names: list[str], kinds: np.ndarray, functions: list[Function]) -> np.ndarray:
    """Index of the job's function that each python frame ran; a frame on the stack at the start has its current
    line."""
    by_name: dict[str, list[int]] = {}
    for number, function in enumerate(functions):
        by_name.setdefault(function.name, []).append(number)
    known: dict[str, int] = {}
    matched = np.full(len(names), -1, dtype=np.int64)
    for i, name in enumerate(names):
        if kinds[i] != PYTHON:
            continue
        if name not in known:
            known[name] = _find(name, by_name, functions)
        matched[i] = known[name]
    return matched


def _find(name: str, by_name: dict[str, list[int]], functions: list[Function]) -> int:
    frame = FRAME.match(name)
    if not frame:
        return -1
    line = int(frame["line"])
    for number in by_name.get(frame["name"].rpartition(".")[2], []):
        function = functions[number]
        if same_file(frame["file"], function.path) and function.first_line <= line <= function.end_line:
            return number
    return -1


def same_file(traced: str, relative: str) -> bool:
    """Whether a traced path (absolute, or cut at an import root) and a path of the tree are one file, by whole
    components."""
    left, right = PurePosixPath(traced).parts, PurePosixPath(relative).parts
    shared = min(len(left), len(right))
    return left[-shared:] == right[-shared:]


def _short(name: str) -> str:
    if builtin := BUILTIN.match(name):
        return builtin["name"].rpartition(".")[2]
    if frame := FRAME.match(name):
        return frame["name"].rpartition(".")[2]
    return name


def _steps(timeline: Timeline) -> int:
    """Optimizer steps in the window (most frequent optimizer), or ProfilerStep marks, or of inference the calls of the
    model; 0 where none of them is there."""
    counts: dict[str, int] = {}
    for i in np.flatnonzero(timeline.kind == ANNOTATION):
        name = timeline.name[i]
        if name.startswith("Optimizer.step#"):
            counts[name] = counts.get(name, 0) + 1
        elif name.startswith("ProfilerStep"):
            counts["ProfilerStep"] = counts.get("ProfilerStep", 0) + 1
    return max(counts.values(), default=0) or (0 if timeline.trains else len(timeline.model_calls))


def _in_place(operator: str) -> bool:
    """Whether an operator writes to memory that the job has used before; fills and copies mostly finish an allocation."""
    return operator.endswith("_") and operator not in ("aten::fill_", "aten::copy_")


def backward_ns(timeline: Timeline, forward: list[int]) -> float:
    """Corrected time of the backward nodes of forward operators, joined by autograd's sequence number.

    Source of the join: torch.profiler gives the forward operator and its backward node the same sequence number.
    """
    wanted = {int(timeline.sequence[i]) for i in forward if timeline.sequence[i] >= 0}
    spans = [i for i in timeline.named("autograd::engine::evaluate_function") if int(timeline.sequence[i]) in wanted]
    return timeline.total_ns(spans)


def at_time(starts: list[int], time: int) -> int:
    """Index of the last interval that starts at or before `time`, -1 where none does."""
    return bisect_right(starts, time) - 1
