"""The unprofiled job's time and its parts."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from scripts.common.errors import InputError
from scripts.diagnose import timing

sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))

import record


def run_folder(folder: Path, durations: list[float], **fields: object) -> Path:
    """run.json of a timed run of 10 s with steps of these lengths, one after the other."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    ends = list(itertools.accumulate(int(seconds * 1e9) for seconds in durations))
    record.write_steps(folder / "records", list(itertools.pairwise([0, *ends])))
    known = {"wall_s": 10.0, "cpu_user_s": 9.0, "cpu_system_s": 0.5, "first_step_s": 2.1, "last_step_s": 9.5}
    document = {**known, "started_ns": 1, "peak_rss_bytes": 1, "steps": len(durations), **fields}
    path = folder / "run.json"
    path.write_text(json.dumps(record.run_document(**document)), encoding="utf-8")
    return path


def test_parts_sum_to_the_measured_run(tmp_path: Path) -> None:
    durations = [0.1] * 60
    durations[20] = durations[40] = 0.6
    path = run_folder(tmp_path, durations, first_step_s=2.1, last_step_s=2.1 + sum(durations[1:]), wall_s=10.0)
    t = timing.load([path], {})
    assert t.step_s == pytest.approx(0.1)
    assert t.excess_s == pytest.approx(1.0)
    assert t.total_s == pytest.approx(10.0)
    assert (t.slow, t.period) == ([20, 40], 20)


def test_a_horizon_in_requests_is_counted_in_the_marks_that_a_request_has(tmp_path: Path) -> None:
    """frozen_decoder on the H200: four requests asked for, 80 marks, 200 requests declared."""
    path = run_folder(tmp_path, [0.01] * 80, first_step_s=2.01, last_step_s=2.80, wall_s=3.0)
    t = timing.load([path], {"measure": {"steps": 4, "horizon": {"steps": 200}}})
    assert (t.horizon_steps, t.marks_per_step) == (4000, 20)
    assert t.total_s == pytest.approx(2.0 + 4000 * 0.01 + 0.2)
    assert t.as_dict()["marks_per_declared_step"] == 20
    undeclared = timing.load([path], {"measure": {"steps": 4}})
    assert undeclared.horizon_steps == 80


def test_horizon_scales_steps_and_slow_steps_but_not_start_up(tmp_path: Path) -> None:
    durations = [0.1] * 60
    durations[20] = durations[40] = 0.6
    path = run_folder(tmp_path, durations, first_step_s=2.1, last_step_s=2.1 + sum(durations[1:]), wall_s=10.0)
    t = timing.load([path], {"measure": {"horizon": {"steps": 6000}}})
    assert t.total_s == pytest.approx(2.0 + 6000 * 0.1 + 100 * 1.0 + t.tail_s)
    assert t.steady_share() == pytest.approx(600 / t.total_s)


def test_a_period_is_found_among_disturbed_steps(tmp_path: Path) -> None:
    marks = [0.1] * 64
    for i in range(8, 64, 8):
        marks[i] = 0.3
    marks[3] = marks[30] = 0.25
    slow, period = timing.slow_steps(marks, 0.1)
    assert (slow, period) == ([8, 16, 24, 32, 40, 48, 56], 8)


def test_slow_steps_at_random_have_no_period() -> None:
    marks = [0.1] * 40
    for i in (3, 11, 12, 26):
        marks[i] = 0.5
    slow, period = timing.slow_steps(marks, 0.1)
    assert period is None
    assert slow == [3, 11, 12, 26]


def test_no_usable_run_is_one_line(tmp_path: Path) -> None:
    path = run_folder(tmp_path, [0.1], status="crashed", reason="exit code 1")
    with pytest.raises(InputError, match="no run with status ok"):
        timing.load([path], {})


def test_a_torn_last_mark_is_skipped(tmp_path: Path) -> None:
    path = run_folder(tmp_path, [0.1, 0.1, 0.1]).parent / "records" / "steps.jsonl"
    path.write_text(path.read_text() + '\n{"step": 3, "end', encoding="utf-8")
    assert len(timing.step_durations(path)) == 3


def test_a_trace_alone_is_its_own_job() -> None:
    rows = [{"rank": 0, "step": None, "wall_ns": 30}, *({"rank": 0, "step": i, "wall_ns": 10**8} for i in range(3))]
    t = timing.of_trace(rows, {"capture_ns": 3 * 10**8})
    assert (t.runs, t.steps, t.startup_s) == (0, 3, 0.0)
    assert t.steady_share() == pytest.approx(1.0)
