"""Interval arithmetic on int64 nanoseconds with numpy alone: unions, lengths, coverage.

A set of intervals is a pair of equally long arrays (start, end), half open. "Merged" means sorted, disjoint and not
empty. Each function costs one sort or less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Merged = tuple[Ints, Ints]

EMPTY: Merged = (np.empty(0, np.int64), np.empty(0, np.int64))


def merge(start: Ints, end: Ints) -> Merged:
    """The union as disjoint sorted intervals; empty and negative ones are dropped, touching ones joined.

    O(n log n), O(n) if sorted.
    """
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    if len(start) == 0:
        return EMPTY
    if len(start) > 1 and (np.diff(start) < 0).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    return start[heads], reach[np.append(heads[1:], len(start)) - 1]


def length(merged: Merged) -> int:
    """Total length of a merged set."""
    return int((merged[1] - merged[0]).sum())


def union_length(start: Ints, end: Ints) -> int:
    """Length of the union of intervals sorted by start, without building it. O(n)."""
    if len(start) == 0:
        return 0
    reach = np.maximum.accumulate(end)
    open_from = start.copy()
    np.maximum(start[1:], reach[:-1], out=open_from[1:])
    return int(np.maximum(end - open_from, 0).sum())


def covered(merged: Merged, start: Ints, end: Ints) -> Ints:
    """For each interval (start, end) how much of it the merged set covers. O(k log n)."""
    if len(merged[0]) == 0 or len(start) == 0:
        return np.zeros(len(start), np.int64)
    return np.maximum(_measure(merged, np.maximum(end, start)) - _measure(merged, start), 0)


def _measure(merged: Merged, at: Ints) -> Ints:
    """Length of the merged set before each instant."""
    begin, end = merged
    total = np.concatenate(([0], np.cumsum(end - begin)))
    index = np.searchsorted(begin, at, side="right")
    inside = np.where(index > 0, np.minimum(at, end[index - 1]) - begin[index - 1], 0)
    return total[np.maximum(index - 1, 0)] * (index > 0) + inside


def shared(one: Merged, other: Merged) -> int:
    """Length of the intersection of two merged sets."""
    if len(one[0]) > len(other[0]):
        one, other = other, one
    return int(covered(other, *one).sum())


def intersect(one: Merged, other: Merged) -> Merged:
    """The intersection of two merged sets, merged."""
    return subtract(one, complement(other, *_hull(one)))


def subtract(one: Merged, other: Merged) -> Merged:
    """What of `one` lies outside `other`; both merged."""
    if len(one[0]) == 0 or len(other[0]) == 0:
        return one
    edges = np.concatenate([one[0], one[1], other[0], other[1]])
    step = np.concatenate(
        [np.ones(len(one[0])), -np.ones(len(one[0])), -2 * np.ones(len(other[0])), 2 * np.ones(len(other[0]))]
    )
    order = np.argsort(edges, kind="stable")
    edges, depth = edges[order], np.cumsum(step[order])
    inside = np.flatnonzero((depth[:-1] == 1) & (edges[1:] > edges[:-1]))
    return merge(edges[inside], edges[inside + 1])


def complement(merged: Merged, low: int, high: int) -> Merged:
    """The gaps of a merged set within [low, high)."""
    start = np.concatenate(([low], np.clip(merged[1], low, high)))
    end = np.concatenate((np.clip(merged[0], low, high), [high]))
    kept = end > start
    return start[kept], end[kept]


def overlaps(start: Ints, end: Ints, merged: Merged) -> tuple[Ints, Ints, Ints]:
    """Pairs (i, j, shared length) of every query interval with every interval of the merged set that it meets.

    Sizes: as many rows as there are meetings; for disjoint queries at most queries + intervals.
    """
    begin, finish = merged
    low = np.searchsorted(finish, start, side="right")
    high = np.maximum(np.searchsorted(begin, end, side="left"), low)
    count = high - low
    query = np.repeat(np.arange(len(start)), count)
    item = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    part = np.minimum(end[query], finish[item]) - np.maximum(start[query], begin[item])
    kept = part > 0
    return query[kept], item[kept], part[kept]


def _hull(merged: Merged) -> tuple[int, int]:
    return (int(merged[0][0]), int(merged[1][-1])) if len(merged[0]) else (0, 0)
