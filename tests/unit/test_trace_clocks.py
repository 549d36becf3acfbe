"""Clock offsets between ranks from collectives that they share."""

from __future__ import annotations

from scripts.trace.clocks import offsets


def _collectives(shift: int, noise: list[int], skip: int = 0) -> list[tuple[str, int, int]]:
    return [("AllReduce|1", 0, 1000 * i * i + shift + noise[i % len(noise)]) for i in range(skip, 20)]


def test_offset_is_the_median_difference_of_ends_and_the_residual_its_spread() -> None:
    found = offsets({0: None, 1: None}, {0: _collectives(0, [0]), 1: _collectives(5000, [-7, 0, 9])})
    assert found[1] == {"base_ns": None, "offset_ns": -5000, "residual_ns": 7, "shared": 20, "method": "collectives"}
    assert found[0]["method"] == "reference"


def test_bases_are_taken_off_first() -> None:
    found = offsets({0: 10**18, 1: 10**18 + 10**9}, {0: _collectives(0, [0]), 1: _collectives(30 - 10**9, [0])})
    assert found[1]["offset_ns"] == 10**9 - 30
    alone = offsets({0: 10**18, 1: 10**18 + 10**9}, {})
    assert (alone[1]["offset_ns"], alone[1]["residual_ns"], alone[1]["method"]) == (10**9, None, "base")


def test_windows_that_begin_at_different_collectives_are_matched_by_the_smallest_spread() -> None:
    found = offsets({0: None, 1: None}, {0: _collectives(0, [0], skip=3), 1: _collectives(400, [0])})
    assert (found[1]["offset_ns"], found[1]["residual_ns"], found[1]["shared"]) == (-400, 0, 17)


def test_one_clock_named_and_one_not_is_unknown() -> None:
    assert offsets({0: 10**18, 1: None}, {})[1] == {
        "base_ns": None, "offset_ns": None, "residual_ns": None, "shared": 0, "method": "unknown",
    }  # fmt: skip


def test_one_rank_needs_nothing() -> None:
    assert offsets({4: None}, {})[4]["offset_ns"] == 0
    assert offsets({}, {}) == {}
