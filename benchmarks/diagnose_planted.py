"""Planted faults against detectors: is each found by its detector, ranked, anchored, and is its ceiling the gain of
removing it?

    python benchmarks/diagnose_planted.py [--only NAME ...] [--pairs 5] [--keep DIR [--reuse]]

Each job of tests/planted/jobs that runs on a CPU runs with its fault and, line for line, without it: once profiled
(parsed, summarised and diagnosed by the pipeline's own programs) and `--pairs` times unprofiled in alternating order.
Gains are ratios of CPU seconds of whole processes, so that other work on the machine disturbs them little; of jobs with
several processes or threads, of wall time. Every run of `--keep` is a folder and every finished job a row of
DIR/rows.jsonl: with `--reuse` what was interrupted goes on from there. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "planted")]

import planted  # noqa: E402

from scripts.common.errors import InputError  # noqa: E402

WITHIN, CLEAN = 0.30, 0.03


def measure(name: str, folder: Path, pairs: int, reuse: bool) -> dict[str, Any]:
    """One planted job: findings of both arms, with all timed runs as the baseline, and the measured gain."""
    gains: list[float] = []
    runs: dict[str, list[Path]] = {"fault": [], "clean": []}
    for pair in range(pairs):
        spent = {}
        for arm in ("fault", "clean") if pair % 2 == 0 else ("clean", "fault"):
            out = folder / f"{arm}-plain-{pair}"
            spent[arm] = planted.seconds(name, planted.launch(name, arm, folder, out=out, plain=True, reuse=reuse))
            runs[arm].append(out / "run.json")
        gains.append(1 - spent["clean"] / spent["fault"])
    found = {}
    for arm in ("fault", "clean"):
        planted.launch(name, arm, folder, out=folder / f"{arm}-profiled", plain=False, reuse=reuse)
        found[arm] = planted.diagnose(name, arm, folder, runs=runs[arm])
    each = row(name, found["fault"], found["clean"], statistics.median(gains), planted.fault_lines(name))
    return {**each, "gains": gains}


def row(name: str, fault: dict[str, Any], clean: dict[str, Any], gain: float, lines: set[int]) -> dict[str, Any]:
    """The benchmark's row of a job: rank and ceiling of its finding, alarms on the twin, whether the anchor lies in
    the fault."""
    findings = fault["findings"]
    rank = next((n for n, f in enumerate(findings, 1) if f["id"] == name), None)
    mine = findings[rank - 1] if rank else None
    ceiling = mine["ceiling"]["fraction"] if mine and mine["ceiling"] else None
    shares = {f["id"]: f["ceiling"]["fraction"] for f in reversed(findings) if f["ceiling"]}
    alarms = {
        f["id"]: f["ceiling"]["fraction"]
        for f in clean["findings"]
        if f["ceiling"] and f["ceiling"]["fraction"] > CLEAN
    }
    failed = [e["id"] for arm in (fault, clean) for e in arm["looked_for"] if e["result"] == "failed"]
    return {
        "name": name,
        "rank": rank,
        "ceiling": ceiling,
        "gain": gain,
        "ratio": ceiling / gain if ceiling and gain > 0 else None,
        "bounded": mine is None or mine["ceiling"] is not None,
        "anchored": bool(lines & {a["line"] for a in mine["anchors"]}) if mine and lines else None,
        "shares": shares,
        "alarms": alarms,
        "failed": failed,
    }


def matrix(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: planted fault against the findings above 3 % of the job, its own in bold."""
    out = [
        "| planted fault | found, rank | at most | measured gain | ratio | line named | other findings above 3 % | "
        "above 3 % on the clean twin |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        others = ", ".join(f"{i} {s:.0%}" for i, s in r["shares"].items() if i != r["name"] and s > CLEAN) or "-"
        alarms = ", ".join(f"{i} {s:.0%}" for i, s in r["alarms"].items()) or "none"
        ceiling = f"{r['ceiling']:.1%}" if r["ceiling"] is not None else "-"
        ratio = f"{r['ratio']:.2f}" if r["ratio"] else "-"
        named = {True: "yes", False: "no", None: "-"}[r["anchored"]]
        found = f"**yes**, {r['rank']}" if r["rank"] else "no"
        out.append(f"| {r['name']} | {found} | {ceiling} | {r['gain']:.1%} | {ratio} | {named} | {others} | {alarms} |")
    return "\n".join(out)


def main() -> int:
    """Measure, print the matrix and the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(planted.names('cpu'))}")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="the same")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="where runs are left")
    parser.add_argument(
        "--reuse", action="store_true", help="diagnose the runs that --keep has, launch only what is missing"
    )
    args = parser.parse_args()
    chosen = [*args.names, *args.only] or planted.names("cpu")
    rows, begun = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wholejob-planted-") as temporary:
        place = args.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            started = time.monotonic()
            try:
                rows.append(measure(name, place / name, args.pairs, args.reuse))
            except (RuntimeError, InputError, OSError) as error:
                print(f"{name}: not measured: {error}", file=sys.stderr)
                continue
            took = time.monotonic()
            line = json.dumps({**rows[-1], "took_s": round(took - started, 1)})
            with (place / "rows.jsonl").open("a", encoding="utf-8") as kept:
                kept.write(line + "\n")
            print(f"{took - begun:6.0f} s  {line}", file=sys.stderr, flush=True)
    print(matrix(rows))
    total, bounded = len(rows), [r for r in rows if r["bounded"]]
    counts = {
        "found": (sum(r["rank"] is not None for r in rows), total),
        "ranked_first_or_second": (sum((r["rank"] or 9) <= 2 for r in rows), total),
        "ceiling_within_30_percent": (
            sum(r["ratio"] is not None and abs(r["ratio"] - 1) <= WITHIN for r in bounded),
            len(bounded),
        ),
        "clean_twins_silent": (sum(not r["alarms"] for r in rows), total),
    }
    failed = sum(len(r["failed"]) for r in rows)
    ok = total == len(chosen) and failed == 0 and all(got == wanted for got, wanted in counts.values())
    metrics = {"jobs": total, **{key: got for key, (got, _) in counts.items()}, "detectors_failed": failed}
    bars = {**{key: wanted for key, (_, wanted) in counts.items()}, "detectors_failed": 0, "jobs": len(chosen)}
    print(json.dumps({"bench": "diagnose_planted", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
