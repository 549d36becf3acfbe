"""Communication that nothing hides, and ranks that the others wait for."""

from __future__ import annotations

import re
import statistics

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("communication_exposed", "straggler_rank")
WAIT = re.compile(r"<built-in method wait of (pybind11|torch\._C\._distributed)")
DISTRIBUTED = "torch/distributed/distributed_c10d.py"
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "recv",
    "send",
)


def detect(job: Job) -> list[Finding]:
    """Exposed time of collectives in the rank that waits least; ranks whose own work is longer than the others'.

    On a device both are the views' (`overlap`, `runtime`); without one a collective is what the main thread spends in
    torch.distributed, which waits for it there.
    """
    if job.view("overlap"):
        return [*exposed(job), *straggler(job)]
    spent = _on_host(job)
    if not any(spent.values()):
        raise NotApplicable("no collectives in the trace")
    return [*exposed_on_host(job, spent), *straggler_on_host(job, spent)]


def exposed(job: Job) -> list[Finding]:
    """Collectives with no compute or copy beside them, of the rank that has least: the others wait for that one."""
    rows = job.view("overlap")
    totals = [r for r in rows if r.get("group") is None and r.get("collective") is None] or rows
    least = min(totals, key=lambda r: r["exposed_ns"] or 0)
    capture = job.headline.get("capture_ns") or 1
    share = (least["exposed_ns"] or 0) / capture
    if share < 0.01:
        return []
    named = sorted((r for r in rows if r.get("collective")), key=lambda r: -(r["exposed_ns"] or 0))[:4]
    waits = sum(r.get("wait_ns") or 0 for r in named)
    return [
        _exposed(
            job,
            job.kernel_share(least["exposed_ns"] or 0),
            f"{(least['exposed_ns'] or 0) / 1e6:.1f} ms exposed on rank {least['rank']}, which waits least, of "
            f"{capture / 1e6:.1f} ms captured",
            [
                evidence(
                    f"{r['collective']} ({r['group']})", (r["exposed_ns"] or 0) / 1e6, "ms exposed", "views: overlap"
                )
                for r in named
            ],
            waits,
        )
    ]


def exposed_on_host(job: Job, spent: dict[int, float]) -> list[Finding]:
    """The main thread's time in torch.distributed, of the rank that has least."""
    walls = _walls(job)
    rank = min(spent, key=lambda r: spent[r] / walls[r])
    least = spent[rank] / walls[rank]
    share = least * job.window_share
    if share < 0.01:
        return []
    return [
        _exposed(
            job,
            share,
            f"{least:.1%} of rank {rank}'s window in torch.distributed, the least of {len(spent)} ranks; steps are "
            f"{job.window_share:.0%} of the job",
            [
                evidence(f"collectives, rank {r}", ns / 1e6, "ms on the main thread", "views: cpu")
                for r, ns in sorted(spent.items())
            ],
        )
    ]


def _exposed(job: Job, share: float, derivation: str, facts: list[Row], waits: float = 0) -> Finding:
    return Finding(
        "communication_exposed",
        f"Communication runs alone {share:.0%} of the time",
        "Gradients are reduced when nothing is left to compute, or more often than they are used (gradients that "
        "accumulate need it once, under no_sync before); larger buckets, an earlier start or a hook that overlaps "
        "hide it." + (f" {waits / 1e6:.1f} ms of it is waiting for other ranks." if waits else ""),
        share,
        derivation,
        "medium",
        ["config", "python"],
        [anchor(s) for s in job.sites("collective")],
        facts,
    )


