"""Optimizers and moving averages that work through the parameters one by one."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("optimizer_unfused", "ema_loop")
FUSED = ("aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_", "aten::_fused_adagrad_")
FUSABLE = {"Adam", "AdamW", "SGD", "Adagrad"}
BYTES_PER_S = {"cpu": 10e9, "gpu": 2e12}  # what one core, or a data-centre GPU, moves at least


def detect(job: Job) -> list[Finding]:
    """The optimizer's step without a fused kernel; loops over parameters that keep a moving average."""
    found = [*unfused(job), *ema(job)]
    if not found and not job.sites("optimizer") and not job.sites("ema_loop") and not _steps(job):
        raise NotApplicable("no optimizer in the source or in the trace")
    return found


def _steps(job: Job) -> list[int]:
    return job.timeline.named("Optimizer.step#") if job.timeline is not None else []


def unfused(job: Job) -> list[Finding]:
    """Wall time of the optimizer's step less one pass over its state at memory speed."""
    timeline, steps = job.timeline, _steps(job)
    if timeline is None or not steps:
        return []
    fused = [i for name in FUSED for i in timeline.calls(name)]
    kind = timeline.name[steps[0]].partition("#")[2].partition(".")[0]
    if fused or kind not in FUSABLE:
        return []
    total = timeline.total_ns(steps)
    operators = sum(1 for top in steps for i in timeline.under(top) if timeline.kind[i] == 1 and timeline.below[i] == 0)
    parameters = job.structure["computed"]["parameters"] or 0
    passes = 7 if kind.startswith("Adam") else 5  # parameter, gradient and moments read, all but the gradient written
    floor = parameters * 4 * passes / BYTES_PER_S["gpu" if job.on_gpu else "cpu"] * 1e9 * max(1, timeline.steps)
    gone = max(0.0, total - min(floor, 0.5 * total))
    sites = [s for s in job.sites("optimizer") if s["detail"]["class"] == kind] or job.sites("optimizer")
    sites = sites or [s for s in job.sites("step", in_step=True) if "optim" in s["code"]]
    foreach = any("multi_tensor" in timeline.name[i] for top in steps for i in timeline.under(top))
    return [
        Finding(
            "optimizer_unfused",
            f"{kind} updates the parameters with {operators / max(1, timeline.steps):.0f} small operators a step",
            ("The foreach implementation" if foreach else "The for-loop implementation (the default on CPU)")
            + " launches several operators for each parameter or list; fused=True does the update in one kernel.",
            job.share(gone, kernel_ns=sum(r["total_ns"] for r in job.view("kernels") if r.get("phase") == "optimizer")),
            f"optimizer step {job.per_step_s(total) * 1e3:.2f} ms, less "
            f"{job.per_step_s(min(floor, 0.5 * total)) * 1e3:.2f} ms for one "
            f"pass over {parameters:,} parameters: {job.wall_note(gone)}",
            "high",
            ["config"],
            [anchor(s) for s in sites],
            [
                evidence("optimizer step", job.per_step_s(total) * 1e3, "ms/step", "events: Optimizer.step"),
                evidence(
                    "operators", operators / max(1, timeline.steps), "per step", "events: leaf operators under it"
                ),
            ],
        )
    ]


def ema(job: Job) -> list[Finding]:
    """Python loops that blend parameters into an average one tensor at a time."""
    found = []
    for site in job.sites("ema_loop", in_step=True):
        function = job.function_index(site)
        if job.timeline is None or function < 0:
            continue
        frames = job.timeline.of_function(function)
        names = [
            "mul_",
            "add_",
            "lerp_",
            "copy_",
            "detach",
            "aten::mul",
            "aten::add",
            "aten::detach",
            "state_dict",
            "named_parameters",
            "parameters",
        ]
        holds = job.function_of(site)
        whole = holds is not None and not holds["holds_step"]
        spent = (
            job.timeline.total_ns(frames)
            if whole
            else job.timeline.total_ns([i for name in names for i in job.timeline.calls(name, function)])
        )
        updates = sum(len(job.timeline.calls(n, function)) for n in ("mul_", "add_", "lerp_", "copy_"))
        # one foreach call still reads and writes every tensor; a quarter of the operators' own time is the least seen
        operators = sum(
            job.timeline.own_ns[i]
            for f in frames
            for i in job.timeline.under(f)
            if job.timeline.kind[i] == 1 and job.timeline.owner[i] == function
        )
        gone = max(0.0, spent - 0.25 * operators)
        found.append(
            Finding(
                "ema_loop",
                f"{site['function']} updates a moving average tensor by tensor "
                f"({updates / max(1, job.timeline.steps):.0f} calls a step)",
                "Each tensor costs several small operators and their launches; torch._foreach_ functions do them in "
                "one call each.",
                job.share(gone),
                f"the loop, less a quarter of its operators' own time: {job.wall_note(gone)}",
                "medium",
                ["python"],
                [anchor(site)],
                [evidence("moving average", job.per_step_s(spent) * 1e3, "ms/step", "events: frames of the function")],
            )
        )
    return found
