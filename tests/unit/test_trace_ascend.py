"""Ascend profiles, in the shapes that Huawei documents for `trace_view.json`; no real export was at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.trace import compiled, dataset
from scripts.trace.parse import parse
from scripts.trace.verify import compare

BASE = 1_718_180_918_997_000_000  # ns since 1970: as microseconds they do not fit a float


def _us(offset_ns: int) -> str:
    """A time as the profiler writes it: a string of microseconds with three digits."""
    return f"{(BASE + offset_ns) // 1000}.{(BASE + offset_ns) % 1000:03d}"


def _row(name: str, ts: int, dur: float, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": name, "pid": pid, "tid": tid, "ts": _us(ts), "dur": dur, "args": args, "ph": "X"}


EVENTS: list[dict[str, Any]] = [
    {"name": "process_name", "pid": 71, "tid": 0, "args": {"name": "Overlap Analysis"}, "ph": "M"},
    {"name": "process_name", "pid": 72, "tid": 0, "args": {"name": "HCCL"}, "ph": "M"},
    _row("aten::add", 1, 10.123, 7, 7, **{"Sequence number": -1, "Fwd thread id": 0}) | {"cat": "cpu_op"},
    _row("aclnnAdd_AddAiCore_Add", 20_001, 3.02, 70, 2,
         **{"Model Id": 4294967295, "Task Type": "AI_VECTOR_CORE", "Stream Id": 2, "Task Id": 15, "connection_id": 99}),
    _row("Computing", 20_001, 3.02, 71, 0),
    _row("Communication(Not Overlapped)", 30_000, 5.5, 71, 2),
    _row("Free", 35_500, 0.001, 71, 3),
    _row("hcom_allReduce__303_0_1", 30_000, 5.5, 72, 0,
         **{"connection_id": 100, "data_type": "FP32", "alg_type": "MESH-RING", "count": 2048}),
    _row("Notify_Wait", 30_100, 0.52, 72, 1,
         **{"notify id": 4294967296, "task type": "Notify Wait", "src rank": 0, "dst rank": 1, "size(Byte)": None}),
    {"name": "async_npu", "id": "73786976294838206464", "cat": "async_npu", "ph": "s", "pid": 7, "tid": 7, "ts": _us(2)},
    {"name": "async_npu", "id": "73786976294838206464", "cat": "async_npu", "ph": "f", "bp": "e", "pid": 70, "tid": 2,
     "ts": _us(20_001)},
]  # fmt: skip


@pytest.fixture(params=[True, False] if compiled.available() else [True])
def parsed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "trace_view.json").write_text(json.dumps(EVENTS))
    report = parse([tmp_path / "trace_view.json"], tmp_path / "out", plain=request.param)
    assert report["status"] == "ok" and report["inputs"][0]["events"] == len(EVENTS)
    return tmp_path / "out"


def test_times_as_strings_are_exact(parsed: Path) -> None:
    assert compare(parsed.parent / "trace_view.json", parsed).differences == []
    (row,) = dataset.read(parsed, "cpu_op").to_pylist()
    assert (row["ts_ns"], row["dur_ns"], row["name"]) == (BASE + 1, 10_123, "aten::add")


def test_device_tasks_are_gpu_rows_without_a_category(parsed: Path) -> None:
    (row,) = dataset.read(parsed, "gpu").to_pylist()
    assert (row["ts_ns"], row["dur_ns"], row["stream"], row["kind"]) == (BASE + 20_001, 3_020, 2, "AI_VECTOR_CORE")
    assert json.loads(row["args"]) == {"Model Id": 4294967295, "Task Id": 15, "connection_id": 99}


def test_overlap_analysis_and_hccl_rows_are_kept_beside_the_device_work_that_they_describe(parsed: Path) -> None:
    rows = {row["name"]: row for row in dataset.read(parsed, "annotation").to_pylist()}
    assert {"Computing", "Communication(Not Overlapped)", "Free", "hcom_allReduce__303_0_1", "Notify_Wait"} == set(rows)
    assert (rows["Free"]["dur_ns"], rows["Free"]["pid"]) == (1, "71")
    assert json.loads(rows["hcom_allReduce__303_0_1"]["args"])["count"] == 2048
    assert json.loads(rows["Notify_Wait"]["args"])["notify id"] == 4294967296
    labels = dataset.read(parsed, "metadata", ["label"])["label"].to_pylist()
    assert sorted(labels) == ["HCCL", "Overlap Analysis"]


def test_flow_ids_beyond_int64_stay_texts(parsed: Path) -> None:
    rows = dataset.read(parsed, "flow", ["flow_id", "flow_text", "phase"]).to_pylist()
    assert [(row["flow_id"], row["flow_text"], row["phase"]) for row in rows] == [
        (None, "73786976294838206464", "s"), (None, "73786976294838206464", "f"),
    ]  # fmt: skip
