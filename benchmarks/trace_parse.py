"""Trace parser against its peers, side by side, in fresh processes: CPU seconds (user + system) and peak memory.

`python benchmarks/trace_parse.py [--smoke | --quick] [--four] [--peers PYTHON] [--folder DIR]`

Traces of 200 MB and 1 GB are made of real ones (`trace_build.py`): many steps, and python stacks; then an nsys export of
3 million rows (`trace_nsys.py`). `--quick` leaves the 1 GB ones out, `--four` adds one of 4 GB for the memory bar,
`--smoke` runs everything on 10 MB, to see that it runs. HTA, msgspec and TraceLens run where PYTHON (an interpreter of
an environment that has them) is given and can import them; AMD's TraceLens is not on PyPI (the package of that name
there is another program). Needs 8 GB of disk with `--four`, 7 GB of memory for HTA.
Bars hold for what was measured; what was not measured is null and named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import trace_build

ROOT = Path(__file__).resolve().parents[1]
SMALL = trace_build.TRACES / "dlrm8" / "rank0.json.gz"
JSON_PANDAS = """
import gzip, json, sys, pandas
opener = gzip.open if open(sys.argv[1], "rb").read(2) == b"\\x1f\\x8b" else open
frame = pandas.DataFrame(json.load(opener(sys.argv[1], "rt"))["traceEvents"])
"""
JSON_LOAD = "import json, sys; json.load(open(sys.argv[1]))"
MSGSPEC = """
import sys, msgspec
class Event(msgspec.Struct):
    ph: str; name: str = ""; cat: str = ""; pid: int | str = 0; tid: int | str = 0; ts: float = 0; dur: float = 0
    id: int | str = 0; args: msgspec.Raw = b"{}"
class Trace(msgspec.Struct):
    traceEvents: list[Event]
msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Trace)
"""
HTA = """
import sys, os, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
assert len(analysis.t.get_trace(0))
"""


TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(profile_filepath=sys.argv[1])
"""
PEERS = {"msgspec structs": ("msgspec", MSGSPEC), "HTA load": ("hta", HTA), "TraceLens load": ("TraceLens", TRACELENS)}


def importable(python: Path, module: str) -> bool:
    """Whether an interpreter has a module (TraceLens: the one for traces)."""
    name = "TreePerfAnalyzer" if module == "TraceLens" else ""
    program = f"from {module} import {name}" if name else f"import {module}"
    return subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0


