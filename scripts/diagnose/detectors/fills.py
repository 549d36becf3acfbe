"""Fills: of uninitialised memory in deterministic mode, of gradients, and other tiny kernels by the thousand."""

from __future__ import annotations

import json
import math

from scripts.diagnose.job import Finding, Job, NotApplicable, anchor, evidence

LOOKED_FOR = ("deterministic_fill", "tiny_kernels")
ALLOCATORS = (
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::resize_",
    "aten::new_empty",
    "aten::empty_permuted",
    "aten::new_empty_strided",
)
TINY_NS = 6_000
# of a CPU's fill, what the next operator saves on memory that it need not fetch; measured 0.45 to 0.6 at 4 MB
CACHED = 0.5
KEPT_BYTES = 512 << 10  # glibc trims what is free at its heap's end; twice its threshold after the first large block
FAULT_NS = 500.0  # a page that is mapped again; 0.8 us each in a training step measured, 0.25 us without a hypervisor


def detect(job: Job) -> list[Finding]:
    """`fill_` directly under an allocation; `zero_` of gradients; elementwise kernels under 6 us."""
    if job.timeline is None:
        raise NotApplicable("the profiled run has no host events")
    deterministic, filled = deterministic_fill(job)
    return [*deterministic, *gradients(job), *tiny(job, filled)]


def deterministic_fill(job: Job) -> tuple[list[Finding], int]:
    """Host time of the fills, which on a device that waits for launches is the wall time; else their kernels' time."""
    timeline = job.timeline
    assert timeline is not None
    fills = [
        i
        for i in timeline.calls("aten::fill_")
        if timeline.parent[i] >= 0 and timeline.name[int(timeline.parent[i])] in ALLOCATORS
    ]
    if not fills:
        return [], 0
    steps = max(1, timeline.steps or job.headline.get("steps") or 1)
    spent = timeline.total_ns(fills)
    gone = spent * (1 - CACHED)
    share, note = job.share(gone), f"{CACHED:.0%} less, as what is filled is in the cache: {job.wall_note(gone)}"
    if job.on_gpu:
        share, note = _on_device(job, spent)
    sites = [
        s
        for s in job.sites("setting")
        if s["detail"].get("name") == "use_deterministic_algorithms" and s["detail"].get("value") is not False
    ]
    return [
        Finding(
            "deterministic_fill",
            f"Deterministic mode fills {len(fills) / steps:.0f} new tensors a step that are overwritten at once",
            "torch.use_deterministic_algorithms(True) also sets torch.utils.deterministic.fill_uninitialized_memory: "
            "every empty tensor "
            "is filled with NaN first. It guards against reading uninitialised memory, and changes no result "
            "otherwise.",
            share,
            f"the fills: {note}",
            "high",
            ["config"],
            [anchor(s) for s in sites],
            [
                evidence(
                    "fills of new tensors",
                    len(fills) / steps,
                    "per step",
                    "events: aten::fill_ directly under an allocation",
                ),
                evidence("host time", job.per_step_s(spent) * 1e3, "ms/step", "events"),
            ],
        )
    ], len(fills)


def _on_device(job: Job, host_ns: float) -> tuple[float, str]:
    """A fill costs its kernel when the device is busy and its launch when the device waits: the larger is the bound."""
    kernels = [
        r for r in job.view("kernels") if r.get("op") == "aten::fill_" and (r.get("top_op") or "") != "aten::fill_"
    ]
    device_ns = sum(r["total_ns"] for r in kernels)
    host_share, device_share = job.share(host_ns), job.kernel_share(device_ns)
    share = max(host_share, device_share)
    return share, (
        f"{host_ns / 1e6:.1f} ms of host time in launching them ({host_share:.1%} of the window) and "
        f"{device_ns / 1e6:.1f} ms of "
        f"kernels; the larger share counts"
    )


