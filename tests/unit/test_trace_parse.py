"""Parsing as a program: ranks, refusals, whole files or none, and blocks cut anywhere."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trace_malformed as malformed

from scripts.common.errors import InputError
from scripts.trace import blocks, compiled, dataset, runs
from scripts.trace.parse import main, parse
from scripts.trace.verify import compare, verify

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason=f"the shared traces are not at {TRACES}: exactness on real traces is NOT tested"
)


def _write(path: Path, **header: object) -> Path:
    path.write_text(malformed.written(malformed.events(64), **header))
    return path


def _scanners() -> list[bool]:
    return [True, False] if compiled.available() else [True]


@pytest.mark.parametrize("plain", _scanners())
@pytest.mark.parametrize("block", [700, 2048, 30_001])
def test_blocks_may_be_cut_anywhere(plain: bool, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = malformed.events(300)
    for i in range(0, 300, 7):  # places that look like the start of an event, inside strings and lists
        some[i]["name"] = 'a }, {"ph": "X"}, { b' + "x" * (i % 50)
        if "args" in some[i]:
            some[i]["args"]["list"] = [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}, {"e": "x" * 100}]
    path = tmp_path / "t.json"
    path.write_text(malformed.written(some, note='"traceEvents": ['))
    monkeypatch.setattr(blocks, "BLOCK", block)
    report = parse([path], tmp_path / "out", plain=plain, jobs=3)
    assert report["inputs"][0]["events"] == 300
    assert report["status"] == "ok"
    assert report["inputs"][0]["header"]["traceName"] == "t.json"
    assert compare(path, tmp_path / "out").differences == []
    if block == 700:
        assert report["inputs"][0]["blocks_scanned_again"] > 0


def test_sorted_by_time_through_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = malformed.events(400)
    for i, event in enumerate(some):
        event["ts"] = (i * 7919) % 401 if i % 3 else 200
    path = tmp_path / "t.json"
    path.write_text(malformed.written(some))
    monkeypatch.setattr(blocks, "BLOCK", 3000)
    monkeypatch.setattr(runs, "GROUP", 8)
    monkeypatch.setattr(runs, "STEP", 2)
    parse([path], tmp_path / "out", plain=True)
    assert compare(path, tmp_path / "out").differences == []


def test_spool_on_disk_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "t.json")
    real = runs.Spool
    monkeypatch.setattr("scripts.trace.parse.Spool", lambda folder: real(folder, 0))
    parse([path], tmp_path / "out", plain=True)
    assert compare(path, tmp_path / "out").differences == []


def test_ranks_come_from_the_trace_then_the_name_then_the_argument(tmp_path: Path) -> None:
    nameless = tmp_path / "c.json"
    nameless.write_text(json.dumps({"traceEvents": malformed.events(8)}))
    named = tmp_path / "x_rank-5.json"
    named.write_text(nameless.read_text())
    own = _write(tmp_path / "rank9.json")
    report = parse([nameless, named, own], tmp_path / "out", rank=1)
    assert [(entry["rank"], entry["rank_from"]) for entry in report["inputs"]] == [
        (1, "argument"), (5, "file name"), (3, "distributedInfo"),
    ]  # fmt: skip
    table = dataset.read(tmp_path / "out", "gpu")
    assert table["rank"].to_pylist() == [1, *[3] * 8, 5]
    assert len(dataset.read(tmp_path / "out", "gpu", ["name"], rank=5)) == 1


def test_no_two_inputs_get_one_rank(tmp_path: Path) -> None:
    report = parse([_write(tmp_path / "a.json"), _write(tmp_path / "b.json")], tmp_path / "out")
    assert sorted(entry["rank"] for entry in report["ranks"]) == [0, 3]
    assert "taken" in report["inputs"][1]["notes"][0]
    assert report["status"] == "lossy"


def test_a_bad_input_among_good_ones_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert main([str(_write(tmp_path / "a.json")), str(bad), "-o", str(tmp_path / "out"), "--no-progress"]) == 0
    report = dataset.quality(tmp_path / "out")
    assert report["status"] == "partial"
    assert [entry["status"] for entry in report["inputs"]] == ["ok", "refused"]
    assert "bad.json: refused" in capsys.readouterr().err


def test_a_refusal_leaves_the_earlier_tables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    parse([_write(tmp_path / "a.json")], out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(InputError, match=r"bad\.json: not a trace"):
        parse([tmp_path / "bad.json"], out)
    with pytest.raises(InputError, match="no such file"):
        parse([tmp_path / "missing.json"], out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_empty_list_of_events_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    report = parse([tmp_path / "t.json"], tmp_path / "out")
    assert report["inputs"][0]["events"] == 0
    assert report["notes"] == ["no GPU events: the views of the device are empty"]
    assert all(len(dataset.read(tmp_path / "out", cls)) == 0 for cls in dataset.CLASSES)


@pytest.mark.parametrize("plain", _scanners())
def test_counters_become_a_row_a_series(plain: bool, tmp_path: Path) -> None:
    event = {"ph": "C", "name": "Queue", "pid": 0, "ts": 5, "args": {"a": 1, "b": 2.5, "unit": "n", "c": -0.0}}
    (tmp_path / "t.json").write_text(json.dumps([event, {"ph": "C", "name": "none", "pid": 0, "ts": 6}]))
    parse([tmp_path / "t.json"], tmp_path / "out", plain=plain)
    rows = dataset.read(tmp_path / "out", "counter", ["name", "series", "value", "args"]).to_pylist()
    assert rows == [
        {"name": "Queue", "series": "a", "value": 1.0, "args": '{"unit":"n"}'},
        {"name": "Queue", "series": "b", "value": 2.5, "args": None},
        {"name": "Queue", "series": "c", "value": 0.0, "args": None},
        {"name": "none", "series": None, "value": None, "args": None},
    ]


def test_parsing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.json")
    for name in ("one", "two"):
        parse([path], tmp_path / name, jobs=2)
    for one in (tmp_path / "one").rglob("*.*"):
        assert one.read_bytes() == (tmp_path / "two" / one.relative_to(tmp_path / "one")).read_bytes()


def test_quality_counts_what_makes_views_wrong(tmp_path: Path) -> None:
    def kernel(ts: float, dur: float, correlation: int) -> dict:
        args = {"correlation": correlation, "device": 0, "stream": 7}
        return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}

    def op(ts: float, dur: float) -> dict:
        return {"ph": "X", "cat": "cpu_op", "name": "o", "pid": 1, "tid": 1, "ts": ts, "dur": dur}

    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    some = [kernel(10, 5, 1), kernel(12, 5, 2), kernel(30, 0, 3), kernel(40, -1, 0), op(0, 10), op(2, 3), op(8, 10)]
    some += [{**launch, "args": {"correlation": 1}}, {**launch, "args": {"correlation": 9}}]
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 0, "dur": 50}
    log = ["INFO: Record counts: Out-of-range = 7, Blocklisted runtime = 2"]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"INFO": log, "traceEvents": [*some, step]}))
    report = parse([path], tmp_path / "out")
    rank = report["ranks"][0]
    assert rank["gpu_without_launch"] == 3
    assert rank["launches_without_gpu"] == 1
    assert rank["zero_durations"] == {"gpu": 1}
    assert rank["negative_durations"] == {"gpu": 1}
    assert rank["overlaps"] == {"gpu": 1, "cpu_op": 1}
    assert rank["steps"] == [4]
    assert (rank["first_ns"], rank["last_ns"]) == (0, 50_000)
    assert report["inputs"][0]["dropped_by_profiler"] == {"out_of_range": 7}


@needs_traces
def test_clocks_of_eight_ranks_align(tmp_path: Path) -> None:
    report = parse(sorted((TRACES / "dlrm8").glob("*.gz")), tmp_path)
    clocks = [entry["clock"] for entry in report["ranks"]]
    assert [entry["rank"] for entry in report["ranks"]] == list(range(8))
    assert all(clock["method"] == "collectives" and clock["residual_ns"] < 20_000 for clock in clocks[1:])
    moved = dataset.read(tmp_path, "gpu", ["rank", "ts_ns"], aligned=True)
    plain = dataset.read(tmp_path, "gpu", ["rank", "ts_ns"])
    shift = {entry["rank"]: entry["clock"]["offset_ns"] for entry in report["ranks"]}
    differences = zip(plain["rank"].to_pylist(), plain["ts_ns"].to_pylist(), moved["ts_ns"].to_pylist())
    assert all(after - before == shift[rank] for rank, before, after in differences)


SMALL = ["hta/*", "kineto/docs*", "tracelens/inference*", "tracelens/torch*", "tracelens/mi210*", "dlrm8/rank0*"]


@needs_traces
@pytest.mark.parametrize("plain", _scanners())
def test_small_real_traces_are_exact(plain: bool) -> None:
    paths = [path for pattern in SMALL for path in sorted(TRACES.glob(pattern)) if path.stat().st_size < 40_000]
    compared = 0
    for path in paths:
        if "memory_timeline" not in path.name:
            result = verify(path, plain=plain)
            assert result.differences == [], path.name
            compared += result.events
    assert compared > 8_000


@needs_traces
@pytest.mark.parametrize(
    "name",
    ["hta/nccl_parser_config__nccl_data.json.gz", "tracelens/mi300__ddp_resnet18_no_pool__train_resnet18.json.gz"],
)
def test_samples_of_large_real_traces_are_exact(name: str) -> None:
    result = verify(TRACES / name, every=23)
    assert result.differences == []
    assert result.events > 25_000


def test_verify_sees_a_difference(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.json")
    parse([path], tmp_path / "out")
    changed = json.loads(path.read_text())
    changed["traceEvents"][2]["args"]["correlation"] += 1
    other = tmp_path / "other.json.gz"
    other.write_bytes(gzip.compress(json.dumps(changed).encode()))
    assert "correlation" in compare(other, tmp_path / "out").differences[0]


def test_what_a_killed_parser_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    trace, out = tmp_path / "t.json", tmp_path / "out"
    trace.write_text(malformed.written(malformed.events(60_000)))
    command = [sys.executable, "-m", "scripts.trace.parse", str(trace), "-o", str(out), "--plain", "--no-progress"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while not list(out.glob(".events-*/*.parquet")):  # in the middle: some tables are begun
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    assert len(list(out.glob(".events-*"))) == 1
    assert not (out / "events").exists() and not (out / "quality.json").exists()
    with pytest.raises(InputError):
        dataset.quality(out)
    trace.write_text(malformed.written(malformed.events(64)))
    parse([trace], out, plain=True)
    assert sorted(path.name for path in out.iterdir()) == ["events", "quality.json"]
    assert compare(trace, out).differences == []


def test_folders_that_are_in_use_or_not_ours_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in (".events-abcdefgh", ".events-notes", ".events-12345678"):
        (out / name).mkdir(parents=True)
    lock = os.open(out / ".events-abcdefgh", os.O_RDONLY)  # as a parser that runs at the same time holds it
    fcntl.flock(lock, fcntl.LOCK_EX)
    parse([_write(tmp_path / "t.json")], out, plain=True)
    os.close(lock)
    assert sorted(path.name for path in out.iterdir()) == [
        ".events-abcdefgh",
        ".events-notes",
        "events",
        "quality.json",
    ]
