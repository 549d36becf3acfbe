"""Read what the trace room wrote, tolerating what a run does not have: tables, views, their headline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.common.files import read_json

COLUMNS = {
    "python": ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid"],
    "cpu_op": ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid", "sequence", "input_dims", "input_types"],
    "annotation": ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid"],
    "runtime": ["rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid", "correlation"],
    "gpu": ["rank", "ts_ns", "dur_ns", "name", "cat", "device", "stream", "correlation", "bytes"],
}


def events(folder: str | Path, classes: tuple[str, ...]) -> dict[str, Any]:
    """`{class: pyarrow table}` of the classes that the parsed trace in `folder` has."""
    from scripts.trace import dataset

    inner = Path(folder) / "events"  # the folder that `parse -o` was given, or the tables' own
    place = inner if inner.is_dir() else Path(folder)
    return {name: dataset.read(place, name, COLUMNS[name]) for name in classes if (place / f"{name}.parquet").is_file()}


def rows(folder: str | Path, view: str) -> list[dict[str, Any]]:
    """Rows of a view as dictionaries; [] where the view was not written (no such events)."""
    path = Path(folder) / f"{view}.parquet"
    if not path.is_file():
        return []
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def views_document(folder: str | Path) -> dict[str, Any]:
    """views.json: device, headline, notes; an empty one where the folder has no views."""
    path = Path(folder) / "views.json"
    if not path.is_file():
        return {"device": None, "headline": {}, "notes": ["no views"], "views": {}}
    return read_json(path, "views")
