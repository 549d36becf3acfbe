"""The state of a comparison while the records of two runs stream by: how far apart each pair is, and where they part.

Memory grows with the number of tags (at most TRACKED of them), never with the number of records.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Callable, Optional

from parity import difference, records
from parity.envelope import (
    ALLOWANCE,
    LARGE,
    Component,
    Magnitude,
    Rising,
    components,
    distance,
    exact_difference,
    tolerance,
)
from parity.records import Key, Record, Run

# Steps before chaos: reported as a gate of their own.
SHORT = 20
SERIES = 512
# Tags that are remembered, and those whose deviation is kept over the steps: what bounds the memory.
TRACKED = 100_000
DRAWN = 2_000
USABLE = ("ok", "unstable")
# With another seed than that of the noise, chaos may begin earlier: so much more is allowed while runs part.
OTHER_SEED = 10.0
LOOKED_AT = 500


@dataclass
class Place:
    """Where a record stands: rank, position in program order, (tag, step, occurrence)."""

    rank: str
    index: int
    key: Key

    @property
    def step(self) -> int:
        """The step, -1 for records without one (they come before the first step)."""
        return -1 if self.key[1] is None else self.key[1]


@dataclass
class Outcome:
    """How one pair of records compares: its worst component in units of its tolerance (LARGE: nothing covers it)."""

    ratio: float
    what: str = ""
    base: Any = None
    cand: Any = None
    note: str = ""
    deviation: float = 0.0
    tolerance: float = 0.0
    magnitude: float = 0.0
    by: str = "exact"  # what the tolerance came from: exact, typed, declared, noise or dtype

    def entry(self, place: Place) -> dict[str, Any]:
        """As the report shows it; NaN and infinities are text there, as in the records."""
        tag, step, occurrence = place.key
        return {
            "tag": tag,
            "step": step,
            "occurrence": occurrence,
            "rank": place.rank,
            "what": self.what,
            "base": _plain(self.base),
            "cand": _plain(self.cand),
            "deviation": _plain(self.deviation),
            "tolerance": _plain(self.tolerance),
            "relative": _plain(self.deviation / self.magnitude) if self.magnitude > 0.0 else None,
            "ratio": self.ratio if self.ratio < LARGE else None,
            "by": self.by,
        }


class TagState:
    """What is remembered of one tag of one rank. `series` holds [step, relative deviation, relative tolerance]."""

    __slots__ = ("drawn", "first", "magnitudes", "outside", "ratio", "series", "stride", "unstable", "worst")

    def __init__(self, unstable: Optional[str], drawn: bool = True) -> None:
        self.drawn = drawn
        self.ratio = 0.0
        self.worst: Optional[dict[str, Any]] = None
        self.first: Optional[dict[str, Any]] = None
        self.outside = 0
        self.magnitudes = Magnitude()
        self.series: list[list[float]] = []
        self.stride = 1
        self.unstable = unstable

    def note(self, place: Place, outcome: Outcome) -> None:
        """Takes the outcome at the next record of this tag; the series is thinned to at most SERIES points."""
        if outcome.ratio > self.ratio:
            self.ratio = outcome.ratio
            self.worst = outcome.entry(place)
        if outcome.ratio > 1.0:
            self.outside += 1
            self.first = self.first or outcome.entry(place)
        if not self.drawn or place.key[1] is None or (place.step % self.stride and outcome.ratio <= 1.0):
            return
        scale = outcome.magnitude if outcome.magnitude > 0.0 else 1.0
        deviation = outcome.deviation / scale if math.isfinite(outcome.deviation) else LARGE
        self.series.append([place.step, deviation, outcome.tolerance / scale])
        if len(self.series) > SERIES:
            del self.series[1::2]
            self.stride *= 2


class Comparison:
    """Two runs, record by record, against a noise document (None: the floor by dtype is all there is)."""

    def __init__(
        self,
        noise: Optional[dict[str, Any]],
        selected: Callable[[str], bool],
        typed: Optional[tuple[float, float]] = None,
        rounding: Optional[float] = None,
    ):
        self.rounding = ALLOWANCE if rounding is None else rounding
        self.measured = noise is not None and noise["verdict"] in USABLE
        self.entries: dict[str, dict[str, Any]] = (noise or {}).get("ranks") or {}
        self.thresholds: dict[str, float] = (noise or {}).get("threshold") or {}
        self.is_selected = selected
        self.typed = typed
        self.foreign = False
        self.seen = self.selected = self.identical = self.compared = self.outside = 0
        self.tags: dict[tuple[str, str], TagState] = {}
        self.missing: dict[str, dict[str, Any]] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.unrecorded: dict[str, int] = {}
        self.nan_as_baselines = 0
        self.unmeasured: set[str] = set()
        self.tolerances_differ: set[str] = set()
        self.devices: set[str] = set()
        self.first: Optional[dict[str, Any]] = None
        self.first_order: tuple[Any, ...] = ()
        self.agreed: dict[str, None] = {}
        self.current: Any = None
        self.envelopes: dict[tuple[str, str], dict[str, Rising]] = {}
        self.last_step: Optional[int] = None
        self.gates = {name: {"records": 0, "outside": 0, "worst_ratio": 0.0} for name in ("short", "long")}

    def recognise(self, base: Run, noise_runs: set[str]) -> None:
        """Sets `foreign` where the baseline run starts with other values than the runs of the noise document did.

        That is what a held-out seed does. `noise_runs` holds the identities of those runs.
        """
        if not self.measured or base.run_ids & noise_runs:
            return
        rank = base.ranks[0]
        for index, key, (record,), _ in itertools.islice(records.align([base], rank), LOOKED_AT):
            place = Place(rank, index, key)
            start = self._entry(place).get("start")
            if record is None or not start or start[:2] != [key[1], key[2]]:
                continue
            for part in components(record):
                if part.name in ("value", "l2"):
                    allowed, by = self._tolerance(place, record, part, part.magnitude)
                    far = abs(part.values[0] - start[2]) > OTHER_SEED * allowed
                    self.foreign = self.foreign or (far and by == "noise")
        self.envelopes.clear()

    def read(self, base: Run, cand: Run, rank: str) -> None:
        """Compares one rank of both runs. O(records)."""
        self.current = None
        for index, key, (one, two), same in records.align([base, cand], rank):
            self.seen += 1
            if not self.is_selected(key[0]):
                continue
            self.selected += 1
            place = Place(rank, index, key)
            if one is None or two is None:
                self._unpaired(place, self.extra if one is None else self.missing)
            elif one["kind"] == "error" and two["kind"] == "error":
                self.unrecorded[key[0]] = self.unrecorded.get(key[0], 0) + 1
            else:
                self._pair(place, one, two, same)

    def _unpaired(self, place: Place, where: dict[str, dict[str, Any]]) -> None:
        tag, step, _ = place.key
        entry = where.setdefault(tag, {"tag": tag, "records": 0, "rank": place.rank, "step": step})
        entry["records"] += 1

    def _pair(self, place: Place, one: Record, two: Record, same: bool) -> None:
        tag = self._tag(place)
        if same and not records.has_nan(one):
            self.identical += 1
            outcome = Outcome(0.0)
            if one["kind"] == "float":
                # The magnitude of a number that crosses zero comes from its own past.
                outcome.magnitude = tag.magnitudes.update(abs(one["value"]))
        else:
            outcome = self.judge(place, one, two, tag)
        self._count(place, outcome)
        tag.note(place, outcome)
        if outcome.ratio > 1.0:
            self._part(place, one, two, outcome, tag)
        elif len(self.agreed) < 1000:
            self.agreed[place.key[0]] = None

    def _count(self, place: Place, outcome: Outcome) -> None:
        self.compared += 1
        step = place.key[1]
        if (place.rank, step) != self.current:
            self.agreed, self.current = {}, (place.rank, step)
        if step is not None and (self.last_step is None or step > self.last_step):
            self.last_step = step
        gate = self.gates["short" if place.step < SHORT else "long"]
        gate["records"] += 1
        gate["worst_ratio"] = max(gate["worst_ratio"], outcome.ratio)
        if outcome.ratio > 1.0:
            self.outside += 1
            gate["outside"] += 1

    def _part(self, place: Place, one: Record, two: Record, outcome: Outcome, tag: TagState) -> None:
        """Keeps the first record, in step and program order, that lies outside its tolerance."""
        # A tag that moves between runs of unmodified code is no evidence as long as another one parts as well.
        order = (tag.unstable is not None, place.step, place.index, place.rank)
        if self.first is not None and order >= self.first_order:
            return
        if outcome.what == "error":
            kind = {"kind": "error", "text": outcome.note}
        else:
            kind = difference.describe(one, two)
        self.first_order = order
        self.first = {
            **outcome.entry(place),
            "difference": kind,
            "agreed_in_step": [name for name in self.agreed if name != place.key[0]],
        }

    def _tag(self, place: Place) -> TagState:
        name = place.key[0]
        tag = self.tags.get((place.rank, name))
        if tag is None:
            entry = self._entry(place)
            unstable = entry.get("why") or "unstable" if entry.get("verdict") == "unstable" else None
            tag = TagState(unstable, len(self.tags) < DRAWN)
            if len(self.tags) < TRACKED:
                self.tags[place.rank, name] = tag
        return tag

    def _entry(self, place: Place) -> dict[str, Any]:
        return (self.entries.get(place.rank) or {}).get(place.key[0]) or {}

    def judge(self, place: Place, one: Record, two: Record, tag: TagState) -> Outcome:
        """How two records of one key compare."""
        name, step, occurrence = place.key
        if (one.get("rtol"), one.get("atol")) != (two.get("rtol"), two.get("atol")):
            self.tolerances_differ.add(name)
        if one["kind"] == "error" or two["kind"] == "error":
            side = "baseline" if one["kind"] == "error" else "candidate"
            note = f"the {side} could not record it: {one.get('error') or two.get('error')}"
            return Outcome(LARGE, "error", one.get("error"), two.get("error"), note)
        devices = [str(record.get("device", "")).split(":")[0] for record in (one, two)]
        if devices[0] != devices[1]:
            self.devices.add(f"{name}: {devices[0]} in the baseline, {devices[1]} in the candidate")
        exact = exact_difference(one, two)
        if exact:
            return Outcome(LARGE, exact[0], exact[1], exact[2])
        if records.has_nan(one):
            if [step, occurrence] not in (self._entry(place).get("nan") or []):
                return Outcome(LARGE, "nan", "nan", "nan", "NaN on both sides proves nothing")
            self.nan_as_baselines += 1
            if one["kind"] == "float":
                return Outcome(0.0)
        return self._distance(place, one, two, tag)

    def _distance(self, place: Place, one: Record, two: Record, tag: TagState) -> Outcome:
        """The component that is furthest outside, or least inside, its tolerance."""
        worst = Outcome(0.0)
        for a, b in zip(components(one), components(two)):
            deviation = distance(a, b)
            magnitude = tag.magnitudes.update(a.magnitude) if a.name == "value" else a.magnitude
            allowed, by = self._tolerance(place, one, a, magnitude)
            if deviation == 0.0:
                ratio = 0.0
            elif not math.isfinite(deviation) or allowed <= 0.0:
                ratio = LARGE
            else:
                ratio = min(LARGE, deviation / allowed)
            if ratio > worst.ratio or not worst.what:
                shown = (a.values[0], b.values[0]) if len(a.values) == 1 else (None, None)
                worst = Outcome(ratio, a.name, shown[0], shown[1], "", deviation, allowed, magnitude, by)
        return worst

    def _tolerance(self, place: Place, base: Record, part: Component, magnitude: float) -> tuple[float, str]:
        """The absolute tolerance and its source: typed by a person, declared by the baseline, noise, or the dtype."""
        if self.typed and base["kind"] != "int":
            return _declared(self.typed, base, part), "typed"
        if base.get("rtol") is not None or base.get("atol") is not None:
            return _declared((base.get("rtol") or 0.0, base.get("atol") or 0.0), base, part), "declared"
        # A number near zero is judged by the magnitude of its neighbours in time.
        wider = magnitude / part.magnitude if part.magnitude > 0.0 else 1.0
        wider *= max(1.0, self.rounding / ALLOWANCE)
        rising = self._envelope(place).get(part.name) if self.measured else None
        if rising is None:
            if self.measured:
                self.unmeasured.add(place.key[0])
            return part.unmeasured * wider, "exact" if base["kind"] == "int" else "dtype"
        spread = max(rising.allowed(place.step) * magnitude, part.least * wider)
        return tolerance(part.floor * wider, self.thresholds[part.family], spread), "noise"

    def _envelope(self, place: Place) -> dict[str, Rising]:
        where = (place.rank, place.key[0])
        found = self.envelopes.get(where)
        if found is None:
            entry = self._entry(place)
            stored = entry.get("envelope") or {}
            allowance = self.rounding * (OTHER_SEED if self.foreign else 1.0)
            found = {part: Rising(points, entry["last_step"], allowance) for part, points in stored.items() if points}
            if len(self.envelopes) < TRACKED:
                self.envelopes[where] = found
        return found


def _declared(declared: tuple[float, float], base: Record, part: Component) -> float:
    """atol + rtol * |x| on every element, carried to each statistic by its own triangle inequality."""
    rtol, atol = declared
    if part.name == "value":
        return atol + rtol * abs(part.values[0])
    numel = base.get("numel") or 1
    if part.name == "sum":
        return atol * numel + rtol * records.number(base["abs_mean"]) * numel
    if part.name in ("l2", "sketch"):
        return atol * math.sqrt(numel) + rtol * part.magnitude
    return atol + rtol * part.magnitude


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
