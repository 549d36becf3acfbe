"""Counting of ids, which finds orphans without keeping every row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scripts.trace.quality import Ids, dropped_by_profiler

ids = st.lists(
    st.one_of(st.integers(0, 9), st.integers(-3, 40), st.sampled_from([-(2**62), 2**40, 2**62])), max_size=30
)


@given(ids, ids, ids)
def test_common_counts_rows_whose_id_the_other_has(first: list[int], more: list[int], other: list[int]) -> None:
    one, two = Ids(), Ids()
    for some in (first, more):
        one.add(np.array(some, np.int64))
    two.add(np.array(other, np.int64))
    assert one.count == len(first) + len(more)
    assert one.common(two) == sum(number in other for number in first + more)


def test_dense_and_sparse_ids_meet() -> None:
    dense, sparse = Ids(), Ids()
    dense.add(np.arange(1000, dtype=np.int64))
    sparse.add(np.array([5, 999, 1000, -1], np.int64))
    assert (dense.common(sparse), sparse.common(dense)) == (2, 2)


def test_one_id_for_very_many_rows() -> None:
    one, two = Ids(), Ids()
    for _ in range(3):
        one.add(np.full(40_000, 7, np.int64))
    two.add(np.array([7], np.int64))
    assert one.common(two) == 120_000
    assert two.common(one) == 1


def test_the_profilers_log_says_what_it_dropped() -> None:
    log = [
        "Record counts: Out-of-range = 3, Blocklisted runtime = 2, Invalid ext correlations = 1",
        "Dropped 5 activity records",
    ]
    assert dropped_by_profiler({"WARNING": log}) == {"out_of_range": 3, "dropped": 5, "invalid_correlation": 1}
    assert dropped_by_profiler({"INFO": ["Enabling GPU tracing"]}) == {}
    assert dropped_by_profiler({"deviceProperties": []}) is None


def test_the_documentation_names_every_field() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "traces.md").read_text(encoding="utf-8")
    text = text[text.index("`quality.json`, for each input:") : text.index("## Views")]
    fields = json.loads((root / "config/schemas/quality.schema.json").read_text(encoding="utf-8"))["properties"]
    inputs, ranks = text.split("and for each rank:")
    for section, name in ((inputs, "inputs"), (ranks, "ranks")):
        rows = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        assert set(re.findall(r"`(\w+)`", rows)) == set(fields[name]["items"]["properties"])
