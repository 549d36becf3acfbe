"""`parity compare`: do two runs compute the same? Where do they part, and what kind of difference is it?

Rules that do not bend, whatever the options: the baseline's tolerance counts, never the candidate's; tag sets must
match; a NaN never passes (only where *every* baseline of the noise document has one too, and then with a warning); a
value of another kind differs at any tolerance; a filter that selects nothing, and a run against itself or a copy of
itself, cannot be compared; what a person overrode is stored in the report.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from parity import difference, records
from parity.derive import read as read_noise
from parity.derive import write
from parity.envelope import (
    LARGE,
    Component,
    Magnitude,
    Rising,
    components,
    distance,
    exact_difference,
    tolerance,
)
from parity.records import BadInput, Record, Run

SCHEMA = "parity/report@1"
EXIT = {"equivalent": 0, "different": 1, "undecided": 2, "cannot": 3}
# Steps before chaos: reported as a gate of its own.
SHORT = 20
WORST = 10
SERIES = 512
TRACKED = 200_000
# Without measured noise, a first divergence up to this many tolerances may be honest growth of rounding.
UNMEASURED_DOUBT = 100.0


def compare(
    base_dir: str | Path,
    cand_dir: str | Path,
    noise: Optional[dict[str, Any]] = None,
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow: Sequence[str] = (),
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
) -> dict[str, Any]:
    """A report (`parity/report@1`) of the candidate run against the baseline run; never raises for bad input.

    noise: the document of `parity.derive.derive`, or None, where the floor by dtype is all there is. only, exclude:
    globs of tags. allow: globs of invariants that may differ. rtol, atol: replace every tolerance of float values.
    `answer` is equivalent, different, undecided or cannot; `exit_code` 0 to 3.
    """
    overrides = {
        "only": list(only),
        "exclude": list(exclude),
        "allow": list(allow),
        **({"rtol": rtol} if rtol is not None else {}),
        **({"atol": atol} if atol is not None else {}),
    }
    try:
        base, cand = Run(base_dir), Run(cand_dir)
        check_distinct(base, cand)
        records.check_same_world([base, cand])
        typed = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
        comparison = Comparison(noise, records.selector(only, exclude), typed)
        for rank in base.ranks:
            comparison.read(base, cand, rank)
        if not comparison.selected:
            if only or exclude:
                raise BadInput(
                    f"the filter selects none of the {comparison.seen} records; `parity show {base.name}` lists the tags"
                )
            raise BadInput(f"{base.name}: no records; a comparison of nothing would always pass")
        invariants = compare_invariants(base, cand, allow)
    except BadInput as error:
        return _cannot(str(base_dir), str(cand_dir), overrides, str(error))
    return _report(base, cand, noise, comparison, invariants, overrides)


def check_distinct(base: Run, cand: Run) -> None:
    """Raises BadInput where the two runs are one run, or one is a copy of the other."""
    if base.path.resolve() == cand.path.resolve():
        raise BadInput(f"{base.name} and {cand.name} are the same run; record the candidate in a folder of its own")
    if base.run_ids & cand.run_ids:
        raise BadInput(f"{cand.name} is a copy of {base.name}: their headers name the same launch")
    if base.legacy != cand.legacy:
        raise BadInput(f"{base.name} and {cand.name} are of different formats; record both with the same tool")


class _Tag:
    """What is remembered of one tag of one rank."""

    __slots__ = ("first", "magnitudes", "outside", "ratio", "series", "stride", "unstable", "worst")

    def __init__(self) -> None:
        self.ratio = 0.0
        self.worst: Optional[dict[str, Any]] = None
        self.first: Optional[dict[str, Any]] = None
        self.outside = 0
        self.magnitudes: Optional[Magnitude] = None
        self.series: list[list[float]] = []
        self.stride = 1
        self.unstable: Optional[str] = None


class Comparison:
    """The state of a comparison while the records of both runs stream by: O(tags) memory."""

    def __init__(self, noise: Optional[dict[str, Any]], selected: Any, typed: Optional[tuple[float, float]]):
        self.noise = noise
        self.measured = bool(noise) and noise["verdict"] in ("ok", "unstable", "flaky")  # type: ignore[index]
        self.thresholds = (noise or {}).get("threshold") or {}
        self.is_selected = selected
        self.typed = typed
        self.seen = self.selected = self.equal = self.compared = self.outside = 0
        self.tags: dict[tuple[str, str], _Tag] = {}
        self.missing: dict[str, dict[str, Any]] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.unrecorded: dict[str, int] = {}
        self.nan_as_baselines = 0
        self.unmeasured: set[str] = set()
        self.tolerances_differ: set[str] = set()
        self.devices: set[str] = set()
        self.first: Optional[dict[str, Any]] = None
        self.first_order: tuple[Any, ...] = ()
        self.agreed: list[str] = []
        self.step: Any = object()
        self.envelopes: dict[tuple[str, str], dict[str, Rising]] = {}
        self.last_step: Optional[int] = None
        self.gates = {name: {"records": 0, "outside": 0, "worst_ratio": 0.0} for name in ("short", "long")}

    def read(self, base: Run, cand: Run, rank: str) -> None:
        """Compares one rank."""
        self.agreed, self.step = [], object()
        for index, identity, (one, two), same in records.align([base, cand], rank):
            self.seen += 1
            if not self.is_selected(identity[0]):
                continue
            self.selected += 1
            if one is None or two is None:
                self._unpaired(rank, identity, one is None)
                continue
            self._pair(rank, index, identity, one, two, same)

    def _unpaired(self, rank: str, identity: records.Key, extra: bool) -> None:
        where = self.extra if extra else self.missing
        entry = where.setdefault(identity[0], {"tag": identity[0], "records": 0, "rank": rank, "step": identity[1]})
        entry["records"] += 1

    def _pair(self, rank: str, index: int, identity: records.Key, one: Record, two: Record, same: bool) -> None:
        name, step, _ = identity
        if step is not None and (self.last_step is None or step > self.last_step):
            self.last_step = step
        if one["kind"] == "error" and two["kind"] == "error":
            self.unrecorded[name] = self.unrecorded.get(name, 0) + 1
            return
        self.compared += 1
        tag = self._tag(rank, name)
        if same and not records.has_nan(one):
            self.equal += 1
            outcome = _Outcome(0.0)
            if one["kind"] == "float" and tag is not None and (self.measured or tag.series):
                # The magnitude of a number that crosses zero comes from its own past.
                outcome.magnitude = self._magnitude(tag, one["value"])
        else:
            outcome = self._judge(rank, identity, one, two, tag)
        self._note(rank, index, identity, one, two, outcome, tag)

    def _tag(self, rank: str, name: str) -> Optional[_Tag]:
        tag = self.tags.get((rank, name))
        if tag is None and len(self.tags) < TRACKED:
            tag = self.tags[rank, name] = _Tag()
            tag.unstable = (
                self._entry(rank, name).get("why") if self._entry(rank, name).get("verdict") == "unstable" else None
            )
        return tag

    def _entry(self, rank: str, name: str) -> dict[str, Any]:
        ranks = (self.noise or {}).get("ranks") or {}
        return (ranks.get(rank) or {}).get(name) or {}

    def _magnitude(self, tag: Optional[_Tag], value: float) -> float:
        if tag is None:
            return abs(value)
        if tag.magnitudes is None:
            tag.magnitudes = Magnitude()
        return tag.magnitudes.update(abs(value))

    def _judge(self, rank: str, identity: records.Key, one: Record, two: Record, tag: Optional[_Tag]) -> _Outcome:
        """How far apart two records are, in tolerances; LARGE where no tolerance could cover it."""
        if (one.get("rtol"), one.get("atol")) != (two.get("rtol"), two.get("atol")):
            self.tolerances_differ.add(identity[0])
        if one["kind"] == "error" or two["kind"] == "error":
            side = "baseline" if one["kind"] == "error" else "candidate"
            return _Outcome(
                LARGE,
                what="error",
                base=one.get("error"),
                cand=two.get("error"),
                note=f"the {side} could not record it",
            )
        if one["kind"] == "tensor" and two["kind"] == "tensor":
            kinds = [str(record.get("device", "")).split(":")[0] for record in (one, two)]
            if kinds[0] != kinds[1]:
                self.devices.add(f"{identity[0]}: {kinds[0]} in the baseline, {kinds[1]} in the candidate")
        exact = exact_difference(one, two)
        if exact:
            return _Outcome(LARGE, what=exact[0], base=exact[1], cand=exact[2])
        if records.has_nan(one) or records.has_nan(two):
            if [identity[1], identity[2]] not in (self._entry(rank, identity[0]).get("nan") or []):
                return _Outcome(LARGE, what="nan", base="nan", cand="nan", note="NaN on both sides proves nothing")
            self.nan_as_baselines += 1
            if one["kind"] == "float":
                return _Outcome(0.0)
        return self._distance(rank, identity, one, two, tag)

    def _distance(self, rank: str, identity: records.Key, one: Record, two: Record, tag: Optional[_Tag]) -> _Outcome:
        worst = _Outcome(-1.0)
        for a, b in zip(components(one), components(two)):
            deviation = distance(a, b)
            magnitude = a.magnitude
            if a.name == "value":
                magnitude = self._magnitude(tag, a.values[0])
            allowed = self._tolerance(rank, identity, one, a, magnitude)
            if deviation == 0.0:
                ratio = 0.0
            elif not math.isfinite(deviation) or allowed <= 0.0:
                ratio = LARGE
            else:
                ratio = min(LARGE, deviation / allowed)
            if ratio > worst.ratio:
                worst = _Outcome(ratio, a.name, _shown(a), _shown(b))
                worst.deviation, worst.tolerance, worst.magnitude = deviation, allowed, magnitude
        return worst if worst.ratio >= 0.0 else _Outcome(0.0)

    def _tolerance(self, rank: str, identity: records.Key, base: Record, part: Component, magnitude: float) -> float:
        """The absolute tolerance of a component: typed by a person, declared by the baseline, measured, or the floor."""
        declared = self.typed if self.typed and base["kind"] != "int" else None
        if declared is None and (base.get("rtol") is not None or base.get("atol") is not None):
            declared = (base.get("rtol") or 0.0, base.get("atol") or 0.0)
        if declared:
            return _declared(declared, base, part)
        widened = magnitude / part.magnitude if part.magnitude > 0.0 else 1.0
        floor = part.floor * widened if part.magnitude > 0.0 else _floor_at_zero(part, magnitude)
        rising = self._envelope(rank, identity[0]).get(part.name) if self.measured else None
        if rising is None:
            self.unmeasured.add(identity[0])
            return part.unmeasured * widened if part.magnitude > 0.0 else floor
        step = identity[1] if identity[1] is not None else -1
        return tolerance(floor, self.thresholds[part.family], rising.at(step) * magnitude)

    def _envelope(self, rank: str, name: str) -> dict[str, Rising]:
        found = self.envelopes.get((rank, name))
        if found is None:
            stored = self._entry(rank, name).get("envelope") or {}
            found = self.envelopes[rank, name] = {part: Rising(points) for part, points in stored.items() if points}
        return found

    def _note(
        self,
        rank: str,
        index: int,
        identity: records.Key,
        one: Record,
        two: Record,
        outcome: _Outcome,
        tag: Optional[_Tag],
    ) -> None:
        name, step, _ = identity
        if step != self.step:
            self.agreed, self.step = [], step
        gate = self.gates["short" if step is None or step < SHORT else "long"]
        gate["records"] += 1
        gate["worst_ratio"] = max(gate["worst_ratio"], outcome.ratio)
        outside = outcome.ratio > 1.0
        if tag is not None:
            _extend(tag, step, outcome)
            if outcome.ratio > tag.ratio or tag.worst is None:
                tag.ratio = outcome.ratio
                if outcome.ratio > 0.0:
                    tag.worst = _where(rank, identity, outcome)
            if outside:
                tag.outside += 1
                if tag.first is None:
                    tag.first = _where(rank, identity, outcome)
        if not outside:
            if len(self.agreed) < 1000 and name not in self.agreed:
                self.agreed.append(name)
            return
        self.outside += 1
        gate["outside"] += 1
        # A tag that moves between runs of unmodified code is no evidence as long as another one parts as well.
        order = (bool(tag and tag.unstable), -1 if step is None else step, index, rank)
        if self.first is None or order < self.first_order:
            kind = {"kind": "error", "text": outcome.note} if outcome.what == "error" else difference.describe(one, two)
            self.first_order = order
            self.first = {
                **_where(rank, identity, outcome),
                "difference": kind,
                "agreed_in_step": [agreed for agreed in self.agreed if agreed != name],
            }


class _Outcome:
    """How one pair of records compares: the worst component in units of its tolerance."""

    __slots__ = ("base", "cand", "deviation", "magnitude", "note", "ratio", "tolerance", "what")

    def __init__(self, ratio: float, what: str = "", base: Any = None, cand: Any = None, note: str = ""):
        self.ratio = ratio
        self.what = what
        self.base = base
        self.cand = cand
        self.note = note
        self.deviation = 0.0
        self.tolerance = 0.0
        self.magnitude = 0.0


def compare_invariants(base: Run, cand: Run, allow: Sequence[str]) -> dict[str, Any]:
    """What may not move at all, from both ledgers: `{"equal", "differing", "allowed", "compared", "unseen"}`.

    `equal` is None where neither run has a ledger. Raises BadInput where only one run has.
    """
    differing: list[dict[str, Any]] = []
    allowed: list[dict[str, Any]] = []
    unseen: set[str] = set()
    context: list[dict[str, Any]] = []
    compared = 0
    found = False
    same_source: Optional[bool] = None
    for rank in base.ranks:
        one, two = base.ledger(rank), cand.ledger(rank)
        if (one is None) != (two is None):
            without = base.name if one is None else cand.name
            raise BadInput(
                f"{without}: rank {rank} has no ledger.json, so its job did not end by itself; record it again"
            )
        if one is None or two is None:
            continue
        found = True
        unseen.update(str(item) for item in [*(one.get("unseen") or []), *(two.get("unseen") or [])])
        flat_a, flat_b = _flatten(one.get("invariants") or {}), _flatten(two.get("invariants") or {})
        prefix = f"rank{rank}." if len(base.ranks) > 1 else ""
        for name in sorted({*flat_a, *flat_b}):
            compared += 1
            a, b = flat_a.get(name), flat_b.get(name)
            if type(a) is type(b) and a == b and (name in flat_a) == (name in flat_b):
                continue
            entry = {"name": prefix + name, "base": a, "cand": b}
            permitted = any(
                fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(prefix + name, glob) for glob in allow
            )
            (allowed if permitted else differing).append(entry)
        before, after = _flatten(one.get("context") or {}), _flatten(two.get("context") or {})
        context += [
            {"name": prefix + name, "base": before.get(name), "cand": after.get(name)}
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        if one.get("source_files") and two.get("source_files"):
            equal = one["source_files"] == two["source_files"]
            same_source = equal if same_source is None else same_source and equal
    return {
        "equal": not differing if found else None,
        "differing": differing,
        "allowed": allowed,
        "compared": compared,
        "unseen": sorted(unseen),
        "context": context,
        "same_source": same_source,
    }


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dots; lists stay whole, since their order counts."""
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat.update(_flatten(inner, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = inner
    return flat


def _declared(declared: tuple[float, float], base: Record, part: Component) -> float:
    rtol, atol = declared
    if part.name == "value":
        return atol + rtol * abs(part.values[0])
    numel = base.get("numel") or 1
    mean = records.number(base["abs_mean"])
    # atol + rtol * |x| on every element, carried to each statistic by its own triangle inequality.
    bounds = {
        "sum": atol * numel + rtol * mean * numel,
        "l2": atol * math.sqrt(numel) + rtol * part.magnitude,
        "abs_mean": atol + rtol * mean,
        "min": atol + rtol * part.magnitude,
        "max": atol + rtol * part.magnitude,
        "sketch": atol * math.sqrt(numel) + rtol * part.magnitude,
    }
    return bounds[part.name]


def _floor_at_zero(part: Component, magnitude: float) -> float:
    return 1e-5 * magnitude if part.family == "number" and part.name == "value" else part.floor


def _shown(part: Component) -> Any:
    return part.values[0] if len(part.values) == 1 else None


def _where(rank: str, identity: records.Key, outcome: _Outcome) -> dict[str, Any]:
    tag, step, occurrence = identity
    return {
        "tag": tag,
        "step": step,
        "occurrence": occurrence,
        "rank": rank,
        "what": outcome.what,
        "base": _plain(outcome.base),
        "cand": _plain(outcome.cand),
        "deviation": _plain(outcome.deviation),
        "tolerance": _plain(outcome.tolerance),
        "relative": _plain(outcome.deviation / outcome.magnitude) if outcome.magnitude > 0.0 else None,
        "ratio": outcome.ratio if outcome.ratio < LARGE else None,
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text, as in the records."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _extend(tag: _Tag, step: Optional[int], outcome: _Outcome) -> None:
    """Keeps the deviation over the steps, thinned to at most SERIES points."""
    if step is None or (tag.stride > 1 and step % tag.stride and outcome.ratio <= 1.0):
        return
    scale = outcome.magnitude if outcome.magnitude > 0.0 else 1.0
    deviation = outcome.deviation / scale if math.isfinite(outcome.deviation) else LARGE
    tag.series.append([step, deviation, outcome.tolerance / scale])
    if len(tag.series) > SERIES:
        del tag.series[1::2]
        tag.stride *= 2


def _cannot(base: str, cand: str, overrides: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "answer": "cannot",
        "exit_code": EXIT["cannot"],
        "reason": reason,
        "base": base,
        "cand": cand,
        "first_divergence": None,
        "worst": [],
        "invariants": {"equal": None, "differing": []},
        "needs_runs": None,
        "warnings": [],
        "overrides": overrides,
    }


def margin(distinct: int) -> float:
    """By how many tolerances a run must be outside to be called different, by the number of distinct baselines."""
    return 1.0 if distinct >= 5 else {4: 1.25, 3: 1.5}.get(distinct, 4.0)


def _report(
    base: Run,
    cand: Run,
    noise: Optional[dict[str, Any]],
    state: Comparison,
    invariants: dict[str, Any],
    overrides: dict[str, Any],
) -> dict[str, Any]:
    answer, reason, needs = _answer(state, invariants, noise)
    worst = sorted((tag for tag in state.tags.values() if tag.worst), key=lambda tag: -tag.ratio)[:WORST]
    first = state.first
    series = {}
    if first:
        tag = state.tags.get((first["rank"], first["tag"]))
        start = -1 if first["step"] is None else first["step"]
        if tag and tag.series:
            first["growth"] = difference.growth(tag.series, start)
        else:
            first["growth"] = None
    for tag in worst:
        place = tag.worst or {}
        series[f"{place['rank']}/{place['tag']}"] = tag.series
    environment = _environment(base, cand)
    return {
        "schema": SCHEMA,
        "answer": answer,
        "exit_code": EXIT[answer],
        "reason": reason,
        "base": base.name,
        "cand": cand.name,
        "judged_by": _judged_by(noise, state),
        "first_divergence": first,
        "worst": [{**(tag.worst or {}), "outside": tag.outside, "points": len(tag.series)} for tag in worst],
        "missing": list(state.missing.values())[:1000],
        "extra": list(state.extra.values())[:1000],
        "invariants": invariants,
        "gates": state.gates,
        "counts": {
            "ranks": len(base.ranks),
            "records": state.seen,
            "selected": state.selected,
            "compared": state.compared,
            "identical": state.equal,
            "outside": state.outside,
            "tags": len({name for _, name in state.tags}),
            "last_step": state.last_step,
        },
        "environment": {"differing": environment},
        "needs_runs": needs,
        "warnings": _warnings(base, cand, noise, state, invariants, environment),
        "overrides": overrides,
        "series": series,
    }


def _answer(
    state: Comparison, invariants: dict[str, Any], noise: Optional[dict[str, Any]]
) -> tuple[str, str, Optional[int]]:
    """The answer, the reason in a sentence, and how many more baseline runs would decide (None where that is no help)."""
    for what, found in (("lacks", state.missing), ("has extra", state.extra)):
        if found:
            names = ", ".join(list(found)[:5]) + (", ..." if len(found) > 5 else "")
            total = sum(entry["records"] for entry in found.values())
            return "different", f"the candidate {what} {total} record(s) of {names}; tag sets must match", None
    if invariants["differing"]:
        names = ", ".join(entry["name"] for entry in invariants["differing"][:5])
        return "different", f"{len(invariants['differing'])} invariant(s) differ: {names}", None
    outside = [(tag, place) for tag in state.tags.values() if (place := tag.first) is not None]
    if state.first is None:
        if not state.compared:
            return "undecided", "no record could be compared: every one is an error record on both sides", None
        return "equivalent", _agreement(state), None
    stable = [tag for tag, _ in outside if not tag.unstable]
    where = records.describe_key((state.first["tag"], state.first["step"], state.first["occurrence"]))
    if not stable and outside:
        return (
            "undecided",
            f"only values that move between runs of unmodified code differ, first {where}; exclude them",
            None,
        )
    largest = max((tag.ratio for tag in stable), default=LARGE)
    distinct = int((noise or {}).get("distinct") or 0)
    if state.measured:
        if largest > margin(distinct):
            return "different", f"the runs part: {where} is outside the noise of unmodified code", None
        more = next((n for n in range(distinct + 1, 11) if margin(n) < largest), 10) - distinct
        return (
            "undecided",
            f"{where} is {largest:.3g} times its tolerance, which {distinct} baseline runs cannot settle",
            more,
        )
    first_ratio = state.first["ratio"]
    unsure = first_ratio is not None and first_ratio <= UNMEASURED_DOUBT and state.first["tag"] in state.unmeasured
    if unsure:
        return (
            "undecided",
            f"{where} is beyond rounding of its dtype, but no noise was measured to judge it by",
            4 - distinct if distinct < 4 else 3,
        )
    return "different", f"the runs part: {where} is far beyond rounding of its dtype", None


def _agreement(state: Comparison) -> str:
    if state.equal == state.compared:
        return f"all {state.compared} records are bit-identical"
    worst = max(tag.ratio for tag in state.tags.values()) if state.tags else 0.0
    return f"all {state.compared} records agree ({state.equal} bit for bit); the largest deviation is {worst:.2g} of its tolerance"


def _judged_by(noise: Optional[dict[str, Any]], state: Comparison) -> dict[str, Any]:
    if state.measured and noise:
        return {
            "how": "noise",
            "runs": len(noise["runs"]),
            "distinct": noise["distinct"],
            "perturbed": noise["perturbed"],
            "threshold": noise["threshold"],
            "text": f"the spread of {noise['distinct']} distinct baseline runs ({noise['perturbed']} perturbed)",
        }
    why = f"the noise document is {noise['verdict']}: {noise['reason']}" if noise else "no --noise was given"
    return {"how": "dtype", "text": f"rounding of the dtype alone ({why})"}


def _environment(base: Run, cand: Run) -> list[dict[str, Any]]:
    one, two = _flatten(base.environment()), _flatten(cand.environment())
    return [
        {"name": name, "base": one.get(name), "cand": two.get(name)}
        for name in sorted({*one, *two})
        if one.get(name) != two.get(name)
    ]


def _warnings(
    base: Run,
    cand: Run,
    noise: Optional[dict[str, Any]],
    state: Comparison,
    invariants: dict[str, Any],
    environment: list[dict[str, Any]],
) -> list[str]:
    found = [
        f"{run.name}: the last line of rank {rank} is cut off and was left out"
        for run in (base, cand)
        for rank in run.torn
    ]
    for entry in environment[:20]:
        found.append(
            f"{entry['name']}: {_brief(entry['base'])} in the baseline, {_brief(entry['cand'])} in the candidate"
        )
    found += [f"device differs: {line}" for line in sorted(state.devices)[:5]]
    if state.unrecorded:
        names = ", ".join(list(state.unrecorded)[:5])
        found.append(
            f"{sum(state.unrecorded.values())} record(s) of {names} could be recorded in neither run, so nothing is known of them"
        )
    if state.nan_as_baselines:
        found.append(
            f"{state.nan_as_baselines} record(s) are NaN in both runs, as in every baseline of the noise document"
        )
    if state.tolerances_differ:
        found.append(
            f"declared tolerances differ (the baseline's counted): {', '.join(sorted(state.tolerances_differ)[:5])}"
        )
    if state.measured and state.unmeasured:
        found.append(
            f"judged by dtype alone, since the noise document lacks them: {', '.join(sorted(state.unmeasured)[:5])}"
        )
    if noise:
        ours = _flatten(base.environment())
        theirs = _flatten(noise.get("environment") or {})
        other = [
            name
            for name in theirs
            if name.startswith(("gpus", "backend", "torch", "cuda", "cudnn")) and theirs[name] != ours.get(name)
        ]
        if other:
            found.append(f"the noise was measured elsewhere: {', '.join(other[:5])} differ from the baseline's")
    if invariants["equal"] is None:
        found.append("no ledger in either run: invariants (steps, samples, parameters) were not compared")
    if invariants["allowed"]:
        found.append(f"invariants allowed to differ: {', '.join(entry['name'] for entry in invariants['allowed'])}")
    if invariants["unseen"]:
        found.append(f"unseen by the recorder: {', '.join(invariants['unseen'][:8])}")
    if invariants["same_source"]:
        found.append("both runs ran the same source files: this compares a job with itself")
    return found


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def main(argv: Optional[list[str]] = None) -> int:
    """`parity compare BASE CAND`: exit 0 equivalent, 1 different, 2 undecided, 3 cannot compare."""
    parser = argparse.ArgumentParser(
        prog="parity compare",
        description="Say whether two recorded runs compute the same, and where they part if they do not.",
        epilog="Exit: 0 equivalent, 1 different, 2 undecided (more baseline runs would decide), 3 cannot compare.",
    )
    parser.add_argument("base", metavar="BASE", help="folder of a run of the unmodified job")
    parser.add_argument("cand", metavar="CAND", help="folder of a run of the changed job, same seed")
    parser.add_argument(
        "--noise", metavar="FILE", help="what `parity derive` wrote; without it only dtype rounding is allowed"
    )
    parser.add_argument(
        "--only", metavar="GLOB", action="append", default=[], help="compare these tags only (repeatable)"
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", action="append", default=[], help="leave these tags out (repeatable)"
    )
    parser.add_argument(
        "--allow", metavar="GLOB", action="append", default=[], help="invariants that may differ (repeatable)"
    )
    parser.add_argument("--rtol", type=float, help="replace every tolerance of float values (stored in the report)")
    parser.add_argument("--atol", type=float, help="the same, absolute")
    parser.add_argument("--json", metavar="FILE", help="write the complete report ('-': print it instead of the text)")
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="draw how far the candidate drifts, inside or outside the band"
    )
    arguments = parser.parse_args(argv)
    noise = read_noise(arguments.noise) if arguments.noise else None
    report = compare(
        arguments.base,
        arguments.cand,
        noise,
        only=arguments.only,
        exclude=arguments.exclude,
        allow=arguments.allow,
        rtol=arguments.rtol,
        atol=arguments.atol,
    )
    if arguments.json and arguments.json != "-":
        write(arguments.json, report)
    if arguments.plot and report["answer"] != "cannot":
        from parity.plot import drift

        Path(arguments.plot).write_text(drift(report), encoding="utf-8")
    if arguments.json == "-":
        json.dump(report, sys.stdout, indent=1, allow_nan=False)
        print()
    elif report["answer"] == "cannot":
        print(f"cannot compare: {report['reason']}", file=sys.stderr)
    else:
        from parity.report import compared

        print(compared(report))
    return int(report["exit_code"])
