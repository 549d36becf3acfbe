"""Run the unmodified job once under the profiler: a window of steps as a Chrome trace, and the module tree of one step.

Never a timed run: profiling slows a job by up to two times, and writing a trace takes seconds. It has the machine to
itself all the same: beside other jobs a trace shows their waits, on an H200 as kernels that start 0.4 ms after their launch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
from pathlib import Path

from scripts.baseline.baseline_run import explain
from scripts.common import machine
from scripts.common.errors import InputError, run
from scripts.common.files import read_json
from scripts.common.launch import Job, run_json

RANK = re.compile(r"\.rank(\d+)$")


def collect(folder: Path, name: str) -> list[Path]:
    """Move what the recorder left to `raw/rank<r>.json.gz` and `modules.json`; returns the traces, rank 0 first."""
    records, raw = folder / "records", folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    traces = []
    for path in sorted(records.glob("trace*.json.gz")):
        found = RANK.search(path.name.removesuffix(".json.gz"))
        target = raw / f"rank{found[1] if found else 0}.json.gz"
        path.rename(target)
        traces.append(target)
    if not traces:
        raise InputError(f"workload {name}: the profiled run left no trace: {_why(records)}")
    modules = records / "modules.json"
    if not modules.is_file():
        raise InputError(f"workload {name}: the profiled run left no module tree; it called no torch module")
    modules.replace(folder / "modules.json")
    return sorted(traces, key=lambda path: int(re.sub(r"\D", "", path.name.partition(".")[0])))


def _why(records: Path) -> str:
    """The recorder's first error, which is the cause of the later ones; else what usually is wrong."""
    for path in sorted(records.glob("rank*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"kind": "error"' in line:
                    with contextlib.suppress(ValueError):
                        return str(json.loads(line)["error"])
    return "profile.steps should lie within its steps"


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `profile`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="run.json; raw/ and modules.json lie beside it"
    )
    args = parser.parse_args(argv)
    spec, source, env = read_json(args.spec, "spec"), read_json(args.source, "source"), read_json(args.env, "env")
    name = spec.get("workload", spec["name"])
    job = Job(spec, env, source["tree"], spec["parity"]["seed"], kind="profiled")
    with machine.exclusive():
        document = run_json(job, args.output)
    try:
        explain(document, name, args.output.parent / "job.log")
        collect(args.output.parent, name)
    except InputError:
        args.output.unlink(missing_ok=True)
        raise
    return 0


if __name__ == "__main__":
    run(main)
