"""The planted jobs are what the benchmark takes them for, and one of them is found end to end."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from scripts.diagnose import detectors

sys.path.insert(0, str(Path(__file__).parent))

import planted


@pytest.mark.parametrize("name", planted.names())
def test_twins_differ_in_the_fault_alone(name: str) -> None:
    job = planted.read(name)
    fault, clean = job.fault.splitlines(), job.clean.splitlines()
    ast.parse(job.fault)
    ast.parse(job.clean)
    assert job.fault != job.clean
    assert len(fault) == len(clean)  # line numbers are the same in both
    assert not any(line.startswith("#:") for line in fault + clean)
    differing = [(a, b) for a, b in zip(fault, clean, strict=True) if a != b]
    assert all(not a or not b for a, b in differing)  # each differing line belongs to one arm


@pytest.mark.parametrize("name", planted.names())
def test_each_is_named_for_a_finding(name: str) -> None:
    assert any(name in module.LOOKED_FOR for module in detectors.modules())


def test_every_job_runs_somewhere_and_says_how() -> None:
    jobs = [planted.read(name) for name in planted.names()]
    assert all(job.cpu or job.gpu for job in jobs)
    assert {name for name in planted.names() if planted.read(name).ranks > 1} == {
        "communication_exposed",
        "straggler_rank",
    }
    assert set(planted.names("cpu")) | set(planted.names("gpu")) == set(planted.names())


def test_an_unknown_word_in_the_head_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.job").write_text('"""A job."""\n# planted: gpus\n', encoding="utf-8")
    monkeypatch.setattr(planted, "JOBS", tmp_path)
    with pytest.raises(ValueError, match=r"x\.job:2: gpus is none of"):
        planted.read("x")


def test_an_arm_sets_its_own_variables_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '"""A job."""\n# fault {\n#$ A=1=2\n# } clean {\n#:#$ B=3\n# }\n'
    (tmp_path / "x.job").write_text(text, encoding="utf-8")
    monkeypatch.setattr(planted, "JOBS", tmp_path)
    assert planted.read("x").variables("fault") == {"A": "1=2"}
    assert planted.read("x").variables("clean") == {"B": "3"}


UNPLANTED = {
    "compile_missed": "worth something only beyond half a minute of compiling",
    "environment_cpu_build": "needs a GPU host with a CPU build of torch",
    "environment_clocks": "the device's power and clocks are not ours to change",
    "environment_missing_package": "the missing package cannot be installed for the twin",
}
"""Findings that no planted job gives; each has its case in tests/unit/test_diagnose_detectors.py."""


def test_every_finding_has_a_planted_job_or_a_reason_and_a_case() -> None:
    every = {name for module in detectors.modules() for name in module.LOOKED_FOR}
    published = {"weights_moved"}  # workloads/frozen_decoder, by benchmarks/diagnose_gpu.py
    missing = every - set(planted.names()) - published
    assert missing == set(UNPLANTED)


@pytest.mark.pipeline
def test_a_planted_fault_is_found_with_its_line_and_not_in_the_twin(tmp_path: Path) -> None:
    found = {}
    for arm in ("fault", "clean"):
        for plain in (True, False):
            planted.launch("work_in_step", arm, tmp_path, plain=plain, arguments=("40",))
        found[arm] = planted.diagnose("work_in_step", arm, tmp_path, summarise=True)["findings"]
    first = found["fault"][0]
    assert first["id"] == "work_in_step"
    assert first["anchors"][0]["line"] in planted.fault_lines("work_in_step")
    assert "work_in_step" not in [f["id"] for f in found["clean"]]
