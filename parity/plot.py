"""The drift plot, as SVG: how far a candidate moves from its baseline over the steps, against the accepted band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 720, 210, 74, 20, 46, 44
PANELS = 4
# Deviations of exactly zero are drawn on the lower edge, a decade below the smallest one.
LOWEST_DECADE, HIGHEST_DECADE = -17, 6


def drift(report: dict[str, Any]) -> str:
    """An SVG of up to four tags, those that part first or most, a panel each; log scale, readable without colour."""
    series = [entry for entry in report["series"] if len(entry["points"]) > 1]
    first = report.get("first_divergence")
    if first:
        series.sort(key=lambda entry: (entry["rank"], entry["tag"]) != (first["rank"], first["tag"]))
    series = series[:PANELS]
    height = TOP + max(1, len(series)) * PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(_title(report))}</text>',
        f'<text x="{LEFT}" y="37" fill="#555">line: the candidate; grey: accepted; circles: outside</text>',
    ]
    if not series:
        parts.append(f'<text x="{LEFT}" y="{TOP + 40}">no value was recorded at more than one step</text>')
    for position, entry in enumerate(series):
        parts += _panel(entry, TOP + position * PANEL, report["counts"]["ranks"] > 1)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(report: dict[str, Any]) -> str:
    first = report.get("first_divergence")
    if not first:
        return f"{report['answer']}: the candidate stays inside"
    step = "before step 0" if first["step"] is None else f"at step {first['step']}"
    return f"{report['answer']}: parts {step}, {first['tag']}"


def _panel(entry: dict[str, Any], top: float, ranks: bool) -> list[str]:
    points = entry["points"]
    low, high = _decades(points)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    bottom = top + PANEL - BOTTOM

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)

    def y(value: float) -> float:
        decade = math.log10(value) if value > 0.0 else low
        return bottom - (bottom - top - 18) * (min(max(decade, low), high) - low) / (high - low)

    name = entry["tag"] + (f" (rank {entry['rank']})" if ranks else "")
    band = " ".join(f"{x(step):.1f},{y(tolerance):.1f}" for step, _, tolerance in points if tolerance > 0.0)
    parts = []
    if band:
        inside = [step for step, _, tolerance in points if tolerance > 0.0]
        corners = f"{x(inside[-1]):.1f},{bottom} {x(inside[0]):.1f},{bottom}"
        parts.append(f'<polygon points="{band} {corners}" fill="#ddd"/>')
    for decade in range(low, high + 1, max(1, (high - low) // 5)):
        height = y(10.0**decade)
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"'
        parts.append(f'<line {ends} stroke="#bbb" stroke-width="0.5"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">1e{decade}</text>')
    line = " ".join(f"{x(step):.1f},{y(deviation):.1f}" for step, deviation, _ in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#111" stroke-width="1.5"/>')
    outside = [
        (step, deviation)
        for step, deviation, tolerance in points
        if deviation > max(tolerance, 0.0) and tolerance > 0.0
    ]
    for step, deviation in outside[:: max(1, len(outside) // 80)]:
        parts.append(
            f'<circle cx="{x(step):.1f}" cy="{y(deviation):.1f}" r="3" fill="#fff" stroke="#c00" stroke-width="1.3"/>'
        )
    parts += [
        f'<text x="{x(step):.1f}" y="{bottom + 15}" text-anchor="middle">{step}</text>' for step in _ticks(first, last)
    ]
    middle = (top + 18 + bottom) / 2
    parts += [
        f'<text x="{LEFT}" y="{top + 13}" font-weight="bold">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{top + 18}" width="{WIDTH - LEFT - RIGHT}" height="{bottom - top - 18}" fill="none" stroke="#222"/>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 31}" text-anchor="middle">step</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">relative deviation</text>',
    ]
    return parts


def _decades(points: Sequence[Sequence[float]]) -> tuple[int, int]:
    values = [value for _, deviation, tolerance in points for value in (deviation, tolerance) if value > 0.0]
    if not values:
        return -8, 0
    low = math.floor(math.log10(min(values))) - 1
    high = math.ceil(math.log10(max(values)))
    low = max(LOWEST_DECADE, low)
    return low, max(low + 2, min(HIGHEST_DECADE, high))


def _ticks(first: int, last: int) -> list[int]:
    span = last - first
    step = max(1, 10 ** int(math.log10(span)) if span >= 1 else 1)
    while span / step > 10:
        step *= 2
    while span / step < 4 and step > 1:
        step = max(1, step // 2)
    return list(range(first, last + 1, step))
