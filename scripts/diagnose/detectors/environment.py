"""Environment doctor: builds, flags, threads and neighbours that make any job slow."""

from __future__ import annotations

import re

from scripts.diagnose.job import Finding, Job, Row, anchor, evidence
from scripts.diagnose.timeline import Timeline

LOOKED_FOR = (
    "environment_cpu_build",
    "environment_debug_flag",
    "environment_threads",
    "environment_missing_package",
    "environment_clocks",
    "environment_shared_device",
)
DEBUG_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "NCCL_DEBUG",
    "TORCHDYNAMO_VERBOSE",
    "PYTHONDEVMODE",
)
# bits of NVML's throttle reasons that are no choice of the user (nvml.h); a power cap under load is normal
THROTTLED = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
CONTEXT_BYTES = 200 << 20  # less than any process that computes takes; an idle device shows a few MB
ACCELERATORS = {
    "flash_attn": "flash-attn",
    "xformers": "xformers",
    "apex": "apex",
    "triton": "triton",
    "liger_kernel": "liger-kernel",
}


def detect(job: Job) -> list[Finding]:
    """Each check reads the run's fingerprint, the workload's variables or the source, and stays silent where they do
    not say."""
    environment = job.run.get("environment") or {}
    header = job.records.get("header", {})
    return [
        *cpu_build(job, environment, header),
        *debug(job),
        *threads(job, environment, header),
        *packages(job),
        *clocks(environment),
        *shared(job, environment),
    ]


def _finding(
    identity: str,
    title: str,
    cause: str,
    anchors: list[Row],
    facts: list[Row],
    *,
    fraction: float | None = None,
    why: str = "",
) -> Finding:
    return Finding(identity, title, cause, fraction, why, "medium", ["config"], anchors, facts)


def cpu_build(job: Job, environment: Row, header: Row) -> list[Finding]:
    """A device that torch cannot use."""
    version = str(environment.get("torch") or header.get("torch") or "")
    gpus = environment.get("gpus") or []
    if not gpus or job.on_gpu or not version.endswith("+cpu"):
        return []
    return [
        _finding(
            "environment_cpu_build",
            "torch is a CPU build on a machine with a GPU",
            "Install the build for the device.",
            [],
            [evidence("torch", version, "", "run.json"), evidence("device", str(gpus[0].get("name")), "", "run.json")],
        )
    ]


def debug(job: Job) -> list[Finding]:
    """Debug switches in the workload's variables or in the source."""
    variables = (job.spec.get("environment") or {}).get("variables") or {}
    on = [
        name
        for name in DEBUG_VARIABLES
        if str(variables.get(name, "")).lower() not in ("", "0", "off", "warn", "warning")
    ]
    sites = [
        s
        for s in job.sites("setting")
        if s["detail"].get("name") in ("set_detect_anomaly", "detect_anomaly") and s["detail"].get("value") is not False
    ]
    timeline = job.timeline
    gone = 0.0
    if sites and timeline is not None:
        # anomaly mode walks the stack for every operator and looks for NaN in every gradient;
        # an upper bound indeed: the profiler slows such walks most (0.70 of a job where 0.42 was measured)
        walks = timeline.named("traceback.py", "<built-in function _format_stack")
        walks += timeline.by_short.get("format_stack", [])
        gone = timeline.total_ns(walks + _checks(timeline))
    if not on and not sites:
        return []
    names = on + [s["detail"]["name"] for s in sites]
    return [
        _finding(
            "environment_debug_flag",
            f"Debug switches are on: {', '.join(dict.fromkeys(names))}",
            "They trade speed for messages; nothing computed depends on them.",
            [anchor(s) for s in sites],
            [evidence("switches", ", ".join(names), "", "workload and source")],
            fraction=job.share(gone) if gone else None,
            why=f"stack walks and tests for NaN: {job.wall_note(gone)}" if gone else "",
        )
    ]


def _checks(timeline: Timeline) -> list[int]:
    """Operators by which autograd's engine itself, not a node of the graph, looks for NaN in what a node returns."""
    return [
        i
        for name in ("aten::isnan", "aten::any", "aten::item", "aten::is_nonzero")
        for i in timeline.by_short.get(name, [])
        if timeline.parent[i] >= 0
        and timeline.name[int(timeline.parent[i])].startswith("autograd::engine::evaluate_function")
    ]


