"""Every kind of malformed trace: no crash, the loss counted, the readable events kept, and both scanners of one
mind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trace_malformed as malformed

from scripts.common.errors import InputError
from scripts.trace import compiled, dataset
from scripts.trace.parse import parse

needs_numba = pytest.mark.skipif(
    not compiled.available(), reason="numba is not installed: only the plain scanner can be tested"
)


def tables(folder: Path) -> dict[str, list]:
    """Rows of every class; events of the same time in any order."""
    return {
        cls: sorted(dataset.read(folder, cls).to_pylist(), key=lambda row: json.dumps(row, sort_keys=True))
        for cls in dataset.CLASSES
    }


def parsed(case: malformed.Case, folder: Path, plain: bool) -> dict:
    path = folder / case.name
    path.write_bytes(case.data)
    return parse([path], folder / ("plain" if plain else "compiled"), plain=plain)


@pytest.mark.parametrize("name", malformed.KINDS)
def test_keeps_what_can_be_read_and_counts_the_rest(name: str, tmp_path: Path) -> None:
    case = malformed.KINDS[name]()
    if case.kept is None:
        with pytest.raises(InputError, match="not a trace"):
            parsed(case, tmp_path, plain=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == [case.name]
        return
    report = parsed(case, tmp_path, plain=True)
    entry = report["inputs"][0]
    assert case.kept <= entry["events"] <= malformed.COUNT
    assert case.repaired in (None, entry["repaired"])
    assert (report["status"] == "lossy") == case.lost, entry
    if entry["events"] < malformed.COUNT and not case.name.endswith(".gz"):
        assert entry["bad"] + entry["truncated"] >= 1
        assert entry["lost_bytes"] > 0


@needs_numba
@pytest.mark.parametrize("name", [name for name, make in malformed.KINDS.items() if make().kept is not None])
def test_scanners_agree(name: str, tmp_path: Path) -> None:
    case = malformed.KINDS[name]()
    plain, quick = parsed(case, tmp_path, plain=True), parsed(case, tmp_path, plain=False)
    assert {**plain, "scanner": ""} == {**quick, "scanner": ""}
    assert tables(tmp_path / "plain") == tables(tmp_path / "compiled")


@pytest.mark.parametrize(
    ("name", "cls", "column", "value"),
    [
        ("unescaped_quotes", "cpu_op", "name", 'call "f" of <"x">'),
        ("unescaped_quotes_before_comma", "cpu_op", "name", 'say "a", "b" now'),
        ("raw_backslashes", "python", "name", "C:\\Users\new\train.py(85): step"),
        ("backslash_before_the_quote", "cpu_op", "name", "C:\\dir\\"),
        ("control_characters", "cpu_op", "name", "a\x01b\tc\x7f"),
        ("no_utf8", "cpu_op", "name", "caf\\xe9 \\xff\\xfe"),
        ("quote_missing_before_key", "cpu_op", "tid", "7"),
        ("bare_not_available", "gpu", "args", '{"blocks per SM":"N/A"}'),
        ("times_beyond_double", "cpu_op", "ts_ns", 9223372036854775806),
        ("times_beyond_int64", "cpu_op", "args", '{"event.ts":99223372036854775.806,"odd one":[1,{"a":2}]}'),
        ("times_with_exponent", "cpu_op", "ts_ns", 5119840434706766),
        ("integers_beyond_int64", "runtime", "args", '{"correlation":18446744073709551615}'),
        ("flow_ids_beyond_int64", "flow", "flow_text", "18446744073709551615"),
        ("keys_that_differ_in_case", "memory", "args", '{"Bytes":-44032}'),
        ("arguments_that_are_no_object", "flow", "args", '{"event.args":[1,2]}'),
        ("looks_like_split_in_string", "cpu_op", "name", '}, {"ph": "X"}, {'),
    ],
)
def test_repairs_what_it_says(name: str, cls: str, column: str, value: object, tmp_path: Path) -> None:
    parsed(malformed.KINDS[name](), tmp_path, plain=True)
    assert value in dataset.read(tmp_path / "plain", cls)[column].to_pylist()


def test_every_class_of_the_generator_is_there(tmp_path: Path) -> None:
    report = parsed(malformed.KINDS["good"](), tmp_path, plain=True)
    assert all(report["classes"][cls] for cls in ("gpu", "runtime", "cpu_op", "python", "annotation", "flow", "memory"))
    assert report["ranks"][0]["rank"] == 3


def test_there_are_all_the_kinds_of_the_wild() -> None:
    assert len(malformed.KINDS) >= 35
