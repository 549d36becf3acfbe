"""What a race says beside its headline: where the time went, the time at the declared horizon, break-even, memory."""

from __future__ import annotations

import math
import statistics
from typing import Any

from scripts.common.statistics import bimodal, breakeven, cutoff_at, estimate, median_interval

PHASES = ("startup_s", "warmup_s", "steady_s", "slow_s", "tail_s")
Row = dict[str, Any]


def describe(pairs: list[tuple[Row, Row]], *, alpha: float, horizon: int | None, warmup: int) -> dict[str, Any]:
    """Everything that `race.json` says of one arm beside its estimate; null where the job has no step marks.

    `pairs` are (baseline, candidate) rows of warm blocks.
    """
    return {
        "wall_s": _medians(pairs, "wall_s"),
        "cpu_s": _medians(pairs, "cpu_s"),
        "decomposition": {name.removesuffix("_s"): _medians(pairs, name) for name in PHASES},
        "median_step_s": _medians(pairs, "median_step_s"),
        "periodic": {"every": _medians(pairs, "periodic_every"), "extra_s": _medians(pairs, "periodic_extra_s")},
        "horizon": _horizon(pairs, alpha, horizon, warmup),
        "breakeven": _breakeven(pairs, alpha, warmup),
        "memory": {
            "host": _ratio(pairs, "peak_rss_bytes"),
            "device": _ratio(pairs, "peak_device_bytes"),
        },
        "bimodal": _bimodal(pairs, alpha),
    }


def _medians(pairs: list[tuple[Row, Row]], name: str) -> dict[str, float | None]:
    """Medians of a column over the blocks."""
    found = {}
    for side, arm in enumerate(("baseline", "candidate")):
        values = [pair[side][name] for pair in pairs if pair[side][name] is not None]
        found[arm] = statistics.median(values) if values else None
    return found


def _ratio(pairs: list[tuple[Row, Row]], name: str) -> dict[str, float | None]:
    """Medians and the candidate's as a multiple of the baseline's."""
    found = _medians(pairs, name)
    base, candidate = found["baseline"], found["candidate"]
    return {**found, "ratio": candidate / base if base and candidate is not None else None}


def fixed_and_rate(row: Row, warmup: int) -> tuple[float, float] | None:
    """`(seconds beside the steps, seconds a step)`: T(N) = fixed + N x rate; slow steps that come back count in it."""
    if not row["steps"] or row["median_step_s"] is None:
        return None
    late = max(1, row["steps"] - min(warmup, row["steps"] - 1))
    rate = row["median_step_s"] + row["slow_s"] / late
    return row["wall_s"] - rate * row["steps"], rate


def _lines(pairs: list[tuple[Row, Row]], warmup: int) -> list[tuple[tuple[float, float], tuple[float, float]]] | None:
    lines = [(fixed_and_rate(base, warmup), fixed_and_rate(candidate, warmup)) for base, candidate in pairs]
    known = [(base, candidate) for base, candidate in lines if base and candidate]
    return known if known and len(known) == len(lines) else None


def _horizon(pairs: list[tuple[Row, Row]], alpha: float, steps: int | None, warmup: int) -> dict[str, Any] | None:
    """Times projected to the length of job that the user runs, by T(N); a projection and said to be one."""
    lines = _lines(pairs, warmup)
    if lines is None or steps is None:
        return None
    times = [tuple(fixed + steps * rate for fixed, rate in line) for line in lines]
    if any(value <= 0 for pair in times for value in pair):
        return None
    logs = [math.log(base / candidate) for base, candidate in times]
    found = estimate(logs, cutoff_at(len(logs), alpha))
    measured = steps == pairs[0][0]["steps"]
    return {
        "steps": steps,
        "projected": not measured,
        "baseline_s": statistics.median(base for base, _ in times),
        "candidate_s": statistics.median(candidate for _, candidate in times),
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
    }


def _breakeven(pairs: list[tuple[Row, Row]], alpha: float, warmup: int) -> dict[str, float | None] | None:
    lines = _lines(pairs, warmup)
    if lines is None:
        return None
    fixed = [(base[0], candidate[0]) for base, candidate in lines]
    rate = [(base[1], candidate[1]) for base, candidate in lines]
    return breakeven(fixed, rate, alpha)


def _bimodal(pairs: list[tuple[Row, Row]], alpha: float) -> dict[str, Any]:
    """Which arm looks as if it had two modes, with the median's interval, which holds then; null below 8 pairs."""
    found: dict[str, Any] = {}
    for side, arm in enumerate(("baseline", "candidate")):
        found[arm] = bimodal([math.log(pair[side]["wall_s"]) for pair in pairs])
    interval = None
    if any(found.values()):
        interval = median_interval([math.log(b["wall_s"] / c["wall_s"]) for b, c in pairs], alpha)
    return {**found, "median_low": interval and interval[0], "median_high": interval and interval[1]}
