"""Exactness: every event of a trace, as `json` with exact decimals reads it, against the tables that the parser writes.

`python -m scripts.trace.verify TRACE... [--plain] [--jobs N]` parses each file into a temporary folder and compares
every event: times
(int64 nanoseconds), pid, tid, name, category, id, and every argument, in its column or in the raw JSON. Exit 1 where
one differs.
The oracle shares nothing with the parser but the names of the columns and the categories' classes. It needs ten times
the file in memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from scripts.common.errors import InputError, run
from scripts.trace import dataset

OWN = {"name", "cat", "pid", "tid", "ts", "dur", "id", "ph", "args"}


class Real(str):
    """A JSON number that is no integer, as its own text."""

    __slots__ = ()


class Result(NamedTuple):
    """Events and values that were compared, and the first differences in words."""

    events: int
    values: int
    differences: list[str]


def verify(path: Path, *, every: int = 1, plain: bool | None = None, jobs: int = 2) -> Result:
    """Parse `path` and compare each `every`-th event of each class (the order is checked for all of them)."""
    from scripts.trace.parse import parse

    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        parse([path], Path(folder), jobs=jobs, plain=plain)
        return compare(path, Path(folder), every=every)


def compare(path: Path, folder: Path, *, every: int = 1) -> Result:
    """Compare the tables in `folder` with the well-formed trace `path`."""
    expected: dict[str, list[tuple[int, dict[str, Any]]]] = {cls: [] for cls in dataset.CLASSES}
    count = 0
    for event in _events(path):
        if isinstance(event.get("ph"), str) and event["ph"]:
            expected[_class(event)] += _rows(event)
            count += 1
    differences: list[str] = []
    values = 0
    for cls, rows in expected.items():
        rows.sort(key=lambda row: row[0])  # stable: ties in the order of the file
        table = dataset.read(folder, cls)
        if len(table) != len(rows):
            differences.append(f"{cls}: {len(table)} rows, {len(rows)} events")
            continue
        times = [None if time == _NEVER else time for time, _ in rows]
        if table["ts_ns"].to_pylist() != times:
            differences.append(f"{cls}: times differ")
            continue
        if not rows:
            continue
        picked = table.take(list(range(0, len(rows), every))) if every > 1 else table
        columns = {name: picked[name].to_pylist() for name in picked.column_names}
        for place, (_, event) in enumerate(rows[::every]):
            row = {name: column[place] for name, column in columns.items()}
            found = list(_differences(cls, event, row))
            values += len(event) + len(event["args"] if isinstance(event.get("args"), dict) else ())
            if found and len(differences) < 20:
                differences.append(f"{cls}: {found[0]}")
    return Result(count, values, differences)


_NEVER = -(2**63)


def _events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        document = json.loads(data, parse_float=Real)
    except ValueError as error:
        raise InputError(f"{path}: json cannot read it ({error}), so there is nothing to compare with") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path}: no list of events; only torch.profiler traces can be compared")
    return [event for event in events if isinstance(event, dict)]


def _class(event: dict[str, Any]) -> str:
    phase, category = event["ph"][0], event.get("cat")
    if phase in "MstfC":
        return {"M": "metadata", "C": "counter"}.get(phase, "flow")
    if phase in "iIRn":
        return "memory" if event.get("name") == "[memory]" else "annotation"
    if category is None:
        return "gpu" if "Task Type" in (event.get("args") or {}) else "annotation"
    if category in dataset.GPU_CATEGORIES:
        return "gpu"
    if category in dataset.RUNTIME_CATEGORIES or str(category).endswith(("_runtime", "_driver")):
        return "runtime"
    if category in dataset.OP_CATEGORIES:
        return "cpu_op"
    return {"python_function": "python", "cuda_profiler_range": "counter"}.get(category, "annotation")


def _rows(event: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The rows that an event should become: one, or one for each number of a counter."""
    time = _nanoseconds(event.get("ts"))
    place = _NEVER if time is None else time
    if _class(event) != "counter":
        return [(place, event)]
    numbers = {key: value for key, value in (event.get("args") or {}).items() if _numeric(value)}
    rest = {key: value for key, value in (event.get("args") or {}).items() if key not in numbers}
    series = [(place, {**event, "args": {}, "series": key, "value": value}) for key, value in numbers.items()]
    if not series:
        return [(place, event)]
    series[0][1]["args"] = rest
    return series


