"""What recording costs: switched off, on a CPU job, and (`--device cuda`) inside a 50 ms step on a GPU.

    python benchmarks/parity_overhead.py                  # CPU part, about a minute
    python benchmarks/parity_overhead.py --device cuda    # GPU part as well, under two minutes, needs torch alone

The GPU part records 3 scalars and 3 tensors of 16 M elements a step and compares, in interleaved blocks of one run,
with no recording and with `.item()` on each value (the six numbers that a published recorder would take). Runtime
calls that make the host wait are counted inside the steps of a torch.profiler trace.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WAITING = {
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaStreamWaitEvent",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
}
BARS = {"record_off_ns": 200.0, "import_ms": 20.0, "gpu_overhead_percent": 1.0, "gpu_waiting_calls": 0}


def import_ms() -> float:
    """CPU milliseconds of `import parity` in a fresh interpreter, median of 15, switched off as in most jobs."""
    code = "import time; t = time.process_time(); import parity; print((time.process_time() - t) * 1e3)"
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", "")}
    runs = [
        float(
            subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout
        )
        for _ in range(15)
    ]
    return statistics.median(runs)


def record_off_ns() -> dict[str, float]:
    """Nanoseconds of a call when recording is off: the least of 30 blocks of 20,000 calls, less the empty loop."""
    import parity

    parity.set_enabled(False)

    def called() -> None:
        raise AssertionError("record_lazy called its function while off")

    loops: dict[str, Callable[[], None]] = {
        "empty": lambda: None,
        "record": lambda: parity.record("loss", 1.0),
        "record with options": lambda: parity.record("loss", 1.0, step=3, rtol=1e-3),
        "record_lazy": lambda: parity.record_lazy("loss", called),
    }
    found = {}
    for name, call in loops.items():
        blocks = []
        for _ in range(30):
            start = time.perf_counter_ns()
            for _ in range(20_000):
                call()
            blocks.append((time.perf_counter_ns() - start) / 20_000)
        found[name] = min(blocks)
    empty = found.pop("empty")
    return {name: max(0.0, ns - empty) for name, ns in found.items()}


def blocks(arms: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Time of each arm, one block an arm a round, the order turning from round to round."""
    names = list(arms)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            start = clock()
            arms[name]()
            spent[name].append(clock() - start)
    return spent


def ratio(spent: dict[str, list[float]], arm: str, base: str) -> float:
    """Median over rounds of arm / base."""
    return statistics.median(a / b for a, b in zip(spent[arm], spent[base]))


def cpu_job() -> dict[str, float]:
    """Three probes a step (loss, gradient norm, a layer's output of 1 MB) on a small training job, as ratios of process
    CPU time.
    """
    import torch

    import parity

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256, 1024)
    number = 0

    def steps(recording: bool) -> Callable[[], None]:
        def run() -> None:
            nonlocal number
            parity.set_enabled(recording)
            for _ in range(5):
                y = model(x)
                loss = y.pow(2).mean()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                number += 1
                parity.record("loss", loss)
                parity.record("grad_norm", norm)
                parity.record("output", y)
                parity.step(number)
            parity.set_enabled(False)

        return run

    spent = blocks({"off": steps(False), "on": steps(True), "off again": steps(False)}, 12, time.process_time)
    return {
        "cpu_step_ms": statistics.median(spent["off"]) / 5 * 1e3,
        "cpu_overhead_percent": (ratio(spent, "on", "off") - 1) * 100,
        "cpu_null_percent": (ratio(spent, "off again", "off") - 1) * 100,
    }


