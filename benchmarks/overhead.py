"""How much longer than its jobs the pipeline takes, from the results of a finished workload.

    python benchmarks/overhead.py [CHECKOUT] [--workload minigpt]

Elapsed: from the start of Snakemake to the end of its last node, by its log. Jobs: time in which at least one process
of the workload ran (checked, profiled and timed runs side by side count once), by the launcher's own clock.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.judge.session import read_rows  # noqa: E402
from scripts.trace.intervals import union_length  # noqa: E402

BAR = 0.10
STAMP = re.compile(r"^\[(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\]$")


def intervals(folder: Path) -> list[tuple[int, int]]:
    """(start, end) in nanoseconds of every run under the folder, each once."""
    found = set()
    for path in folder.rglob("run.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.get("started_ns") and told.get("wall_s"):
            found.add((told["started_ns"], told["started_ns"] + round(told["wall_s"] * 1e9)))
    for path in folder.rglob("*.parquet"):
        if path.stem in ("aa", "screen", "race", "attribution"):
            found |= {(row["started_ns"], row["started_ns"] + round(row["wall_s"] * 1e9)) for row in read_rows(path)}
    return sorted(found)


def elapsed(checkout: Path) -> float:
    """Seconds from the first to the last time stamp of the longest Snakemake log."""
    best = 0.0
    for log in (checkout / ".snakemake" / "log").glob("*.log"):
        stamps = [STAMP.match(line) for line in log.read_text(encoding="utf-8").splitlines()]
        times = [datetime.datetime.strptime(m[1], "%a %b %d %H:%M:%S %Y") for m in stamps if m]
        if times:
            best = max(best, (times[-1] - times[0]).total_seconds())
    return best


def main() -> int:
    """Print the table and the JSON line; 1 where the bar falls short, 2 where there are no results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--workload", default="minigpt")
    args = parser.parse_args()
    spans = sorted(
        span for folder in (args.checkout / "results").glob(f"*/{args.workload}") for span in intervals(folder)
    )
    whole = elapsed(args.checkout)
    if not spans or not whole:
        print(f"error: {args.checkout}: no finished run of {args.workload}; run snakemake there", file=sys.stderr)
        return 2
    jobs = union_length(*np.array(spans).T) / 1e9
    share = whole / jobs - 1
    print(f"{'runs':>6} {'elapsed s':>10} {'jobs s':>8} {'overhead':>9}")
    print(f"{len(spans):>6} {whole:>10.1f} {jobs:>8.1f} {share:>9.1%}")
    metrics = {"runs": len(spans), "elapsed_s": whole, "jobs_s": round(jobs, 1), "overhead": round(share, 4)}
    print(json.dumps({"bench": "overhead", "metrics": metrics, "bars": {"overhead": BAR}, "ok": share <= BAR}))
    return 0 if share <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
