"""Nsight Systems exports: made ones with and without the columns of later schemas, and two real ones."""

# ruff: noqa: E501
from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.common.errors import InputError
from scripts.trace import dataset, nsys
from scripts.trace.parse import parse

EXPORTS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces" / "nsys"
THREAD = (5 << 24) | 9


def export(path: Path, *, old: bool = False, drop: tuple[str, ...] = ()) -> Path:
    """A small export: two ranges, two launches, kernels, a copy, a sync."""
    database = sqlite3.connect(path)
    newer = "" if old else ", graphNodeId integer"
    tables = {
        "StringIds": "id integer, value text",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start integer, end integer, globalTid integer, correlationId integer, nameId integer",
        "CUPTI_ACTIVITY_KIND_KERNEL": "start integer, end integer, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, "
        "demangledName integer, gridX integer, gridY integer, gridZ integer, blockX integer, blockY integer, blockZ integer, staticSharedMemory integer, "
        f"dynamicSharedMemory integer{newer}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "start integer, end integer, deviceId integer, streamId integer, correlationId integer, globalPid integer, bytes integer, "
        "copyKind integer, srcKind integer, dstKind integer",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start integer, end integer, deviceId integer, streamId integer, correlationId integer, globalPid integer, syncType integer",
        "NVTX_EVENTS": "start integer, end integer, eventType integer, text text, globalTid integer, textId integer",
        "COMPOSITE_EVENTS": "start integer, cpu integer",
    }  # fmt: skip
    for table, columns in tables.items():
        if table not in drop:
            database.execute(f"create table {table} ({columns})")
    rows = {
        "StringIds": [(1, "gemm<float>"), (2, "cudaLaunchKernel_v7000"), (3, "cuMemcpyHtoDAsync_v2"), (4, "outer")],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 12, THREAD, 1, 2), (30, 31, THREAD, 2, 2), (50, 51, THREAD, 3, 3)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (15, 20, 0, 1, 7, 1, 5 << 24, 1, 2, 3, 1, 128, 1, 1, 10, 20, *([] if old else [None])),
            (40, 45, 0, 1, 7, 2, 5 << 24, 1, 2, 3, 1, 128, 1, 1, 10, 20, *([] if old else [77])),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(52, 60, 0, 7, 3, 5 << 24, 4096, 1, 0, 2)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(61, 62, 0, 7, 4, 5 << 24, 3)],
        "NVTX_EVENTS": [
            (0, 100, 59, None, THREAD, 4),
            (5, 25, 59, "inner", THREAD, None),
            (70, None, 34, "mark", THREAD, None),
        ],
        "COMPOSITE_EVENTS": [(1, 0)] * 3,
    }
    for table, some in rows.items():
        if table not in drop:
            database.executemany(f"insert into {table} values ({', '.join('?' * len(some[0]))})", some)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("old", [True, False])
def test_rows_names_and_ranges(old: bool, tmp_path: Path) -> None:
    report = parse([export(tmp_path / "t.sqlite", old=old)], tmp_path / "out")
    gpu = dataset.read(tmp_path / "out", "gpu").to_pylist()
    assert [(r["ts_ns"], r["dur_ns"], r["name"], r["range"]) for r in gpu] == [
        (15, 5, "gemm<float>", "inner"),
        (40, 5, "gemm<float>", "outer"),
        (52, 8, "Memcpy HtoD (Pageable -> Device)", "outer"),
    ]
    assert (gpu[0]["grid"], gpu[0]["block"], gpu[0]["shared_memory"]) == ("[2,3,1]", "[128,1,1]", 30)
    assert gpu[1]["graph_node"] == (None if old else 77)
    runtime = dataset.read(tmp_path / "out", "runtime", ["name", "cat", "tid", "sync_kind"]).to_pylist()
    assert [r["name"] for r in runtime] == ["cudaLaunchKernel", "cudaLaunchKernel", "cuMemcpyHtoDAsync", "Stream Sync"]
    assert [r["cat"] for r in runtime] == ["cuda_runtime", "cuda_runtime", "cuda_driver", "cuda_sync"]
    notes = dataset.read(tmp_path / "out", "annotation", ["name", "dur_ns", "phase"]).to_pylist()
    assert [(r["name"], r["dur_ns"], r["phase"]) for r in notes] == [
        ("outer", 100, "X"),
        ("inner", 20, "X"),
        ("mark", None, "i"),
    ]
    assert report["inputs"][0]["header"]["not_carried"] == {"COMPOSITE_EVENTS": 3}


@pytest.mark.parametrize(
    "table", ["StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"]
)
def test_tables_may_be_missing(table: str, tmp_path: Path) -> None:
    report = parse([export(tmp_path / "t.sqlite", drop=(table,))], tmp_path / "out")
    assert report["classes"]["gpu"] == (2 if table.endswith("MEMCPY") else 3)


