"""Kernels far below what the device can move or compute."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, evidence

LOOKED_FOR = ("kernel_below_roofline",)
FAR_BELOW = 0.4


def detect(job: Job) -> list[Finding]:
    """The kernels whose distance to the roofline holds most time, where shapes gave bytes or operations."""
    rows = [r for r in job.view("kernels") if r.get("roofline") is not None]
    if not rows:
        raise NotApplicable(
            "no kernel with known bytes or operations (no device, no shapes, or a device without known peaks)"
        )
    capture = job.headline.get("capture_ns") or 1
    candidates = [r for r in rows if r["roofline"] < FAR_BELOW and r["mean_ns"] > 10_000]
    candidates.sort(key=lambda r: -_gone(r))
    top = [r for r in candidates if _gone(r) / capture > 0.005][:5]
    if not top:
        return []
    gone = sum(_gone(r) for r in top)
    anchors = job.anchors(top)
    return [
        Finding(
            "kernel_below_roofline",
            f"{len(top)} kernels run below {FAR_BELOW:.0%} of what the device can do",
            "Their shapes or launch configuration do not fill the device; another layout, precision, fusion or kernel "
            "may.",
            job.kernel_share(gone),
            f"{gone / 1e6:.1f} ms of {capture / 1e6:.1f} ms captured would go at the roofline, were these kernels "
            "alone on the critical path",
            "low",
            ["kernel", "backend"],
            list({(a["path"], a["line"]): a for a in anchors}.values()),
            [
                evidence(
                    f"{r['name'][:60]} {r.get('shapes') or ''}"[:160],
                    r["roofline"],
                    f"of the {r['bound']} roofline, {r['total_ns'] / 1e6:.2f} ms",
                    "views: kernels",
                )
                for r in top
            ],
        )
    ]


def _gone(row: Row) -> float:
    return float(row["total_ns"] * (1 - row["roofline"]))
