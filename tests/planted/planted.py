"""Planted jobs: each file of `jobs/` is a job with one fault and, line for line, the same job without it.

    # planted: gpu or cpu, ranks 2, window 5:21, inference, wall
    # fault {          lines of the faulty job
    #$ NAME=value      a variable of the environment, of the arm whose lines hold it
    # } clean {        lines of the clean twin, each behind `#:`
    # }

`RECORD_BESIDE=1` starts a process that computes on the device before the job does, and ends it afterwards. The second
line is there where the job differs from the usual: training on the CPU in one process, steps 4 to 9
profiled, gains in CPU seconds (of several processes, threads and devices in wall time). Both arms keep the line
numbers, so that a finding's anchor can be checked against the fault's own lines.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOBS = HERE / "jobs"
HEAD = "# planted: "
VARIABLE = "#$ "


@dataclass
class Planted:
    """A planted job: its two texts and the line numbers of the fault (empty where the clean twin adds instead)."""

    name: str
    fault: str
    clean: str
    fault_lines: set[int] = field(default_factory=set)
    gpu: bool = False
    cpu: bool = True
    ranks: int = 1
    window: tuple[int, int] = (4, 9)
    kind: str = "training"
    wall: bool = False

    def variables(self, arm: str) -> dict[str, str]:
        """Variables of the environment that an arm's lines set."""
        lines = [line.strip() for line in self.arm(arm).splitlines()]
        pairs = (line.removeprefix(VARIABLE).split("=", 1) for line in lines if line.startswith(VARIABLE))
        return dict(pairs)

    def arm(self, name: str) -> str:
        """The text of `fault` or `clean`."""
        return self.fault if name == "fault" else self.clean


def names(device: str | None = None) -> list[str]:
    """Names of the planted jobs, each the id of the finding that it should give; of those for `cpu` or `gpu`."""
    every = sorted(path.stem for path in JOBS.glob("*.job"))
    return [name for name in every if device is None or getattr(read(name), device)]


def read(name: str) -> Planted:
    """The two arms of a planted job."""
    fault, clean, lines, mode = [], [], set(), "both"
    text = (JOBS / f"{name}.job").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(text, 1):
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
    job = Planted(name, "\n".join(fault) + "\n", "\n".join(clean) + "\n", lines)
    head = text[1].removeprefix(HEAD) if text[1].startswith(HEAD) else ""
    for word in filter(None, (part.strip() for part in head.split(","))):
        key, _, value = word.partition(" ")
        if word in ("gpu", "gpu or cpu"):
            job.gpu, job.cpu = True, word != "gpu"
        elif key == "ranks":
            job.ranks = int(value)
        elif key == "window":
            first, _, last = value.partition(":")
            job.window = (int(first), int(last))
        elif key == "inference":
            job.kind = "inference"
        elif key == "wall":
            job.wall = True
        else:
            raise ValueError(f"{name}.job:2: {word} is none of gpu, gpu or cpu, ranks N, window A:B, inference, wall")
    return job


def record_arguments(name: str, arm: str, folder: Path, *, plain: bool, cpu_clock: bool) -> list[str]:
    """Write an arm's source to `folder`/<arm>-tree; the arguments of record.py that run it, up to the job's own."""
    job = read(name)
    tree = folder / f"{arm}-tree"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "job.py").write_text(job.arm(arm), encoding="utf-8")
    first, last = job.window
    found = ["--window", f"{first}:{last}", "--ranks", str(job.ranks)]
    found += ["--plain"] if plain else []
    found += ["--infers"] if job.kind == "inference" else []
    found += ["--cpu-clock"] if plain and cpu_clock and job.ranks == 1 and not job.wall else []
    return [*found, "--", str(tree / "job.py")]


def seconds(name: str, run: dict[str, Any]) -> float:
    """What a run on the CPU cost: CPU seconds, which other work disturbs little, or wall time where they say nothing."""
    job = read(name)
    return float(run["wall_s"] if job.wall or job.ranks > 1 else run["cpu_user_s"] + run["cpu_system_s"])


def fault_lines(name: str) -> set[int]:
    """Lines of the fault, and of the functions that those lines call: naming either is naming the fault. None where the
    fault is no line of the source."""
    job = read(name)
    if job.variables("fault") and all(not line or line.startswith("#") for line in _fault_text(job)):
        return set()
    tree = ast.parse(job.fault)
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.lineno in job.fault_lines
    }
    called = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in calls]
    return job.fault_lines.union(*(range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in called))


def _fault_text(job: Planted) -> list[str]:
    return [line.strip() for n, line in enumerate(job.fault.splitlines(), 1) if n in job.fault_lines]


def launch(
    name: str,
    arm: str,
    folder: Path,
    *,
    plain: bool,
    out: Path | None = None,
    reuse: bool = False,
    arguments: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run an arm in `folder`/<arm>-tree under the recorder; returns its run.json. Raises where the job fails."""
    out = out or folder / (f"{arm}-plain" if plain else f"{arm}-profiled")
    kept = out / "run.json"
    source = folder / f"{arm}-tree" / "job.py"
    same = source.is_file() and source.read_text(encoding="utf-8") == read(name).arm(arm)
    if reuse and same and kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    for old in folder.glob(f"{arm}-*/run.json") if not same else ():
        old.unlink()  # of another version of the job
    command = [sys.executable, str(HERE / "record.py"), "--out", str(out)]
    command += record_arguments(name, arm, folder, plain=plain, cpu_clock=True)
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **read(name).variables(arm)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} {arm}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads((out / "run.json").read_text(encoding="utf-8"))


def diagnose(name: str, arm: str, folder: Path, *, summarise: bool = True, runs: Sequence[Path] = ()) -> dict[str, Any]:
    """Findings of a profiled arm with its plain runs as the baseline, through the programs of the pipeline."""
    job = read(name)
    variables, at = job.variables(arm), runs or [folder / f"{arm}-plain" / "run.json"]
    return findings(name, arm, folder, kind=job.kind, runs=at, variables=variables, summarise=summarise)


def findings(
    name: str,
    arm: str,
    folder: Path,
    *,
    kind: str,
    runs: Sequence[Path],
    variables: dict[str, str] | None = None,
    summarise: bool = True,
) -> dict[str, Any]:
    """Findings of `folder`/<arm>-profiled with the source in <arm>-tree, through the programs of the pipeline."""
    profiled, tree = folder / f"{arm}-profiled", folder / f"{arm}-tree"
    spec = folder / f"{arm}-spec.json"
    traces = sorted(str(path) for path in profiled.glob("trace*.json.gz"))
    spec.write_text(
        json.dumps(
            {
                "schema": "wholejob/spec@1",
                "name": name,
                "workload": name,
                "kind": kind,
                "title": name,
                "environment": {"variables": variables or {}},
                "measure": {"horizon": {"steps": None}},
            }
        )
    )
    program("scripts.trace.parse", *traces, "-o", str(profiled))
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
        *map(str, runs),
        "-o",
        str(folder / f"{arm}-findings.json"),
    )
    return json.loads((folder / f"{arm}-findings.json").read_text(encoding="utf-8"))


def program(module: str, *arguments: str) -> None:
    """Call one of the pipeline's programs, in this process: on a busy machine imports would take longer than the
    work."""
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(module).main(list(arguments))