def test_without_adbc_the_rows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(tmp_path / "t.sqlite")
    parse([path], tmp_path / "one")
    monkeypatch.setattr(nsys, "_adbc", lambda path: None)
    parse([path], tmp_path / "two")
    for cls in dataset.CLASSES:
        assert dataset.read(tmp_path / "one", cls) == dataset.read(tmp_path / "two", cls)


def test_another_database_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "t.sqlite")
    database.execute("create table people (name text)")
    database.commit()
    with pytest.raises(InputError, match="without the event tables"):
        parse([tmp_path / "t.sqlite"], tmp_path / "out")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 45)), max_size=12),
)
def test_the_sweep_finds_the_innermost_of_nested_ranges(ranges: list, calls: list) -> None:
    nested: list[tuple[int, int, int]] = []
    for track, start, length in ranges:  # keep only those that nest with all before
        if all(
            t != track
            or s + n <= start
            or start + length <= s
            or (s <= start and start + length <= s + n)
            or (start <= s and s + n <= start + length)
            for t, s, n in nested
        ):
            nested.append((track, start, length))
    tracks, starts, lengths = (np.array([r[i] for r in nested], np.int64) for i in range(3))
    found = nsys.enclosing(
        tracks,
        starts,
        starts + lengths,
        np.array([c[0] for c in calls], np.int64),
        np.array([c[1] for c in calls], np.int64),
    )
    for (track, time), index in zip(calls, found.tolist()):
        around = [n for t, s, n in nested if t == track and s <= time < s + n]
        assert (lengths[index] if index >= 0 else None) == min(around, default=None)


@pytest.mark.skipif(not EXPORTS.is_dir(), reason="the shared nsys exports are not here: real exports are NOT tested")
@pytest.mark.parametrize(("name", "kernels"), [("custom", 91), ("reference", None)])
def test_real_exports(name: str, kernels: int | None, tmp_path: Path) -> None:
    path = EXPORTS / f"34_InstanceNorm_{name}.sqlite"
    parse([path], tmp_path)
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    query = "select k.start, k.end - k.start, s.value, k.correlationId from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName order by 1"
    expected = database.execute(query).fetchall()
    rows = [r for r in dataset.read(tmp_path, "gpu").to_pylist() if r["cat"] == "kernel"]
    assert [(r["ts_ns"], r["dur_ns"], r["name"], r["correlation"]) for r in rows] == expected
    assert kernels in (None, len(rows))
    others = ["greenContextId", "launchType", "cacheConfig", "localMemoryPerThread", "localMemoryTotal", "gridId",
              "sharedMemoryExecuted", "sharedMemoryLimitConfig"]  # fmt: skip
    query = f"select {', '.join(others)} from CUPTI_ACTIVITY_KIND_KERNEL order by start"
    expected = [{k: v for k, v in zip(others, row) if v is not None} for row in database.execute(query)]
    assert [json.loads(row["args"]) for row in rows] == expected


UNKNOWN = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("launchType integer, gridId integer, note text, weight real", [
        (1, 7001, "a \"quoted\" note", 0.5), (None, 7002, None, None)]),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("returnValue integer, blob blob", [(0, b"\x01\xff"), (0, None), (700, None)]),
    "NVTX_EVENTS": ("color integer, jsonText text, colorName integer", [(None, None, None), (255, '{"a": 1}', 1), (None, None, None)]),
}  # fmt: skip


