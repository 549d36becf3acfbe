"""The five minutes of docs/parity.md on a small job: recorder, noise and comparison together, through the programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if "wrong" not in sys.argv else 0.1001)
for epoch in range(3):
    for x, y in loader:
        if "reordered" in sys.argv:
            x, y = x.flip(0), y.flip(0)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def parity(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "parity", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    (path / "train.py").write_text(JOB)
    job = ("--", sys.executable, "train.py")
    runs = {"base": (), "cand": (), "wrong": (), "reordered": ()}
    for name in runs:
        extra = () if name in ("base", "cand") else (name,)
        assert parity(path, "run", "--out", name, *job, *extra).returncode == 0
    for seed in "123":
        done = parity(path, "run", "--out", f"n{seed}", "--perturb", "ulp", "--perturb-seed", seed, *job)
        assert done.returncode == 0, done.stderr
    return path


def test_noise_of_perturbed_runs_accepts_a_clean_run_and_finds_a_fault(folder):
    derived = parity(folder, "derive", "base", "n1", "n2", "n3", "-o", "noise.json")
    assert derived.returncode == 0, derived.stdout + derived.stderr
    clean = parity(folder, "compare", "base", "cand", "--noise", "noise.json")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    wrong = parity(folder, "compare", "base", "wrong", "--noise", "noise.json", "--json", "report.json")
    assert wrong.returncode == 1
    report = json.loads((folder / "report.json").read_text())
    # A learning rate 0.1 % too high shows in the first update, after loss and gradient of step 0 have agreed.
    assert report["first_divergence"]["step"] in (0, 1)
    assert "loss" in report["first_divergence"]["agreed_in_step"] or report["first_divergence"]["step"] == 1


def test_reordered_rows_of_a_batch_are_caught_by_the_batch_and_by_nothing_else(folder):
    parity(folder, "derive", "base", "n1", "n2", "n3", "-o", "noise.json")
    full = parity(folder, "compare", "base", "reordered", "--noise", "noise.json")
    assert full.returncode == 1
    assert "step 0, batch" in full.stdout


def test_a_copy_is_refused_by_its_header(folder):
    subprocess.run(["cp", "-r", "base", "copy"], cwd=folder, check=True)
    done = parity(folder, "compare", "base", "copy")
    assert done.returncode == 3
    assert "copy" in done.stderr


def test_help_names_every_command(folder):
    text = parity(folder, "--help").stdout
    assert all(word in text for word in ("run", "derive", "compare", "show", "0 equivalent", "3 cannot compare"))
    for command in ("run", "derive", "compare", "show"):
        done = parity(folder, command, "--help")
        assert done.returncode == 0
        assert f"parity {command}" in done.stdout
