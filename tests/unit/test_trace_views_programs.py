"""The programs: views written whole, printed, compared; bad input in one line."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts.common.errors import InputError
from scripts.common.files import read_json, write_json
from scripts.trace import dataset, show, summarise
from scripts.trace.views import modules
from tests.unit.trace_scene import MS, Scene


@pytest.fixture(autouse=True)
def wide_output(monkeypatch):
    """What is printed into a file, whatever width the test runner claims its terminal has (pytest-xdist sets one)."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def parsed(tmp_path):
    """`parsed(name, scene)`: a folder as the parser leaves it."""

    def write(name: str, scene: Scene):
        folder = tmp_path / name
        for cls, rows in scene.rows.items():
            dataset.write(folder, cls, dataset.table(cls, rows))
        quality = {"status": "ok", "scanner": "plain", "notes": [], "classes": {cls: len(rows) for cls,
                                                            rows in scene.rows.items()},
                   "ranks": [], "inputs": []}  # fmt: skip
        try:
            write_json(folder / "quality.json", "wholejob/quality@1", quality)
        except InputError as error:  # the parser's schema grew: the test must follow it
            pytest.fail(str(error))
        return folder

    return write


def scene(length: int = 4) -> Scene:
    """One step with one kernel."""
    made = Scene().mark("ProfilerStep#3", 0, 10 * MS).frame("train.py(5): step", 0, 9 * MS)
    return made.op("aten::mm", MS, 2 * MS, [[8, 8], [8, 8]], ["float", "float"]).kernel(
        "gemm", MS + 1000, 3 * MS, (3 + length) * MS
    )


def test_summarise_writes_every_view_and_their_listing(parsed, tmp_path, capsys):
    assert summarise.main([str(parsed("a", scene())), "-o", str(tmp_path / "views")]) == 0
    document = read_json(tmp_path / "views" / "views.json", "views")
    assert set(document["views"]) == set(modules())
    for name, listing in document["views"].items():
        table = pq.read_table(tmp_path / "views" / f"{name}.parquet")
        assert (table.num_rows, table.column_names) == (listing["rows"], listing["columns"]), name
    assert document["headline"]["steps"] == 1
    assert "note: no memory events" in capsys.readouterr().out


def test_summarise_against_an_earlier_trace_writes_the_difference(parsed, tmp_path):
    before, after = parsed("a", scene(4)), parsed("b", scene(2))
    summarise.main([str(after), "-o", str(tmp_path / "views"), "--against", str(before)])
    rows = pq.read_table(tmp_path / "views" / "diff.parquet").to_pylist()
    gemm = next(row for row in rows if (row["level"], row["name"]) == ("kernel", "gemm"))
    assert (gemm["status"], gemm["wall_delta_ns"]) == ("moved", -2 * MS)


def test_show_prints_a_view_of_either_folder(parsed, tmp_path, capsys):
    events = parsed("a", scene())
    summarise.main([str(events), "-o", str(tmp_path / "views")])
    capsys.readouterr()
    printed = []
    for folder in (events, tmp_path / "views"):
        show.main([str(folder), "kernels"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "aten::mm" in printed[0] and "4.000 ms" in printed[0] and "train.py" in printed[0]
    show.main([str(events)])
    assert "gpu_busy" in capsys.readouterr().out


def test_show_filters_rows(parsed, capsys):
    events = parsed("a", scene())
    show.main([str(events), "cpu", "--where", "kind=op"])
    out = capsys.readouterr().out
    assert "aten::mm" in out and "cudaLaunchKernel" not in out


def test_show_diff_prints_what_moved(parsed, capsys):
    show.main(["diff", str(parsed("a", scene(4))), str(parsed("b", scene(2)))])
    out = capsys.readouterr().out
    assert "moved" in out and "-2.000 ms" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["no/such/folder"], "no such folder"), (["{events}", "kernel"], "did you mean 'kernels'"), (["{events}", "cpu",
                                                            "--where", "kinf=op"], "did you mean 'kind'"),
     (["diff", "no/such", "{events}"], "no such folder")],
)  # fmt: skip
def test_bad_input_is_one_line_that_says_what_would_be_right(parsed, arguments, words):
    events = str(parsed("a", scene()))
    with pytest.raises(InputError, match=words):
        show.main([argument.replace("{events}", events) for argument in arguments])


def test_a_folder_without_a_trace_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        summarise.main([str(tmp_path / "empty"), "-o", str(tmp_path / "views")])
    assert not (tmp_path / "views").exists()


def test_the_contract_lists_every_column_and_headline_number():
    text = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    text = text[text.index("## Trace views") :]
    tables, document = summarise.summarise(scene().capture())
    for name, table in tables.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), "")
        missing = [column for column in table.column_names if column != "rank" and f"`{column}`" not in row]
        assert not missing, f"docs/formats.md, view {name}: {missing}"
    paragraph = text[text.index("`headline`:") :].split("\n\n")[0]
    assert [key for key in document["headline"] if f"`{key}`" not in paragraph] == []
