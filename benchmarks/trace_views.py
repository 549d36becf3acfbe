"""Temporal, overlap and kernel views against HolisticTraceAnalysis on the same large trace, in CPU seconds of one core.

    python benchmarks/trace_views.py --hta PYTHON [--megabytes 1000] [--keep FOLDER]

PYTHON is the interpreter of an environment with HolisticTraceAnalysis. The trace is a real one repeated
(`trace_build.py steps`: A100, NCCL), with three step marks left. HTA's three views run on the frame that it has loaded;
ours read their columns from Parquet inside the measured time. Each side runs in a process of its own: ours the best
of three, HTA's the better of two, or once above 300 MB. Both sides' numbers are compared: our HTA-compatible mode must
give HTA's to the microsecond.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BAR = 100

PEER = """
import json, logging, sys, time, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.process_time()
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
load = time.process_time() - begin
def best(view):
    times = []
    for _ in range(int(sys.argv[2])):
        begin = time.process_time(); result = view(); times.append(time.process_time() - begin)
    return min(times), result
temporal, table = best(lambda: trace.get_temporal_breakdown(visualize=False))
overlap, percent = best(lambda: trace.get_comm_comp_overlap(visualize=False))
kernels, (types, names) = best(lambda: trace.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True))
row = table.iloc[0].to_dict()
print(json.dumps({"load_s": load, "temporal_s": temporal, "overlap_s": overlap, "kernels_s": kernels,
    "idle_us": float(row["idle_time(us)"]), "compute_us": float(row["compute_time(us)"]),
    "kernel_us": float(row["kernel_time(us)"]),
    "overlap_percent": float(percent.iloc[0]["comp_comm_overlap_pctg"]),
    "types": {one["kernel_type"]: float(one["sum"]) for one in types.to_dict("records")}}))
