"""Run a patched job once with its values and the lines of its diff recorded; a refused candidate runs nothing.

Whatever the candidate does, crashing or hanging included, is a result with a status and not a failed rule.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scripts.common.errors import run
from scripts.common.files import read_json
from scripts.common.launch import Job, not_run, run_json


def job_of(spec: dict[str, Any], env: dict[str, Any], guard: dict[str, Any], seed: int) -> Job:
    """The checked job of a candidate: the tree that the guard let pass, its changed lines watched."""
    return Job(
        spec=spec,
        env=env,
        tree=guard["tree"] or "",
        seed=seed,
        kind="checked",
        cover=guard.get("changed_lines") or None,
    )


def main(argv: list[str] | None = None) -> int:
    """Program of the rules `candidate_run` and `final_run`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--guard", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="run.json in a folder of its own")
    args = parser.parse_args(argv)
    guard = read_json(args.guard, "guard")
    job = job_of(read_json(args.spec, "spec"), read_json(args.env, "env"), guard, args.seed)
    if guard["status"] == "pass":
        run_json(job, args.output)
    else:
        not_run(args.output, job, f"the guard said {guard['status']}")
    return 0


if __name__ == "__main__":
    run(main)
