"""Interval arithmetic and nesting against brute force on every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.trace import intervals, nesting
from scripts.trace.grouping import Groups

SPAN = 40
spans = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, 12)), max_size=12)


def arrays(found: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of (start, length) pairs."""
    start = np.array([one for one, _ in found], np.int64)
    return start, start + np.array([length for _, length in found], np.int64)


def instants(start: np.ndarray, end: np.ndarray) -> set[int]:
    """The nanoseconds that the intervals cover."""
    return {at for one, other in zip(start.tolist(), end.tolist()) for at in range(one, other)}


@given(spans)
@settings(deadline=None)
def test_merge_covers_the_same_instants_with_disjoint_sorted_intervals(found):
    start, end = arrays(found)
    merged = intervals.merge(start, end)
    assert instants(*merged) == instants(start, end)
    assert intervals.length(merged) == len(instants(start, end))
    assert (merged[0][1:] > merged[1][:-1]).all()


@given(spans, spans)
@settings(deadline=None)
def test_set_operations_agree_with_sets(one, other):
    first, second = intervals.merge(*arrays(one)), intervals.merge(*arrays(other))
    a, b = instants(*first), instants(*second)
    assert intervals.shared(first, second) == len(a & b)
    assert instants(*intervals.subtract(first, second)) == a - b
    assert instants(*intervals.intersect(first, second)) == a & b
    assert instants(*intervals.complement(first, 3, 30)) == set(range(3, 30)) - a


@given(spans, spans)
@settings(deadline=None)
def test_coverage_and_overlaps_count_each_shared_instant(queries, found):
    start, end = arrays(queries)
    merged = intervals.merge(*arrays(found))
    inside = [len(set(range(one, other)) & instants(*merged)) for one, other in zip(start.tolist(), end.tolist())]
    assert intervals.covered(merged, start, end).tolist() == inside
    query, item, part = intervals.overlaps(start, end, merged)
    assert np.bincount(query, part, len(start)).tolist() == inside
    assert all(merged[0][j] < end[i] and merged[1][j] > start[i] for i, j in zip(query, item))


@st.composite
def nested(draw):
    """Properly nested events of two threads, in the order that the sweeps want."""
    events = []
    for thread in (0, 1):
        todo = [(0, SPAN)]
        while todo:
            low, high = todo.pop()
            if high - low < 2 or len(events) > 20:
                continue
            start = draw(st.integers(low, high - 1))
            end = draw(st.integers(start + 1, high))
            events.append((thread, start, end))
            todo += [(start, end), (end, high)]
    return sorted(set(events), key=lambda event: (event[0], event[1], -event[2]))


@given(nested())
@settings(max_examples=200, deadline=None)
def test_segments_give_every_instant_to_the_innermost_event(events):
    thread, start, end = (
        (np.array(column, np.int64) for column in zip(*events)) if events else (np.empty(0, np.int64),) * 3
    )
    begin, finish, owner = nesting.segments(thread.astype(np.int32), start, end)
    found = {
        (int(thread[event]), at): int(event)
        for one, other, event in zip(begin, finish, owner)
        for at in range(one, other)
    }
    expected = {}
    for at in range(SPAN):
        for which in (0, 1):
            around = [i for i, (t, a, b) in enumerate(events) if t == which and a <= at < b]
            if around:
                expected[which, at] = max(around, key=lambda i: (events[i][1], -events[i][2]))
    assert found == expected


@given(nested())
@settings(deadline=None)
def test_the_parent_is_the_shortest_enclosing_event(events):
    thread, start, end = (
        (np.array(column, np.int64) for column in zip(*events)) if events else (np.empty(0, np.int64),) * 3
    )
    parent = nesting.parents(thread.astype(np.int32), start, end)
    for i, (t, a, b) in enumerate(events):
        around = [j for j, (u, c, d) in enumerate(events) if j != i and u == t and c <= a and b <= d]
        assert parent[i] == (min(around, key=lambda j: events[j][2] - events[j][1]) if around else -1)


def test_an_annotation_that_outlives_the_frame_it_opened_in_belongs_to_the_frame_around_both():
    # A profiler's step mark opened inside a hook of the optimizer: seen in a real YOLO trace.
    start, end = np.array([0, 10, 20]) * 10_000, np.array([100, 30, 90]) * 10_000
    assert nesting.parents(np.zeros(3, np.int32), start, end).tolist() == [-1, 0, 0]


def test_sums_are_exact_where_floats_are_not():
    big = 2**53 + 1
    groups = Groups(np.array([3, -1, 3]), np.array([0, 0, 0]))
    assert groups.sum(np.array([big, 7, 0])).tolist() == [7, big]
    assert groups.count.tolist() == [1, 2]
    assert groups.distinct(np.array([5, -1, 5])).tolist() == [0, 1]


def test_recursion_counts_once():
    thread, name = np.zeros(3, np.int32), np.array([0, 1, 0], np.int32)
    assert nesting.not_recursive(thread, name, np.array([0, 1, 2]), np.array([10, 9, 8]), 2).tolist() == [
        True,
        True,
        False,
    ]
