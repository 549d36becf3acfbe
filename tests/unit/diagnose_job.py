"""Small hand-made jobs for the tests of detectors: source text, host events in microseconds, rows of views."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from scripts.diagnose import detectors, source, structure
from scripts.diagnose.job import Finding, Job, NotApplicable
from scripts.diagnose.timeline import build
from scripts.diagnose.timing import Timing
from scripts.trace import dataset

US = 1000


def timing(**fields: Any) -> Timing:
    values = {
        "runs": 1,
        "wall_s": 11.0,
        "startup_s": 1.0,
        "step_s": 0.1,
        "excess_s": 0.0,
        "tail_s": 0.0,
        "steps": 100,
        "horizon_steps": 100,
    }
    return Timing(**{**values, **fields})


def event(name: str, start: int, end: int, cat: str = "python_function", **more: Any) -> dict[str, Any]:
    return {"name": name, "ts_ns": start * US, "dur_ns": (end - start) * US, "cat": cat, "pid": "1", "tid": "1", **more}


def op(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return event(name, start, end, "cpu_op", **more)


def job(
    tmp_path: Path,
    text: str,
    events: list[dict[str, Any]],
    views: dict[str, list[dict[str, Any]]] | None = None,
    **fields: Any,
) -> Job:
    """A job of one file `job.py` with a window of hand-made events and views."""
    (tmp_path / "job.py").write_text(text, encoding="utf-8")
    read = source.read(tmp_path)
    classes = {"python_function": "python", "cpu_op": "cpu_op", "user_annotation": "annotation"}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in events:
        rows.setdefault(classes[row["cat"]], []).append(row)
    tables = {name: dataset.table(name, found) for name, found in rows.items()}
    first = build(tables, read.functions)
    document = structure.extract(read, first, {}, tmp_path / "views", None)
    timed = fields.pop("timing", None) or timing()
    spec = fields.pop("spec", {"kind": "training"})
    return Job(spec, document, timed, first, lambda name: (views or {}).get(name, []), **fields)


def found(a_job: Job, identity: str) -> list[Finding]:
    results: list[Finding] = []
    for module in detectors.modules():
        if identity in module.LOOKED_FOR:
            with contextlib.suppress(NotApplicable):
                results += [f for f in module.detect(a_job) if f.id == identity]
    return results


LOOP = "def train(model, optimizer, xs):\n    for x in xs:\n        model(x).backward()\n        optimizer.step()\n"
STEP = [
    event("job.py(3): train", 0, 1000),
    op("aten::mm", 0, 400),
    event("Optimizer.step#AdamW.step", 500, 900, "user_annotation"),
    *[op("aten::addcdiv_", 500 + 40 * i, 540 + 40 * i, input_dims="[[100, 10], [], []]") for i in range(10)],
    op("aten::mm", 900, 1000),
]
