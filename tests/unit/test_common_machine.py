"""What the fingerprint says of a GPU, with a driver that answers, one that does not, and a container's."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
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


def test_jobs_spread_over_the_gpus_and_wait_for_a_free_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b,GPU-c")
    taken: list[str] = []

    def wait() -> None:
        with machine.devices(2) as late:
            taken.append(late)

    with machine.devices(1) as one, machine.devices(1) as two:
        assert (one, two) == ("GPU-a", "GPU-b")
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not taken  # one is free, and not held by who needs two
        with machine.devices(1) as three:
            assert three == "GPU-c"
    waiting.join(10)
    assert taken == ["GPU-a,GPU-b"]
    with machine.devices(1, first=True) as timed, machine.devices(1) as other:
        assert (timed, other) == ("GPU-a", "GPU-b")


def test_fewer_gpus_than_asked_for_are_given_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with machine.devices(2) as given:
        assert given == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with machine.devices(1) as given:
        assert given == "0"


def test_a_gpu_named_twice_is_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 3,5")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert machine.visible_devices() == ["3", "5"]
    with machine.devices(3) as given:
        assert given == "3,5"
