"""Noise of the unmodified job, and the one line for a job that ignores its seed."""

import json

import pytest

from scripts.baseline.noise import measure
from scripts.common.errors import InputError


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
