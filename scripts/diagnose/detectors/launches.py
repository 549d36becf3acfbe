"""A device that idles because the host cannot launch fast enough."""

from __future__ import annotations

from scripts.diagnose.detectors.memory import DRIVER
from scripts.diagnose.job import Finding, Job, NotApplicable, Row, evidence

LOOKED_FOR = ("launch_bound",)


def detect(job: Job) -> list[Finding]:
    """Idle time between short kernels, and idle time while the host runs python, by what the host did."""
    if not job.on_gpu:
        raise NotApplicable("no device work in the trace")
    rows = [r for r in job.view("lost_time") if r["kind"] in ("launch_bound", "host_busy")]
    # what waits for the driver's memory is `allocator_thrash`
    rows = [r for r in rows if not _loading(r) and r.get("call") not in DRIVER]
    rows = _without_preparation(job, rows)
    lost = sum(r["lost_ns"] for r in rows)
    share = job.idle_share(lost)
    note = job.idle_note(lost)
    if job.replay is not None:  # idle behind a wait for a value goes with the wait: `step_synchronisation` holds it
        late = job.replayed_share(job.replay.late_ns())
        if late < share:
            share = late
            note += (
                f", and no more than the {late:.1%} that the replayed window loses to its host without waits for values"
            )
    if share < 0.01:
        return []
    walks = _module_walks(job)
    rows.sort(key=lambda r: -r["lost_ns"])
    places = {(r["path"], r["line"]): r for r in reversed(rows) if r.get("path")}
    ranked = sorted(places.values(), key=lambda r: -r["lost_ns"])[:6]
    anchors = [
        {"path": r["path"], "line": r["line"], "code": job.code(r["path"], r["line"]) or r["function"]} for r in ranked
    ]
    top = [
        f"{r.get('op') or r.get('annotation') or r.get('call') or 'python'} in {r.get('function') or '?'}"
        for r in rows[:5]
    ]
    return [
        Finding(
            "launch_bound",
            f"The device idles {share:.0%} of the job because work does not arrive",
            "Kernels are shorter than the host's time to launch the next one. Fewer, larger kernels (fused and "
            "foreach functions, "
            "torch.compile, CUDA graphs) or less python between them close the gaps."
            + (f" {walks[1]}" if walks else ""),
            share,
            f"idle behind the host: {note}; steps are {job.window_share:.0%} of the job",
            "medium",
            ["python", "config", "kernel"],
            anchors + (walks[0] if walks else []),
            [
                evidence("idle behind the host, as profiled", lost / job.capture_ns, "share", "views: lost_time"),
                evidence("kernels", job.headline.get("kernels_per_step"), "per step", "views: headline"),
                evidence("most of it", "; ".join(dict.fromkeys(top)), "", "views: lost_time"),
            ],
        )
    ]


def _loading(row: Row) -> bool:
    """Idle time behind a batch that is made on the main thread: `loader_bound` holds it."""
    return any("DataLoader" in str(row.get(key)) for key in ("annotation", "op"))


def _without_preparation(job: Job, rows: list[Row]) -> list[Row]:
    """The rows less the idle time in which an operator prepares a new shape: fewer or faster launches do not shorten
    it, and `new_shapes_slow_steps` holds it."""
    steps = job.window_steps
    prepared: dict[str, float] = {}
    for one in job.preparations:  # of all steps but the first, whose shapes are as new as the others'
        prepared[one.top] = prepared.get(one.top, 0.0) + one.recorded_ns * steps / max(1, steps - 1)
    idle = {top: sum(r["lost_ns"] for r in rows if r.get("op") == top) for top in prepared}
    stays = {top: max(0.0, 1 - prepared[top] / idle[top]) for top in prepared if idle[top]}
    return [{**r, "lost_ns": r["lost_ns"] * stays.get(str(r.get("op")), 1.0)} for r in rows]


def _module_walks(job: Job) -> tuple[list[Row], str] | None:
    """Repeated walks over the module tree (train(), eval(), parameters()) in the step."""
    if job.timeline is None:
        return None
    timeline = job.timeline
    walks = [
        i
        for name in ("train", "named_modules", "apply", "named_parameters", "named_buffers")
        for i in timeline.by_short.get(name, [])
        if "torch/nn/modules/module.py" in timeline.name[i]
    ]
    outer = timeline.outermost(walks)
    spent = timeline.total_ns(outer)
    if job.share(spent) < 0.01:
        return None
    owners = {int(timeline.owner[i]) for i in outer if timeline.owner[i] >= 0}
    anchors = [job.function_anchor(f) for n, f in enumerate(timeline.functions) if n in owners]
    text = (
        f"Walking the module tree takes {job.per_step_s(spent) * 1e3:.1f} ms a step in "
        f"{len(outer) / max(1, timeline.steps):.0f} walks."
    )
    return anchors[:4], text
