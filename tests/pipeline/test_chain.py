"""The whole chain on a tiny job: every file is there, a second call does nothing, kill -9 leaves nothing that a rerun does not repair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import psutil
import pytest

pytestmark = pytest.mark.pipeline
W = "results/test/tiny"


def verdict(checkout, place: str) -> dict:
    return json.loads((checkout.root / W / place / "verdict.json").read_text())


def jobs_of(checkout) -> list[psutil.Process]:
    """Living processes that work in or for this checkout."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(checkout.root) in words or (process.info["cwd"] or "").startswith(str(checkout.root)):
            found.append(process)
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def gone(checkout, seconds: float) -> bool:
    """Whether every process of the checkout ends by itself within the time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if not jobs_of(checkout):
            return True
        time.sleep(0.2)
    return False


def test_chain_ends_with_tables_and_a_second_call_does_nothing(checkout):
    slower = checkout.root / "slower.diff"
    slower.write_text(
        "diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -8,3 +8,4 @@\n"
        " model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))\n"
        "-opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n+opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)\n"
        " for step in range(a.steps):\n     x = torch.randn(8, 16)\n"
    )
    checkout.job(proposers=["file:slower.diff"])
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout[-4000:]
    assert "tiny by file_slower" in done.stdout
    tables = checkout.root / "results" / "test" / "tables"
    for name in ("speedups", "changes", "candidates", "noise", "costs"):
        for suffix in ("csv", "md", "tex", "txt"):
            assert (tables / f"{name}.{suffix}").stat().st_size > 0
    for place in ("file_slower/r0/c0", "file_slower/final"):
        found = verdict(checkout, place)
        assert found["verdict"] in (
            "faster",
            "slower",
            "no_difference",
            "inconclusive",
            "not_measured",
            "invalid_patch",
        )
        assert (found["ratio"] is not None) == (found["verdict"] in ("faster", "slower", "no_difference"))
    again = checkout.snakemake()
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout

    # What changes reruns what: a comment in the tables' own script, and nothing else of the chain.
    script = checkout.root / "scripts" / "report" / "tables.py"
    script.write_text(script.read_text() + "# a comment\n")
    planned = checkout.snakemake("-n", "-q", "rules").stdout
    assert "tables" in planned
    assert "race" not in planned
    script.write_text(script.read_text().removesuffix("# a comment\n"))
    for path in (checkout.root / "scripts").rglob("*.py"):
        path.touch()
    assert "Nothing to be done" in checkout.snakemake("-n").stdout
    # a title reruns the tables' reading of it, a length of run everything that ran
    checkout.job(proposers=["file:slower.diff"], title="Another title")
    assert "baseline_run" not in checkout.snakemake("-n", "-q", "rules").stdout
    checkout.job(proposers=["file:slower.diff"], measure={"steps": 7})
    assert "baseline_run" in checkout.snakemake("-n", "-q", "rules").stdout


def test_kill_of_snakemake_in_a_race_leaves_no_orphan_and_a_rerun_completes(checkout):
    target = f"{W}/timing/aa.json"
    process = subprocess.Popen(
        checkout.command(target),
        cwd=checkout.root,
        env=checkout.environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = checkout.root / "logs" / "test" / "tiny" / "aa.log"
    limit = time.monotonic() + 200
    while time.monotonic() < limit and not (log.is_file() and "block 1" in log.read_text()):
        time.sleep(0.1)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone(checkout, 20), [p.cmdline() for p in jobs_of(checkout)]
    assert not (checkout.root / target).exists()
    assert checkout.snakemake("--unlock").returncode == 0
    done = checkout.snakemake(target)
    assert done.returncode == 0, done.stdout[-3000:]
    assert json.loads((checkout.root / target).read_text())["pairs"] >= 6
    assert not list((checkout.root / W).rglob("*.part"))
