"""Weights that travel between host and device in every step or request, and copies from pageable memory."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("weights_moved", "pageable_copies")
PINNED_BYTES_PER_S = 55e9  # H200 over PCIe 5; half of that on PCIe 4
MOVES = ("to", "cpu", "cuda", "half", "float", "bfloat16")


def detect(job: Job) -> list[Finding]:
    """`nn.Module.to` called in the step, and pageable copies that leave the device idle."""
    if not job.on_gpu:
        raise NotApplicable("no device work in the trace")
    moved, spent = weights(job)
    return [*moved, *pageable(job, spent)]


def weights(job: Job) -> tuple[list[Finding], float]:
    """Host time inside `nn.Module.to`/`.cpu()`/`.cuda()` in the window: such copies block from pageable memory."""
    timeline = job.timeline
    rows = [r for r in job.view("copies") if r["kind"] in ("HtoD", "DtoH")]
    if timeline is None:
        return [], 0.0
    frames = [
        i for name in MOVES for i in timeline.by_short.get(name, []) if "torch/nn/modules/module.py" in timeline.name[i]
    ]
    frames = [
        i
        for i in timeline.outermost(frames)
        if any(timeline.name[j].startswith("aten::_to_copy") for j in timeline.under(i))
    ]
    spent = timeline.total_ns(frames)
    steps = max(1, job.headline.get("steps") or timeline.steps or 1)
    owners = {int(timeline.owner[i]) for i in frames}
    sites = [
        s
        for s in job.sites("transfer")
        if job.function_index(s) in owners and not s["detail"]["of"].startswith(("x", "batch", "input"))
    ]
    moved = sum(r["total_bytes"] for r in rows if (r.get("op") or "").startswith("aten::") and r["bytes"] >= 4096)
    if not frames or job.share(spent) < 0.005:
        return [], 0.0
    sent = sum(r["total_bytes"] for r in rows if r["kind"] == "DtoH" and r["bytes"] >= 4096)
    return [
        Finding(
            "weights_moved",
            f"A module is copied between host and device in every step ({moved / steps / 1e6:.0f} MB)",
            "Weights that never change are moved to the device for use and back afterwards"
            + (
                f"; {sent / steps / 1e6:.0f} MB a step go back, although the host could have kept its copy"
                if sent
                else ""
            )
            + ". Keep them on the device, or keep a pinned host copy and only drop the device's.",
            job.share(spent),
            f"time in nn.Module.to and .cpu() on the main thread: {job.wall_note(spent)}",
            "high",
            ["python"],
            [anchor(s) for s in sites],
            [
                evidence(
                    "moving modules",
                    job.per_step_s(spent) * 1e3,
                    "ms/step",
                    "events: torch/nn/modules/module.py to, cpu, cuda",
                ),
                evidence("bytes", moved / steps, "bytes/step", "views: copies"),
                evidence("rate", _rate(rows), "bytes/s", "views: copies"),
            ],
        )
    ], spent


def _rate(rows: list[Row]) -> float | None:
    big = [r for r in rows if r["bytes"] >= 1 << 20]
    total = sum(r["total_ns"] for r in big)
    return sum(r["total_bytes"] for r in big) / total * 1e9 if total else None


def pageable(job: Job, moved_ns: float) -> list[Finding]:
    """Exposed time of pageable copies less the same bytes at pinned speed; what `weights_moved` holds is not counted
    again."""
    rows = [
        r
        for r in job.view("copies")
        if "pageable" in (r.get("source"), r.get("destination")) and (r.get("exposed_ns") or 0) > 0
    ]
    exposed, moved = sum(r["exposed_ns"] for r in rows), sum(r["total_bytes"] for r in rows)
    gone = exposed - moved / PINNED_BYTES_PER_S * 1e9
    capture = job.headline.get("capture_ns") or 1
    share = job.kernel_share(max(0.0, gone))
    if not rows or share < 0.002:
        return []
    rows.sort(key=lambda r: -r["exposed_ns"])
    anchors = [
        {"path": r["path"], "line": r["line"], "code": job.code(r["path"], r["line"]) or r["function"]}
        for r in rows
        if r.get("path")
    ]
    sites = [s for s in job.sites("transfer", in_step=True) if any(s["path"] == a["path"] for a in anchors)]
    unique = list({(a["path"], a["line"]): a for a in [*(anchor(s) for s in sites), *anchors]}.values())
    return [
        Finding(
            "pageable_copies",
            f"{moved / 1e6:.0f} MB of copies from or to pageable memory, and nothing runs meanwhile",
            "A pageable copy goes through a staging buffer and blocks the host; pinned memory with non_blocking=True "
            "is three times as "
            "fast and overlaps." + (" The modules moved in every step are part of it." if moved_ns else ""),
            share,
            f"{exposed / 1e6:.2f} ms exposed, less {moved / PINNED_BYTES_PER_S * 1e3:.2f} ms at pinned speed, of "
            f"{capture / 1e6:.1f} ms captured",
            "medium",
            ["python", "config"],
            unique[:8],
            [
                evidence("pageable", moved, "bytes in the window", "views: copies"),
                evidence("exposed", exposed / 1e6, "ms in the window", "views: copies"),
            ],
        )
    ]
