"""findings.json: where the job loses time, each loss with evidence, its place in the source and the most it could
give back.

    python -m scripts.diagnose.findings --spec W/spec/propose.json --structure W/structure.json --views W/trace/views \\
        --events W/trace/events --runs W/timing/aa.json -o W/findings.json

Detectors are the modules of `scripts/diagnose/detectors/`. One that raises is reported as failed; the others still run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import statistics
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json
from scripts.diagnose import detectors, measured, replay, timing
from scripts.diagnose.job import Finding, Job, NotApplicable
from scripts.diagnose.source import Function
from scripts.diagnose.timeline import build, same_file

RANK = {"high": 0, "medium": 1, "low": 2}
SMALLEST = 0.0005  # of the job; what lies below is listed as looked for, not as a finding


def diagnose(job: Job, plugins: Iterable[ModuleType], fixes: dict[str, list[str]]) -> dict[str, Any]:
    """Run every detector over the job: ranked findings, and what was looked for with which result."""
    found: list[Finding] = []
    looked: list[dict[str, Any]] = []
    for plugin in plugins:
        try:
            results = plugin.detect(job)
        except NotApplicable as reason:
            looked += [{"id": i, "result": "not_applicable", "why": str(reason)} for i in plugin.LOOKED_FOR]
            continue
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            looked += [{"id": i, "result": "failed", "why": why} for i in plugin.LOOKED_FOR]
            continue
        kept = [f for f in results if f.fraction is None or f.fraction >= SMALLEST]
        found += kept
        for name in plugin.LOOKED_FOR:
            looked.append(_looked(name, [f for f in results if f.id == name], [f for f in kept if f.id == name]))
        for finding in kept:
            if finding.id not in plugin.LOOKED_FOR:
                looked.append({"id": finding.id, "result": "found", "why": finding.title})
    known = sorted({row["path"] for kind in ("functions", "sites") for row in job.structure[kind]})
    if known:  # else the source is not known, and all anchors stay
        for finding in found:
            finding.anchors = _in_source(known, finding.anchors)
    found.sort(key=lambda f: (f.fraction is None, -(f.fraction or 0.0), RANK[f.confidence], f.id, f.title))
    return {
        "horizon": job.timing.as_dict(),
        "findings": [f.as_dict(fixes.get(f.id, [])) for f in found],
        "looked_for": sorted(looked, key=lambda entry: entry["id"]),
    }


def _in_source(known: list[str], anchors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Anchors that lie in files of the job's source, by the names that the tree has: a trace's frames may be of the
    recorder."""
    kept = []
    for place in anchors:
        path = next((p for p in known if same_file(place["path"], p)), None)
        kept += [{**place, "path": path}] if path else []
    return kept


def _looked(name: str, results: list[Finding], kept: list[Finding]) -> dict[str, Any]:
    if kept:
        return {"id": name, "result": "found", "why": kept[0].title}
    if results:
        most = max(f.fraction or 0.0 for f in results)
        return {
            "id": name,
            "result": "none",
            "why": f"{results[0].title}: worth {most:.2%} of the job, below {SMALLEST:.2%}",
        }
    return {"id": name, "result": "none", "why": "looked for, nothing of the kind"}


PLAYBOOK = Path(__file__).resolve().parents[1] / "propose" / "playbook"


@cache
def known_fixes() -> dict[str, list[str]]:
    """`{finding id: playbook fix names}`, read from the `FINDINGS` of each fix without importing it; {} without a
    playbook."""
    fixes: dict[str, list[str]] = {}
    for path in sorted(PLAYBOOK.glob("[a-z]*.py")):
        declared = _constants(path)
        for identity in declared.get("FINDINGS") or ():
            fixes.setdefault(identity, []).append(declared.get("NAME") or path.stem)
    return fixes


