"""Logging, statistics and checkpoints that cost more than they tell."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("logging_expensive", "checkpoint_expensive")


def detect(job: Job) -> list[Finding]:
    """Statistics over parameters, prints and writes in every step; checkpoints written often."""
    if job.timeline is None:
        raise NotApplicable("the profiled run has no python frames or operators")
    return [*statistics(job), *writes(job), *checkpoints(job)]


def statistics(job: Job) -> list[Finding]:
    """A loop over all parameters that reads each one's norm or mean back to the host."""
    found = []
    for site in job.sites("parameter_statistics", in_step=True):
        holder = job.function_of(site)
        function = job.function_index(site)
        if job.timeline is None or function < 0 or holder is None:
            continue
        if holder["holds_step"]:
            names = [
                *site["detail"]["calls"],
                *(f"aten::{c}" for c in site["detail"]["calls"]),
                "parameters",
                "named_parameters",
            ]
            spent = job.call_ns(site, names)
        else:
            spent = job.timeline.total_ns(job.timeline.of_function(function))
        found.append(
            Finding(
                "logging_expensive",
                f"{site['function']} reads statistics of every parameter in every step",
                "One small operator and one wait for its result for each parameter; a foreach norm, or every n-th "
                "step, tells the same.",
                job.share(spent),
                f"the loop over parameters: {job.wall_note(spent)}",
                "high",
                ["python"],
                [anchor(site), *_inside(job, site)],
                [evidence("statistics", job.per_step_s(spent) * 1e3, "ms/step", "events: calls of the loop")],
            )
        )
    return found


def _inside(job: Job, site: Row) -> list[dict[str, object]]:
    return [
        anchor(s)
        for s in job.sites("synchronisation")
        if s["path"] == site["path"] and site["line"] < s["line"] <= site["end_line"]
    ]


def writes(job: Job) -> list[Finding]:
    """Prints, loggers and files written in every step."""
    sites = job.sites("logging", in_step=True)
    by_function: dict[tuple[str, str], list[Row]] = {}
    for site in sites:
        by_function.setdefault((site["path"], site["function"]), []).append(site)
    found = []
    for group in by_function.values():
        spent = sum(
            job.call_ns(next(s for s in group if s["callee"] == callee), [callee])
            for callee in {s["callee"] for s in group}
        )
        if job.share(spent) < 0.005:
            continue
        found.append(
            Finding(
                "logging_expensive",
                f"{group[0]['function']} logs in every step",
                "Formatting and writing happen on the thread that drives the step.",
                job.share(spent),
                f"logging calls: {job.wall_note(spent)}",
                "medium",
                ["python"],
                [anchor(s) for s in group],
                [evidence("logging", job.per_step_s(spent) * 1e3, "ms/step", "events: calls by name")],
            )
        )
    return found


def checkpoints(job: Job) -> list[Finding]:
    """`torch.save` in the step, or in the slow steps where nothing else explains them."""
    found = []
    for site in job.sites("checkpoint"):
        spent = job.call_ns(site) if job.in_step(site) else 0.0
        share = job.share(spent)
        note = job.wall_note(spent)
        if site["guard"] and job.timing.slow and not job.sites("evaluation"):
            share = job.timing.excess_share()
            note = (
                f"the excess of {len(job.timing.slow)} slow steps is {share:.1%} of the job, and only this is done "
                "every few steps"
            )
        if share < 0.005:
            continue
        found.append(
            Finding(
                "checkpoint_expensive",
                f"{site['function']} writes a checkpoint "
                + (f"when {site['guard']}" if site["guard"] else "in every step"),
                "The step waits until the state is serialised and written; fewer checkpoints, or writing from a copy "
                "in a thread, free it. "
                "Checkpoints are outputs: keep those that the contract names.",
                share,
                note,
                "medium" if site["guard"] else "high",
                ["python"],
                [anchor(site)],
                [
                    evidence(
                        "checkpoint", job.per_step_s(spent) * 1e3 if spent else None, "ms/step", "events: torch.save"
                    )
                ],
            )
        )
    return found
