"""The tables as other rooms see them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.common.errors import InputError
from scripts.trace import dataset


def test_reads_what_it_wrote_in_order_with_every_column(tmp_path: Path) -> None:
    rows = [
        {"ts_ns": 5, "name": "b", "stream": 7},
        {"ts_ns": 2, "name": "a", "grid": "[1,1,1]"},
        {"rank": 1, "ts_ns": 0},
    ]
    dataset.write(tmp_path, "gpu", dataset.table("gpu", rows))
    table = dataset.read(tmp_path, "gpu")
    assert table.schema == dataset.schema("gpu")
    assert table.column_names[:4] == ["rank", "ts_ns", "dur_ns", "name"]
    assert table["name"].to_pylist() == ["a", "b", None]
    assert dataset.read(tmp_path / "events", "gpu", ["stream", "rank"]).to_pylist()[1] == {"stream": 7, "rank": 0}


def test_columns_without_values_are_not_written(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = dataset.write(tmp_path, "flow", dataset.table("flow", [{"ts_ns": 1, "flow_id": 3}]))
    assert pq.read_schema(path).names == ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid", "flow_id"]


def test_empty_classes_are_tables_too(tmp_path: Path) -> None:
    dataset.write(tmp_path, "memory", dataset.table("memory", []))
    assert dataset.read(tmp_path, "memory").schema == dataset.schema("memory")


@pytest.mark.parametrize(
    ("cls", "columns", "words"),
    [("gpus", None, "did you mean 'gpu'"), ("gpu", ["steam"], "did you mean 'stream'"), ("gpu", None, "no such table")],
)
def test_wrong_names_are_refused_in_one_line(cls: str, columns: list[str] | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as error:
        dataset.read(tmp_path, cls, columns)
    assert "\n" not in str(error.value)


def test_tables_know_their_columns() -> None:
    with pytest.raises(InputError, match="no column 'nothing'"):
        dataset.table("gpu", [{"nothing": 1}])


def test_the_contract_lists_every_column_with_its_type() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    section = text[text.index("## Trace tables") :].split("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    listed = {cls: re.findall(r"`(\w+)` (int64|int32|double|text)", columns) for cls, columns in table}
    words = {dataset.FLOAT: "double", dataset.TEXT: "text", dataset.PLAIN: "text"}
    assert listed == {
        cls: [(column.name, words.get(column.type, column.type)) for column in columns]
        for cls, columns in dataset.ARGUMENTS.items()
    }
    assert all(f"`{column.name}`" in section for column in dataset.COMMON)


def test_the_files_hold_no_column_beyond_the_contract(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    import trace_malformed as malformed

    from scripts.trace.parse import parse

    (tmp_path / "t.json").write_text(malformed.written(malformed.events(64)))
    parse([tmp_path / "t.json"], tmp_path / "out")
    assert {path.stem for path in (tmp_path / "out" / "events").iterdir()} == set(dataset.CLASSES)
    for cls in dataset.CLASSES:
        schema = pq.read_schema(tmp_path / "out" / "events" / f"{cls}.parquet")
        for field in schema:
            assert field.type == dataset.schema(cls).field(field.name).type, (cls, field.name)