def _constants(path: Path) -> dict[str, Any]:
    """Literal module-level constants; {} where the file does not parse, which is for its own tests to say."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError:
        return {}
    found = {}
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in ("FINDINGS", "NAME")
        ):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def load(
    spec: Path,
    structure: Path,
    views: Path,
    events: Path,
    *,
    runs: list[Path],
    profiled: Path | None = None,
    environment: Path | None = None,
    checked: Path | None = None,
) -> Job:
    """A job from its files. Raises InputError."""
    specification = read_json(spec, "spec") if spec else {}
    document = read_json(structure, "structure")
    if runs:
        timed = timing.load(list(runs), specification)
    else:
        timed = timing.of_trace(measured.rows(views, "runtime"), measured.views_document(views)["headline"])
    functions = [
        Function(f["path"], f["line"], f["first_line"], f["end_line"], f["name"], f["qualname"], f["calls"])
        for f in document["functions"]
    ]
    timeline = build(measured.events(events, ("python", "cpu_op", "annotation")), functions, timed.step_s)
    summary = measured.views_document(views)
    folder = profiled or views.parent
    path = folder / "run.json"
    profiled_run = read_json(path, "run") if path.is_file() else {}
    marks = timing.step_durations(folder / "records" / "steps.jsonl")
    _marks(timed, marks)

    @cache
    def view(name: str) -> list[dict[str, Any]]:
        return measured.rows(views, name)

    return Job(
        specification,
        document,
        timed,
        timeline,
        view,
        summary["headline"],
        summary["device"],
        profiled_run,
        {
            **_records(folder),
            **_imports([path.parent for path in map(Path, runs)], folder),
            **_packages(environment),
            **_counted(checked),
        },
        replay.read(measured.events(events, ("runtime", "gpu"))) if runs else [],
    )


def _marks(timed: timing.Timing, marks: list[float]) -> None:
    """Where timed runs carry no marks of single steps, take the slow ones and their period from the profiled run's.

    Steps inside the profiled window are slow as well, but not at a period.
    """
    if timed.durations_s or len(marks) < 3:
        return
    ordered = sorted(marks[1:])
    median = ordered[
        len(ordered) // 4
    ]  # the window's steps are the longest ones; a quarter lies outside any window used
    scale = timed.step_s / median if median else 1.0
    timed.durations_s = [m * scale for m in marks]
    timed.slow, timed.period = timing.slow_steps(timed.durations_s, timed.step_s)


def _imports(unprofiled: list[Path], profiled: Path) -> dict[str, float]:
    """Seconds in imports, until torch was imported, in the driver's start of the device, and from the first activity to
    the end of the first step: medians of the unprofiled runs whose step marks say so, else the profiled run's."""
    told = [found for folder in unprofiled if (found := _imports_of(folder))] or [_imports_of(profiled)]
    return {key: statistics.median(one[key] for one in told if key in one) for key in {k for one in told for k in one}}


def _imports_of(folder: Path) -> dict[str, float]:
    marks = folder / "records" / "steps.jsonl"
    if not marks.is_file():
        return {}
    lines = marks.read_text(encoding="utf-8").splitlines() or ["{}"]
    head = json.loads(lines[0])
    found = {}
    if head.get("imports_ns") is not None:
        found["import_s"] = head["imports_ns"] / 1e9
    if head.get("torch_imported_ns") and head.get("process_start_ns") is not None:
        found["torch_s"] = (head["torch_imported_ns"] - head["process_start_ns"]) / 1e9
    if head.get("device_init_ns"):
        found["device_init_s"] = head["device_init_ns"] / 1e9
    first = next(filter(None, (_first_mark(line) for line in lines[1:2])), None)
    if head.get("first_activity_ns") and first is not None:
        found["warm_up_s"] = max(0.0, (first - head["first_activity_ns"]) / 1e9)
    return found


def _packages(environment: Path | None) -> dict[str, list[str]]:
    """Names of the packages that the job's environment has; {} where it is not known."""
    if environment is None:
        return {}
    lock = read_json(environment, "env").get("lock") or []
    return {"packages": [line.partition("==")[0].partition(" @")[0].strip() for line in lock]}


def _counted(checked: Path | None) -> dict[str, dict[str, int]]:
    """What a checked run's ledger counted of the job's input: batches, rows, tokens without padding; {} without it."""
    path = checked.parent / "records" / "ledger.json" if checked is not None else None
    if path is None or not path.is_file():
        return {}
    return {"counted": json.loads(path.read_text(encoding="utf-8")).get("invariants") or {}}


def _first_mark(line: str) -> int | None:
    try:
        return json.loads(line).get("end_ns")
    except ValueError:  # a torn line
        return None


def _records(folder: Path) -> dict[str, Any]:
    found = {}
    for name in ("ledger", "modules"):
        for path in (folder / "records" / f"{name}.json", folder / f"{name}.json"):
            if path.is_file():
                found[name] = json.loads(path.read_text(encoding="utf-8"))
                break
    header = next(iter(sorted((folder / "records").glob("rank0.jsonl"))), None)
    if header is not None:
        lines = header.read_text(encoding="utf-8").splitlines()
        found["header"] = json.loads(lines[0]) if lines else {}
        found["batch"] = [
            json.loads(line)
            for line in lines[1:]
            if line.startswith("{") and '"batch' in line[:200] and line.endswith("}")
        ][:200]
    return found


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `findings`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, help="the workload; none: a trace alone is diagnosed")
    parser.add_argument("--structure", type=Path, required=True)
    parser.add_argument("--views", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="*",
        default=[],
        help="aa.json, or run.json files of unprofiled runs; none: the trace is the job",
    )
    parser.add_argument("--environment", type=Path, help="env.json, whose lock says which packages the job has")
    parser.add_argument("--checked", type=Path, help="run.json of a checked run, whose ledger counts tokens")
    parser.add_argument("--run", type=Path, help="folder of the profiled run (default: the folder that holds --views)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    if not args.events.is_dir():
        raise InputError(f"{args.events}: no such folder; run the rule parse first")
    job = load(
        args.spec,
        args.structure,
        args.views,
        args.events,
        runs=args.runs,
        profiled=args.run,
        environment=args.environment,
        checked=args.checked,
    )
    write_json(args.output, "wholejob/findings@1", diagnose(job, detectors.modules(), known_fixes()))
    return 0


if __name__ == "__main__":
    run(main)
