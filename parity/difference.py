"""What kind of difference two records of the same key show, from their moments, sketch and samples."""

from __future__ import annotations

import math
from typing import Any, Optional

from parity.records import Record, number


def describe(base: Record, cand: Record) -> dict[str, Any]:
    """`{"kind": word, "text": sentence}` for two records that differ.

    Kinds: `type`, `shape`, `dtype`, `nan`, `exact` (text, flags, integers), `number`, `scale`, `bias`, `reordering`,
    `few` (a few rows or elements), `everything`.
    """
    if base["kind"] != cand["kind"]:
        return _kind("type", f"{base['kind']} became {cand['kind']}")
    if base["kind"] == "tensor":
        return _tensor(base, cand)
    if base["kind"] in ("bool", "str"):
        return _kind("exact", f"{base['value']!r} became {cand['value']!r}")
    a, b = float(base["value"]), float(cand["value"])
    if not (math.isfinite(a) and math.isfinite(b)):
        return _kind("nan", f"{a:g} became {b:g}")
    if a == 0.0:
        return _kind("number", f"0 became {b:.6g}")
    return _kind("number", f"{a:.8g} became {b:.8g} ({(b - a) / abs(a):+.2g} relative)")


def _tensor(base: Record, cand: Record) -> dict[str, Any]:
    if base.get("shape") != cand.get("shape"):
        return _kind("shape", f"shape {base.get('shape')} became {cand.get('shape')}")
    if base.get("dtype") != cand.get("dtype"):
        return _kind("dtype", f"dtype {base.get('dtype')} became {cand.get('dtype')}")
    counts, others = base.get("nonfinite") or {}, cand.get("nonfinite") or {}
    if any(counts.values()) or any(others.values()):
        names = [name for name in ("nan", "posinf", "neginf") if counts.get(name) or others.get(name)]
        changes = ", ".join(f"{counts.get(name) or 0} -> {others.get(name) or 0} {name}" for name in names)
        return _kind("nan", f"non-finite elements: {changes}")
    change = _Change(base, cand)
    if base.get("hash"):
        if change.same_moments:
            return _kind("reordering", "the same values in other places: every moment is equal, the hash is not")
        return _kind("exact", "other integer values")
    return change.scale() or change.few() or change.bias() or change.reordering() or change.everything()


class _Change:
    """The change of a float tensor: moments of both sides, the change of the sketch and of the samples.

    `length` estimates the L2 norm of the elementwise change, `relative` the same in units of the tensor's norm.
    """

    def __init__(self, base: Record, cand: Record):
        self.numel = base["numel"]
        (self.sum, self.l2, self.mean, self.low, self.high) = (
            (number(base[name]), number(cand[name])) for name in ("sum", "l2", "abs_mean", "min", "max")
        )
        self.same_moments = all(a == b for a, b in (self.sum, self.l2, self.mean, self.low, self.high))
        self.sketch = [number(value) for value in base.get("sketch") or []]
        self.buckets = [number(b) - a for a, b in zip(self.sketch, cand.get("sketch") or [])]
        self.length = math.sqrt(math.fsum(value * value for value in self.buckets))
        self.norm = max(*self.l2, 1e-300)
        self.relative = self.length / self.norm

    def scale(self) -> Optional[dict[str, Any]]:
        """Norm, mean of magnitudes and sum changed by one factor, and the sketch by nothing else that is large."""
        if min(self.l2[0], self.mean[0]) <= 0.0:
            return None
        factor, other = self.l2[1] / self.l2[0], self.mean[1] / self.mean[0]
        if abs(factor - 1.0) < 1e-7 or abs(factor - other) > 0.1 * abs(factor - 1.0):
            return None
        unexplained = self.sum[1] - factor * self.sum[0]
        if abs(unexplained) > 8.0 * self.length:
            return None
        rest = math.sqrt(math.fsum((c - (factor - 1.0) * a) ** 2 for c, a in zip(self.buckets, self.sketch)))
        if rest > max(0.35 * self.length, 10.0 * abs(factor - 1.0) * self.norm):
            return None
        return _kind("scale", f"all values x {factor:.6g}")

    def few(self) -> Optional[dict[str, Any]]:
        """Most of the change lies in few buckets, which are contiguous stretches of the tensor."""
        used = sum(1 for a, c in zip(self.sketch, self.buckets) if a or c)
        energy = sorted(((value * value, place) for place, value in enumerate(self.buckets)), reverse=True)
        total, carried, places = self.length**2, 0.0, []
        for value, place in energy:
            if carried >= 0.9 * total:
                break
            carried += value
            places.append(place)
        if used < 16 or not places or len(places) > used // 8:
            return None
        first, last = min(places), max(places)
        where = f"between {first / used:.0%} and {(last + 1) / used:.0%} of the tensor"
        moved = self.high[1] - self.high[0] or self.low[1] - self.low[0]
        if len(places) == 1 and abs(moved) > 0.5 * self.length:
            return _kind("few", f"one or very few elements, {where}; an extreme moved by {moved:+.3g}")
        return _kind("few", f"a few rows or elements, {where}")

    def bias(self) -> Optional[dict[str, Any]]:
        """Independent errors move a sum by about their norm; one constant added to all moves it much further."""
        shift = self.sum[1] - self.sum[0]
        if abs(shift) <= 8.0 * self.length:
            return None
        return _kind("bias", f"about {shift / self.numel:+.3g} added to every value")

    def reordering(self) -> Optional[dict[str, Any]]:
        """An independent error of relative size r raises norm and magnitudes by r^2 / 2; moving elements does not."""
        raised = 0.1 * self.relative**2 / 2
        kept = all(abs(b - a) <= raised * max(a, 1e-300) for a, b in (self.l2, self.mean))
        ends = max(abs(b - a) for a, b in (self.low, self.high)) <= 0.02 * max(map(abs, (*self.low, *self.high)))
        if self.relative < 0.05 or not kept or not ends or abs(self.sum[1] - self.sum[0]) > 0.3 * self.length:
            return None
        return _kind("reordering", "the same values in other places: the moments agree, the sketch does not")

    def everything(self) -> dict[str, Any]:
        """What is left."""
        return _kind("everything", f"all values moved, by {self.relative:.2g} of their norm")


def growth(series: list[list[float]], first_step: int) -> dict[str, Any]:
    """How a deviation goes on after the first divergence, from `[step, deviation, tolerance]` points."""
    after = [(step, deviation) for step, deviation, _ in series if step >= first_step]
    later = [deviation for _, deviation in after[1:]]
    if not later:
        return _kind("end", "it is the last record of this tag")
    start = after[0][1]
    if max(later) == 0.0:
        return _kind("once", "only there; the later records agree")
    if start <= 0.0 or not math.isfinite(start):
        return _kind("stays", "it stays")
    half = later[len(later) // 2 :]
    end = sorted(half)[len(half) // 2]
    ratio = end / start
    steps = max(1, after[-1][0] - first_step)
    if ratio > 3.0:
        return _kind("grows", f"it grows: {ratio:.3g} times as large after {steps:g} steps")
    if ratio < 1 / 3:
        return _kind("fades", f"it fades: {ratio:.2g} of the first deviation after {steps:g} steps")
    return _kind("stays", f"it stays about as large over {steps:g} steps")


def _kind(word: str, text: str) -> dict[str, Any]:
    return {"kind": word, "text": text}
