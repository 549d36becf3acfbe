"""Evaluation: what it costs, and gradients that it keeps for nothing."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("evaluation_expensive", "gradients_in_evaluation")
# What recording a graph costs on CPU: a node for each operator (2.0 to 3.2 us with 1, 2 and 4 samples of a narrow MLP), and
# memory that cannot be reused at once (a GPT 1.09 times, YOLO11n 1.24 times), which small tensors do not feel.
NODE_NS = 2_700.0
MEMORY_SHARE = 0.08
SMALL_NS = 20_000.0  # mean time of an operator whose tensors are small
LARGEST = 1 - 1 / 1.36


def detect(job: Job) -> list[Finding]:
    """Periodic slow steps where the source evaluates; `eval()` outside no_grad and inference_mode."""
    if not job.training:
        return serving(job)
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
                "Evaluation is part of the job and stays; what can go is what it repeats (batches made anew, "
                "gradients, small batches).",
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
        forward, graph = _forward_share(job), _graph_share(job)
        found.append(
            Finding(
                "gradients_in_evaluation",
                f"{keeps[0]['function']} records a graph for gradients that nobody asks for",
                "No torch.no_grad() or torch.inference_mode() is active: every operator saves its inputs and builds a "
                "backward node.",
                share * forward * graph,
                f"evaluation is {share:.1%} of the job ({period}), {forward:.0%} of it in the model; "
                f"recording a graph is {graph:.0%} of a forward pass: 2.7 us an operator, and 8 % for memory kept where it is large, 26 % "
                "at most "
                "(fitted to CPU measurements)",
                "high",
                ["python"],
                [anchor(s) for s in keeps] + [anchor(s) for s in inline],
                marks,
            )
        )
    return found


def serving(job: Job) -> list[Finding]:
    """An inference job whose model runs with gradients on: its operators carry autograd's sequence numbers."""
    timeline = job.timeline
    modules = timeline.outermost(timeline.named("nn.Module:")) if timeline is not None else []
    if timeline is None or not modules:
        raise NotApplicable("no module was called in the window, or no python stacks show it")
    recorded = {int(timeline.sequence[j]) for i in modules for j in timeline.under(i) if timeline.sequence[j] >= 0}
    if len(recorded) < 2 * len(modules):
        return []
    graph = _graph_share(job)
    spent = timeline.total_ns(modules)
    owners = dict.fromkeys(int(timeline.owner[timeline.parent[i]]) for i in modules if timeline.parent[i] >= 0)
    functions = [timeline.functions[n] for n in owners if n >= 0][:3]
    return [
        Finding(
            "gradients_in_evaluation",
            "Inference records a graph for gradients that nobody asks for",
            "No torch.no_grad() or torch.inference_mode() is active: every operator saves its inputs and builds a "
            "node.",
            job.share(spent * graph),
            f"{graph:.0%} of the model's forward passes (2.7 us an operator, and 8 % for memory kept where it is large): "
            f"{job.wall_note(spent * graph)}",
            "high",
            ["python"],
            [job.function_anchor(f) for f in functions],
            [
                evidence(
                    "operators recorded",
                    len(recorded) / len(modules),
                    "a call of the model",
                    "events: sequence numbers",
                )
            ],
        )
    ]


def _forward_share(job: Job) -> float:
    """Of the forward side of a step, the part in modules rather than in making the batch."""
    if job.timeline is None:
        return 1.0
    modules = job.timeline.outermost(job.timeline.named("nn.Module:"))
    return min(1.0, job.timeline.total_ns(modules) / max(1.0, job.forward_side_ns)) if modules else 1.0


def _graph_share(job: Job) -> float:
    """Share of a forward pass that goes into recording the graph, by its recorded operators and its time."""
    timeline = job.timeline
    modules = timeline.outermost(timeline.named("nn.Module:")) if timeline is not None else []
    if timeline is None or not modules:
        return MEMORY_SHARE
    nodes = len({int(timeline.sequence[j]) for i in modules for j in timeline.under(i) if timeline.sequence[j] >= 0})
    spent = max(1.0, timeline.total_ns(modules))
    memory = MEMORY_SHARE if not nodes or spent / nodes > SMALL_NS else 0.0
    return min(LARGEST, memory + nodes * NODE_NS / spent)
