"""Slow steps that come with shapes never seen before: plans built, kernels compiled or tuned anew."""

from __future__ import annotations

import numpy as np

from scripts.diagnose.detectors.transfers import moves
from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.preparation import Preparation

LOOKED_FOR = ("new_shapes_slow_steps",)


def detect(job: Job) -> list[Finding]:
    """Steps with new shapes against steps without; operators on new shapes against the same operators again.

    The first needs steps that repeat shapes. Where every batch is new all steps are slow alike and only the second has
    something to compare with; it does not see preparation in python.
    """
    steps = [r for r in job.view("steps") if r.get("wall_ns")]
    if len(steps) < 3:
        raise NotApplicable(f"the profiled window has {len(steps)} steps; at least 3 are needed to tell slow ones")
    by_step, by_operator = of_steps(job, steps), of_operators(job, steps)
    if not by_step or not by_operator:
        return by_step or by_operator
    said = (by_step[0].fraction or 0.0), (by_operator[0].fraction or 0.0)
    if by_step[0].confidence == "low":  # long inputs count as slow steps there, so that its figure is the larger one
        return by_operator if said[1] > said[0] / 2 else by_step
    return by_operator if said[1] > said[0] else by_step


def of_operators(job: Job, steps: list[Row]) -> list[Finding]:
    """Excess of operators' first calls on new shapes over their later calls on the same, in the steps after the
    first."""
    found = job.preparations
    spent = sum(one.excess_ns for one in found)
    every, later = sum(r["wall_ns"] for r in steps), sum(r["wall_ns"] for r in steps[1:])
    in_later = spent * every / later  # no shape is new in the first step: what the others hold counts for all
    if not found or in_later / job.window_ns < 0.01:
        return []
    # slow steps hold the same excess: as a share it stands for them too
    part = 1 + job.timing.excess_share() / (job.timing.steady_share() or 1.0)
    main = [one for one in found if one.excess_ns >= 0.1 * spent] or found[:1]
    names = ", ".join(dict.fromkeys(one.operator for one in main))
    worst = main[0]
    fresh = sum(bool(r["new_signature"]) for r in steps[1:])
    return [
        Finding(
            "new_shapes_slow_steps",
            f"{fresh} of {len(steps) - 1} steps have new input shapes, and {names} take "
            f"{worst.first_ns / max(1.0, worst.again_ns):.0f} times as long on a shape's first call",
            "Something is prepared once for every new shape (an execution plan, a compiled graph, an autotuned kernel): "
            f"{worst.operator} takes {worst.first_ns / 1e6:.1f} ms of host time on a shape's first call and "
            f"{worst.again_ns / 1e6:.2f} ms when the next layer calls it on the same shape.",
            job.share(in_later) * part,
            f"first calls on new shapes less later calls on the same: {job.wall_note(in_later)}",
            "high",
            ["backend", "config", "python"],
            _places(job, main),
            [
                evidence("steps with new shapes", fresh, f"of {len(steps) - 1}", "views: steps"),
                *(
                    evidence(
                        f"{one.operator}, first call on a shape",
                        one.first_ns / 1e6,
                        f"ms, {one.again_ns / 1e6:.3f} ms on the same shape again; {one.shapes} shapes",
                        "events: own host time, corrected",
                    )
                    for one in main
                ),
            ],
        )
    ]


def _places(job: Job, prepared: list[Preparation]) -> list[Row]:
    """The calls of the operators by line where the source has them as a call, else the functions they run in."""
    assert job.timeline is not None
    anchors: list[Row] = []
    for one in prepared:
        if one.function < 0:
            continue
        function = job.timeline.functions[one.function]
        where = (function.path, function.qualname)
        sites = [s for s in job.structure["sites"] if (s["path"], s["function"]) == where and s["callee"] == one.callee]
        anchors += [anchor(s) for s in sites] or [job.function_anchor(function)]
    return list({(a["path"], a["line"]): a for a in anchors}.values())


