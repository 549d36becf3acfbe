"""Jobs that use CUDA graphs, recorded unedited; needs one GPU and torch alone, about a minute.

    python tests/gpu/parity_graphs.py

The same training runs eagerly, with its step captured by `torch.cuda.graph`, with a model from
`make_graphed_callables`, and with a `parity.record` inside the capture; each plain and under `parity run`. Prints a
table and, last, one JSON line; exit 1 where a check fails. Without a GPU only the eager job runs (exit 0, said so).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
JOB = """
import sys
import torch
from torch import nn

how = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=device == "cuda")
x, y = torch.zeros(32, 64, device=device), torch.zeros(32, dtype=torch.long, device=device)

def fill(index):
    generator = torch.Generator().manual_seed(index)
    x.copy_(torch.randn(32, 64, generator=generator))
    y.copy_(torch.randint(0, 8, (32,), generator=generator))

def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if how == "record":
        import parity
        parity.record("mine", loss)
    optimizer.step()
    return loss

if how == "callables":
    model = torch.cuda.make_graphed_callables(model, (torch.zeros(32, 64, device=device),))
if how in ("graph", "record"):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(3):
            fill(index)
            loss = step()
    torch.cuda.current_stream().wait_stream(side)
    del loss
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for index in range(3, STEPS):
        fill(index)
        graph.replay()
else:
    for index in range(STEPS):
        fill(index)
        loss = step()
print(loss.item().hex(), sum(p.double().sum().item() for p in model.parameters()).hex())
""".replace("STEPS", str(STEPS))


def run(how: str, folder: Path, mode: str | None) -> tuple[str, dict[str, Any]]:
    """(what the job printed, its records by tag with the ledger); plain where mode is None."""
    out = folder / f"{how}-{mode}"
    command = [sys.executable, str(folder / "job.py"), how]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    if mode:
        command = [sys.executable, "-m", "parity", "run", "--out", str(out), "--mode", mode, "--", *command]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(f"{how} {mode}: exit {done.returncode}\n{done.stderr[-3000:]}")
    if mode is None:
        return done.stdout, {}
    rows = [json.loads(line) for line in (out / "rank0.jsonl").read_text().splitlines()[1:]]
    tags: dict[str, list[Any]] = {}
    for row in rows:
        tags.setdefault(row["tag"], []).append(row)
    ledger = json.loads((out / "ledger.json").read_text())
    steps = len((out / "steps.jsonl").read_text().splitlines()) - 1
    return done.stdout, {"tags": tags, "steps": steps, **ledger}


def agree(one: list[Any], two: list[Any]) -> float:
    """The largest relative difference of two lists of records; infinite where their keys differ."""
    if [(row["step"], row["kind"]) for row in one] != [(row["step"], row["kind"]) for row in two]:
        return float("inf")
    worst = 0.0
    for a, b in zip(one, two):
        if a["kind"] == "float":
            worst = max(worst, abs(a["value"] - b["value"]) / max(abs(a["value"]), 1e-30))
        elif a["kind"] == "tensor":
            worst = max(worst, abs(a["l2"] - b["l2"]) / max(a["l2"], 1e-30))
        elif a.get("value") != b.get("value"):
            return float("inf")
    return worst


def check(folder: Path, has_gpu: bool) -> dict[str, bool]:
    """Every statement and whether it holds."""
    checks: dict[str, bool] = {}
    base: dict[str, Any] = {}
    for how in ("eager", "graph", "callables", "record") if has_gpu else ("eager",):
        plain, _ = run(how, folder, None)
        printed, found = run(how, folder, "checked")
        base = base or found
        checks[f"{how}: recording changes nothing"] = plain == printed
        checks[f"{how}: {STEPS} steps"] = found["steps"] == STEPS == found["invariants"].get("optimizer_steps")
        shared = [tag for tag in base["tags"] if tag in found["tags"]]
        apart = {tag: agree(base["tags"][tag], found["tags"][tag]) for tag in shared}
        lacking = sorted(set(base["tags"]) - set(shared))
        errors = [row["error"] for row in found["tags"].get("mine", []) if row["kind"] == "error"]
        print(
            f"{how:<10} steps {found['steps']}, unseen {found['unseen']}, lacking {lacking}, errors {found['errors']}"
        )
        print("           " + ", ".join(f"{tag} {value:.1g}" for tag, value in apart.items()))
        checks[f"{how}: tags are seen or listed"] = all(tag.split(".")[0] in found["unseen"] for tag in lacking)
        checks[f"{how}: values agree"] = max(apart.values()) < 1e-3
        checks[f"{how}: invariants"] = found["invariants"] == base["invariants"]
        checks[f"{how}: errors"] = (found["errors"] > 0) == (how == "record")
        if how == "record":
            checks["record: refused in words"] = any("CUDA graph capture" in text for text in errors)
        printed, timed = run(how, folder, "timed")
        checks[f"{how}: a timed run marks {STEPS} steps"] = timed["steps"] == STEPS and printed == plain
    return checks


def main() -> int:
    """Prints what was seen and, last, one JSON line."""
    probe = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    device = done.stdout.strip()
    print(device or "no CUDA device: only the eager job runs")
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "job.py").write_text(JOB)
        checks = check(Path(temporary), bool(device))
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
    ok = all(checks.values())
    print(json.dumps({"bench": "parity_graphs", "metrics": {"device": device or None}, "bars": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
