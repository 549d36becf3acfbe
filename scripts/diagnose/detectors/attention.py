"""Attention written out by hand, and fused attention that fell back to its slow path."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.timeline import Timeline

LOOKED_FOR = ("attention_handwritten", "attention_math_path")
PRODUCTS = ("aten::matmul", "aten::bmm", "aten::baddbmm", "aten::einsum", "matmul", "bmm", "baddbmm", "einsum")


def detect(job: Job) -> list[Finding]:
    """`attention_handwritten` from a softmax between two products in one function; the math path from its operator."""
    found = [f for site in job.sites("attention_handwritten", in_step=True) if (f := handwritten(job, site))]
    found += math_path(job)
    if not found and not job.sites("attention_handwritten") and not job.sites("sdpa"):
        ops = job.timeline is not None and job.timeline.calls("aten::scaled_dot_product_attention")
        if not ops:
            raise NotApplicable("no attention in the source or in the trace")
    return found


def handwritten(job: Job, site: Row) -> Finding | None:
    """Everything between the first and the last product, forward and backward, less what a fused kernel must still
    do."""
    timeline = job.timeline
    if timeline is None:
        return None
    forward = _span(timeline, job.function_index(site))
    forward += timeline.calls("tril", job.function_index(site)) + timeline.calls("triu", job.function_index(site))
    if not forward:
        return None
    inside = [i for top in timeline.outermost(forward) for i in (top, *timeline.under(top))]
    forward_ns, backward = timeline.total_ns(forward), job.backward(inside)
    floor = _stays(job, timeline, inside, bool(site["detail"].get("causal")))
    gone = max(0.0, forward_ns + backward - floor)
    evaluated = (
        max(0.0, forward_ns - floor * forward_ns / max(1.0, forward_ns + backward)) if job.evaluates(site) else 0.0
    )
    share = job.share(gone, evaluated, sum(r["total_ns"] for r in job.view("kernels") if _of(r, site)))
    return Finding(
        "attention_handwritten",
        f"Attention is written out in {site['function']}: products, mask and softmax as separate operators",
        "Every score matrix (batch x heads x length x length) is written to memory and read again by each operator, "
        "forward and "
        "backward; torch.nn.functional.scaled_dot_product_attention computes the same without storing it.",
        share,
        f"forward {job.per_step_s(forward_ns) * 1e3:.2f} ms + backward {job.per_step_s(backward) * 1e3:.2f} ms of "
        "attention "
        f"a step, less {job.per_step_s(floor) * 1e3:.2f} ms of products and softmax that stay: {job.wall_note(gone)}"
        + (
            f"; the same share of the forward part of evaluations ({job.evaluation_share:.1%} of the job)"
            if evaluated
            else ""
        ),
        "high" if backward or not job.training else "medium",
        ["python"],
        [anchor(site), *_more(job, site)],
        [
            evidence(
                "attention forward",
                job.per_step_s(forward_ns) * 1e3,
                "ms/step",
                "events: operators between the products",
            ),
            evidence(
                "attention backward",
                job.per_step_s(backward) * 1e3,
                "ms/step",
                "events: backward nodes by sequence number",
            ),
            evidence(
                "products and softmax that stay",
                job.per_step_s(floor) * 1e3,
                "ms/step",
                "events: aten::bmm with its backward, aten::_softmax",
            ),
        ],
    )


def _stays(job: Job, timeline: Timeline, inside: list[int], causal: bool) -> float:
    """Of the operators of attention, what a fused kernel must still do: multiply and exponentiate; under a causal mask it
    may skip up to half of the blocks."""
    products = timeline.outermost([i for i in inside if timeline.name[i] in ("aten::bmm", "aten::baddbmm", "aten::mm")])
    softmax = timeline.total_ns([i for i in inside if timeline.name[i] == "aten::_softmax"])
    return (timeline.total_ns(products) + job.backward(products) + softmax) * (0.75 if causal else 1.0)


def _of(row: Row, site: Row) -> bool:
    """Whether a kernel was launched by the site's function, outside the modules that it calls."""
    return row.get("path") == site["path"] and row.get("function") == site["function"].rpartition(".")[2]


def _more(job: Job, site: Row) -> list[dict[str, object]]:
    lines = [site["detail"]["softmax_line"], site["detail"]["product_line"]]
    lines += [
        s["line"] for s in job.sites("mask_rebuilt") if s["function"] == site["function"] and s["path"] == site["path"]
    ]
    return [anchor(site, line, job.code(site["path"], line)) for line in dict.fromkeys(lines) if line != site["line"]]


def _span(timeline: Timeline, function: int) -> list[int]:
    """Direct children of each frame of the function, from its first product to its last, modules' own products
    aside."""
    found: list[int] = []
    for frame in timeline.of_function(function) if function >= 0 else []:
        children, child, stop = [], frame + 1, frame + 1 + int(timeline.below[frame])
        while child < stop:
            children.append(child)
            child += 1 + int(timeline.below[child])
        products = [n for n, i in enumerate(children) if timeline.short[i] in PRODUCTS]
        if len(products) >= 2:
            found += children[products[0] : products[-1] + 1]
    return found


def math_path(job: Job) -> list[Finding]:
    """Fused attention that torch answered with its reference implementation."""
    timeline = job.timeline
    if timeline is None:
        return []
    slow = timeline.calls("aten::_scaled_dot_product_attention_math")
    if not slow:
        return []
    inside = [i for top in slow for i in timeline.under(top)]
    # the view names the innermost operator (aten::bmm, aten::_softmax) and the outermost, and autograd's by sequence number
    whole = {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math"}
    kernels = [
        r
        for r in job.view("kernels")
        if r["class"] != "attention" and whole & {r.get("op"), r.get("top_op"), r.get("forward_op")}
    ]
    sites = job.sites("sdpa", in_step=True)
    floor = _stays(job, timeline, inside, any(s["detail"]["causal"] is True for s in sites))
    gone = max(0.0, timeline.total_ns(slow) + job.backward(inside) - floor)
    share = job.share(gone)
    note = f"less {job.per_step_s(floor) * 1e3:.2f} ms a step of products and softmax that stay: {job.wall_note(gone)}"
    if job.on_gpu:
        device = sum(r["total_ns"] for r in kernels)
        capture = job.headline.get("capture_ns") or 1
        share = job.kernel_share(device)
        note = (
            f"{device / 1e6:.2f} ms of kernels in a capture of {capture / 1e6:.1f} ms, were they on the critical path"
        )
    return [
        Finding(
            "attention_math_path",
            "scaled_dot_product_attention runs its reference (math) implementation",
            "No fused kernel accepts the inputs as they are (mask, dtype, head size, stride, or a backend switched "
            "off).",
            share,
            f"forward and backward: {note}",
            "medium",
            ["backend", "python"],
            [anchor(s) for s in sites] + [anchor(s) for s in job.sites("sdpa_backend")],
            [
                evidence(
                    "calls",
                    len(slow) / max(1, timeline.steps),
                    "per step",
                    "events: aten::_scaled_dot_product_attention_math",
                )
            ],
        )
    ]
