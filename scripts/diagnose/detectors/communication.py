"""Communication that nothing hides, and ranks that the others wait for."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("communication_exposed", "straggler_rank")


def detect(job: Job) -> list[Finding]:
    """Exposed time of collectives in the slowest rank; ranks whose own work is longer than the median's."""
    rows = job.view("overlap")
    if not rows:
        raise NotApplicable("no collectives in the trace")
    return [*exposed(job), *straggler(job)]


def exposed(job: Job) -> list[Finding]:
    """Collectives with no compute or copy beside them."""
    rows = job.view("overlap")
    totals = [r for r in rows if r.get("group") is None and r.get("collective") is None] or rows
    worst = max(totals, key=lambda r: r["exposed_ns"] or 0)
    capture = job.headline.get("capture_ns") or 1
    share = (worst["exposed_ns"] or 0) / capture
    if share < 0.01:
        return []
    named = sorted((r for r in rows if r.get("collective")), key=lambda r: -(r["exposed_ns"] or 0))[:4]
    waits = sum(r.get("wait_ns") or 0 for r in named)
    return [
        Finding(
            "communication_exposed",
            f"Communication runs alone {share:.0%} of the time",
            "Gradients are reduced when nothing is left to compute; larger buckets, an earlier start or a hook that "
            "overlaps hide it." + (f" {waits / 1e6:.1f} ms of it is waiting for other ranks." if waits else ""),
            job.kernel_share(worst["exposed_ns"] or 0),
            f"{(worst['exposed_ns'] or 0) / 1e6:.1f} ms exposed on rank {worst['rank']} of {capture / 1e6:.1f} ms "
            "captured",
            "medium",
            ["config", "python"],
            [anchor(s) for s in job.sites("collective")],
            [
                evidence(
                    f"{r['collective']} ({r['group']})", (r["exposed_ns"] or 0) / 1e6, "ms exposed", "views: overlap"
                )
                for r in named
            ],
        )
    ]


def straggler(job: Job) -> list[Finding]:
    """A rank behind the median in most steps."""
    rows = [r for r in job.view("runtime") if r.get("step") is not None and r.get("behind_ns") is not None]
    by_rank: dict[int, list[float]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], []).append(row["behind_ns"])
    if len(by_rank) < 2:
        return []
    rank, behind = max(by_rank.items(), key=lambda item: sum(item[1]))
    wall = sum(r["wall_ns"] for r in rows if r["rank"] == rank) or 1
    late = sum(max(0.0, b) for b in behind)
    often = sum(1 for r in rows if r["rank"] == rank and r.get("straggler"))
    if late / wall < 0.02 or often * 2 < len(behind):
        return []
    return [
        Finding(
            "straggler_rank",
            f"Rank {rank} is behind the others in {often} of {len(behind)} steps",
            "The other ranks wait for it in every collective: look at its data, its clocks and what else runs on its "
            "host.",
            late / wall * job.timing.steady_share(),
            f"{late / 1e6:.1f} ms behind the median rank in {wall / 1e6:.1f} ms of steps",
            "medium",
            ["config", "python"],
            [],
            [evidence("behind", late / len(behind) / 1e6, "ms/step", "views: runtime")],
        )
    ]
