"""Evaluation: what it costs, and gradients that it keeps for nothing."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("evaluation_expensive", "gradients_in_evaluation")
# the most that leaving the graph away gained on CPU in our measurements (YOLO inference 1.24 times, GPT 1.09 times)
GRAPH_SHARE = 1 - 1 / 1.24


def detect(job: Job) -> list[Finding]:
    """Periodic slow steps where the source evaluates; `eval()` outside no_grad and inference_mode."""
    sites = job.sites("evaluation")
    if not sites:
        raise NotApplicable("no evaluation in the source")
    share = job.evaluation_share
    period = (
        f"every {job.timing.period} steps"
        if job.timing.period
        else f"in {len(job.timing.slow)} of {job.timing.steps} steps"
    )
    found = []
    marks = [
        evidence("one evaluation", job.evaluation_s * 1e3, "ms", "steps.jsonl: excess of the slow steps"),
        evidence("slow steps", len(job.timing.slow), "", "steps.jsonl"),
    ]
    between = (job.timing.period or job.timing.steps / max(1, len(job.timing.slow))) * job.timing.step_s
    if share > 0.02 and job.evaluation_s > 0.5 * between:
        each = f"{job.evaluation_s * 1e3:.1f} ms {period}, the steps between take {between * 1e3:.1f} ms"
        found.append(
            Finding(
                "evaluation_expensive",
                f"Evaluation takes {share:.1%} of the job",
                "Evaluation is part of the job and stays; what can go is what it repeats (batches made anew, gradients, small batches).",
                share,
                f"all of it: {each}; upper bound, most of it must stay",
                "low",
                ["python"],
                [anchor(s) for s in sites],
                marks,
            )
        )
    keeps = [s for s in sites if not s["detail"]["no_grad"]]
    inline = [
        s
        for s in job.sites("eval_mode")
        if not s["detail"]["no_grad"] and (s["path"], s["function"]) in {(k["path"], k["function"]) for k in keeps}
    ]
    if keeps:
        forward = _forward_share(job)
        found.append(
            Finding(
                "gradients_in_evaluation",
                f"{keeps[0]['function']} records a graph for gradients that nobody asks for",
                "No torch.no_grad() or torch.inference_mode() is active: every operator saves its inputs and builds a backward node.",
                share * forward * GRAPH_SHARE,
                f"evaluation is {share:.1%} of the job ({period}), {forward:.0%} of it in the model; without a graph the model's forward pass gains "
                f"{GRAPH_SHARE:.0%} at most (1.24 times, measured on CPU)",
                "high",
                ["python"],
                [anchor(s) for s in keeps] + [anchor(s) for s in inline],
                marks,
            )
        )
    return found


def _forward_share(job: Job) -> float:
    """Of the forward side of a step, the part in modules rather than in making the batch."""
    if job.timeline is None:
        return 1.0
    modules = job.timeline.outermost(job.timeline.named("nn.Module:"))
    return min(1.0, job.timeline.total_ns(modules) / max(1.0, job.forward_side_ns)) if modules else 1.0