def threads(job: Job, environment: Row, header: Row) -> list[Finding]:
    """More compute threads than cores, asked for by the workload or as torch had them. No ceiling: how long threads
    spin and wait for a core shows in no clock of the job."""
    variables = (job.spec.get("environment") or {}).get("variables") or {}
    cores = environment.get("cores")
    asked = str(variables.get("OMP_NUM_THREADS") or "")
    had = (header.get("backend") or {}).get("threads")
    threads = int(asked) if asked.isdigit() else had
    if not cores or not isinstance(threads, int) or threads <= int(cores):
        return []
    return [
        _finding(
            "environment_threads",
            f"{threads} compute threads on {cores} cores",
            "Threads wait for each other, spinning.",
            [anchor(s) for s in job.sites("setting") if s["detail"].get("name") == "set_num_threads"],
            [
                evidence("threads", threads, "", "workload" if asked.isdigit() else "recorder's header"),
                evidence("cores", cores, "", "run.json"),
            ],
        )
    ]


def packages(job: Job) -> list[Finding]:
    """Optional accelerators that the source asks for (an import inside try) and that the environment's lock lacks. No
    ceiling: what the code that was not taken would cost is in no trace."""
    known = job.records.get("packages")
    if known is None:
        return []
    wanted = {s["detail"]["package"]: s for s in job.sites("optional_import")}
    missing = [
        name
        for name in wanted
        if name in ACCELERATORS and not any(re.sub("[-_]", "", k) == re.sub("[-_]", "", name) for k in known)
    ]
    if not missing:
        return []
    return [
        _finding(
            "environment_missing_package",
            f"The job can use {', '.join(missing)}, which is not installed",
            "It falls back to slower code silently.",
            [anchor(wanted[n]) for n in missing],
            [evidence("missing", ", ".join(ACCELERATORS[n] for n in missing), "", "source and env.json")],
        )
    ]


def clocks(environment: Row) -> list[Finding]:
    """A power limit below the default, or clocks that the device holds back for heat or power."""
    found = []
    for gpu in environment.get("gpus") or []:
        reasons = gpu.get("throttle_reasons")
        held = [why for bit, why in THROTTLED.items() if isinstance(reasons, int) and reasons & bit]
        if held:
            found.append(
                _finding(
                    "environment_clocks",
                    f"The device holds its clocks back: {', '.join(held)}",
                    "It is hot, or its power is short, before the job has even started.",
                    [],
                    [evidence("throttle reasons", reasons, "mask", "run.json")],
                )
            )
        limit, default = (
            gpu.get("power_limit_w") or gpu.get("power_limit"),
            gpu.get("default_power_limit_w") or gpu.get("power_limit_default"),
        )
        if isinstance(limit, int | float) and isinstance(default, int | float) and limit < 0.95 * default:
            found.append(
                _finding(
                    "environment_clocks",
                    f"The power limit is {limit:.0f} of {default:.0f} W",
                    "Clocks stay low under load.",
                    [],
                    [evidence("power limit", float(limit), "W", "run.json")],
                )
            )
    return found


def shared(job: Job, environment: Row) -> list[Finding]:
    """Other processes on the device. Ceiling: the other processes' part, were the device
    shared equally; null without a trace of the device."""
    gpus = environment.get("gpus") or []
    listed = sum(gpu.get("gpu_processes") or 0 for gpu in gpus)
    taken = sum(gpu.get("memory_used_bytes") or 0 for gpu in gpus)
    # a container hides other processes, and only their memory shows: one at least
    others = listed or int(taken > CONTEXT_BYTES)
    if not others:
        return []
    return [
        _finding(
            "environment_shared_device",
            f"{others} other process{'es use' if others > 1 else ' uses'} the device"
            + ("" if listed else f", which the driver does not list: {taken / 1e9:.1f} GB of its memory is taken"),
            "They take time and memory.",
            [],
            [
                evidence("processes", others if listed else "not listed", "", "run.json"),
                evidence("memory", taken, "bytes", "run.json"),
            ],
            fraction=job.timing.steady_share() * others / (others + 1) if job.on_gpu else None,
            why=f"{others} of {others + 1} equal shares of the device, in the steady steps"
            + ("" if listed else ", if there is one that computes all the time"),
        )
    ]