def measure(command: list[str]) -> dict[str, Any]:
    """CPU seconds, wall seconds and peak resident MB of a process and those that it waited for; `failed` its last
    line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        begun = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    result: dict[str, Any] = {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": wall,
        "rss_mb": usage.ru_maxrss / 1024,
    }
    if process.returncode:
        result["failed"] = lines[-1][:160] if lines else f"exit {process.returncode}"
    return result


def build(kind: str, megabytes: int, path: Path) -> None:
    """Make a trace in a process of its own: a child's peak memory counts from what its parent holds when it forks."""
    command = [sys.executable, str(Path(trace_build.__file__)), kind, str(megabytes), str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ours(path: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "scripts.trace.parse", str(path), "-o", str(out), "--no-progress", *more]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 MB only")
    parser.add_argument("--smoke", action="store_true", help="10 MB only: does it run")
    parser.add_argument("--four", action="store_true", help="also 4 GB, for memory")
    parser.add_argument("--peers", type=Path, help="python of an environment with HolisticTraceAnalysis, msgspec")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the large traces go")
    parser.add_argument("--repeat", type=int, default=11, help="runs of our parser on each trace; the median counts")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-", dir=arguments.folder))
    try:
        rows = run(folder, arguments)
        import trace_nsys

        nsys, nsys_bars = trace_nsys.run(folder, 100_000 if arguments.smoke else 3_000_000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report(rows, nsys, {} if arguments.smoke else nsys_bars)


def run(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def record(trace: str, megabytes: float, tool: str, command: list[str], repeat: int = 1) -> None:
        note(trace, megabytes, tool, [measure(command) for _ in range(repeat)])

    def note(trace: str, megabytes: float, tool: str, results: list[dict[str, Any]]) -> None:
        found = sorted(results, key=lambda result: result["cpu_s"])
        row = {"trace": trace, "mb": megabytes, "tool": tool, **found[len(found) // 2]}
        rows.append(row)
        speed = "" if row.get("failed") else f"{megabytes / row['cpu_s']:6.0f} MB/s"
        print(
            f"{trace:12} {megabytes:7.1f} MB  {tool:22} {row['cpu_s']:8.2f} CPU-s "
            f"{row['wall_s']:8.1f} s {row['rss_mb']:7.0f} MB "
            f"{speed}  {row.get('failed', '')}",
            flush=True,
        )

    out = folder / "out"
    small = folder / "small.json"
    subprocess.run(["gzip", "-dc", str(SMALL)], stdout=small.open("wb"), check=True)
    sizes = [10] if arguments.smoke else [200] if arguments.quick else [200, 1000]
    peers = {tool: program for tool, (module, program) in PEERS.items()
             if arguments.peers and importable(arguments.peers, module)}  # fmt: skip
    for tool in PEERS.keys() - peers.keys():
        print(f"{tool}: not measured ({'not in ' + str(arguments.peers) if arguments.peers else 'no --peers'})")
    measure(ours(small, out))
    for tool, command in (
        ("ours", ours(small, out)),
        ("json.load + pandas", [sys.executable, "-c", JSON_PANDAS, str(small)]),
    ):
        record("small", small.stat().st_size / 1e6, tool, command, 5)
    warm = folder / "warm.json"
    build("steps", 10, warm)
    measure([*ours(warm, out)])  # compiles, when the cache is empty
    for kind in ("steps", "stacks"):
        for size in sizes:
            path = folder / f"{kind}_{size}.json"
            build(kind, size, path)
            name, megabytes = f"{kind}_{size}", path.stat().st_size / 1e6
            packed = trace_build.pack(path)
            # Alternating, since the machine's speed drifts by more than what inflating costs.
            pairs = [(measure(ours(path, out)), measure(ours(packed, out))) for _ in range(arguments.repeat)]
            packed.unlink()
            for tool, results in zip(("ours", "ours, gz"), zip(*pairs, strict=True), strict=True):
                note(name, megabytes, tool, list(results))
            rows[-1]["gz_to_plain"] = statistics.median(gz["cpu_s"] / plain["cpu_s"] for plain, gz in pairs)
            record(name, megabytes, "ours, one thread", ours(path, out, "--jobs", "1"))
            record(name, megabytes, "json.load", [sys.executable, "-c", JSON_LOAD, str(path)])
            for tool, program in peers.items():
                record(name, megabytes, tool, [str(arguments.peers), "-c", program, str(path)])
            path.unlink()
    if arguments.four:
        size = 40 if arguments.smoke else 4000
        path = folder / f"steps_{size}.json"
        build("steps", size, path)
        record(f"steps_{size}", path.stat().st_size / 1e6, "ours", ours(path, out))
        path.unlink()
    return rows


def report(rows: list[dict[str, Any]], nsys: dict[str, Any], nsys_bars: dict[str, tuple[float, float, bool]]) -> int:
    """The bars, then everything as one JSON line."""
    by = {(row["trace"], row["tool"]): row for row in rows if "failed" not in row}
    failed = [f"{row['trace']} {row['tool']}: {row['failed']}" for row in rows if "failed" in row]

    def ratio(trace: str, one: str, other: str, key: str = "cpu_s") -> float | None:
        a, b = by.get((trace, one)), by.get((trace, other))
        return a[key] / b[key] if a and b else None

    def steady(kind: str) -> float | None:
        """MB a CPU second between 200 MB and 1 GB, without the start of the process."""
        a, b = by.get((f"{kind}_200", "ours")), by.get((f"{kind}_1000", "ours"))
        return (b["mb"] - a["mb"]) / (b["cpu_s"] - a["cpu_s"]) if a and b else None

    def inflating(trace: str) -> float | None:
        """What a compressed trace costs of a plain one: the median of the pairs' ratios."""
        return (by.get((trace, "ours, gz")) or {}).get("gz_to_plain")

    def speed(trace: str) -> float | None:
        row = by.get((trace, "ours"))
        return row["mb"] / row["cpu_s"] if row else None

    largest = 1000 if ("steps_1000", "ours") in by else 200
    own = [row["rss_mb"] for (_, tool), row in by.items() if tool.startswith("ours")]
    bars: dict[str, tuple[float | None, float, bool]] = {
        "stacks_1000 vs HTA >= 15": (ratio("stacks_1000", "HTA load", "ours"), 15, True),
        "steps_1000 vs HTA >= 30": (ratio("steps_1000", "HTA load", "ours"), 30, True),
        "steps_200 vs HTA >= 8": (ratio("steps_200", "HTA load", "ours"), 8, True),
        "stacks_200 vs HTA >= 8": (ratio("stacks_200", "HTA load", "ours"), 8, True),
        "MB/s a core, steps_1000 >= 170": (speed("steps_1000"), 170, True),
        "MB/s a core, stacks_1000 >= 170": (speed("stacks_1000"), 170, True),
        "peak MB, every run <= 600": (max(own, default=None), 600, False),
        f"gz / plain, steps_{largest} <= 1.1": (inflating(f"steps_{largest}"), 1.1, False),
        f"gz / plain, stacks_{largest} <= 1.1": (inflating(f"stacks_{largest}"), 1.1, False),
        "small / (json.load + pandas) <= 1": (ratio("small", "ours", "json.load + pandas"), 1.0, False),
        "peak MB at 4 GB <= 600": ((by.get(("steps_4000", "ours")) or {}).get("rss_mb"), 600, False),
    }
    bars |= {f"nsys: {name}": bar for name, bar in nsys_bars.items()}
    results = {}
    print()
    for name, (value, bar, at_least) in bars.items():
        passed = None if value is None else value >= bar if at_least else value <= bar
        results[name] = {"value": None if value is None else round(value, 3), "passed": passed}
        word = {None: "not measured", True: "met", False: "MISSED"}[passed]
        print(f"{word:12}  {name}: {'-' if value is None else f'{value:.2f}'}")
    extra = {f"{kind} MB/s a core beyond the start": steady(kind) for kind in ("steps", "stacks")}
    for name, value in extra.items():
        print(f"{'':12}  {name}: {'-' if value is None else f'{value:.0f}'}")
    for line in failed:
        print(f"failed        {line}")
    ok = all(entry["passed"] is not False for entry in results.values()) and not any("ours" in line for line in failed)
    print(
        json.dumps({"bench": "trace_parse", "metrics": rows, "nsys": nsys, "steady": extra, "bars": results, "ok": ok})
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
