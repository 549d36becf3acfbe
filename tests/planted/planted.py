"""Planted jobs: each file of `jobs/` is a job with one fault and, line for line, the same job without it.

    # fault {          lines of the faulty job
    # } clean {        lines of the clean twin, each behind `#:`
    # }

Both arms keep the line numbers, so that a finding's anchor can be checked against the fault's own lines.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOBS = HERE / "jobs"
WINDOWS = {
    "kv_cache_missed": (4, 26),
    "batch_too_small": (40, 80),
    "new_shapes_slow_steps": (5, 21),
    "loader_bound": (5, 10),
}
"""Steps to profile; a generation needs a whole request, shapes a dozen of them."""


@dataclass
class Planted:
    """A planted job: its two texts and the line numbers of the fault (empty where the clean twin adds instead)."""

    name: str
    fault: str
    clean: str
    fault_lines: set[int] = field(default_factory=set)

    def arm(self, name: str) -> str:
        """The text of `fault` or `clean`."""
        return self.fault if name == "fault" else self.clean


def names() -> list[str]:
    """Names of the planted jobs, each the id of the finding that it should give."""
    return sorted(path.stem for path in JOBS.glob("*.job"))


def read(name: str) -> Planted:
    """The two arms of a planted job."""
    fault, clean, lines, mode = [], [], set(), "both"
    for number, line in enumerate((JOBS / f"{name}.job").read_text(encoding="utf-8").splitlines(), 1):
        if line in ("# fault {", "# } clean {", "# }"):
            mode = {"# fault {": "fault", "# } clean {": "clean", "# }": "both"}[line]
            fault.append("")
            clean.append("")
        elif mode == "both":
            fault.append(line)
            clean.append(line)
        elif mode == "fault":
            fault.append(line)
            clean.append("")
            lines.add(number)
        else:
            fault.append("")
            clean.append(line.removeprefix("#:"))
    return Planted(name, "\n".join(fault) + "\n", "\n".join(clean) + "\n", lines)


def fault_lines(name: str) -> set[int]:
    """Lines of the fault, and of the functions that those lines call: naming either is naming the fault."""
    job = read(name)
    tree = ast.parse(job.fault)
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.lineno in job.fault_lines
    }
    called = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in calls]
    return job.fault_lines.union(*(range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in called))


def launch(
    name: str, arm: str, folder: Path, *, plain: bool, reuse: bool = False, arguments: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run an arm in `folder`/<arm>-tree under the recorder; returns its run.json. Raises where the job fails."""
    tree = folder / f"{arm}-tree"
    tree.mkdir(parents=True, exist_ok=True)
    job = tree / "job.py"
    job.write_text(read(name).arm(arm), encoding="utf-8")
    out = folder / (f"{arm}-plain" if plain else f"{arm}-profiled")
    kept = out / "run.json"
    if reuse and kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    first, last = WINDOWS.get(name, (4, 9))
    command = [sys.executable, str(HERE / "record.py"), "--out", str(out), "--window", f"{first}:{last}"]
    command += ["--plain", "--cpu-clock"] if plain else []
    done = subprocess.run(
        [*command, "--", str(job), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} {arm}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads((out / "run.json").read_text(encoding="utf-8"))


def diagnose(name: str, arm: str, folder: Path, *, summarise: bool) -> dict[str, Any]:
    """Findings of a profiled arm with its plain run as the baseline, through the programs of the pipeline."""
    profiled, tree = folder / f"{arm}-profiled", folder / f"{arm}-tree"
    spec = folder / "spec.json"
    kind = "inference" if name in ("kv_cache_missed", "batch_too_small") else "training"
    spec.write_text(
        json.dumps(
            {
                "schema": "wholejob/spec@1",
                "name": name,
                "workload": name,
                "kind": kind,
                "title": name,
                "measure": {"horizon": {"steps": None}},
            }
        )
    )
    program("scripts.trace.parse", str(profiled / "trace.json.gz"), "-o", str(profiled))
    if summarise:
        program("scripts.trace.summarise", str(profiled), "-o", str(profiled / "views"))
    program(
        "scripts.diagnose.structure",
        "--run",
        str(profiled),
        "--source",
        str(tree),
        "-o",
        str(folder / f"{arm}-structure.json"),
    )
    program(
        "scripts.diagnose.findings",
        "--spec",
        str(spec),
        "--structure",
        str(folder / f"{arm}-structure.json"),
        "--views",
        str(profiled / "views"),
        "--events",
        str(profiled / "events"),
        "--run",
        str(profiled),
        "--runs",
        str(folder / f"{arm}-plain" / "run.json"),
        "-o",
        str(folder / f"{arm}-findings.json"),
    )
    return json.loads((folder / f"{arm}-findings.json").read_text(encoding="utf-8"))


def program(module: str, *arguments: str) -> None:
    """Call one of the pipeline's programs, in this process: on a busy machine imports would take longer than the
    work."""
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(module).main(list(arguments))
