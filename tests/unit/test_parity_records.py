"""Reading what a run left: bad input in one clear line, the older tool's files, and bounded memory."""

from __future__ import annotations

import json
import math

import pytest
from parity_generate import scalar, training, write_run

from parity import records
from parity.__main__ import main
from parity.compare import compare
from parity.records import BadInput, Run


def refusal(capsys, *arguments):
    """The single line that a command prints for bad input; it must leave with 3."""
    assert main([str(argument) for argument in arguments]) == 3
    error = capsys.readouterr().err.strip()
    assert error
    assert len(error.splitlines()) == 1
    return error


class TestBadInput:
    def test_an_empty_folder(self, tmp_path, capsys):
        (tmp_path / "empty").mkdir()
        base = write_run(tmp_path / "base", training(1))
        assert "holds no rank0.jsonl" in refusal(capsys, "compare", base, tmp_path / "empty")
        assert "parity run" in refusal(capsys, "show", tmp_path / "empty")

    def test_the_folder_above_the_records(self, tmp_path, capsys):
        write_run(tmp_path / "run" / "records", training(1))
        assert "did you mean" in refusal(capsys, "show", tmp_path / "run")

    def test_a_file_without_header_and_an_empty_one(self, tmp_path, capsys):
        folder = write_run(tmp_path / "run", training(1))
        (folder / "rank0.jsonl").write_text("")
        assert "empty" in refusal(capsys, "show", folder)
        (folder / "rank0.jsonl").write_text("loss 1.0\n")
        assert "header" in refusal(capsys, "show", folder)

    def test_two_versions_of_the_summary_are_not_compared(self, tmp_path, capsys):
        old = write_run(tmp_path / "old", training(1))
        news = [write_run(tmp_path / f"new{i}", training(i), summary=2) for i in range(4)]
        assert "summarised by version 2" in refusal(capsys, "compare", old, news[0])
        assert "summarised by version 1" in refusal(capsys, "derive", *news[:3], old, "-o", tmp_path / "noise.json")
        assert main(["derive", *map(str, news[:3]), "-o", str(tmp_path / "noise.json")]) == 0
        other = write_run(tmp_path / "other", training(5))
        capsys.readouterr()
        found = refusal(capsys, "compare", old, other, "--noise", tmp_path / "noise.json")
        assert "the noise was measured on tensors summarised by version 2" in found
        assert compare(news[0], news[3])["answer"] != "cannot"

    def test_a_cut_last_line_is_reported_and_not_fatal(self, tmp_path):
        base = write_run(tmp_path / "base", training(1))
        cand = write_run(tmp_path / "cand", training(1))
        text = (cand / "rank0.jsonl").read_text()
        (cand / "rank0.jsonl").write_text(text[:-30])
        report = compare(base, cand)
        assert report["answer"] == "different"
        assert report["missing"][0]["step"] == 39
        assert any("cut off" in warning for warning in report["warnings"])

    def test_a_damaged_line_in_the_middle_names_file_and_line(self, tmp_path, capsys):
        base = write_run(tmp_path / "base", training(1))
        folder = write_run(tmp_path / "run", training(1))
        lines = (folder / "rank0.jsonl").read_text().splitlines()
        lines[10] = lines[10][:20]
        (folder / "rank0.jsonl").write_text("\n".join(lines) + "\n")
        assert "rank0.jsonl line 11" in refusal(capsys, "compare", base, folder)

    def test_another_schema_version_and_a_mixture(self, tmp_path, capsys):
        base = write_run(tmp_path / "base", training(1))
        newer = write_run(tmp_path / "newer", training(1), schema="parity/records@2")
        assert "parity/records@2" in refusal(capsys, "compare", base, newer)
        mixed = write_run(tmp_path / "mixed", training(1), world_size=2)
        write_run(mixed, training(1), rank=1, world_size=2, schema="parity/records@2")
        assert "parity/records@2" in refusal(capsys, "show", mixed)

    def test_missing_ranks(self, tmp_path, capsys):
        folder = write_run(tmp_path / "run", training(1), rank=1, world_size=3)
        assert "rank 0, 2 left no file" in refusal(capsys, "show", folder)

    @pytest.mark.parametrize("tag", ["my loss", "", "loss\n", "a\tb"])
    def test_a_tag_with_white_space(self, tmp_path, capsys, tag):
        folder = write_run(tmp_path / "run", [scalar(tag, 0, 1.0)])
        assert "white space" in refusal(capsys, "show", folder)

    @pytest.mark.parametrize(
        "row",
        [
            {"tag": "x", "step": 0, "kind": "complex", "value": 1},
            {"tag": "x", "step": "0", "kind": "float", "value": 1.0},
            {"tag": "x", "step": 0, "kind": "float", "value": "one"},
            {"step": 0, "kind": "float", "value": 1.0},
            {"tag": "x", "step": 0, "kind": "int", "value": "1"},
            {"tag": "x", "step": 0, "kind": "bool", "value": 1},
            {"tag": "x", "step": 0, "kind": "tensor", "shape": [2], "dtype": "float32"},
            [1, 2],
        ],
    )
    def test_records_of_a_wrong_form(self, tmp_path, capsys, row):
        assert "line 2" in refusal(capsys, "show", write_run(tmp_path / "run", [row]))

    def test_a_damaged_ledger(self, tmp_path):
        base = write_run(tmp_path / "base", training(1), ledger={"steps": 1})
        cand = write_run(tmp_path / "cand", training(1), ledger={"steps": 1})
        (cand / "ledger.json").write_text('{"schema": "parity/ledger@1", "inv')
        assert "ledger.json" in compare(base, cand)["reason"]

    def test_a_run_without_records(self, tmp_path):
        report = compare(write_run(tmp_path / "base", []), write_run(tmp_path / "cand", []))
        assert report["answer"] == "cannot"


