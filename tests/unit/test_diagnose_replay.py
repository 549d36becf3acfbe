"""Launches, kernels and waits replayed at another pace, and what a wait is worth by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.diagnose import replay
from scripts.trace import dataset
from tests.unit.diagnose_job import LOOP, event, found, job, op, timing

US = 1_000
LATENCY, RETURN = replay.LAUNCH_LATENCY_NS, replay.RETURN_NS


def launch(kernel_us: float, *, start: int = 0, before_us: float = 1, stream: int = 7, **more: Any) -> replay.Call:
    known = {"waits": False, "reads": False, "moves": False, "kernel_start_ns": 0, **more}
    return replay.Call(start, before_us * US, 4 * US, kernel_ns=kernel_us * US, stream=stream, **known)


def wait(*, start: int = 0, reads: bool = True) -> replay.Call:
    return replay.Call(
        start, 1 * US, 0.0, waits=True, reads=reads, moves=False, kernel_ns=None, kernel_start_ns=0, stream=0
    )


def test_kernels_of_a_stream_follow_each_other_and_streams_run_beside_each_other() -> None:
    one = [launch(100), launch(100)]
    assert replay.duration(one, 1.0, 0.0) == pytest.approx(5 * US + LATENCY + 200 * US)
    two = [launch(100), launch(100, stream=8)]
    assert replay.duration(two, 1.0, 0.0) == pytest.approx(10 * US + LATENCY + 100 * US)


def test_a_wait_holds_the_host_until_the_device_is_done() -> None:
    calls = [launch(100), wait(), launch(100)]
    first = 5 * US + LATENCY + 100 * US
    assert replay.duration(calls, 1.0, 0.0) == pytest.approx(first + RETURN + 5 * US + LATENCY + 100 * US)
    assert replay.duration(calls, 1.0, 0.0, reads=False) == pytest.approx(first + 100 * US)
    needed = [launch(100), wait(reads=False), launch(100)]  # a copy's wait, which no read asks for
    assert replay.duration(needed, 1.0, 0.0, reads=False) == replay.duration(needed, 1.0, 0.0)


def test_the_pace_is_the_one_that_lasts_as_long_as_the_unprofiled_job() -> None:
    calls = [launch(2, before_us=20) for _ in range(100)]  # the host is late: 24 us a launch as recorded
    slow = replay.duration(calls, 1.0, 0.0)
    fitted = replay.fit(calls, slow / 2)
    assert fitted is not None
    assert fitted.total_ns == pytest.approx(slow / 2, rel=1e-3)
    assert fitted.pace == pytest.approx(0.5, rel=0.01)
    assert fitted.without_reads() == fitted.total_ns  # nothing waits


def test_a_window_shorter_than_wanted_keeps_its_duration_and_a_busy_device_bounds_it() -> None:
    calls = [launch(100) for _ in range(10)]
    for wanted in (1e12, 1.0):
        fitted = replay.fit(calls, wanted)
        assert fitted is not None
        assert fitted.total_ns == pytest.approx(replay.duration(calls, fitted.pace, 0.0))
        assert fitted.total_ns >= 1000 * US


def test_the_device_s_own_time_between_kernels_is_no_wait_for_the_host() -> None:
    """Ten kernels launched ahead, 2 us between them on the device, and one launched late, which says nothing of it."""
    calls = [launch(98, start=10_000 * n, kernel_start_ns=20_000 + 100_000 * n) for n in range(10)]
    calls.append(launch(98, start=2_000_000, kernel_start_ns=2_010_000))
    assert replay.spacing(calls) == 2 * US
    fitted = replay.fit(calls, 1.0)
    assert fitted is not None
    assert fitted.gap_ns == 2 * US
    assert fitted.total_ns == pytest.approx(LATENCY + 2 * US + 11 * 98 * US + 10 * 2 * US, abs=3 * US)
    assert fitted.late_ns() == pytest.approx(0, abs=1 * US)


def test_a_late_host_is_what_is_left_without_waits() -> None:
    calls = [call for _ in range(50) for call in (launch(2, before_us=40), wait())]
    fitted = replay.fit(calls, replay.duration(calls, 1.0, 0.0))
    assert fitted is not None
    assert fitted.late_ns() == pytest.approx(fitted.without_reads() - 50 * 2 * US - LATENCY)


def test_nothing_to_replay_is_none() -> None:
    assert replay.fit([], 1e9) is None
    assert replay.fit([wait()], 1e9) is None
    assert replay.read({}) == []


def test_a_wait_costs_nothing_where_the_host_is_late_anyway() -> None:
    late = [call for _ in range(50) for call in (launch(2, before_us=40), wait())]
    fitted = replay.fit(late, replay.duration(late, 0.8, 0.0))
    assert fitted is not None
    assert 1 - fitted.without_reads() / fitted.total_ns < 0.2
    busy = [call for _ in range(50) for call in (launch(60, before_us=40), wait())]
    fitted = replay.fit(busy, replay.duration(busy, 0.8, 0.0))
    assert fitted is not None
    assert 1 - fitted.without_reads() / fitted.total_ns > 0.3  # the device waits for each launch after a wait


def test_calls_in_a_dropped_span_are_not_made_unless_data_is_copied_in_it() -> None:
    calls = [launch(100, start=0), launch(100, start=10), launch(100, start=20)]
    fitted = replay.fit(calls, 1e12)
    assert fitted is not None
    assert fitted.without_reads([(10, 15)]) == pytest.approx(fitted.total_ns - 100 * US)
    moving = replay.fit([calls[0], launch(100, start=10, moves=True), calls[2]], 1e12)
    assert moving is not None
    assert moving.without_reads([(10, 15)]) == moving.total_ns


def tables(rank: int = 0) -> dict[str, object]:
    def call(name: str, start: int, end: int, correlation: int) -> dict[str, object]:
        known = {"rank": rank, "cat": "cuda_runtime", "pid": "1", "tid": "1"}
        return {**known, "name": name, "ts_ns": start * US, "dur_ns": (end - start) * US, "correlation": correlation}

    def work(name: str, took: int, correlation: int, cat: str = "kernel", **more: object) -> dict[str, object]:
        known = {"rank": rank, "pid": "0", "tid": "7", "ts_ns": 0, "stream": 7}
        return {**known, "name": name, "dur_ns": took * US, "correlation": correlation, "cat": cat, **more}

    runtime = [
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaMemcpyAsync", 10, 14, 2),
        call("cudaStreamSynchronize", 15, 90, 3),
        call("cudaMemcpyAsync", 100, 104, 4),
        call("cudaStreamSynchronize", 105, 190, 5),
        call("cudaFree", 200, 250, 6),
    ]
    device = [
        work("gemm", 60, 1),
        work("Memcpy DtoH (Device -> Pageable)", 2, 2, "gpu_memcpy", bytes=4),
        work("Memcpy HtoD (Pageable -> Device)", 50, 4, "gpu_memcpy", bytes=1 << 20),
    ]
    return {"runtime": dataset.table("runtime", runtime), "gpu": dataset.table("gpu", device)}


def test_calls_are_joined_to_device_work_and_told_apart() -> None:
    calls = replay.read(tables())
    assert [call.kernel_ns for call in calls] == [60 * US, 2 * US, None, 50 * US, None, None]
    assert [call.before_ns for call in calls] == [0, 5 * US, 1 * US, 10 * US, 1 * US, 10 * US]
    assert [call.waits for call in calls] == [False, False, True, False, True, True]
    assert [call.reads for call in calls] == [False, False, True, False, False, False]
    assert [call.moves for call in calls] == [False, False, False, True, False, False]
    assert [call.own_ns for call in calls][2:] == [0, 4 * US, 0, 50 * US]  # what a wait took is the device's


def test_a_value_read_in_the_step_is_worth_what_the_replay_without_it_saves(tmp_path: Path) -> None:
    text = "def train(model, optimizer, xs):\n    for x in xs:\n        loss = model(x)\n        print(loss.item())\n"
    events = [
        event("job.py(3): train", 0, 1000),
        event("<built-in method item of Tensor object at 0x1>", 400, 500),
        op("aten::item", 410, 490),
    ]
    calls = [
        call
        for step in range(10)
        for call in (
            launch(300, start=step * 1_000_000, before_us=100),
            launch(2, start=step * 1_000_000 + 420_000),
            wait(start=step * 1_000_000 + 430_000),
        )
    ]
    recorded = replay.duration(calls, 1.0, 0.0)
    a_job = job(
        tmp_path,
        text,
        events,
        {
            "kernels": [{"rank": 0, "name": "gemm", "class": "gemm", "count": 10, "total_ns": 3_000_000}],
            "synchronisations": [{"rank": 0, "count": 10, "total_ns": 1, "steps": 10, "path": "job.py", "function": "train"}],
        },
        headline={"steps": 10, "capture_ns": recorded, "gpu_busy": 0.7, "gpu_idle": 0.3},
        timing=timing(step_s=recorded / 10 / 1e9, horizon_steps=100, startup_s=0.0),
        calls=calls,
    )  # fmt: skip
    result = found(a_job, "step_synchronisation")
    assert len(result) == 1
    assert a_job.replay is not None
    spans = [(400 * US, 500 * US)]
    expected = 1 - a_job.replay.without_reads(spans) / a_job.replay.total_ns
    assert expected > 0.2
    assert result[0].fraction == pytest.approx(expected, rel=0.01)
    assert [a["line"] for a in result[0].anchors] == [4]


def test_without_unprofiled_runs_there_is_no_pace(tmp_path: Path) -> None:
    assert (
        job(tmp_path, LOOP, [event("job.py(3): train", 0, 10)], calls=[launch(1)], timing=timing(runs=0)).replay is None
    )


def test_a_graph_is_one_piece_of_all_its_kernels() -> None:
    runtime = [
        {
            "rank": 0,
            "cat": "cuda_runtime",
            "pid": "1",
            "tid": "1",
            "name": "cudaGraphLaunch",
            "ts_ns": 0,
            "dur_ns": 9 * US,
            "correlation": 1,
        }
    ]
    work = [
        {
            "rank": 0,
            "cat": "kernel",
            "pid": "0",
            "tid": "7",
            "stream": 7,
            "name": "gemm",
            "correlation": 1,
            "ts_ns": 20 * US + 12 * US * n,
            "dur_ns": 10 * US,
        }
        for n in range(1000)
    ]
    made = {"runtime": dataset.table("runtime", runtime), "gpu": dataset.table("gpu", work)}
    (call,) = replay.read(made)
    assert call.kernel_ns == 12 * US * 1000 - 2 * US
    assert call.kernel_start_ns == 20 * US


def test_streams_of_two_devices_are_two() -> None:
    one = [launch(1000), launch(1000)]
    two = [launch(1000, stream=(0, 7)), launch(1000, stream=(1, 7))]
    assert replay.duration(two, 1.0, 0.0) < 0.6 * replay.duration(one, 1.0, 0.0)


def test_python_before_a_dropped_expression_stays() -> None:
    calls = []
    for step in range(10):
        at = step * 11_000_000
        calls += [
            launch(100, start=at),
            launch(2, start=at + 10_010_000, before_us=10_000),
            wait(start=at + 10_020_000),
        ]
    spans = [(step * 11_000_000 + 10_000_000, step * 11_000_000 + 10_100_000) for step in range(10)]
    fitted = replay.fit(calls, 1e12)
    assert fitted is not None
    assert fitted.without_reads(spans) > 0.97 * fitted.total_ns


def test_other_threads_and_records_of_waits_are_no_host_work() -> None:
    made = tables()
    rows = made["runtime"].to_pylist()  # type: ignore[attr-defined]
    rows += [
        {**rows[0], "name": "cudaEventQuery", "tid": "99", "ts_ns": 14_500, "dur_ns": 100, "correlation": 50},
        {**rows[0], "name": "Stream Sync", "cat": "cuda_sync", "ts_ns": 15 * US, "dur_ns": 75 * US, "correlation": 51},
        {**rows[0], "name": None, "ts_ns": 300 * US, "dur_ns": US, "correlation": 52},
    ]
    found_calls = replay.read({**made, "runtime": dataset.table("runtime", rows)})
    assert found_calls[:-1] == replay.read(made)
    assert (found_calls[-1].waits, found_calls[-1].own_ns) == (False, US)


def test_a_blocking_copy_of_a_value_is_a_wait() -> None:
    made = tables()
    rows = made["runtime"].to_pylist()  # type: ignore[attr-defined]
    rows[1] = {**rows[1], "dur_ns": 4_000 * US}
    rows[2:] = []
    copied, waited = replay.read({**made, "runtime": dataset.table("runtime", rows)})[1:]
    assert copied.own_ns < 10 * US
    assert copied.kernel_ns == 2 * US
    assert (waited.waits, waited.reads) == (True, True)


def test_a_replay_shorter_than_the_steps_is_a_share_of_the_steps(tmp_path: Path) -> None:
    calls = [launch(100), wait(), launch(100)]
    a_job = job(
        tmp_path,
        LOOP,
        [event("job.py(3): train", 0, 10)],
        calls=calls,
        headline={"steps": 1, "capture_ns": 10_000_000},
        timing=timing(step_s=0.01, steps=1, horizon_steps=1, startup_s=0.0),
    )
    assert a_job.replay is not None
    saved = a_job.replay.total_ns - a_job.replay.without_reads()
    assert a_job.replayed_share(saved) == pytest.approx(saved / 10_000_000 * a_job.window_share)
