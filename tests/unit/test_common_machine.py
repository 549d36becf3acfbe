"""What the fingerprint says of a GPU, with a driver that answers, one that does not, and a container's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scripts.common import machine


def driver(processes: Any, **memory: Any) -> Any:
    """NVML with one device: `memory(version)` and the list of processes answer, everything else is unsupported."""

    class Driver:
        NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0

        def nvmlDeviceGetMemoryInfo(self, _: Any, version: int | None = None) -> Any:
            return SimpleNamespace(total=1000, used=900 if version is None else memory["used"])

        def nvmlDeviceGetComputeRunningProcesses(self, _: Any) -> Any:
            if processes is None:
                raise RuntimeError("not supported")
            return processes

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("nvmlDevice") and not name.startswith("nvmlSystem"):
                raise AttributeError(name)
            return lambda *_: None

    found = Driver()
    if "used" in memory:
        found.nvmlMemory_v2 = 2  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("nvml", "processes", "used"),
    [
        pytest.param(driver([SimpleNamespace(pid=1)], used=70), 1, 70, id="a neighbour"),
        pytest.param(driver([], used=70), 0, 70, id="hidden, but its memory shows"),
        pytest.param(driver(None), None, None, id="an old driver: unknown, not zero"),
    ],
)
def test_others_on_the_device(
    monkeypatch: pytest.MonkeyPatch, nvml: Any, processes: int | None, used: int | None
) -> None:
    monkeypatch.setattr(machine, "_nvml", lambda: nvml)
    monkeypatch.setattr(machine, "_handles", lambda: ["handle"])
    found = machine.fingerprint()["gpus"][0]
    assert (found["gpu_processes"], found["memory_used_bytes"]) == (processes, used)
