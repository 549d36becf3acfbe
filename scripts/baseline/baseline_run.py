"""Run the unmodified job once with its values recorded; refuse a job that cannot be measured, in one clear line."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json
from scripts.common.launch import Job, last_lines, run_json

NAME = re.compile(r"seed(\d+)-(repeat|ulp)(\d+)$")


def job_of(spec: dict[str, Any], source: dict[str, Any], env: dict[str, Any], name: str) -> Job:
    """The job of a run by its name: `seed<seed>-repeat<i>` unmodified, `seed<seed>-ulp<i>` with nudged weights."""
    found = NAME.match(name)
    if found is None:
        raise InputError(f"run: {name!r}, should be seed<seed>-repeat<i> or seed<seed>-ulp<i>")
    seed, kind, number = int(found[1]), found[2], int(found[3])
    perturb = {"kind": "ulp", "seed": number} if kind == "ulp" else None
    return Job(spec=spec, env=env, tree=source["tree"], seed=seed, kind="checked", perturb=perturb)


def explain(document: dict[str, Any], name: str, log: Path) -> None:
    """Raise InputError where a baseline run is no basis for anything; print the end of the job's own output."""
    problem = document["reason"]
    if problem is None and document["steps"] == 0:
        problem = (
            "no step marks: the recorder watches torch optimizers, modules and generate(); mark the steps of another"
            " kind of loop with parity.step()"
        )
    if problem is None and not document["protected_unchanged"]:
        problem = "it changed a file that source.protected names; a job should write to {out} only"
    if problem is None:
        return
    lines = last_lines(log)
    if lines:
        print(f"the last lines of {log}:\n{lines}", file=sys.stderr)
    steps = f" after {document['steps']} steps" if document["status"] != "ok" and document["steps"] else ""
    raise InputError(f"workload {name}: the unmodified job cannot be measured{steps}: {problem} ({log})")


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `baseline_run`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="<run>/run.json, <run> being seed<n>-repeat<i> or -ulp<i>"
    )
    args = parser.parse_args(argv)
    spec = read_json(args.spec, "spec")
    job = job_of(spec, read_json(args.source, "source"), read_json(args.env, "env"), args.output.parent.name)
    document = run_json(job, args.output)
    try:
        explain(document, spec.get("workload", spec["name"]), args.output.parent / "job.log")
    except InputError:
        args.output.unlink()
        raise
    return 0


if __name__ == "__main__":
    run(main)
