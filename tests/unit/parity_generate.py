"""Writes run folders in the recorder's format, for the comparer's tests: real files, values that a test chooses."""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HEADER = {
    "schema": "parity/records@1",
    "rank": 0,
    "world_size": 1,
    "program": "train.py",
    "argv": ["train.py"],
    "perturb": None,
    "perturb_seed": None,
    "torch": "2.13.0",
    "cuda": None,
    "gpus": [],
    "backend": {"matmul_tf32": False, "cudnn_benchmark": False},
    "seed": 0,
}


def scalar(tag: str, step: int | None, value: Any, occurrence: int = 0, **more: Any) -> dict[str, Any]:
    """A record of a bool, int, float or text."""
    kind = {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    return {"tag": tag, "step": step, "occurrence": occurrence, "kind": kind, "value": value, **more}


def tensor(tag: str, step: int, values: Iterable[float], dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """The recorder's own summary of a one-dimensional tensor."""
    import torch

    from parity.summary import summarize

    value = values if isinstance(values, torch.Tensor) else torch.tensor(list(values), dtype=getattr(torch, dtype))
    record = {"tag": tag, "step": step, "occurrence": 0, "kind": "tensor", **summarize(value, tag), **more}
    return json.loads(json.dumps(_strict(record)))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _strict(inner) for name, inner in value.items()}
    return [_strict(inner) for inner in value] if isinstance(value, list) else value


def write_run(
    folder: Path,
    rows: Iterable[dict[str, Any]],
    *,
    rank: int = 0,
    ledger: dict[str, Any] | None = None,
    **header: Any,
) -> Path:
    """One rank of a run; `ledger` holds its invariants."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {**HEADER, "run_id": uuid.uuid4().hex, "rank": rank, **header}
    with (folder / f"rank{rank}.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        file.writelines(json.dumps(row) + "\n" for row in rows)
    if ledger is not None:
        name = "ledger.json" if rank == 0 else f"ledger.rank{rank}.json"
        document = {"schema": "parity/ledger@1", "invariants": ledger, "unseen": [], "context": {}, "errors": 0}
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return folder


def training(
    seed: int,
    *,
    steps: int = 40,
    noise: float = 1e-7,
    growth: float = 1.15,
    change: Callable[[str, int, float], float] | None = None,
) -> list[dict[str, Any]]:
    """Loss and gradient norm of a made-up training whose runs part at a rate of `growth` a step."""
    generator = random.Random(seed)
    drift, rows = 0.0, []
    for step in range(steps):
        drift = drift * growth + noise * generator.gauss(0, 1)
        for tag, value, gain in (("loss", 4.0 - 0.03 * step, 1.0), ("grad_norm", 1.0 + 0.1 * math.sin(step), 3.0)):
            moved = value * (1 + gain * drift)
            rows.append(scalar(tag, step, change(tag, step, moved) if change else moved))
    return rows
