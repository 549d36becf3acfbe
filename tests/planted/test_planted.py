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
