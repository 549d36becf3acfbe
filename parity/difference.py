"""What kind of difference two records of the same key show, from their moments, sketch and samples."""

from __future__ import annotations

import math
from typing import Any

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
    if counts != others:
        changed = [
            f"{others.get(what) or 0} {what} (was {counts.get(what) or 0})" for what in sorted({*counts, *others})
        ]
        return _kind("nan", "non-finite elements: " + ", ".join(changed))
    moments = [(number(base[name]), number(cand[name])) for name in ("sum", "l2", "abs_mean", "min", "max")]
    if not all(math.isfinite(value) for pair in moments for value in pair):
        return _kind("everything", "the moments are not finite, so they cannot tell more")
    numel = base.get("numel") or 1
    one = [number(value) for value in base.get("sketch") or []]
    two = [number(value) for value in cand.get("sketch") or []]
    if base.get("hash") and not one:
        return _integers(moments)
    change = [b - a for a, b in zip(one, two)]
    length = math.sqrt(math.fsum(value * value for value in change))
    return _floats(moments, numel, one, change, length, base, cand)


def _integers(moments: list[tuple[float, float]]) -> dict[str, Any]:
    if all(a == b for a, b in moments):
        return _kind("reordering", "the same values in other places: every moment is equal, the hash is not")
    return _kind("exact", "other integer values")


def _floats(
    moments: list[tuple[float, float]],
    numel: int,
    one: list[float],
    change: list[float],
    length: float,
    base: Record,
    cand: Record,
) -> dict[str, Any]:
    (sum_a, sum_b), (l2_a, l2_b), (mean_a, mean_b), (low_a, low_b), (high_a, high_b) = moments
    scale = max(l2_a, l2_b, 1e-300)
    relative = length / scale
    moved = max(abs(l2_b - l2_a) / scale, abs(mean_b - mean_a) / max(mean_a, 1e-300))
    # A constant b added to every element moves the sum by b * numel; the same energy spread at random over the
    # elements moves it by a sqrt(numel)-th of that.
    shift = (sum_b - sum_a) / numel
    spread = math.sqrt(numel) * abs(shift) / scale
    if mean_a > 0.0 and l2_a > 0.0:
        by_l2, by_mean = l2_b / l2_a, mean_b / mean_a
        agree = abs(by_l2 - by_mean) <= 0.1 * abs(by_l2 - 1.0)
        residual = math.sqrt(math.fsum((c - (by_l2 - 1.0) * a) ** 2 for c, a in zip(change, one)))
        if abs(by_l2 - 1.0) > 1e-7 and agree and residual <= max(0.35 * length, 10.0 * abs(by_l2 - 1.0) * scale):
            return _kind("scale", f"all values x {by_l2:.6g}")
    deltas = [number(b) - number(a) for a, b in zip(base.get("samples") or [], cand.get("samples") or [])]
    if _constant(deltas, shift):
        return _kind("bias", f"{shift:+.3g} added to every value")
    # Changes of a few elements or rows reach few buckets or few of the samples.
    energy = sorted((value * value for value in change), reverse=True)
    reached = _carrying(energy, 0.9)
    touched = sum(1 for delta in deltas if abs(delta) > 1e-6 * max(abs(low_a), abs(high_a), 1e-300))
    extremes = max(abs(low_b - low_a), abs(high_b - high_a))
    if extremes > 0.0 and length > 0.0 and extremes >= 0.5 * length and reached <= 2:
        return _kind("few", f"one element or very few: an extreme moved from {high_a:.4g} to {high_b:.4g}")
    if relative > 0.0 and moved < 1e-2 * relative and abs(sum_b - sum_a) < 1e-2 * length * math.sqrt(64.0):
        if low_a == low_b and high_a == high_b and moved < 1e-6:
            return _kind("reordering", "the same values in other places: moments agree, the sketch does not")
    if change and (reached <= len(change) // 8 or (deltas and touched <= len(deltas) // 4)):
        return _kind(
            "few", f"a few rows or elements: {touched} of {len(deltas)} samples, {reached} of {len(change)} buckets"
        )
    if spread > 0.5 * max(relative, 1e-300) and not deltas:
        return _kind("bias", f"about {shift:+.3g} added to every value")
    return _kind("everything", f"all values moved, by {relative:.2g} of their norm")


def _constant(deltas: list[float], shift: float) -> bool:
    """Whether most samples moved by the same amount, that of the mean."""
    if len(deltas) < 8 or shift == 0.0:
        return False
    near = sum(1 for delta in deltas if abs(delta - shift) <= 0.2 * abs(shift))
    return near >= 0.75 * len(deltas)


def _carrying(energy: list[float], share: float) -> int:
    """How many of the sorted energies carry a share of the whole."""
    total = math.fsum(energy)
    running = 0.0
    for count, value in enumerate(energy, 1):
        running += value
        if running >= share * total:
            return count
    return len(energy)


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