def _differences(cls: str, event: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    left = dict(json.loads(row["args"], parse_float=Real)) if row["args"] else {}
    for key, column in (("name", "name"), ("cat", "cat"), ("pid", "pid"), ("tid", "tid")):
        if _text(event.get(key)) != row[column]:
            yield f"{key} {event.get(key)!r} became {row[column]!r}"
    if _nanoseconds(event.get("dur")) != row["dur_ns"]:
        yield f"dur {event.get('dur')!r} became {row['dur_ns']!r}"
    identity = event.get("id")
    if cls == "flow":
        found = row["flow_id"] if row["flow_id"] is not None else row["flow_text"]
        if found != (identity if _int64(identity) else _text(identity)):
            yield f"id {identity!r} became {found!r}"
    elif _text(identity) != row["id"]:
        yield f"id {identity!r} became {row['id']!r}"
    if cls in ("flow", "annotation") and event["ph"] != row["phase"]:
        yield f"ph {event['ph']!r} became {row['phase']!r}"
    if "series" in event and (event["series"], float(event["value"])) != (row["series"], row["value"]):
        yield f"{event['series']} {event['value']!r} became {row['value']!r}"
    arguments = event.get("args")
    if arguments is not None and not isinstance(arguments, dict) and left.pop("event.args", None) != arguments:
        yield f"args {arguments!r} were lost"
    columns = {key: column for column in dataset.ARGUMENTS[cls] for key in column.keys}
    for key, value in (arguments if isinstance(arguments, dict) else {}).items():
        if key in left:
            if left.pop(key) != value:
                yield f"argument {key} {value!r} is not in {row['args']!r}"
        elif key not in columns:
            yield f"argument {key} {value!r} was lost"
        elif not _holds(columns[key], value, row[columns[key].name]):
            yield f"argument {key} {value!r} became {row[columns[key].name]!r}"
    for key in set(event) - OWN - {"series", "value"}:
        special = {"bp": "binding", "s": "scope"}.get(key)
        kept = row.get(special) if special and row.get(special) is not None else left.pop(f"event.{key}", None)
        if kept != event[key]:
            yield f"{key} {event[key]!r} became {kept!r}"
    for key in left:
        if not key.startswith("event."):
            yield f"argument {key} appeared"


def _holds(column: dataset.Column, value: Any, cell: Any) -> bool:
    if value is None:
        return cell is None
    if column.type in (dataset.INT, dataset.SMALL):
        return type(value) is int and cell == value
    if column.type == dataset.FLOAT:
        return _numeric(value) and cell == float(value)
    if isinstance(value, (list, dict)):
        return cell is not None and _loaded(cell) == value
    return bool(_text(value) == cell)


@lru_cache(4096)
def _loaded(text: str) -> Any:
    return json.loads(text, parse_float=Real)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    return json.dumps(value, separators=(",", ":"))


def _numeric(value: Any) -> bool:
    return isinstance(value, Real) or type(value) is int


def _int64(value: Any) -> bool:
    return type(value) is int and -(2**63) < value < 2**63


def _nanoseconds(value: Any) -> int | None:
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        return None
    try:
        time = int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN))
    except ArithmeticError:
        return None
    return time if _int64(time) else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--plain", action="store_true", help="use the scanner without numba")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(argv)
    events = values = wrong = skipped = 0
    for path in arguments.traces:
        try:
            result = verify(path, plain=arguments.plain or None, jobs=arguments.jobs)
        except InputError as error:
            skipped += 1
            print(f"skipped {error}")
            continue
        events, values, wrong = events + result.events, values + result.values, wrong + bool(result.differences)
        print(f"{'DIFFERS' if result.differences else 'exact'}  {result.events:>8} events  {path.name}", flush=True)
        for line in result.differences:
            print(f"         {line}")
    print(
        f"{len(arguments.traces) - skipped} traces, {events} events, {values} values: {wrong} differ; {skipped} skipped"
    )
    return 1 if wrong or not events else 0


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    run(main)
