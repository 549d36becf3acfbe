"""Jobs that cannot be measured: one clear line, the right exit code, and what the job itself said."""

from __future__ import annotations

from tests.pipeline.conftest import TRAIN

RUN = "results/test/tiny/baseline/checked/seed0-repeat0/run.json"


def failure(checkout, target=RUN) -> str:
    done = checkout.snakemake(target)
    assert done.returncode != 0
    assert not (checkout.root / target).exists()
    return done.stdout


def test_crash_shows_the_step_the_error_and_the_jobs_last_lines(checkout):
    checkout.job(
        TRAIN.replace(
            "    opt.zero_grad()", "    if step == 3: raise RuntimeError('bad batch 17')\n    opt.zero_grad()"
        )
    )
    output = failure(checkout)
    line = next(line for line in output.splitlines() if line.startswith("error: "))
    assert "workload tiny" in line
    assert "after 3 steps" in line
    assert "bad batch 17" in output


def test_hanging_job_is_ended_at_its_time_limit(checkout):
    checkout.job(TRAIN.replace("for step", "import time; time.sleep(600)\nfor step"), launch={"timeout_s": 8})
    assert "timeout_s" in failure(checkout)


def test_command_that_does_not_exist(checkout):
    checkout.job(launch={"command": ["no-such-trainer", "--seed", "{seed}"]})
    output = failure(checkout)
    assert "no-such-trainer" in next(line for line in output.splitlines() if line.startswith("error: "))


def test_job_without_steps(checkout):
    checkout.job(
        "import json, os, sys, torch\nout = sys.argv[-1]\nos.makedirs(out, exist_ok=True)\njson.dump({}, open(out + '/result.json', 'w'))\n"
    )
    assert "no step marks" in failure(checkout)


def test_missing_output_is_named(checkout):
    checkout.job(launch={"outputs": ["result.json", "model.pt"]})
    assert "model.pt" in failure(checkout)


def test_job_that_ignores_its_seed(checkout):
    checkout.job(TRAIN.replace("torch.manual_seed(a.seed)", "torch.manual_seed(1)"))
    output = failure(checkout, "results/test/tiny/noise.json")
    line = next(line for line in output.splitlines() if line.startswith("error: "))
    assert "seed" in line


def test_patch_that_does_not_apply_is_a_verdict_and_not_a_failure(checkout):
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-no such line\n+x = 1\n"
    (checkout.root / "mine.diff").write_text(patch)
    checkout.job(proposers=["file:mine.diff"])
    target = "results/test/tiny/file_mine/r0/c0/guard.json"
    done = checkout.snakemake(target)
    if done.returncode:  # the proposer itself says what is wrong with the file
        line = next(line for line in done.stdout.splitlines() if line.startswith("error: "))
        assert "mine.diff" in line
    else:
        text = (checkout.root / target).read_text()
        assert '"status": "refused"' in text or '"status": "nothing"' in text
