"""Noise of the unmodified job, and the one line for a job that ignores its seed."""

import json
import sys
from pathlib import Path

import pytest

from scripts.baseline.noise import main, measure
from scripts.common.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))

from record import run_document


@pytest.fixture
def recorded(tmp_path):
    """`recorded(name, values)`: a run folder whose losses are `values`."""

    def make(name, values):
        records = tmp_path / name / "records"
        records.mkdir(parents=True)
        header = {"schema": "parity/records@1", "run_id": name.encode().hex(), "rank": 0, "world_size": 1}
        header |= {"perturb": "ulp", "perturb_seed": 1} if "ulp" in name else {}
        lines = [header] + [
            {"tag": "loss", "step": step, "occurrence": 0, "kind": "float", "value": value}
            for step, value in enumerate(values)
        ]
        (records / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    return make


VALUES = [3.0, 2.5, 2.2, 2.0]


def test_noise_comes_from_the_visible_seed_alone(recorded):
    folders = [recorded("seed0-repeat0", VALUES)]
    folders += [recorded(f"seed0-ulp{i}", [v * (1 + (i + 1) * 1e-7) for v in VALUES]) for i in range(3)]
    folders.append(recorded("seed7-repeat0", [v + 1 for v in VALUES]))
    found = measure(folders, 0, "toy")
    assert found["runs"] == [f"seed0-{name}" for name in ("repeat0", "ulp0", "ulp1", "ulp2")]
    assert found["seed_matters"] is True
    assert found["parity"]["distinct"] == 4
    assert "loss" in found["tags"]


def test_job_that_ignores_its_seed_is_refused_in_one_line(recorded):
    folders = [recorded("seed0-repeat0", VALUES)]
    folders += [recorded(f"seed0-ulp{i}", [v * (1 + (i + 1) * 1e-7) for v in VALUES]) for i in range(3)]
    folders.append(recorded("seed7-repeat0", VALUES))
    with pytest.raises(InputError, match="toy: the job ignores its seed: seed7-repeat0") as raised:
        measure(folders, 0, "toy")
    assert "\n" not in str(raised.value)


def test_too_few_runs_and_odd_names_are_refused(recorded):
    with pytest.raises(InputError, match="3 or more runs"):
        measure([recorded("seed0-repeat0", VALUES), recorded("seed0-repeat1", VALUES)], 0, "toy")
    with pytest.raises(InputError, match="seed<seed>-repeat<i>"):
        measure([recorded("other", VALUES)], 0, "toy")


def test_a_job_that_is_not_probed_is_told_from_its_seed_by_its_outputs(recorded):
    def made(name, digest):
        folder = recorded(name, [])
        document = {
            "started_ns": 1,
            "wall_s": 1.0,
            "cpu_user_s": 1.0,
            "cpu_system_s": 0.1,
            "peak_rss_bytes": 1,
            "steps": 1,
            "outputs": [{"path": "a.jsonl", "bytes": 1, "sha256": digest}],
        }
        (folder / "run.json").write_text(json.dumps(run_document(**document)))
        return folder

    folders = [made("seed0-repeat0", "a" * 64), *(made(f"seed0-ulp{i}", "a" * 64) for i in range(2))]
    found = measure([*folders, made("seed1-repeat0", "b" * 64)], 0, "toy", unprobed=True)
    assert found["seed_matters"] is True
    assert found["parity"]["unprobed"] is True
    assert found["tags"] == {}
    with pytest.raises(InputError, match="ignores its seed: seed2-repeat0"):
        measure([*folders, made("seed2-repeat0", "a" * 64)], 0, "toy", unprobed=True)
    with pytest.raises(InputError, match="nothing was probed"):
        measure(folders, 0, "toy")


def test_nothing_probed_and_nothing_compared_is_refused(tmp_path):
    spec = {"schema": "wholejob/spec@1", "name": "toy", "parity": {"seed": 0, "probes": [], "outputs": "exists"}}
    spec["launch"] = {"outputs": ["a.jsonl"]}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(InputError, match="nothing would show what a patch changes"):
        main(["--spec", str(path), str(tmp_path / "run.json"), "-o", str(tmp_path / "noise.json")])
    assert not (tmp_path / "noise.json").exists()
