"""Places where the host waits for a value in every step."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.timeline import OPERATOR, PYTHON
from scripts.trace.intervals import merge

LOOKED_FOR = ("step_synchronisation",)
READERS = {"bool": "aten::is_nonzero", "float": "aten::item", "int": "aten::item"}  # what the trace calls a conversion


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
    """Device idle time attributed to synchronising calls, and while what is only read there is computed.

    Never the waiting itself: a wait for needed work costs nothing.
    """
    lost = [r for r in job.view("lost_time") if r["kind"] == "synchronisation"]
    idle = sum(r["lost_ns"] for r in lost)
    calls = [r for r in job.view("synchronisations") if (r.get("steps") or 1) >= 1]
    count = sum(r["count"] for r in calls)
    steps = job.window_steps
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
    blocked = sum(r["total_ns"] for r in calls)
    made, kernels, spans = _made_to_be_read(job, sites)
    if job.replay is not None:
        saved = max(0.0, job.replay.total_ns - job.replay.without_reads(spans))
        each = 1e-6 / steps
        share = job.replayed_share(saved)
        derivation = (
            f"{saved * each:.2f} of {job.replayed_ns * each:.2f} ms a step: launches and kernels replayed at the "
            "unprofiled job's pace, with and without the waits for values and what is computed only to be read; steps are "
            f"{job.window_share:.0%} of the job"
        )
    else:
        share = job.idle_share(idle + made) + job.kernel_share(kernels)
        derivation = (
            f"device idle after synchronising calls {idle / 1e6:.2f} ms, and while the values are computed and read "
            f"{made / 1e6:.2f} ms: {job.idle_note(idle + made)}; their own kernels {kernels / 1e6:.2f} ms; steps are "
            f"{job.window_share:.0%} of the job"
        )
    return Finding(
        "step_synchronisation",
        f"The host waits for the device {count / steps:.1f} times a step",
        "Reading a value (.item(), .cpu(), a boolean test, a scalar copied to the host) drains the launch queue; the "
        "device idles until "
        "the host has launched again.",
        share,
        derivation,
        "high" if anchors else "medium",
        ["python"],
        anchors,
        [
            evidence("synchronising calls", count / steps, "per step", "views: synchronisations"),
            evidence("blocked", blocked / steps / 1e6, "ms/step", "views: synchronisations"),
            evidence("device idle behind them", idle / steps / 1e6, "ms/step", "views: lost_time"),
            evidence("device idle while they compute", made / steps / 1e6, "ms/step", "views: lost_time by operator"),
        ],
    )


def _made_to_be_read(job: Job, sites: list[Row]) -> tuple[float, float, list[tuple[int, int]]]:
    """Expressions whose value the host reads: device idle time while it computes them, their own kernels' time, in ns,
    and the spans of time in which the host does.

    The host's time in them says nothing: a copy to the host waits in it for all that was launched before. Python's idle
    time in a function is theirs by their share of the function's python.
    """
    timeline = job.timeline
    if timeline is None:
        return 0.0, 0.0, []
    idle = kernels = 0.0
    places: list[int] = []
    lost = [r for r in job.view("lost_time") if r["kind"] in ("launch_bound", "host_busy")]
    launched = job.view("kernels")
    by_function: dict[tuple[str, str, int], list[Row]] = {}
    for site in sites:
        place = (site["path"], site["function"].rpartition(".")[2], job.function_index(site))
        by_function.setdefault(place, []).append(site)
    for (path, name, function), own in by_function.items():
        made: set[int] = set()
        for site in own:
            callee: str = site["callee"]
            for call in timeline.calls(READERS.get(callee, callee), function):
                made.update((call, *timeline.just_before(call, site["detail"]["read"])))
        places += made
        under = {i for top in made for i in (top, *timeline.under(top))}
        operators = {timeline.name[i] for i in under if timeline.kind[i] == OPERATOR}
        python = (timeline.owner == function) & (timeline.kind == PYTHON)
        share = sum(timeline.own_ns[i] for i in under if python[i]) / max(1.0, timeline.own_ns[python].sum())
        for row in lost:
            if (row.get("path"), row.get("function")) == (path, name):
                idle += row["lost_ns"] * (share if row.get("op") is None else row["op"] in operators)
        kernels += sum(
            r["total_ns"]
            for r in launched
            if (r.get("path"), r.get("function")) == (path, name) and r.get("top_op") in operators
        )
    starts, ends = merge(timeline.start[places], timeline.end[places])
    return idle, kernels, list(zip(starts.tolist(), ends.tolist(), strict=True))


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
