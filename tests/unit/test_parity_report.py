"""What people see: colour on terminals only, the drift plot, ranks in the text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from parity_generate import scalar, training, write_run

from parity.compare import compare
from parity.plot import drift
from parity.report import compared


@pytest.fixture
def parted(tmp_path):
    base = write_run(tmp_path / "base", training(1))
    cand = write_run(tmp_path / "cand", training(1, change=lambda tag, step, value: value * (2 if step > 8 else 1)))
    return compare(base, cand)


def test_colour_only_where_it_is_wanted(parted, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\033[" not in compared(parted)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert compared(parted).startswith("\033[31mDIFFERENT\033[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in compared(parted)


def test_the_worst_ten_and_what_agreed(tmp_path):
    rows = [scalar(f"layer{i}", step, 1.0 + i) for step in range(3) for i in range(20)]
    faulty = [{**row, "value": row["value"] * (1 + 0.1 * i)} if row["step"] == 2 else row for i, row in enumerate(rows)]
    text = compared(
        compare(write_run(tmp_path / "base", rows), write_run(tmp_path / "cand", [*rows[:41], *faulty[41:]]))
    )
    table = [line for line in text.splitlines() if line.startswith("layer")]
    assert len(table) == 10
    assert table[0].startswith("layer19")
    assert "where the runs part: step 2, layer1" in text
    assert "agreed:   all earlier steps; in this step layer0" in text


def test_both_gates_are_told(parted):
    assert "first 20 steps: 22 outside; later steps: 40 outside" in compared(parted)


def test_names_are_escaped_and_the_plot_is_well_formed(tmp_path):
    def rows(scale):
        return [scalar("a<b>&c", step, 1.0 + step * scale) for step in range(5)]

    report = compare(write_run(tmp_path / "base", rows(0)), write_run(tmp_path / "cand", rows(1e-3)))
    root = ElementTree.fromstring(drift(report))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a<b>&c" in texts
    assert {"step", "relative deviation"} <= set(texts)


def test_the_plot_marks_what_is_outside_and_survives_equal_runs(parted, tmp_path):
    circles = drift(parted).count("<circle")
    assert circles == 62  # two tags, steps 9 to 39
    equal = compare(write_run(tmp_path / "a", training(1)), write_run(tmp_path / "b", training(1)))
    ElementTree.fromstring(drift(equal))