def gradients(job: Job) -> list[Finding]:
    """`zero_grad(set_to_none=False)` and `p.grad.zero_()`: a pass over every gradient, and one more to add to it."""
    found = []
    for site in job.sites("zero_grad", in_step=True):
        spans = (
            job.timeline.named("Optimizer.zero_grad#")
            if job.timeline is not None and site["callee"] == "zero_grad"
            else []
        )
        spent = job.timeline.total_ns(spans) if spans and job.timeline is not None else job.call_ns(site)
        accumulate = (
            sum(
                job.timeline.ns(i)
                for i in job.timeline.calls("aten::add_")
                if "AccumulateGrad" in job.timeline.name[int(job.timeline.parent[i])]
            )
            if job.timeline is not None
            else 0.0
        )
        faults = 0.0 if job.on_gpu else _faults_ns(job, spans or job.timeline.calls("zero_") if job.timeline else [])
        gone = max(0.0, spent + accumulate - faults)
        found.append(
            Finding(
                "tiny_kernels",
                f"{site['function']} fills every gradient with zeros and adds to it",
                "Gradients set to None are written once by the backward pass instead of being filled, read and "
                "written again.",
                job.share(gone),
                f"zeroing {job.per_step_s(spent) * 1e3:.2f} ms and adding {job.per_step_s(accumulate) * 1e3:.2f} ms a "
                + (f"step, less {job.per_step_s(faults) * 1e3:.2f} ms for new memory: " if faults else "step: ")
                + job.wall_note(gone),
                "high",
                ["config", "python"],
                [anchor(site)],
                [evidence("zeroing", job.per_step_s(spent) * 1e3, "ms/step", "events")],
            )
        )
    return found


def _faults_ns(job: Job, spans: list[int]) -> float:
    """What new memory for the gradients costs instead, on a CPU: page faults of what the C library's allocator gave
    back to the system, which it does with all of it where it is more than a little."""
    timeline = job.timeline
    assert timeline is not None
    numbers = 0
    for i in (j for span in spans for j in timeline.under(span)):
        if timeline.name[i] == "aten::zero_" and timeline.dims[i]:
            shapes = json.loads(str(timeline.dims[i]))
            numbers += math.prod(shapes[0]) if shapes and isinstance(shapes[0], list) else 0
    size = 4.0 * numbers
    asked = str(((job.spec.get("environment") or {}).get("variables") or {}).get("MALLOC_TRIM_THRESHOLD_") or "")
    kept = int(asked) if asked.isdigit() else KEPT_BYTES
    return size / 4096 * FAULT_NS if size / max(1, timeline.steps) > kept else 0.0


def tiny(job: Job, filled: int) -> list[Finding]:
    """Elementwise, fill and copy kernels shorter than a launch, where the device waits for launches."""
    rows = [
        r
        for r in job.view("kernels")
        if r["class"] in ("elementwise", "copy", "other") and (r["mean_ns"] or 0) < TINY_NS
    ]
    count = sum(r["count"] for r in rows)
    steps = max(1, job.headline.get("steps") or 1)
    capture = job.headline.get("capture_ns") or 1
    waiting = sum(r["lost_ns"] for r in job.view("lost_time") if r["kind"] == "launch_bound")
    every = sum(r["count"] for r in job.view("kernels")) or 1
    if count / steps < 500 or waiting / capture < 0.02:
        return []
    share = job.idle_share(waiting * count / every)
    groups: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in sorted(rows, key=lambda r: -r["count"]):
        groups.setdefault((row.get("function") or "?", row.get("top_op") or row.get("op") or "?"), []).append(row)
    top = sorted(groups.items(), key=lambda item: -sum(int(str(r["count"])) for r in item[1]))[:5]
    anchors = job.anchors(rows)
    return [
        Finding(
            "tiny_kernels",
            f"{count / steps:.0f} kernels a step are shorter than the time to launch them",
            "Each costs a launch; foreach functions, fused optimizers, torch.compile or CUDA graphs join them."
            + (f" {filled / steps:.0f} of them fill new tensors (deterministic mode)." if filled else ""),
            share,
            f"device waiting for launches {waiting / 1e6:.1f} ms of {capture / 1e6:.1f} ms captured, "
            f"{count / every:.0%} of the launches",
            "medium",
            ["python", "config"],
            list({(a["path"], a["line"]): a for a in anchors}.values())[:5],
            [
                evidence("tiny kernels", count / steps, "per step", "views: kernels"),
                evidence("most of them", ", ".join(f"{op} in {fn}" for (fn, op), _ in top), "", "views: kernels"),
            ],
        )
    ]