class TestOlderTool:
    def write(self, path, **values):
        tolerance = {"rtol": 1e-3, "atol": 1e-12}
        rows = [{"tag": tag, "value": value, "error_tolerance": tolerance} for tag, value in values.items()]
        path.write_text(json.dumps(rows))
        return path

    def test_its_tolerances_count(self, tmp_path):
        base = self.write(tmp_path / "base.json", loss_step0=2.0, n=5)
        assert compare(base, self.write(tmp_path / "a.json", loss_step0=2.001, n=5))["answer"] == "equivalent"
        assert compare(base, self.write(tmp_path / "b.json", loss_step0=2.01, n=5))["answer"] == "different"
        assert compare(base, self.write(tmp_path / "c.json", loss_step0=2.0, n=5.0))["answer"] == "different"

    def test_without_a_tolerance_values_must_be_equal(self, tmp_path):
        for name, value in (("base", 1.0), ("same", 1.0), ("other", 1.0000001)):
            (tmp_path / f"{name}.json").write_text(json.dumps([{"tag": "x", "value": value}]))
        assert compare(tmp_path / "base.json", tmp_path / "same.json")["answer"] == "equivalent"
        assert compare(tmp_path / "base.json", tmp_path / "other.json")["answer"] == "different"

    def test_folders_pair_their_rank_files_by_name(self, tmp_path):
        for run in ("base", "cand"):
            (tmp_path / run).mkdir()
            self.write(tmp_path / run / "run.json", loss=1.0)
            self.write(tmp_path / run / "run.rank1.json", loss=1.0 if run == "base" else 2.0)
        report = compare(tmp_path / "base", tmp_path / "cand")
        assert report["first_divergence"]["rank"] == "run.rank1.json"

    def test_derive_reads_it(self, tmp_path, capsys):
        files = [str(self.write(tmp_path / f"{i}.json", loss=1.0 + 1e-6 * i, n=3)) for i in range(3)]
        main(["derive", *files])
        assert "vacuous   loss" in capsys.readouterr().out

    def test_duplicate_tags_and_empty_lists_are_refused(self, tmp_path, capsys):
        base = self.write(tmp_path / "base.json", loss=1.0)
        (tmp_path / "empty.json").write_text("[]")
        (tmp_path / "twice.json").write_text(json.dumps([{"tag": "x", "value": 1}] * 2))
        assert "no records" in refusal(capsys, "compare", base, tmp_path / "empty.json")
        assert "twice" in refusal(capsys, "compare", base, tmp_path / "twice.json")


class TestAlign:
    def test_pairs_whatever_the_order_and_keeps_the_first_runs_positions(self, tmp_path):
        rows = training(1, steps=5)
        one, two = write_run(tmp_path / "a", rows), write_run(tmp_path / "b", rows[::-1])
        found = list(records.align([Run(one), Run(two)], "0"))
        assert len(found) == 10
        assert all(a == b for _, _, (a, b), _ in found)

    def test_what_waits_is_bounded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(records, "PENDING_BYTES", 20_000)
        rows = [scalar("x", step, 1.0) for step in range(2000)]
        one = write_run(tmp_path / "a", [scalar("lost", step, 1.0) for step in range(2000)] + rows)
        two = write_run(tmp_path / "b", rows)
        found = list(records.align([Run(one), Run(two)], "0"))
        assert sum(1 for _, key, row, _ in found if key[0] == "lost" and row[1] is None) == 2000

    def test_a_key_twice_in_one_run_is_refused(self, tmp_path):
        rows = [scalar("x", 0, 1.0), scalar("y", 0, 1.0)]
        one = write_run(tmp_path / "a", [rows[0], *rows])
        two = write_run(tmp_path / "b", rows[::-1])
        with pytest.raises(BadInput, match="twice"):
            list(records.align([Run(one), Run(two)], "0"))


def test_show_lists_tags_and_values(tmp_path, capsys):
    folder = write_run(tmp_path / "run", training(1), ledger={"steps": 40})
    assert main(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "loss" in text
    assert "steps 0-39" in text
    assert main(["show", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ranks"]["0"]["tags"]["loss"]["records"] == 40


def test_numbers_that_json_lacks():
    assert math.isnan(records.number("nan"))
    assert records.number("-inf") == -math.inf
    with pytest.raises(BadInput):
        records.number(True)
