"""How far recorded values move on their own: components of a record, floors by dtype, and the rising envelope.

The method follows ensemble consistency tests of climate models (CESM-ECT): a run is judged by its largest standardised
deviation over all tags and steps, against runs of the unmodified code that differ in rounding only.

- A record has *components*: a number has one; a float tensor has its sum, L2 norm, mean of magnitudes, minimum, maximum
  and its 64-bucket sketch, a vector. Each has a magnitude (what errors are relative to) and a floor (what rounding
  alone may do at this dtype).
- The *spread* of a component at a step is its variance over the baseline runs. Spreads are pooled over +-10
  neighbouring steps (fewer near the start, so that chaos in step 8 does not excuse a fault in step 0), divided by the
  pooled magnitude, and made rising: runs that have parted do not come together again.
- An honest change may round up to ALLOWANCE times as much as the baselines. Where runs part exponentially this brings
  it to the same deviation some steps earlier, so the envelope in use is ALLOWANCE times the measured one, but no more
  than what the baselines reach in the end (further if they still grow there). Where noise is constant nothing is added.
- tolerance = floor + threshold * sqrt(2) * envelope * magnitude, sqrt(2) because two runs are compared that both move.
- The *threshold* of a class of components is `factor(N)` times the largest standardised deviation of any baseline
  against the others when it is left out of the envelope.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Optional

from parity.records import Record, has_nan, number

WINDOW = 10
ALLOWANCE = 10.0
ROOT2 = math.sqrt(2.0)

# Machine epsilon by dtype, for what a single rounded element may do.
EPSILON = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2,
    "complex64": 2.0**-23, "complex128": 2.0**-52,
}  # fmt: skip
# What a chain of reordered reductions may do, relative: 1e-5 in float32 (torch's assert_close allows 1.3e-6 for one
# operation; ten honest operations in a row reach 1e-5), 1e-9 in float64; below float32 the reductions run in float32.
CHAIN = {"float64": 1e-9, "complex128": 1e-9}
# Tolerances where nothing was measured: torch.testing.assert_close's rtol by dtype, float32 widened to the chain.
UNMEASURED = {
    "float64": 1e-7, "complex128": 1e-7, "float16": 1e-3, "bfloat16": 1.6e-2,
    "float8_e4m3fn": 0.125, "float8_e4m3fnuz": 0.125, "float8_e5m2": 0.25, "float8_e5m2fnuz": 0.25,
}  # fmt: skip

# Families of components, each with a threshold of its own, and the lowest one: three standard deviations of a number;
# twice the noise of a 64-vector, whose length hardly varies (its relative standard deviation is 1/sqrt(128) = 9 %).
# Extremes have heavy tails, move in steps of the dtype, and see little that the others do not: five.
LOWEST = {"number": 3.0, "moment": 3.0, "extreme": 5.0, "sketch": 2.0}
LARGE = 1e12


class Component:
    """One thing that is compared of a record.

    `values` is a tuple (one number, or the 64 of a sketch); `magnitude` what errors are relative to; `floor` the
    absolute tolerance of rounding alone when noise was measured; `unmeasured` the one when it was not; `least` the
    smallest spread that is believed where the baselines hardly moved.
    """

    __slots__ = ("family", "floor", "least", "magnitude", "name", "unmeasured", "values")

    def __init__(  # noqa: PLR0917
        self, name: str, family: str, values: Sequence[float], magnitude: float, floor: float, unmeasured: float
    ):
        self.name = name
        self.family = family
        self.values = values
        self.magnitude = magnitude
        self.floor = floor
        self.unmeasured = unmeasured
        # An extreme is one rounded element; a few baselines may well agree on it by chance.
        self.least = floor / 2 if family == "extreme" else floor / 100


def components(record: Record) -> list[Component]:
    """The components of a record: none for text, flags, errors and tensors that are compared exactly."""
    kind = record["kind"]
    if kind == "float":
        value = record["value"]
        return [_number("value", value, abs(value), record.get("dtype"))]
    if kind == "int":
        value = record["value"]
        return [Component("value", "number", (float(value),), abs(float(value)), 0.0, 0.0)]
    if kind != "tensor" or "hash" in record or not record.get("numel"):
        return []
    return _tensor(record)


def distance(one: Component, other: Component) -> float:
    """Euclidean distance of two components; infinite where only one is finite, 0 where both are the same infinity."""
    total = 0.0
    for a, b in zip(one.values, other.values):
        if a != b:
            difference = a - b
            total += difference * difference
    return math.sqrt(total) if math.isfinite(total) else math.inf


def _number(name: str, value: float, magnitude: float, dtype: Optional[str]) -> Component:
    relative = max(CHAIN.get(dtype or "", 1e-5), EPSILON.get(dtype or "", 0.0))
    unmeasured = UNMEASURED.get(dtype or "", 1e-5)
    return Component(name, "number", (value,), magnitude, relative * magnitude, unmeasured * magnitude)


def _tensor(record: Record) -> list[Component]:
    dtype = str(record.get("dtype", "")).replace("torch.", "")
    numel = record["numel"]
    sketch = [value if isinstance(value, float) else number(value) for value in record.get("sketch") or []]
    if any((record.get("nonfinite") or {}).values()):
        return _finite_part(sketch, dtype)
    total, l2, mean = number(record["sum"]), number(record["l2"]), number(record["abs_mean"])
    low, high = number(record["min"]), number(record["max"])
    if numel == 1:
        return [_number("value", total, abs(total), dtype)]
    largest = max(abs(low), abs(high))
    epsilon = EPSILON.get(dtype, 2.0**-23)
    chain = CHAIN.get(dtype, 1e-5)
    # Independent rounding of every element moves a vector by eps/sqrt(12) of its length, taken as eps/4, and its norm
    # by a sqrt(numel)-th of that; the recorder adds in float32, which costs a sum up to 1e-6 of the sum of magnitudes.
    element = max(chain, epsilon / 4)
    averaged = max(chain, epsilon / 4 / math.sqrt(numel))
    rest = UNMEASURED.get(dtype, 1e-5)
    accumulation = 1e-6 * numel * mean
    result = [
        Component("sum", "moment", (total,), l2, element * l2 + accumulation, rest * l2 + accumulation),
        Component("l2", "moment", (l2,), l2, averaged * l2, rest * l2),
        Component("abs_mean", "moment", (mean,), mean, averaged * mean, rest * mean),
        Component("min", "extreme", (low,), largest, max(chain, epsilon) * largest, rest * largest),
        Component("max", "extreme", (high,), largest, max(chain, epsilon) * largest, rest * largest),
    ]
    if sketch:
        result.append(Component("sketch", "sketch", sketch, l2, element * l2, rest * l2))
    return result


def _finite_part(sketch: list[float], dtype: str) -> list[Component]:
    """A tensor with non-finite elements has no moments; the buckets of its sketch that hold none can be compared."""
    finite = math.sqrt(math.fsum(value * value for value in sketch if math.isfinite(value)))
    values = [value if math.isfinite(value) else math.inf for value in sketch]
    element = max(CHAIN.get(dtype, 1e-5), EPSILON.get(dtype, 2.0**-23) / 4)
    return [Component("sketch", "sketch", values, finite, element * finite, UNMEASURED.get(dtype, 1e-5) * finite)]


def factor(distinct: int) -> float:
    """The safety factor on the largest leave-one-out score, by the number of distinct baseline runs."""
    return 2.0 if distinct >= 3 else 4.0


def margin(distinct: int) -> float:
    """By how many tolerances a run must lie outside to be called different, by the number of distinct baselines."""
    return 1.0 if distinct >= 5 else {4: 1.25, 3: 1.5}.get(distinct, 4.0)


class Magnitude:
    """The magnitude of a number that may cross zero: its own, or the median of its last eleven if that is larger."""

    __slots__ = ("recent",)

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW + 1)

    def update(self, magnitude: float) -> float:
        """Takes the magnitude of the next record and returns the one to use."""
        if math.isfinite(magnitude):
            self.recent.append(magnitude)
            return max(magnitude, sorted(self.recent)[len(self.recent) // 2])
        return sorted(self.recent)[len(self.recent) // 2] if self.recent else 0.0


class Rising:
    """A relative envelope that never falls, kept as its break points: at most one for each 2 % of growth."""

    __slots__ = ("allowance", "points", "steps", "top")

    def __init__(
        self,
        points: Optional[Sequence[Sequence[float]]] = None,
        last_step: Optional[int] = None,
        allowance: float = ALLOWANCE,
    ):
        self.allowance = allowance
        self.points = [list(point) for point in points or []]
        self.steps = [point[0] for point in self.points]
        self.top = 0.0
        if last_step is not None and self.points:
            highest = self.points[-1][1]
            before = self.at(self.steps[0] + (2 * (last_step - self.steps[0])) // 3)
            self.top = highest * (min(allowance, highest / before) if before > 0.0 else 1.0)

    def add(self, step: int, value: float) -> float:
        """Raises the envelope at `step` to `value` if that is higher, and returns the envelope there."""
        last = self.points[-1][1] if self.points else 0.0
        if value > last * 1.02 or not self.points:
            value = max(value, last)
            self.points.append([step, value])
            self.steps.append(step)
            return value
        return last

    def at(self, step: float) -> float:
        """The envelope at a step; that of the first step before it, of the last one after it."""
        if not self.points:
            return 0.0
        return self.points[max(0, bisect.bisect_right(self.steps, step) - 1)][1]

    def allowed(self, step: int) -> float:
        """The envelope with the allowance for other rounding (given `last_step`)."""
        return self.raised(self.at(step))

    def raised(self, measured: float) -> float:
        """A level of the envelope with the allowance (given `last_step`)."""
        return max(measured, min(self.allowance * measured, self.top))


class _Point:
    """What one step gives to an envelope: squared distances of all pairs of runs, magnitude, floor."""

    __slots__ = ("floor", "least", "magnitude", "spreads", "squares", "step")

    def __init__(self, step: int, squares: list[float], spreads: list[float], magnitude: float, part: Component):
        self.step = step
        self.squares = squares
        self.spreads = spreads
        self.magnitude = magnitude
        self.floor = part.floor
        self.least = part.least


class Estimate:
    """The envelope of one component of one tag, and the leave-one-out scores of the runs, as records stream by.

    `envelope` is that of all runs; `finish()[i]` the largest standardised deviation of run i against any other when i
    is left out, with the allowance that a candidate gets. Costs O(WINDOW * runs) a record, holds 2 * WINDOW + 1.
    """

    def __init__(self, runs: int):
        self.runs = runs
        self.pairs = list(combinations(range(runs), 2))
        self.subsets = [[pair for pair in self.pairs if left_out not in pair] for left_out in range(runs)]
        self.index = {pair: position for position, pair in enumerate(self.pairs)}
        self.envelope = Rising()
        self.left_out = [Rising() for _ in range(runs)]
        # Per run left out, for each level of its envelope: the largest relative excess, and the least spread there.
        self.peaks: list[dict[float, tuple[float, float]]] = [{} for _ in range(runs)]
        self.points: deque[_Point] = deque()
        self.seen = 0
        self.evaluated = 0
        self.magnitude = Magnitude()
        self.largest = 0.0

    def add(self, step: int, row: Sequence[Component]) -> None:
        """Takes the component of every run at the next step."""
        squares = [distance(row[i], row[j]) ** 2 for i, j in self.pairs]
        if any(not math.isfinite(square) for square in squares):
            return
        magnitude = math.fsum(component.magnitude for component in row) / self.runs
        if row[0].family == "number":
            magnitude = self.magnitude.update(magnitude)
        widest = max(row, key=lambda component: component.floor)
        # The variance over n runs is the sum of squared pair distances / (n (n - 1)).
        spreads = [math.fsum(squares) / (self.runs * (self.runs - 1))]
        if self.runs > 2:
            count = (self.runs - 1) * (self.runs - 2)
            spreads += [math.fsum(squares[self.index[pair]] for pair in subset) / count for subset in self.subsets]
        self.points.append(_Point(step, squares, spreads, magnitude, widest))
        self.seen += 1
        while self.evaluated + min(self.evaluated, WINDOW) < self.seen:
            self._evaluate(self.evaluated)

    def finish(self) -> list[float]:
        """Evaluates the last steps, whose windows reach past the end, and returns the score of each run."""
        last = self.points[-1].step if self.points else 0
        while self.evaluated < self.seen:
            self._evaluate(self.evaluated)
        scores = []
        for left_out, peaks in zip(self.left_out, self.peaks):
            rising = Rising(left_out.points, last)
            ratios = [excess / max(rising.raised(level), least, 1e-300) for level, (excess, least) in peaks.items()]
            scores.append(min(LARGE, max(ratios, default=0.0)))
        return scores

    def _evaluate(self, position: int) -> None:
        first = self.seen - len(self.points)
        reach = min(position, WINDOW)
        window = [self.points[at - first] for at in range(position - reach, min(position + reach + 1, self.seen))]
        point = self.points[position - first]
        weight = math.fsum(each.magnitude**2 for each in window)
        self.evaluated += 1
        if weight > 0.0:
            self._score(point, window, weight)
        while self.points and self.seen - len(self.points) < self.evaluated - WINDOW:
            self.points.popleft()

    def _score(self, point: _Point, window: list[_Point], weight: float) -> None:
        relative = self.envelope.add(point.step, math.sqrt(math.fsum(each.spreads[0] for each in window) / weight))
        self.largest = max(self.largest, relative)
        if self.runs < 3:
            return
        if point.magnitude <= 0.0:
            return
        for run, peaks in enumerate(self.peaks):
            pooled = math.sqrt(math.fsum(each.spreads[run + 1] for each in window) / weight)
            level = self.left_out[run].add(point.step, pooled)
            furthest = max(square for pair, square in zip(self.pairs, point.squares) if run in pair)
            excess = (math.sqrt(furthest) - point.floor) / (ROOT2 * point.magnitude)
            if excess > peaks.get(level, (0.0, 0.0))[0]:
                peaks[level] = (excess, point.least / point.magnitude)


def tolerance(floor: float, threshold: float, spread: float) -> float:
    """The largest deviation between two runs that is accepted; `spread` is that of one run."""
    return floor + threshold * ROOT2 * spread


def matching(rows: Sequence[Record]) -> Iterator[list[Component]]:
    """The same component of several records of one key, for each component that all of them have."""
    split = [components(record) for record in rows]
    for row in zip(*split):
        yield list(row)


def exact_difference(base: Record, other: Record) -> Optional[tuple[str, Any, Any]]:
    """What must be equal whatever the tolerance: (what, base's, other's), or None where nothing of it differs.

    Kind, text, flags, shape, dtype, element count, the hash of integer tensors, counts of non-finite elements, and
    which number is not finite.
    """
    if base["kind"] != other["kind"]:
        return "kind", base["kind"], other["kind"]
    kind = base["kind"]
    if kind in ("bool", "str"):
        return None if base["value"] == other["value"] else ("value", base["value"], other["value"])
    if kind == "float":
        a, b = base["value"], other["value"]
        if a == b or (math.isfinite(a) and math.isfinite(b)) or (math.isnan(a) and math.isnan(b)):
            return None
        return "finite", a, b
    if kind == "tensor":
        for field in ("shape", "dtype", "numel", "hash"):
            if base.get(field) != other.get(field):
                return field, base.get(field), other.get(field)
        counts, others = base.get("nonfinite") or {}, other.get("nonfinite") or {}
        for what in ("nan", "posinf", "neginf"):
            if (counts.get(what) or 0) != (others.get(what) or 0):
                return f"count of {what}", counts.get(what) or 0, others.get(what) or 0
    return None


def nan_place(record: Record) -> bool:
    """Whether this record cannot prove anything because it holds a NaN."""
    return record["kind"] != "error" and has_nan(record)
