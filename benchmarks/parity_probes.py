"""What the probes of a checked run cost a step of CPU time, and how many operations they dispatch, now and before.

The job is a stack of 75 small convolutions (302 parameters, as in a small YOLO) that is fed images as bytes. It runs
plain, under the recorder of this tree and under the recorder of an earlier commit, interleaved; operations are counted
in runs of their own (on a GPU each is about one launch). The recorded numbers of both recorders must be equal: floats
to 1e-6, texts (hashes of batches) only where both versions of the summary hash alike.

    python benchmarks/parity_probes.py [--before REVISION] [--image 640]

Bars: the probes dispatch at most a fifth of the operations, and cost at most half of the CPU time, of the earlier ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PROBES = ["batch", "loss", "grad_norm", "param_norm", "update_norm"]
REPEATS = 3
JOB = """
import json, sys, time
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

steps, image, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "count"
torch.manual_seed(0)
torch.set_num_threads(1)
layers = []
for index in range(75):
    layers += [nn.Conv2d(8 if index else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
images = torch.randint(0, 255, (4 * steps, 3, image, image), dtype=torch.uint8)
data = torch.utils.data.TensorDataset(images, torch.randint(0, 4, (4 * steps,)))
seen = 0

class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        global seen
        seen += 1
        return function(*args, **(kwargs or {}))

def train():
    marks = []
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        loss = nn.functional.cross_entropy(model(x[:, :, :16, :16].float() / 255), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        marks.append((time.process_time(), seen))
    return marks, loss.item()

if count:
    with Counting():
        marks, last = train()
else:
    marks, last = train()
print(json.dumps({"marks": marks, "parameters": len(list(model.parameters())), "loss": last}))
"""


def earlier(revision: str, folder: Path) -> Path:
    """The parity package of another commit, unpacked."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision, "parity"], check=True, capture_output=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def job(tree: Path | None, out: Path, arguments: list[str]) -> dict[str, Any]:
    """One run of the job: plain (no tree), or under the recorder that lies in `tree`."""
    command = [sys.executable, str(out.parent / "job.py"), *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if tree is not None:
        command = [
            sys.executable,
            "-m",
            "parity",
            "run",
            "--out",
            str(out),
            "--probes",
            ",".join(PROBES),
            "--",
            *command,
        ]
        environ["PYTHONPATH"] = str(tree)
    done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True, cwd=out.parent)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def per_step(marks: list[list[float]], column: int) -> float:
    """The median increase from step to step, from the fourth on."""
    return statistics.median(b[column] - a[column] for a, b in zip(marks[3:], marks[4:], strict=False))


def apart(one: Path, two: Path) -> float:
    """The largest relative difference between the floats of two recordings; raises where tags or steps differ."""
    rows = [[json.loads(line) for line in (run / "rank0.jsonl").read_text().splitlines()[1:]] for run in (one, two)]
    worst = 0.0
    for a, b in zip(*rows, strict=True):
        if [a[name] for name in ("tag", "step", "kind")] != [b[name] for name in ("tag", "step", "kind")]:
            raise SystemExit(f"the recordings differ: {a['tag']} and {b['tag']}")
        if a["kind"] == "float":
            worst = max(worst, abs(a["value"] - b["value"]) / abs(a["value"]))
    return worst


def main() -> int:
    """Prints the table and, last, one JSON line; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--before", default="3ea20a8", help="commit of the recorder to compare with")
    parser.add_argument("--image", type=int, default=640, help="height and width of the images")
    options = parser.parse_args()
    metrics: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "job.py").write_text(JOB)
        (folder / "before").mkdir()
        trees = {"plain": None, "before": earlier(options.before, folder / "before"), "now": ROOT}
        times: dict[str, list[float]] = {name: [] for name in trees}
        losses = set()
        for repeat in range(REPEATS):
            for name, tree in trees.items():
                found = job(tree, folder / f"{name}{repeat}", ["16", str(options.image), "time"])
                times[name].append(1000 * per_step(found["marks"], 0))
                losses.add(found["loss"])
        counts = {
            name: per_step(job(tree, folder / f"{name}-count", ["8", "64", "count"])["marks"], 1)
            for name, tree in trees.items()
        }
        metrics["largest relative difference"] = apart(folder / "before0", folder / "now0")
    print(f"{found['parameters']} parameters, images 4 x 3 x {options.image} x {options.image} of bytes a step")
    print(f"{'recorder':<10} {'CPU ms a step':>14} {'of the probes':>14} {'operations':>11} {'of the probes':>14}")
    plain, base = min(times["plain"]), counts["plain"]
    for name in trees:
        cpu, operations = min(times[name]), counts[name]
        print(f"{name:<10} {cpu:>14.1f} {cpu - plain:>14.1f} {operations:>11.0f} {operations - base:>14.0f}")
        metrics[f"{name}: cpu_ms"], metrics[f"{name}: operations"] = cpu, operations
    print(f"largest relative difference of a recorded number: {metrics['largest relative difference']:.2g}")
    bars = {
        "operations of the probes": counts["now"] - base <= (counts["before"] - base) / 5,
        "CPU time of the probes": min(times["now"]) - plain <= (min(times["before"]) - plain) / 2,
        "numbers": metrics["largest relative difference"] <= 1e-6,
        "losses of the job": len(losses) == 1,
    }
    print(json.dumps({"bench": "parity_probes", "metrics": metrics, "bars": bars, "ok": all(bars.values())}))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
