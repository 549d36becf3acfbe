"""Start-up that outweighs the work over the declared horizon."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, anchor, evidence

LOOKED_FOR = ("startup_dominates",)


def detect(job: Job) -> list[Finding]:
    """Time before the first steady step, where it is at least a fifth of the job.

    The ceiling keeps a floor that a run without any repeated initialisation would still pay: imports (all of them where
    the recorder timed them, else torch's), the driver's start of the device, and the first step's own warm-up unless the
    source compiles, which a cache could keep. Below a second it is what every job pays.
    """
    timing, known = job.timing, job.records
    share = timing.startup_s / timing.total_s if timing.total_s else 0.0
    imports = known.get("import_s")
    floor = {"imports" if imports is not None else "the import of torch": imports or known.get("torch_s")}
    floor["the start of the device"] = known.get("device_init_s")
    compiled = job.sites("compile")
    if not compiled and known.get("warm_up_s") is not None:
        floor["the first step's warm-up"] = max(0.0, known["warm_up_s"] - timing.step_s)
    kept = {what: seconds for what, seconds in floor.items() if seconds}
    rest = timing.startup_s - sum(kept.values())
    if share < 0.2 or rest < max(1.0, 0.1 * timing.total_s):
        return []
    after = ", ".join(f"{seconds:.2f} s of {what}" for what, seconds in kept.items())
    bounded = imports is not None or known.get("torch_s") is not None
    return [
        Finding(
            "startup_dominates",
            f"Start-up is {share:.0%} of the job at {timing.horizon_steps} steps, {rest:.1f} s of it set-up",
            "Data set-up, initialisation"
            + (" and compilation" if compiled else "")
            + (" and other imports" if imports is None else "")
            + " come before the first steady step; what the steps do not need can go or be cached.",
            rest / timing.total_s if bounded else None,
            f"{timing.startup_s:.2f} s before the first steady step, less {after}, of {timing.total_s:.2f} s"
            if bounded
            else "",
            "low",
            ["config", "python"],
            [anchor(s) for s in compiled],
            [
                evidence("start-up", timing.startup_s, "s", "run.json and step marks"),
                *(evidence(f"stays: {what}", seconds, "s", "steps.jsonl") for what, seconds in kept.items()),
                *([] if bounded else [evidence("ceiling", None, "", "no step marks say when imports ended")]),
            ],
        )
    ]