def straggler(job: Job) -> list[Finding]:
    """A rank behind the median of the others in most steps: the views compare with the median of all, which of two
    ranks is half of the way."""
    rows = [r for r in job.view("runtime") if r.get("step") is not None and r.get("own_ns") is not None]
    steps: dict[int, dict[int, float]] = {}
    for row in rows:
        steps.setdefault(row["step"], {})[row["rank"]] = row["own_ns"]
    whole = [own for own in steps.values() if len(own) > 1]
    if not whole:
        return []
    behind: dict[int, list[float]] = {}
    for own in whole:
        for rank, ns in own.items():
            behind.setdefault(rank, []).append(ns - statistics.median(v for r, v in own.items() if r != rank))
    rank, late = max(behind.items(), key=lambda item: sum(max(0.0, ns) for ns in item[1]))
    wall = sum(r["wall_ns"] for r in rows if r["rank"] == rank) or 1
    often = sum(1 for r in rows if r["rank"] == rank and r.get("straggler"))
    lost = sum(max(0.0, ns) for ns in late)
    if lost / wall < 0.02 or often * 2 < len(late):
        return []
    return [
        _straggler(
            job,
            f"Rank {rank} is behind the others in {often} of {len(late)} steps",
            job.kernel_share(lost * job.capture_ns / wall),
            f"{lost / 1e6:.1f} ms behind the median of the other ranks in {wall / 1e6:.1f} ms of steps",
            [evidence("behind", lost / len(late) / 1e6, "ms/step", "views: runtime")],
        )
    ]


def straggler_on_host(job: Job, spent: dict[int, float]) -> list[Finding]:
    """The rank with most time outside of collectives, over the whole window: only there do the views count ranks."""
    walls = _walls(job)
    if len(spent) < 2:
        return []
    own = {rank: walls[rank] - spent[rank] for rank in spent}
    rank = max(own, key=lambda r: own[r])
    lost = own[rank] - statistics.median(ns for r, ns in own.items() if r != rank)
    if lost / walls[rank] < 0.02:
        return []
    return [
        _straggler(
            job,
            f"Rank {rank} is behind the others",
            lost / walls[rank] * job.window_share,
            f"{lost / 1e6:.1f} ms more outside of collectives than the median of the other ranks, of "
            f"{walls[rank] / 1e6:.1f} ms; steps are {job.window_share:.0%} of the job",
            [
                evidence(f"own work, rank {r}", ns / 1e6, "ms", "views: runtime, less cpu: torch.distributed")
                for r, ns in sorted(own.items())
            ],
        )
    ]


def _straggler(job: Job, title: str, share: float, derivation: str, facts: list[Row]) -> Finding:
    return Finding(
        "straggler_rank",
        title,
        "The other ranks wait for it in every collective: look at its data, at work that it alone does (validation, "
        "logging), its clocks and what else runs on its host.",
        share,
        derivation,
        "medium",
        ["config", "python"],
        [anchor(s) for s in job.sites("rank_guard", in_step=False)],
        facts,
    )


def _on_host(job: Job) -> dict[int, float]:
    """By rank, nanoseconds in collectives, or in waiting for those that were started before, on the thread that makes
    them; what DistributedDataParallel waits for inside the backward pass is not told apart from it."""
    called, waited = dict.fromkeys(_walls(job), 0.0), dict.fromkeys(_walls(job), 0.0)
    for row in job.views("cpu"):
        if row["kind"] != "frame":
            continue
        if row.get("path") == DISTRIBUTED and row["function"] in COLLECTIVES:
            called[row["rank"]] = called.get(row["rank"], 0.0) + row["total_ns"]
        elif WAIT.match(row["name"]):
            waited[row["rank"]] = waited.get(row["rank"], 0.0) + row["total_ns"]
    return {rank: max(called[rank], waited.get(rank, 0.0)) if any(called.values()) else 0.0 for rank in called}


def _walls(job: Job) -> dict[int, float]:
    """By rank, nanoseconds of its steps, or of the whole window where there are none."""
    walls: dict[int, float] = {}
    for row in job.view("runtime"):
        if row.get("step") is not None and row.get("source") != "capture":
            walls[row["rank"]] = walls.get(row["rank"], 0.0) + row["wall_ns"]
    whole = {r["rank"]: float(r["wall_ns"]) for r in job.view("runtime") if r.get("step") is None}
    return {rank: walls.get(rank) or whole[rank] for rank in whole}
