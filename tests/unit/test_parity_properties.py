"""Properties that hold for any two runs: reflexive, antisymmetric in blame, monotone in tolerance."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from parity_generate import scalar, write_run

from parity.compare import compare
from parity.derive import derive

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.one_of(FINITE, st.integers(-(2**53), 2**53), st.booleans(), st.text(max_size=5))
KEYS = st.tuples(st.sampled_from(["batch", "loss", "grad_norm", "h/0"]), st.integers(0, 5))
RUNS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=12)
FEW = settings(max_examples=60, deadline=None)


def rows(run, **tolerance):
    return [
        scalar(tag, step, value, **tolerance) for (tag, step), value in sorted(run.items(), key=lambda item: item[0][1])
    ]


def reports(one, two, **options):
    """The reports of one against two and of two against one."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = write_run(Path(folder) / "a", one), write_run(Path(folder) / "b", two)
        return compare(a, b, **options), compare(b, a, **options)


@FEW
@given(RUNS)
def test_two_launches_with_equal_values_are_equivalent(run):
    for report in reports(rows(run), rows(run)):
        assert report["answer"] == "equivalent"
        assert report["first_divergence"] is None


@FEW
@given(RUNS, RUNS)
def test_blame_is_antisymmetric(one, two):
    forth, back = reports(rows(one), rows(two))
    assert forth["missing"] == back["extra"]
    assert forth["extra"] == back["missing"]
    assert (forth["answer"] == "equivalent") == (back["answer"] == "equivalent")
    shared = {key for key in one if key in two}
    if forth["first_divergence"] and back["first_divergence"] and shared == set(one) == set(two):
        first, other = forth["first_divergence"], back["first_divergence"]
        if first["by"] == other["by"] == "exact":
            assert (first["base"], first["cand"]) == (other["cand"], other["base"])


@FEW
@given(
    st.dictionaries(KEYS, st.tuples(FINITE, FINITE), min_size=1, max_size=12),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
def test_a_wider_tolerance_never_turns_equivalent_into_different(pairs, rtol, atol, more_rtol, more_atol):
    one = {key: value for key, (value, _) in pairs.items()}
    two = {key: value for key, (_, value) in pairs.items()}
    narrow = {"rtol": rtol, "atol": atol}
    wide = {"rtol": rtol + more_rtol, "atol": atol + more_atol}
    before, _ = reports(rows(one, **narrow), rows(two, **narrow))
    after, _ = reports(rows(one, **wide), rows(two, **wide))
    assert after["counts"]["outside"] <= before["counts"]["outside"]
    assert before["answer"] != "equivalent" or after["answer"] == "equivalent"
    typed, _ = reports(rows(one, **narrow), rows(two, **narrow), **wide)
    assert typed["counts"]["outside"] == after["counts"]["outside"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-1e-5, 1e-5), min_size=8, max_size=8), min_size=3, max_size=5), st.integers(0, 99))
def test_a_baseline_is_equivalent_to_any_other_in_its_own_noise(deviations, seed):
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write_run(Path(folder) / str(i), [scalar("loss", step, (1 + seed) * (1 + d)) for step, d in enumerate(run)])
            for i, run in enumerate(deviations)
        ]
        noise = derive(paths)
        for path in paths[1:]:
            assert compare(paths[0], path, noise)["answer"] in ("equivalent", "undecided")


@FEW
@given(RUNS, KEYS, VALUES)
def test_a_change_of_one_value_is_blamed_on_that_value(run, key, value):
    changed = {**run, key: value}
    report, _ = reports(rows(run), rows(changed))
    if report["first_divergence"]:
        assert (report["first_divergence"]["tag"], report["first_divergence"]["step"]) == key