def of_steps(job: Job, steps: list[Row]) -> list[Finding]:
    """Excess of the steps that have new input shapes over the median of those that have none; copies, moves of modules
    and waits are no preparation."""
    # the first step of a window knows no shape, and the profiler's start may lie in it
    later = steps[1:] if len(steps) > 3 or steps[0].get("new_signature") else steps
    if not any(r["new_signature"] for r in later):
        return []
    total = sum(r["wall_ns"] for r in later)
    copied, away = _copied_ns(job), {r["step"]: _waits_ns(r) for r in later}
    if job.on_gpu and all(r["new_signature"] is not False for r in later):
        # where nothing repeats, longer inputs compute longer: what is prepared shows as idle time of the device
        busy = {r["step"]: r.get("busy_ns") or 0 for r in job.first_rank(job.view("runtime"))}
        if busy:
            least = min(busy.get(step, 0) for step in away)
            away = {step: busy.get(step, 0) - least for step in away}
    later = [{**r, "wall_ns": max(1, r["wall_ns"] - max(away[r["step"]], copied.get(r["step"], 0)))} for r in later]
    fresh = [r for r in later if r["new_signature"]]
    known = [r for r in later if r["new_signature"] is False]
    walls = sorted(r["wall_ns"] for r in (known or later))
    # where nothing repeats, the fastest step is the closest to a warm one
    typical = walls[len(walls) // 2] if known else walls[0]
    slow = [r for r in fresh if r["wall_ns"] > 1.3 * typical]
    excess = sum(max(0, r["wall_ns"] - typical) for r in slow)
    others = sum(max(0, r["wall_ns"] - typical) for r in known)
    # where nothing repeats, one slow step is one slow step
    if excess <= others or excess / total < 0.01 or (not known and len(slow) < 2):
        return []
    causes: dict[str, int] = {}
    for row in slow:
        if row.get("cause"):
            causes[row["cause"]] = causes.get(row["cause"], 0) + int(row.get("cause_ns") or 0)
    cause = max(causes, key=lambda name: causes[name]) if causes else None
    places = {(r["path"], r["line"], r["function"]) for r in slow if r.get("path")}
    attention = bool(cause and ("attention" in cause or "sdpa" in cause.lower()))
    sites = [
        s
        for s in job.sites("sdpa")
        if attention or any(s["path"] == p and s["function"].endswith(f or "") for p, _, f in places)
    ]
    sites += [] if attention else job.sites("compile")
    anchors = [anchor(s) for s in sites] + [
        {"path": p, "line": n, "code": job.code(p, n) or f} for p, n, f in sorted(places)
    ]
    if not sites and (function := _slowest(job, {r["step"] for r in slow}, {r["step"] for r in later})):
        anchors = [function, *(a for a in anchors if (a["path"], a["line"]) != (function["path"], function["line"]))]
    share = (job.timing.steady_share() + job.timing.excess_share()) * excess / total
    if known and job.timing.runs and job.timing.step_s * 1e9 < 1.3 * typical:
        # new shapes become rare as the job goes on: the unprofiled run's slow steps are all there are
        share = min(share, job.timing.excess_share())
    worst = max(slow, key=lambda r: r["wall_ns"])
    return [
        Finding(
            "new_shapes_slow_steps",
            f"{len(slow)} of {len(later)} steps have new input shapes and take "
            f"{sum(r['wall_ns'] for r in slow) / len(slow) / typical:.1f} times a known step",
            "Something is prepared once for every new shape (an execution plan, a compiled graph, an autotuned kernel)"
            + (f": most of the excess is in {cause}." if cause else "."),
            share,
            f"excess of {excess / 1e6:.1f} ms over {typical / 1e6:.2f} ms a step in {total / 1e6:.1f} ms of steps; "
            "steps are "
            f"{job.timing.steady_share() + job.timing.excess_share():.0%} of the job",
            # where no shape repeats, longer inputs alone make steps longer than the fastest, or the host later than it
            "low" if not known else "high" if cause else "medium",
            ["backend", "config", "python"],
            anchors,
            [
                evidence("steps with new shapes", len(fresh), f"of {len(later)}", "views: steps"),
                evidence("longest", worst["wall_ns"] / 1e6, "ms", "views: steps"),
                evidence("known shapes", typical / 1e6, "ms/step", "views: steps"),
                evidence("new shapes, for example", worst.get("example"), "", "views: steps"),
                evidence(
                    "compiling, loading modules",
                    sum(r.get("compile_ns") or 0 for r in slow) / 1e6,
                    "ms",
                    "views: steps",
                ),
            ],
        )
    ]


def _slowest(job: Job, slow: set[int], every: set[int]) -> Row | None:
    """The job's innermost function that holds at least half of what slow steps take more than the others. One pass over
    the frames of the job's functions."""
    timeline = job.timeline
    spans = sorted(
        (r["start_ns"], r["end_ns"], r["step"]) for r in job.first_rank(job.view("runtime")) if r.get("step") in every
    )
    if timeline is None or not slow or not every - slow or len(spans) != len(every):
        return None
    starts, ends, steps = (np.array(column) for column in zip(*spans, strict=True))
    frames = np.flatnonzero(timeline.source >= 0)
    step = np.searchsorted(starts, timeline.start[frames], side="right") - 1
    inside = (step >= 0) & (timeline.start[frames] < ends[step])
    frames, step = frames[inside], step[inside]
    functions, row = np.unique(timeline.source[frames], return_inverse=True)
    took = np.zeros((len(functions), len(steps)))
    np.add.at(took, (row, step), timeline.end[frames] - timeline.start[frames])
    late = np.isin(steps, list(slow))

    def excess(time: np.ndarray) -> np.ndarray:
        return time[..., late].mean(axis=-1) - np.median(time[..., ~late], axis=-1)

    holds = excess(took) >= max(1.0, float(excess(ends - starts)) / 2)
    if not holds.any():
        return None
    return job.function_anchor(timeline.functions[int(functions[holds][took[holds].sum(axis=1).argmin()])])


def _waits_ns(row: Row) -> int:
    """What a step's largest excess took where it is a runtime call that copies or waits for the device."""
    waits = row.get("cause_kind") == "call" and ("Memcpy" in row["cause"] or "Synchronize" in row["cause"])
    return int(row.get("cause_ns") or 0) if waits else 0


def _copied_ns(job: Job) -> dict[int, int]:
    """Recorded time of each step in which modules were moved between host and device."""
    timeline = job.timeline
    if timeline is None or not job.on_gpu:
        return {}
    moved = [(int(timeline.start[i]), int(timeline.end[i])) for i in moves(timeline)]
    return {
        row["step"]: sum(max(0, min(row["end_ns"], end) - max(row["start_ns"], start)) for start, end in moved)
        for row in job.first_rank(job.view("runtime"))
        if moved and row.get("step") is not None
    }
