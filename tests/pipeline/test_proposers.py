"""Each proposer without a paid model, through the whole chain to a verdict: settings, a commit, and a recorded model."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.pipeline
ROOT = Path(__file__).resolve().parents[2]
TAPE = ROOT / "tests" / "data" / "tape_tiny_job"
W = "results/test/tiny"
JUDGED = {"faster", "slower", "no_difference", "inconclusive"}
KNOB = {"name": "MALLOC_TRIM_THRESHOLD_", "kind": "env", "values": [None, "1073741824"]}


def commit(checkout, folder: Path) -> str:
    """A repository whose last commit changes the job, which lies two folders deep in it; the commit's hash."""
    place = folder / "examples" / "tiny"
    shutil.copytree(checkout.root / "workloads" / "tiny", place)

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Start")
    text = (place / "train.py").read_text()
    (place / "train.py").write_text(text.replace("lr=1e-2)", "lr=1e-2, foreach=True)"))
    git("commit", "-q", "-a", "-m", "Update all parameters together")
    return git("rev-parse", "HEAD")


def test_knobs_a_commit_and_a_recorded_model_are_judged(checkout, tmp_path):
    (checkout.root / "workloads" / "tiny" / "knobs.json").write_text(json.dumps({KNOB["name"]: None}))
    shutil.copytree(TAPE, checkout.root / "tape")
    revision = commit(checkout, tmp_path / "upstream")
    names = ["knobs", f"git_upstream_{revision[:8]}", "replay_tape"]
    fields = {
        "proposers": ["knobs", f"git:{tmp_path}/upstream@{revision}", "replay:tape"],
        "knobs": [KNOB],
        "knobs_file": "knobs.json",
        "source": {"editable": ["*.py", "knobs.json"]},
        "launch": {"timeout_s": 300},  # a busy machine imports torch slowly
    }
    checkout.job(**fields)
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout[-4000:]
    for name in names:
        place = checkout.root / W / name / "r0" / "c0"
        proposal, guard, parity, verdict = (
            json.loads((place / f"{file}.json").read_text()) for file in ("proposal", "guard", "parity", "verdict")
        )
        assert proposal["status"] == "patch" and guard["status"] == "pass", (name, proposal, guard)
        assert parity["answer"] == "equivalent", (name, parity)
        assert verdict["verdict"] in JUDGED, (name, verdict)
        assert (checkout.root / W / name / "final" / "verdict.json").is_file()

    def variables(run: str) -> dict:
        return json.loads((checkout.root / W / run / "run.json").read_text())["environment"]["variables"]

    assert KNOB["name"] not in variables("baseline/checked/seed0-repeat0")
    assert variables("knobs/r0/c0/checked/0")[KNOB["name"]] == "1073741824"

    replayed = json.loads((checkout.root / W / "replay_tape" / "r0" / "c0" / "proposal.json").read_text())
    assert replayed["usage"]["calls"] == 1 and replayed["usage"]["output_tokens"] > 0
    assert replayed["usage"]["dollars"] is None  # nobody knows what a local model costs; never 0
    with (checkout.root / "results" / "test" / "tables" / "costs.csv").open() as file:
        costs = {row["proposer"]: row for row in csv.DictReader(file)}
    assert set(costs) == set(names)

    # A second call does nothing; another answer on the tape proposes again and measures no baseline again.
    assert "Nothing to be done" in checkout.snakemake().stdout
    for path in (checkout.root / "tape").glob("*.json"):
        path.write_text(path.read_text().replace('"label": "', '"label": "edited: '))
    planned = checkout.snakemake("-n", "-q", "rules").stdout
    assert "propose" in planned and "baseline_run" not in planned
