"""Places where the host waits for a value in every step."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("step_synchronisation",)


def detect(job: Job) -> list[Finding]:
    """On a GPU the idle time that follows waits; on CPU the time of the calls themselves, mostly nothing."""
    if job.timeline is None and not job.view("synchronisations"):
        raise NotApplicable("the profiled run has no host events")
    statistics = job.sites("parameter_statistics")
    sites = [s for s in job.sites("synchronisation", in_step=True) if not any(_within(s, o) for o in statistics)]
    found = on_device(job, sites) if job.on_gpu else on_host(job, sites)
    return [found] if found else []


def _within(site: Row, loop: Row) -> bool:
    """A wait inside a loop over parameters is that loop's finding."""
    return site["path"] == loop["path"] and loop["line"] <= site["line"] <= loop["end_line"]


def on_device(job: Job, sites: list[Row]) -> Finding | None:
    """Device idle time attributed to synchronising calls, never the waiting itself: a wait for needed work costs
    nothing."""
    lost = [r for r in job.view("lost_time") if r["kind"] == "synchronisation"]
    idle = sum(r["lost_ns"] for r in lost)
    calls = [r for r in job.view("synchronisations") if (r.get("steps") or 1) >= 1]
    count = sum(r["count"] for r in calls)
    steps = job.window_steps
    capture = job.headline.get("capture_ns") or 1
    if not calls:
        return None
    places = sorted((r for r in calls if r.get("path")), key=lambda r: -r["total_ns"])
    functions = {(r["path"], r["function"]) for r in places}
    named = [
        s for s in sites if any(s["path"] == p and s["function"].rpartition(".")[2] == f for p, f in functions)
    ] or sites
    anchors = [anchor(s) for s in named[:8]] or [
        {"path": r["path"], "line": r["line"], "code": r["function"]} for r in places[:5]
    ]
    return Finding(
        "step_synchronisation",
        f"The host waits for the device {count / steps:.1f} times a step",
        "Reading a value (.item(), .cpu(), a boolean test, a scalar copied to the host) drains the launch queue; the "
        "device idles until "
        "the host has launched again.",
        job.idle_share(idle),
        f"device idle after synchronising calls {idle / 1e6:.2f} of {capture / 1e6:.1f} ms captured; steps are "
        f"{job.window_share:.0%} of the job",
        "high" if anchors else "medium",
        ["python"],
        anchors,
        [
            evidence("synchronising calls", count / steps, "per step", "views: synchronisations"),
            evidence("blocked", sum(r["total_ns"] for r in calls) / steps / 1e6, "ms/step", "views: synchronisations"),
            evidence("device idle behind them", idle / steps / 1e6, "ms/step", "views: lost_time"),
        ],
    )


def on_host(job: Job, sites: list[Row]) -> Finding | None:
    """Without a device each call costs only itself."""
    by_call: dict[tuple[str, str, str], Row] = {(s["path"], s["function"], s["callee"]): s for s in sites}
    spent = sum(job.call_ns(s, [s["callee"]]) for s in by_call.values() if s["callee"] != "bool")
    if not sites or not spent:
        return None
    return Finding(
        "step_synchronisation",
        f"{len(sites)} places read a tensor's value in every step",
        "On CPU there is no device to wait for: the calls cost only themselves.",
        job.share(spent),
        f"the calls: {job.wall_note(spent)}",
        "high",
        ["python"],
        [anchor(s) for s in sites[:8]],
        [
            evidence(
                "calls",
                job.per_step_s(spent) * 1e3,
                "ms/step",
                "events: item, tolist, ... called by the job's functions",
            )
        ],
    )
