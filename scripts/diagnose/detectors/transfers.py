"""Weights that travel between host and device in every step or request, and copies from pageable memory."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.timeline import Timeline

LOOKED_FOR = ("weights_moved", "pageable_copies")
PINNED_BYTES_PER_S = 55e9  # H200 over PCIe 5; half of that on PCIe 4
MOVES = ("to", "cpu", "cuda", "half", "float", "bfloat16")


def detect(job: Job) -> list[Finding]:
    """`nn.Module.to` called in the step, and pageable copies that leave the device idle."""
    if not job.on_gpu:
        raise NotApplicable("no device work in the trace")
    moved, places = weights(job)
    return [*moved, *pageable(job, places)]


def weights(job: Job) -> tuple[list[Finding], set[tuple[str, str]]]:
    """Host time inside `nn.Module.to`/`.cpu()`/`.cuda()` in the window: such copies block from pageable memory.

    And the (path, function) that call them. The device copies meanwhile, which is its busy time, so that host time
    can give back the copies' own time beside the idle time.
    """
    timeline = job.timeline
    rows = [r for r in job.view("copies") if r["kind"] in ("HtoD", "DtoH")]
    if timeline is None:
        return [], set()
    frames = moves(timeline)
    spent = timeline.total_ns(frames)
    owners = {int(timeline.owner[i]) for i in frames}
    places = {(timeline.functions[n].path, timeline.functions[n].name) for n in owners if n >= 0}
    sites = [
        s
        for s in job.sites("transfer")
        if job.function_index(s) in owners and not s["detail"]["of"].startswith(("x", "batch", "input"))
    ]
    weighty = [r for r in rows if (r.get("op") or "").startswith("aten::") and r["bytes"] >= 4096]
    moved, sent = (
        sum(r["total_bytes"] for r in weighty if r["kind"] in kinds) for kinds in (("HtoD", "DtoH"), ("DtoH",))
    )
    copying = sum(r.get("exposed_ns") or 0 for r in weighty if not r.get("path") or _place(r) in places)
    share = job.share(spent, kernel_ns=copying)
    note = f"time in nn.Module.to and .cpu() on the main thread: {job.wall_note(spent)}"
    whole = job.timing.steady_share() + job.timing.excess_share()
    calls = {n: len(timeline.of_function(n)) for n in owners if n >= 0}
    expected = sum(calls.get(job.function_index(s), 0) for s in sites)
    if not job.training and len(frames) < expected and share < whole * spent / job.window_ns:
        share *= whole / job.window_share
        note += (
            f"; the window holds {len(frames)} of {expected} moves, so all slow steps ({job.timing.excess_share():.0%} "
            "of the job) are taken to be like those that it holds"
        )
    if not frames or share < 0.005:
        return [], set()
    return [
        Finding(
            "weights_moved",
            f"Modules are copied between host and device while the job runs ({len(frames)} times in "
            f"{job.window_steps} steps, {moved / 1e6:.0f} MB)",
            "Weights that never change are moved to the device for use and back afterwards"
            + (f"; {sent / 1e6:.0f} MB go back, although the host could have kept its copy" if sent else "")
            + ". Keep them on the device, or keep a pinned host copy and only drop the device's.",
            share,
            note,
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
                evidence("bytes", moved / job.window_steps, "bytes/step", "views: copies"),
                evidence("rate", _rate(rows), "bytes/s", "views: copies"),
            ],
        )
    ], places


def moves(timeline: Timeline) -> list[int]:
    """Calls of `nn.Module.to`, `.cpu()`, `.cuda()` that copied something, without those inside others."""
    frames = [
        i for name in MOVES for i in timeline.by_short.get(name, []) if "torch/nn/modules/module.py" in timeline.name[i]
    ]
    return [
        i
        for i in timeline.outermost(frames)
        if any(timeline.name[j].startswith("aten::_to_copy") for j in timeline.under(i))
    ]


def _place(row: Row) -> tuple[str, str]:
    return str(row.get("path")), str(row.get("function"))


def _rate(rows: list[Row]) -> float | None:
    big = [r for r in rows if r["bytes"] >= 1 << 20]
    total = sum(r["total_ns"] for r in big)
    return sum(r["total_bytes"] for r in big) / total * 1e9 if total else None


def pageable(job: Job, moving: set[tuple[str, str]]) -> list[Finding]:
    """Exposed time of pageable copies less the same bytes at pinned speed; copies of the functions that move modules
    are left to `weights_moved`."""
    rows = [
        r
        for r in job.view("copies")
        if "pageable" in (str(r.get("source")).lower(), str(r.get("destination")).lower())
        and (r.get("exposed_ns") or 0) > 0
        and _place(r) not in moving
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
            "is three times as fast and overlaps.",
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
