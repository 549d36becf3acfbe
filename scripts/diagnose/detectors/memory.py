"""Device memory: room that is not used, and an allocator that goes back to the driver."""

from __future__ import annotations

from collections import Counter

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("memory_headroom", "allocator_thrash")
DRIVER = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "hipMalloc", "hipFree")


def detect(job: Job) -> list[Finding]:
    """Headroom from the memory view or the run's peak; thrash from driver allocations inside steady steps."""
    if not job.on_gpu:
        raise NotApplicable("no device")
    return [*headroom(job), *thrash(job)]


def headroom(job: Job) -> list[Finding]:
    """More than half of the device is free: nothing need be computed twice to save memory.

    The ceiling is the kernels that the backward pass launches again for forward operators; where the trace does not tell
    them apart, those of the whole forward pass. It is null without recomputation, since a larger batch changes what a
    step computes and data kept on the device has findings of its own.
    """
    capacity = (job.device or {}).get("capacity_bytes")
    peak = job.run.get("peak_device_bytes") or job.headline.get("peak_allocated_bytes")
    idle = job.headline.get("gpu_idle") or 0.0
    if not capacity or not peak or peak > capacity / 2:
        return []
    recompute = job.sites("recompute")
    forward = sum(r["total_ns"] for r in job.view("kernels") if r.get("phase") == "forward") if recompute else 0
    share, derivation, confidence = None, "", "low"
    if forward and (repeated := recomputed_ns(job)):
        share, confidence = job.kernel_share(repeated), "high"
        derivation = f"{repeated / 1e6:.1f} ms of kernels that the backward pass computes again of "
        derivation += f"{job.capture_ns / 1e6:.1f} ms captured"
    elif forward:
        share, confidence = job.kernel_share(forward), "medium"
        derivation = f"{forward / 1e6:.1f} ms of the forward pass's kernels of {job.capture_ns / 1e6:.1f} ms captured: "
        derivation += "recomputation repeats them at most once"
    return [
        Finding(
            "memory_headroom",
            f"{1 - peak / capacity:.0%} of the device's memory is never used",
            "A larger batch, no recomputation, or data kept on the device would fit"
            + (f"; the device idles {idle:.0%} of the time." if idle else "."),
            share,
            derivation,
            confidence,
            ["config"],
            [anchor(s) for s in recompute],
            [evidence("peak", peak, "bytes", "run.json"), evidence("capacity", capacity, "bytes", "views: device")],
        )
    ]


def recomputed_ns(job: Job) -> float:
    """Time of the kernels of forward operators inside the backward pass: there only what is computed again, with
    gradients on, has a sequence number of its own. Matched to the kernels view by operator and shapes, in the share of
    the calls of both: a product computed again can have the shapes of one of the backward pass's own."""
    if job.timeline is None:
        return 0.0
    timeline, again, own = job.timeline, Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for node in timeline.outermost(timeline.named("autograd::engine::evaluate_function")):
        for i in timeline.under(node):
            if timeline.name[i].startswith("aten::"):
                kind = again if timeline.sequence[i] >= 0 else own
                kind[timeline.name[i], (timeline.dims[i] or "").replace(" ", "")] += 1
    repeated = 0.0
    for row in job.view("kernels"):
        key = (row.get("op") or "", (row.get("shapes") or "").replace(" ", ""))
        if row.get("phase") == "backward" and again[key]:
            repeated += row["total_ns"] * again[key] / (again[key] + own[key])
    return repeated


def thrash(job: Job) -> list[Finding]:
    """Driver allocations in more than half of the steps after the first."""
    steps = job.view("steps")[1:]
    busy = [r for r in steps if (r.get("host_allocations") or 0) > 0]
    calls = [r for r in job.view("cpu") if r["kind"] == "call" and r["name"] in DRIVER]
    # only what leaves the device idle: most calls run beside kernels that were queued before
    idle = [r for r in job.view("lost_time") if r.get("call") in DRIVER]
    spent = sum(r["lost_ns"] for r in idle) if idle else sum(r["total_ns"] for r in calls)
    capture = job.headline.get("capture_ns") or 1
    sites = [s for s in job.sites("housekeeping", in_step=True) if s["detail"]["call"] == "torch.cuda.empty_cache"]
    if not (len(busy) * 2 > len(steps) or sites) or spent / capture < 0.002:
        return []
    return [
        Finding(
            "allocator_thrash",
            f"The allocator asks the driver for memory in {len(busy)} of {len(steps)} steps",
            "torch.cuda.empty_cache() in the step, or sizes that change so much that cached blocks do not fit "
            "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).",
            job.idle_share(spent),
            f"{spent / 1e6:.1f} ms {'of idle device ' if idle else ''}in "
            f"{', '.join(dict.fromkeys(r['name'] for r in calls))} of {capture / 1e6:.1f} ms captured",
            "medium",
            ["config", "python"],
            [anchor(s) for s in sites],
            [evidence("driver calls", sum(r["count"] for r in calls), "in the window", "views: cpu")],
        )
    ]
