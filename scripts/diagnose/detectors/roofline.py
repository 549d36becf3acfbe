"""Kernels far below what the device can move or compute."""

from __future__ import annotations

import re

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

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
    odd = sorted({n for r in top for n in map(int, re.findall(r"\d+", r.get("shapes") or "")) if n > 64 and n % 8})
    sizes = [s for s in job.sites("odd_size") if s["detail"]["value"] in odd] if _products(top) else []
    anchors = [anchor(s) for s in sizes] + job.anchors(top)
    return [
        Finding(
            "kernel_below_roofline",
            f"{len(top)} kernels run below {FAR_BELOW:.0%} of what the device can do",
            (
                f"Sizes that are no multiple of 8 ({', '.join(map(str, odd[:4]))}) keep matrix products off the fast "
                "kernels of tensor cores."
                if odd and _products(top)
                else "Their shapes or launch configuration do not fill the device; another layout, precision, fusion "
                "or kernel may."
            ),
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


def _products(rows: list[Row]) -> bool:
    """Whether most of what would go lies in matrix products, whose kernels depend on divisible sizes."""
    return sum(_gone(r) for r in rows if r.get("class") == "gemm") > 0.5 * sum(_gone(r) for r in rows)
