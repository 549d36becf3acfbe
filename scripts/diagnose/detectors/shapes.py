"""Slow steps that come with shapes never seen before: plans built, kernels compiled or tuned anew."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("new_shapes_slow_steps",)


def detect(job: Job) -> list[Finding]:
    """Excess of the steps that have new input shapes over the median of those that have none."""
    steps = [r for r in job.view("steps") if r.get("wall_ns")]
    if len(steps) < 3:
        raise NotApplicable(f"the profiled window has {len(steps)} steps; at least 3 are needed to tell slow ones")
    later = steps[1:] if steps[0].get("new_signature") else steps  # the first step of a window knows no shape
    fresh = [r for r in later if r["new_signature"]]
    known = [r for r in later if not r["new_signature"]]
    if not fresh:
        return []
    walls = sorted(r["wall_ns"] for r in (known or later))
    typical = (
        walls[len(walls) // 2] if known else walls[0]
    )  # nothing repeats: the fastest step is the closest to a warm one
    slow = [r for r in fresh if r["wall_ns"] > 1.3 * typical]
    excess = sum(max(0, r["wall_ns"] - typical) for r in slow)
    total = sum(r["wall_ns"] for r in later)
    others = sum(max(0, r["wall_ns"] - typical) for r in known)
    if excess <= others or excess / total < 0.01:
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
    share = (job.timing.steady_share() + job.timing.excess_share()) * excess / total
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
            # where no shape repeats, longer inputs alone make steps longer than the fastest
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
