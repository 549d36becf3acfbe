"""Start-up that outweighs the work over the declared horizon."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, anchor, evidence

LOOKED_FOR = ("startup_dominates",)


def detect(job: Job) -> list[Finding]:
    """Time before the first steady step, where it is at least a fifth of the job.

    The ceiling leaves out imports where the recorder timed them; where it did not, how much of start-up the job
    needs is
    unknown and so is the ceiling. Below a second it is what every job pays for its first step.
    """
    timing = job.timing
    share = timing.startup_s / timing.total_s if timing.total_s else 0.0
    imports = job.records.get("import_s")
    torch_s = job.records.get("torch_s")
    rest = timing.startup_s - (imports if imports is not None else torch_s or 0.0)
    if share < 0.2 or rest < max(1.0, 0.1 * timing.total_s):
        return []
    compiled = job.sites("compile")
    known = "imports" if imports is not None else "the import of torch"
    return [
        Finding(
            "startup_dominates",
            f"Start-up is {share:.0%} of the job at {timing.horizon_steps} steps, {rest:.1f} s of it after {known}",
            "Data set-up, initialisation and the first step's warm-up"
            + (" and compilation" if compiled else "")
            + (" and other imports" if imports is None else "")
            + " come before the first steady step; what the steps do not need can go or be cached.",
            rest / timing.total_s if imports is not None else None,
            f"{timing.startup_s:.2f} s before the first steady step, less {imports or 0.0:.2f} s in imports, of "
            f"{timing.total_s:.2f} s",
            "low",
            ["config", "python"],
            [anchor(s) for s in compiled],
            [
                evidence("start-up", timing.startup_s, "s", "run.json and step marks"),
                evidence(
                    f"of it {known}",
                    imports if imports is not None else torch_s,
                    "s",
                    "steps.jsonl of the profiled run",
                ),
            ],
        )
    ]