class Step:
    """A step of about 50 ms: matrix products, then six values to record."""

    def __init__(self, device: str, milliseconds: float, elements: int, dtype: str) -> None:
        import torch

        self.torch, self.device = torch, device
        side = 8192 if device == "cuda" else 512
        self.a = torch.randn(side, side, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
        kind = getattr(torch, dtype)
        self.tensors = [torch.randn(elements, device=device).to(kind) for _ in range(3)]
        self.scalars = [torch.randn((), device=device) for _ in range(3)]
        self.products = 1
        self.number = 0
        for _ in range(3):
            start = time.perf_counter()
            for _ in range(10):
                self.work()
            self.wait()
            each = (time.perf_counter() - start) / 10 / self.products
            self.products = max(1, round(milliseconds / 1e3 / each))

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def work(self) -> None:
        for _ in range(self.products):
            self.b = self.a @ self.a

    def steps(self, count: int, probe: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                self.number += 1
                self.work()
                with self.torch.profiler.record_function("recorded step"):
                    probe(self.number)
            self.wait()

        return run

    def nothing(self, _: int) -> None: ...

    def record(self, number: int) -> None:
        import parity

        for index, value in enumerate(self.scalars):
            parity.record(f"scalar.{index}", value)
        for index, value in enumerate(self.tensors):
            parity.record(f"tensor.{index}", value)
        parity.step(number)

    def item(self, _: int) -> None:
        self.taken = [value.item() for value in self.scalars] + [value.norm().item() for value in self.tensors]


def gpu_job(device: str, elements: int, dtype: str, milliseconds: float, rounds: int) -> dict[str, Any]:
    """Overhead in per cent of a step, and waiting runtime calls a step, for parity and for `.item()`."""
    import torch

    import parity
    from parity import kernel, summary

    step = Step(device, milliseconds, elements, dtype)
    parity.set_enabled(True)
    count = 20
    arms = {name: step.steps(count, getattr(step, name)) for name in ("nothing", "record", "item")}
    arms["nothing again"] = step.steps(count, step.nothing)
    for arm in arms.values():  # compile the kernel, fill the pinned cache
        arm()
    spent = blocks(arms, rounds, time.perf_counter)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "dtype": dtype,
        "one_pass_kernel": bool(device == "cuda" and kernel.usable(torch, step.tensors[0])),
        "step_ms": statistics.median(spent["nothing"]) / count * 1e3,
        "gpu_overhead_percent": (ratio(spent, "record", "nothing") - 1) * 100,
        "item_overhead_percent": (ratio(spent, "item", "nothing") - 1) * 100,
        "null_percent": (ratio(spent, "nothing again", "nothing") - 1) * 100,
        "gpu_waiting_calls": waiting_calls(step, "record"),
        "item_waiting_calls": waiting_calls(step, "item"),
    }
    if device == "cuda":
        found["largest_relative_difference_to_cpu"] = agreement(summary, step)
    parity.flush()
    parity.set_enabled(False)
    return found


def waiting_calls(step: Step, arm: str, count: int = 10) -> int:
    """Runtime calls inside the recorded part of `count` steps that make the host wait for the device."""
    profiler = step.torch.profiler
    activities = [profiler.ProfilerActivity.CPU]
    if step.device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as profile:
        step.steps(count, getattr(step, arm))()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        profile.export_chrome_trace(str(path))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    spans = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("name") == "recorded step" and e.get("cat") == "user_annotation"
    ]
    if len(spans) != count:
        raise SystemExit(f"the trace shows {len(spans)} of {count} steps: nothing can be said about waiting")
    calls = [
        e for e in events if e.get("name") in WAITING and e.get("cat", "").startswith(("cuda_runtime", "cuda_driver"))
    ]
    return sum(1 for e in calls if e["name"] != "cudaStreamWaitEvent" and any(a <= e["ts"] <= b for a, b in spans))


def agreement(summary: Any, step: Step) -> float:
    """Largest difference between the device's summary and the CPU's, relative to the tensor's norm or sum."""
    worst = 0.0
    for tensor in step.tensors[:1]:
        ours, cpu = summary.summarize(tensor, "x"), summary.summarize(tensor.cpu(), "x")
        for key in ("sum", "l2", "abs_mean", "min", "max"):
            worst = max(worst, abs(ours[key] - cpu[key]) / max(abs(cpu[key]), 1e-30))
        worst = max([worst, *(abs(a - b) / cpu["l2"] for a, b in zip(ours["sketch"], cpu["sketch"]))])
        worst = max([worst, *(abs(a - b) for a, b in zip(ours["samples"], cpu["samples"]))])
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--elements", type=int, default=16 * 2**20, help="elements of each of the three tensors (default: 16 M)"
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16", "float64"])
    parser.add_argument("--milliseconds", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--smoke", action="store_true", help="the GPU part on the CPU, small, to see that it runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PARITY_OUT"] = folder
        off = record_off_ns()
        metrics: dict[str, Any] = {"import_ms": import_ms(), "record_off_ns": max(off.values())}
        print(f"import parity              {metrics['import_ms']:8.2f} ms")
        for name, ns in off.items():
            print(f"off: {name:22s}{ns:8.0f} ns")
        if options.device == "cpu":
            metrics.update(cpu_job())
            print(
                "CPU job, three probes      {:8.2f} % of a step of {:.1f} ms (off against off: {:.2f} %)".format(
                    metrics["cpu_overhead_percent"], metrics["cpu_step_ms"], metrics["cpu_null_percent"]
                )
            )
        if options.device == "cuda" or options.smoke:
            size = options.elements if options.device == "cuda" else 2**16
            gpu = gpu_job(
                options.device,
                size,
                options.dtype,
                options.milliseconds,
                options.rounds if options.device == "cuda" else 2,
            )
            if options.device == "cuda":
                metrics.update(gpu)
            for name, value in gpu.items():
                print(f"{name:36s}{format(value, '.4g') if isinstance(value, float) else value}")
    bars = {name: bar for name, bar in BARS.items() if name in metrics}
    ok = all(metrics[name] <= bar for name, bar in bars.items())
    print(json.dumps({"bench": "parity_overhead", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