def with_unknown_columns(path: Path) -> Path:
    """`export` with columns and tables that our tables do not know."""
    database = sqlite3.connect(export(path))
    for table, (columns, rows) in UNKNOWN.items():
        for column in columns.split(", "):
            database.execute(f"alter table {table} add column {column}")
        names = [column.split()[0] for column in columns.split(", ")]
        for number, row in enumerate(rows, 1):
            database.execute(
                f"update {table} set {', '.join(f'{name} = ?' for name in names)} where rowid = {number}", row
            )
    database.execute("insert into NVTX_EVENTS (start, eventType, globalTid) values (1, 75, 9)")
    database.execute("create table GPU_METRICS (timestamp integer, value integer)")
    database.execute("create table FAN_SPEEDS (rpm integer)")
    database.executemany("insert into GPU_METRICS values (?, 1)", [(1,), (2,)])
    database.execute("insert into FAN_SPEEDS values (1200)")
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("arrow", [True, False])
def test_columns_without_a_place_are_kept_as_json(arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not arrow:
        monkeypatch.setattr(nsys, "_adbc", lambda path: None)
    report = parse([with_unknown_columns(tmp_path / "t.sqlite")], tmp_path / "out")
    args = [
        [None if row is None else json.loads(row) for row in dataset.read(tmp_path / "out", cls, ["args"])["args"].to_pylist()]
        for cls in ("gpu", "runtime", "annotation")
    ]  # fmt: skip
    assert args[0] == [
        {"launchType": 1, "gridId": 7001, "note": 'a "quoted" note', "weight": 0.5},
        {"gridId": 7002},
        None,
    ]
    assert args[1] == [{"returnValue": 0, "blob": "x'01ff'"}, {"returnValue": 0}, {"returnValue": 700}, None]
    assert args[2] == [None, {"color": 255, "jsonText": '{"a": 1}', "colorName": "gemm<float>"}, None]
    entry = report["inputs"][0]
    assert entry["header"]["not_carried"] == {
        "NVTX_EVENTS eventType 75": 1, "COMPOSITE_EVENTS": 3, "GPU_METRICS": 2, "FAN_SPEEDS": 1,
    }  # fmt: skip
    assert "7 rows of 4 tables and columns have no place here" in entry["notes"][0]
    assert report["status"] == "ok"


def test_a_value_of_its_own_in_each_row_is_kept_too(tmp_path: Path) -> None:
    database = sqlite3.connect(export(tmp_path / "t.sqlite"))
    database.execute("alter table CUPTI_ACTIVITY_KIND_MEMCPY add column virtualAddress integer")
    database.execute("alter table CUPTI_ACTIVITY_KIND_MEMCPY add column migrationCause integer")
    database.executemany(
        "insert into CUPTI_ACTIVITY_KIND_MEMCPY (start, end, virtualAddress, migrationCause) values (?, ?, ?, ?)",
        [(1000 + i, 1001 + i, i * 4096 - 5 if i % 10 else None, i % 2) for i in range(500)],
    )
    database.commit()
    parse([tmp_path / "t.sqlite"], tmp_path / "out")
    rows = dataset.read(tmp_path / "out", "gpu", ["ts_ns", "args"]).to_pylist()[3:]
    expected = [{"virtualAddress": i * 4096 - 5, "migrationCause": i % 2} for i in range(500)]
    expected = [{"migrationCause": i % 2} if i % 10 == 0 else row for i, row in enumerate(expected)]
    assert [json.loads(row["args"]) for row in rows] == expected


def test_the_other_names_of_kernels_are_metadata(tmp_path: Path) -> None:
    database = sqlite3.connect(export(tmp_path / "t.sqlite"))
    database.execute("alter table CUPTI_ACTIVITY_KIND_KERNEL add column mangledName integer")
    database.execute("insert into StringIds values (9, '_Z4gemmIfEvv')")
    database.execute("update CUPTI_ACTIVITY_KIND_KERNEL set mangledName = 9")
    database.commit()
    parse([tmp_path / "t.sqlite"], tmp_path / "out")
    rows = dataset.read(tmp_path / "out", "metadata", ["name", "label", "args"]).to_pylist()
    assert rows == [{"name": "kernel_name", "label": "gemm<float>", "args": '{"mangledName":"_Z4gemmIfEvv"}'}]
    assert dataset.read(tmp_path / "out", "gpu", ["args"])["args"].null_count == 3


def test_a_table_without_times_is_named_and_read_around(tmp_path: Path) -> None:
    path = export(tmp_path / "t.sqlite", drop=("CUPTI_ACTIVITY_KIND_KERNEL",))
    database = sqlite3.connect(path)
    database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (gridX integer)")
    database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (1)")
    database.commit()
    report = parse([path], tmp_path / "out")
    assert report["inputs"][0]["header"]["not_carried"]["CUPTI_ACTIVITY_KIND_KERNEL"] == 1
    assert report["classes"]["gpu"] == 1


def test_unknown_columns_of_very_large_tables_are_counted_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "ALL_COLUMNS_BELOW", 2)
    path = with_unknown_columns(tmp_path / "t.sqlite")
    report = parse([path], tmp_path / "out")
    left = report["inputs"][0]["header"]["not_carried"]
    assert {key: rows for key, rows in left.items() if "." in key} == {
        "CUPTI_ACTIVITY_KIND_RUNTIME.returnValue": 3, "CUPTI_ACTIVITY_KIND_RUNTIME.blob": 3,
        "NVTX_EVENTS.color": 4, "NVTX_EVENTS.jsonText": 4, "NVTX_EVENTS.colorName": 4,
    }  # fmt: skip
    assert dataset.read(tmp_path / "out", "runtime", ["args"])["args"].null_count == 4
    assert dataset.read(tmp_path / "out", "gpu", ["args"])["args"].null_count == 1  # two kernels: few enough
    parse([path], tmp_path / "all", all_columns=True)
    assert dataset.read(tmp_path / "all", "runtime", ["args"])["args"].null_count == 1