"""


def ours(events: Path) -> dict[str, Any]:
    """CPU seconds of our views (the columns read in the first of them), of every view, and the compatible mode's
    numbers.
    """
    from scripts.trace.capture import Capture
    from scripts.trace.summarise import summarise
    from scripts.trace.views import device, hta

    def best(view: Callable[[Capture], Any], repeat: int = 3) -> float:
        times = []
        for _ in range(repeat):
            capture = Capture.open(events)
            begin = time.process_time()
            view(capture)
            times.append(time.process_time() - begin)
        return min(times)

    device.kernels_by_name(Capture.open(events))  # imports
    found: dict[str, Any] = {
        "read_s": best(device.activity),
        "temporal_and_overlap_s": best(device.view),
        "kernels_s": best(device.kernels_by_name),
        "all_three_s": best(lambda capture: (device.view(capture), device.kernels_by_name(capture))),
    }
    capture = Capture.open(events)
    gpu = hta.gpu_rows(capture, capture.ranks[0])
    begin = time.process_time()
    temporal = hta.temporal_breakdown(gpu)
    percent = hta.communication_overlap(gpu)
    types = hta.kernel_type_breakdown([gpu], memory=True)
    hta.kernel_breakdown({capture.ranks[0]: gpu}, memory=True)
    found["compatible_s"] = time.process_time() - begin
    found |= {"idle_us": temporal["idle_us"], "compute_us": temporal["compute_us"], "kernel_us": temporal["kernel_us"],
              "overlap_percent": percent,
              "types": {row["kernel_type"]: row["sum"] for row in types}}  # fmt: skip
    capture = Capture.open(events)
    begin = time.process_time()
    _, document = summarise(capture)
    found["every_view_s"] = time.process_time() - begin
    found["gpu_events"], found["host_events"] = len(capture.gpu), len(capture.host)
    found["views"] = len(document["views"])
    return found


def run(command: list[str]) -> dict[str, Any]:
    """The last line that a program prints, as JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{command[:2]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def prepare(folder: Path, megabytes: int) -> tuple[Path, Path]:
    """(trace, parsed trace), made where they are not there yet."""
    from benchmarks.trace_build import build

    trace, events = folder / f"few_steps_{megabytes}.json", folder / f"events_{megabytes}"
    if not trace.is_file():
        many = folder / f"steps_{megabytes}.json"
        if not many.is_file():
            build("steps", megabytes, many)
        thin(many, trace)
    if not (events / "quality.json").is_file():
        command = [sys.executable, "-m", "scripts.trace.parse", str(trace), "-o", str(events)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return trace, events


def thin(source: Path, target: Path) -> None:
    """Copy a trace with its last three `ProfilerStep` marks only.

    HTA's load time grows with events times steps, its views' does not.
    """
    mark = re.compile(rb"ProfilerStep#(\d+)")
    with source.open("rb") as file:
        file.seek(-min(source.stat().st_size, 64_000_000), os.SEEK_END)
        last = max(int(number) for number in mark.findall(file.read()))
    with source.open("rb") as lines, target.open("wb") as copy:
        for line in lines:
            found = mark.search(line)
            copy.write(line.replace(b"ProfilerStep#", b"Iteration ") if found and int(found[1]) < last - 2 else line)


def report(mine: dict[str, Any], peer: dict[str, Any] | None, megabytes: int) -> dict[str, Any]:
    """Print the table; the final JSON object."""
    print(f"{megabytes} MB, {mine['gpu_events']:,} GPU events, {mine['host_events']:,} host events; CPU seconds")
    print(f"{'':34}{'HTA':>10}{'here':>10}{'ratio':>9}")
    metrics: dict[str, Any] = {
        "gpu_events": mine["gpu_events"],
        "every_view_s": mine["every_view_s"],
        "read_s": mine["read_s"],
    }
    bars = {}
    if peer is None:
        print("HTA: not measured (--hta PYTHON)")
    else:
        temporal, breakdown = peer["temporal_s"] + peer["overlap_s"], peer["kernels_s"]
        pairs = {
            "temporal breakdown and overlap": (temporal, mine["temporal_and_overlap_s"]),
            "kernel breakdown": (breakdown, mine["kernels_s"]),
            "all three": (temporal + breakdown, mine["all_three_s"]),
            "all three, HTA-compatible mode": (temporal + breakdown, mine["compatible_s"]),
        }
        for name, (theirs, here) in pairs.items():
            print(f"{name:34}{theirs:10.3f}{here:10.4f}{theirs / here:8.0f}x")
        ratio = (temporal + breakdown) / mine["all_three_s"]
        same = all(peer[key] == mine[key] for key in ("idle_us", "compute_us", "kernel_us", "overlap_percent", "types"))
        print(f"HTA's numbers reproduced exactly: {'yes' if same else 'NO'}")
        print(f"HTA loads the trace in {peer['load_s']:.0f} s")
        metrics |= {
            "ratio": ratio,
            "compatible_ratio": (temporal + breakdown) / mine["compatible_s"],
            "hta_s": temporal + breakdown,
            "hta_load_s": peer["load_s"],
            "here_s": mine["all_three_s"],
        }
        bars = {"ratio": {"least": BAR, "got": ratio, "ok": ratio >= BAR}, "same_numbers": {"got": same, "ok": same}}
    print(f"all {mine['views']} views of this repository, host side included: {mine['every_view_s']:.2f} s")
    return {
        "bench": "trace_views",
        "metrics": metrics,
        "bars": bars,
        "ok": bool(bars) and all(bar["ok"] for bar in bars.values()),
    }


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--hta", help="python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--keep", type=Path, help="folder for the trace and its tables, used again when they are there")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.ours)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trace, events = prepare(folder, options.megabytes)
        mine = run([sys.executable, __file__, "--ours", str(events)])
        peer = (
            run([options.hta, "-c", PEER, str(trace), "1" if options.megabytes > 300 else "2"]) if options.hta else None
        )
    result = report(mine, peer, options.megabytes)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
