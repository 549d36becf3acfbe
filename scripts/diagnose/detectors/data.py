"""Waiting for data, and work on data that the step repeats."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("loader_bound", "work_in_step")
PREPARATION = ("encoding", "reading", "tensor_from_host")


def detect(job: Job) -> list[Finding]:
    """Data-loader wait of the main thread; encoding, decoding and conversion called in every step by the job's own
    code."""
    found = [*loader(job), *work(job), *masks(job)]
    if not found and job.timeline is None:
        raise NotApplicable("the profiled run has no python frames or operators")
    return found


def loader(job: Job) -> list[Finding]:
    """Time in DataLoader's `__next__` on the main thread: fetched in place (no workers) or waited for."""
    if job.timeline is None:
        return []
    waits = [
        i
        for i in job.timeline.named("enumerate(DataLoader)", "torch/utils/data/dataloader.py")
        if job.timeline.short[i] == "__next__" or job.timeline.name[i].startswith("enumerate(DataLoader)")
    ]
    spent = job.timeline.total_ns(waits)
    share = job.share(spent)
    if share < 0.01:
        return []
    # the loader itself rather than the functions that wrap its construction
    sites = [s for s in job.sites("dataloader") if s["callee"] != "build_dataloader"] or job.sites("dataloader")
    settings = next((s["detail"] for s in sites if s["detail"]["shuffle"]), sites[0]["detail"] if sites else {})
    in_place = any("_SingleProcess" in job.timeline.name[i] for i in waits) or settings.get("num_workers") in (None, 0)
    missing = [
        text
        for key, text in (
            ("num_workers", "workers"),
            ("pin_memory", "pinned memory"),
            ("persistent_workers", "persistent workers"),
        )
        if not settings.get(key)
    ]
    return [
        Finding(
            "loader_bound",
            "The step waits for its batch: "
            + ("fetched on the main thread" if in_place else "workers are too slow or too few"),
            f"The DataLoader runs without {', '.join(missing) or 'enough workers'}; each batch is made while nothing "
            "else runs."
            if in_place
            else "Workers do not keep up with the step.",
            share,
            f"data-loader time on the main thread, all of which could overlap the step: {job.wall_note(spent)}",
            "high" if in_place else "medium",
            ["config", "python"],
            [anchor(s) for s in sites[:4]] + _making(job, waits),
            [
                evidence("data-loader wait", job.per_step_s(spent) * 1e3, "ms/step", "events: DataLoader __next__"),
                evidence("settings", ", ".join(f"{k}={v}" for k, v in settings.items()) or "not found", "", "source"),
            ],
        )
    ]


def _making(job: Job, waits: list[int]) -> list[Row]:
    """The job's functions that a loader without workers calls for its batches and that hold a tenth of the wait, most
    first."""
    timeline = job.timeline
    assert timeline is not None
    inside = [j for i in timeline.outermost(waits) for j in timeline.under(i) if timeline.source[j] >= 0]
    spent: dict[int, float] = {}
    for i in timeline.outermost(inside):
        spent[int(timeline.source[i])] = spent.get(int(timeline.source[i]), 0.0) + timeline.ns(i)
    least = 0.1 * timeline.total_ns(waits)
    ranked = sorted((f for f in spent if spent[f] > least), key=lambda f: -spent[f])
    return [job.function_anchor(timeline.functions[f]) for f in ranked[:3]]


def work(job: Job) -> list[Finding]:
    """For each function of the job that prepares data in the step: its encoding, reading and conversion calls."""
    if job.timeline is None:
        return []
    by_function: dict[tuple[str, str], list[Row]] = {}
    for kind in PREPARATION:
        for site in job.sites(kind, in_step=True):
            by_function.setdefault((site["path"], site["function"]), []).append(site)
    groups = []
    for sites in by_function.values():
        spent = 0.0
        for callee in {s["callee"] for s in sites}:
            of_callee = [s for s in sites if s["callee"] == callee]
            if callee == "<comprehension>":
                # paid by the call site of the function that it fills (`encode`); stacking slices is no encoding
                continue
            spent += job.call_ns(of_callee[0], [callee])
        kinds = {s["kind"] for s in sites}
        if kinds == {"encoding"} and all(s["callee"] == "<comprehension>" for s in sites):
            spent = _whole(job, sites[0])
        groups.append((spent, sites))
    groups.sort(key=lambda pair: -pair[0])
    return [
        _finding(job, spent, sites, groups)
        for spent, sites in _without_nested(job, groups)
        if job.share(spent) >= 0.005
    ]


def _whole(job: Job, site: Row) -> float:
    function = job.function_index(site)
    return (
        job.timeline.total_ns(job.timeline.of_function(function)) if job.timeline is not None and function >= 0 else 0.0
    )


def _without_nested(job: Job, groups: list[tuple[float, list[Row]]]) -> list[tuple[float, list[Row]]]:
    """Groups whose function is not called by another group's function: that one's time holds theirs."""
    kept = []
    for spent, sites in groups:
        name = sites[0]["function"].rpartition(".")[2]
        callers = [job.function_of(other[0]) for _, other in groups if other is not sites]
        if not any(caller and name in caller["calls"] for caller in callers):
            kept.append((spent, sites))
    return kept


def _finding(job: Job, spent: float, sites: list[Row], groups: list[tuple[float, list[Row]]]) -> Finding:
    site = sites[0]
    evaluated = spent if job.evaluates(site) else 0.0
    called = job.function_of(site)
    inner = [
        s for _, others in groups for s in others if called and s["function"].rpartition(".")[2] in called["calls"]
    ]
    anchors = [anchor(s) for s in sites if s["callee"] != "<comprehension>"] or [anchor(s) for s in sites]
    seen = {(a["path"], a["line"]) for a in anchors}
    anchors += [anchor(s) for s in inner if (s["path"], s["line"]) not in seen]
    unique = list({(a["path"], a["line"]): a for a in anchors}.values())
    what = ", ".join(dict.fromkeys(s["callee"] for s in sites if s["callee"] != "<comprehension>")) or "a comprehension"
    return Finding(
        "work_in_step",
        f"{site['function']} prepares data in every step ({what})",
        "Python work on the same input is repeated in each step; done once before the loop, or in a worker, it leaves "
        "the step.",
        job.share(spent, evaluated),
        f"calls of {what} in {site['function']}: {job.wall_note(spent)}"
        + (f"; evaluations ({job.evaluation_share:.1%} of the job) repeat it" if evaluated else ""),
        "high",
        ["python"],
        unique,
        [
            evidence(
                f"{what} in {site['function']}",
                job.per_step_s(spent) * 1e3,
                "ms/step",
                "events: python frames and builtins",
            )
        ],
    )


def masks(job: Job) -> list[Finding]:
    """Masks built anew by a forward pass that is not hand-written attention (whose finding holds them)."""
    attention = {(s["path"], s["function"]) for s in job.sites("attention_handwritten")}
    found = []
    for site in job.sites("mask_rebuilt", in_step=True):
        spent = job.call_ns(site, [site["callee"], "ones", "full"])
        if (site["path"], site["function"]) in attention or job.share(spent) < 0.005:
            continue
        found.append(
            Finding(
                "work_in_step",
                f"{site['function']} builds the same mask in every forward pass",
                "The mask depends on the length alone; a buffer made once and sliced holds the same values.",
                job.share(spent),
                f"building the mask: {job.wall_note(spent)}",
                "medium",
                ["python"],
                [anchor(site)],
                [evidence("mask", job.per_step_s(spent) * 1e3, "ms/step", "events")],
            )
        )
    return found
