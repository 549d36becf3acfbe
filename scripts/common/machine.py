"""The machine as seen from outside the job: what it is, whether it is idle, and the lock on it for a measurement.

Never imports torch. GPUs are read through nvidia-ml-py where a driver is present; unknown is None.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

IDLE_CORES = 0.25  # busy cores of others below which a machine counts as idle
IDLE_UTILISATION = 5  # per cent of a GPU


def fingerprint() -> dict[str, Any]:
    """What the machine is: `cpu`, `cores` (usable), `memory_bytes`, `kernel`, `governor`, `python` and `gpus`."""
    return {**_host(), "gpus": gpus()}


@cache
def _host() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "python": platform.python_version(),
    }


def _cpu_model() -> str | None:
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model", "Hardware")):
            return line.partition(":")[2].strip()
    return platform.machine() or None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def load() -> float | None:
    """The one-minute load average."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def busy_ticks() -> float:
    """Seconds that all cores together have been busy since boot, time stolen by a hypervisor included; 10 ms grain."""
    words = (_text("/proc/stat") or "cpu 0 0 0 0 0 0 0 0").splitlines()[0].split()[1:9]
    user, nice, system, _, _, interrupt, soft, steal = [int(word) for word in (*words, *"00000000")][:8]
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def busy_cores(window_s: float) -> float:
    """Cores that are busy, ours included, over a window; the caller sleeps meanwhile."""
    before, start = busy_ticks(), time.monotonic()
    time.sleep(window_s)
    return (busy_ticks() - before) / (time.monotonic() - start)


def wait_idle(limit_s: float, window_s: float = 0.1) -> dict[str, Any]:
    """Wait until nothing else computes on this machine, for at most `limit_s`.

    Returns `{"idle": bool, "busy_cores": last measured, "gpu_processes": other compute processes, "waited_s": ...}`.
    """
    start = time.monotonic()
    while True:
        cores = busy_cores(window_s)
        others = gpu_processes()
        idle = cores < IDLE_CORES and not others
        waited = time.monotonic() - start
        if idle or waited >= limit_s:
            return {
                "idle": idle,
                "busy_cores": round(cores, 3),
                "gpu_processes": len(others),
                "waited_s": round(waited, 3),
            }
        window_s = min(1.0, max(0.3, window_s))  # what looked busy is looked at for longer: one tick is 10 ms


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold this machine's measurement lock; waits for whoever holds it. One lock a host and a set of visible GPUs."""
    lock = _lock(_letters(os.environ.get("CUDA_VISIBLE_DEVICES", "all")) or "none")
    if not _taken(lock):
        print(f"waiting: another measurement holds this machine ({lock.lock_file})", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def devices(count: int, first: bool = False) -> Iterator[str]:
    """Hold `count` GPUs of this machine and give them as `CUDA_VISIBLE_DEVICES`; waits until so many are free.

    Of those that `CUDA_VISIBLE_DEVICES` names, else of all. Two jobs on one GPU would slow each other and be charged
    each other's memory. With `first` always the same ones, so that the runs of a race use one device.
    """
    words = visible_devices() or [str(index) for index in range(count)]
    needed = min(count, len(words))
    locks = {word: _lock(f"gpu-{_letters(word)}") for word in (words[:needed] if first else words)}
    held: list[str] = []
    try:
        said = False
        while True:
            for word, lock in locks.items():
                if len(held) < needed and _taken(lock):
                    held.append(word)
            if len(held) == needed:
                break
            while held:  # or two jobs that each hold half of what they need wait for ever
                locks[held.pop()].release()
            if not said:
                print(f"waiting: other jobs hold this machine's GPUs ({count} needed)", flush=True)
                said = True
            time.sleep(0.2)
        yield ",".join(held)
    finally:
        for word in held:
            locks[word].release()


def _lock(name: str) -> Any:
    """A lock of this host, a file in the temporary folder; not held yet."""
    from filelock import FileLock  # 0.05 s, only for measurements and jobs that use a GPU

    return FileLock(Path(tempfile.gettempdir()) / f"wholejob-{platform.node()}-{name}.lock", mode=0o666)


def _taken(lock: Any) -> bool:
    """Take a lock if it is free."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


def visible_devices() -> list[str]:
    """The GPUs that jobs may use, as `CUDA_VISIBLE_DEVICES` names them: its words, each once, else all by index."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return list(dict.fromkeys(word for word in (part.strip() for part in visible.split(",")) if word))
    nvml = _nvml()
    return [str(index) for index in range(nvml.nvmlDeviceGetCount())] if nvml is not None else []


@cache
def _nvml() -> Any:
    """The NVML module, started, or None; only tried where the driver has made its device file."""
    if not Path("/dev/nvidiactl").exists():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def _handles(words: list[str] | None = None) -> list[Any]:
    """Handles of GPUs by index or UUID; of those that jobs may use without `words`."""
    nvml = _nvml()
    if nvml is None:
        return []
    found = []
    for word in visible_devices() if words is None else words:
        with contextlib.suppress(Exception):
            by_index = word.isdigit()
            found.append(
                nvml.nvmlDeviceGetHandleByIndex(int(word)) if by_index else nvml.nvmlDeviceGetHandleByUUID(word)
            )
    return found


def gpus() -> list[dict[str, Any]]:
    """One entry a visible GPU: name, uuid, driver, clocks in MHz, power limit in W, temperature, throttle reasons, compute
    processes and the memory that is in use.

    Asked while no job of ours runs, so that both are others'. A container hides other processes; their memory shows.
    """
    nvml = _nvml()
    return [
        {
            "name": _ask(nvml.nvmlDeviceGetName, handle),
            "uuid": _ask(nvml.nvmlDeviceGetUUID, handle),
            "driver": _ask(nvml.nvmlSystemGetDriverVersion),
            "memory_bytes": getattr(_ask(nvml.nvmlDeviceGetMemoryInfo, handle), "total", None),
            "clock_sm_mhz": _ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "clock_memory_mhz": _ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": _scaled(_ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
            "temperature_c": _ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "gpu_processes": _count(_ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)),
            "memory_used_bytes": _used_bytes(handle),
        }
        for handle in _handles()
    ]


