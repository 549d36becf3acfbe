"""A copy of the repository with a tiny job in it, and Snakemake run on that copy as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COPIED = ["Snakefile", "rules", "scripts", "parity", "config", "profiles"]

TRAIN = """\
import argparse, json, os
import torch
p = argparse.ArgumentParser()
p.add_argument("--steps", type=int); p.add_argument("--seed", type=int); p.add_argument("--out")
a = p.parse_args()
torch.manual_seed(a.seed)
os.makedirs(a.out, exist_ok=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(a.steps):
    x = torch.randn(8, 16)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
json.dump({"loss": loss.item()}, open(os.path.join(a.out, "result.json"), "w"))
"""

SPEC = {
    "name": "tiny",
    "title": "Tiny job for tests",
    "kind": "training",
    "source": {"path": "workloads/tiny", "editable": ["*.py"]},
    "environment": {"variables": {"OMP_NUM_THREADS": "1"}},
    "launch": {
        "command": ["python", "train.py", "--steps", "{steps}", "--seed", "{seed}", "--out", "{out}"],
        "timeout_s": 60,
        "outputs": ["result.json"],
    },
    "measure": {"steps": 6, "pairs": 6, "aa_pairs": 6, "screen_pairs": 2},
    "parity": {"repeats": 1, "perturbed": 2},
    "profile": {"steps": [2, 4]},
    "proposers": ["playbook"],
    "rounds": 1,
    "candidates": 1,
}


@dataclass
class Checkout:
    """A copy of the repository in a folder of its own."""

    root: Path

    def job(self, text: str = TRAIN, **fields) -> None:
        """Write the tiny workload; `fields` are merged into its specification."""
        folder = self.root / "workloads" / "tiny"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(text)
        spec = {
            key: {**value, **fields[key]} if isinstance(value, dict) and key in fields else fields.get(key, value)
            for key, value in {**SPEC, **{key: fields[key] for key in fields if key not in SPEC}}.items()
        }
        (self.root / "workloads" / "tiny.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))

    def snakemake(
        self, *arguments: str, config: tuple[str, ...] = ("workload=tiny", "device=test")
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end; output and errors together."""
        return subprocess.run(
            self.command(*arguments, config=config),
            cwd=self.root,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=550,
        )

    def command(self, *arguments: str, config: tuple[str, ...] = ("workload=tiny", "device=test")) -> list[str]:
        """The command line, for tests that start and kill it themselves."""
        return [sys.executable, "-m", "snakemake", *arguments, "--config", *config]

    def environment(self) -> dict[str, str]:
        # Tests run beside each other: to wait for an idle machine would only make them slow.
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "WHOLEJOB_IDLE_WAIT_S": "0"}


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A fresh copy with the tiny job."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    made = Checkout(root)
    made.job()
    return made
