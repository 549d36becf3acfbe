"""Start-up that outweighs the work over the declared horizon."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, anchor, evidence

LOOKED_FOR = ("startup_dominates",)


def detect(job: Job) -> list[Finding]:
    """Time before the first step less the import of torch, where it is at least a fifth of the job.

    Below a second it is what every job pays for its first step and its own imports.
    """
    timing = job.timing
    share = timing.startup_s / timing.total_s if timing.total_s else 0.0
    imports = job.records.get("import_s")
    avoidable = max(0.0, timing.startup_s - (imports or 0.0))
    if share < 0.2 or imports is None or avoidable < max(1.0, 0.1 * timing.total_s):
        return []
    compiled = job.sites("compile")
    return [
        Finding(
            "startup_dominates",
            f"Start-up is {share:.0%} of the job at {timing.horizon_steps} steps",
            "Imports, data set-up, initialisation and the first step's warm-up"
            + (" and compilation" if compiled else "")
            + " take longer than the steps that follow gain; work that steps do not need can go or be cached.",
            avoidable / timing.total_s,
            f"{timing.startup_s:.2f} s before the first steady step, less {imports:.2f} s until torch was imported, "
            f"of {timing.total_s:.2f} s",
            "low",
            ["config", "python"],
            [anchor(s) for s in compiled],
            [
                evidence("start-up", timing.startup_s, "s", "run.json and step marks"),
                evidence("until torch is imported", imports, "s", "steps.jsonl of the profiled run"),
            ],
        )
    ]