def _count(found: list[Any] | None) -> int | None:
    return None if found is None else len(found)


def _used_bytes(handle: Any) -> int | None:
    """Memory in use without what the driver keeps for itself, which only the second version of the call tells apart."""
    nvml = _nvml()
    version = getattr(nvml, "nvmlMemory_v2", None)
    return None if version is None else getattr(_ask(nvml.nvmlDeviceGetMemoryInfo, handle, version), "used", None)


def clocks() -> str | None:
    """One line for a table of runs: `sm/memory MHz, temperature, throttle mask` of each GPU, or the CPU's frequency."""
    found = gpus()
    if found:
        keys = ("clock_sm_mhz", "clock_memory_mhz", "temperature_c", "throttle_reasons")
        return "; ".join("/".join(str(gpu[key]) for key in keys) for gpu in found)
    frequency = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    return f"{int(frequency) // 1000} MHz" if frequency and frequency.isdigit() else None


def gpu_processes() -> list[int]:
    """Compute processes on the visible GPUs, by process id."""
    nvml = _nvml()
    return [
        process.pid
        for handle in _handles()
        for process in _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    ]


def gpu_problems() -> list[str]:
    """What is wrong with the GPUs right now: not answering, busy with somebody's process, uncorrected memory errors."""
    nvml, found = _nvml(), []
    for number, handle in enumerate(_handles()):
        if _ask(nvml.nvmlDeviceGetMemoryInfo, handle) is None:
            found.append(f"GPU {number} does not answer")
        if processes := _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle):
            found.append(f"GPU {number} still has {len(processes)} compute process(es)")
        counter = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        if errors := _ask(nvml.nvmlDeviceGetTotalEccErrors, handle, *counter):
            found.append(f"GPU {number} reports {errors} uncorrected memory errors")
    return found


def gpu_memory_bytes(words: list[str] | None = None) -> int | None:
    """Memory in use on some GPUs (the visible ones), everybody's; None without a GPU."""
    nvml = _nvml()
    used = [getattr(_ask(nvml.nvmlDeviceGetMemoryInfo, handle), "used", None) for handle in _handles(words)]
    known = [value for value in used if value is not None]
    return sum(known) if known else None


@contextlib.contextmanager
def device_memory(words: list[str] | None = None, interval_s: float = 0.1) -> Iterator[dict[str, int | None]]:
    """Watch the memory of some GPUs (the visible ones) from outside: `peak_bytes` is the most in use above the start.

    Right on GPUs that nothing else uses; a peak shorter than `interval_s` can be missed. One thread with a GPU.
    """
    seen: dict[str, int | None] = {"peak_bytes": None}
    start = gpu_memory_bytes(words)
    if start is None:
        yield seen
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(interval_s):
            now = gpu_memory_bytes(words)
            if now is not None:
                seen["peak_bytes"] = max(seen["peak_bytes"] or 0, now - start)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _ask(function: Any, *arguments: Any) -> Any:
    try:
        answer = function(*arguments)
    except Exception:  # every NVML call may be unsupported on a device
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
