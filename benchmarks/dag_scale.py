"""How long the graph of 1,000 experiments takes to plan: rounds x candidates of the demo, as a dry run.

    python benchmarks/dag_scale.py

An experiment is one candidate with its proposal, guard, checked runs, comparison and verdict. CPU seconds stand beside the wall
clock, since the bar is about this machine and the machine may be busy. The no-op rerun is that of a finished small graph, in a copy.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZES = [(1, 3), (5, 20), (10, 50), (10, 100)]
BAR_S = 10.0


def dry_run(rounds: int, candidates: int) -> tuple[float, float, int]:
    """`(wall s, CPU s, jobs)` of planning `rounds x candidates` experiments in a fresh process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "all", "-n", "-q", "rules", "--config", "workload=minigpt", "device=scale",
         f"rounds={rounds}", f"candidates={candidates}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    total = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("total")]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, int(total[0].split()[1]) if total else 0


def main() -> int:
    """Print the table and the JSON line."""
    print(f"{'experiments':>12} {'jobs':>7} {'wall s':>8} {'CPU s':>8}")
    metrics = {}
    for rounds, candidates in SIZES:
        # the speed of a machine drifts by some per cent within minutes: the run with the median CPU time of three counts
        wall, cpu, jobs = sorted((dry_run(rounds, candidates) for _ in range(3)), key=lambda run: run[1])[1]
        print(f"{rounds * candidates:>12} {jobs:>7} {wall:>8.1f} {cpu:>8.1f}", flush=True)
        metrics[f"cpu_s_{rounds * candidates}"] = round(cpu, 2)
        metrics[f"wall_s_{rounds * candidates}"] = round(wall, 2)
    ok = metrics["cpu_s_1000"] <= BAR_S
    print(json.dumps({"bench": "dag_scale", "metrics": metrics, "bars": {"cpu_s_1000": BAR_S}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
