"""Which host event lies in which: one stack sweep over the events of all threads, compiled where numba is there.

The input is sorted by (thread, start, longest first). Where events overlap without nesting, the later one is the
innermost. O(n); about 20 million events a second compiled, some 100 times slower without numba.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from scripts.trace import compiled

if compiled.available():
    _cache = compiled._cache_folder()
    if not any(_cache.rglob("nesting.*.nbi")):
        print(f"compiling the trace views (once, about 5 s; cached in {_cache})", file=sys.stderr, flush=True)
    from numba import njit
else:  # slower, same results

    def njit(*_: Any, **__: Any) -> Any:  # type: ignore[no-redef]
        return lambda function: function


# Clocks of the sources of one thread's events differ by rounding, up to a microsecond: so much may a child outlive its
# parent.
SLACK = 1000


@njit(cache=True)
def parents(thread: Any, start: Any, end: Any) -> Any:
    """Index of the innermost event that encloses each one on its thread, -1 for none. int32[n].

    An event that begins in one and outlives it (an annotation opened in a hook) belongs to what encloses both.
    """
    count = len(start)
    parent = np.full(count, -1, np.int32)
    stack = np.empty(count + 1, np.int32)
    depth = 0
    for i in range(count):
        if i and thread[i] != thread[i - 1]:
            depth = 0
        while depth and end[stack[depth - 1]] <= start[i]:
            depth -= 1
        if depth:
            level = depth - 1
            while level > 0 and end[stack[level]] + SLACK < end[i]:
                level -= 1
            parent[i] = stack[level if end[stack[level]] + SLACK >= end[i] else depth - 1]
        stack[depth] = i
        depth += 1
    return parent


@njit(cache=True)
def segments(thread: Any, start: Any, end: Any) -> Any:
    """Cut each thread's time where the innermost event changes: (start, end, event), disjoint and sorted by (thread,
    start).

    The lengths of an event's segments are its self time. int64[m], int64[m], int32[m] with m < 2 n.
    """
    count = len(start)
    begins = np.empty(2 * count, np.int64)
    ends = np.empty(2 * count, np.int64)
    events = np.empty(2 * count, np.int32)
    made = 0
    stack = np.empty(count + 1, np.int32)
    depth = 0
    cursor = np.int64(0)
    for i in range(count + 1):
        fresh = i == count or (i > 0 and thread[i] != thread[i - 1])
        while depth and (fresh or end[stack[depth - 1]] <= start[i]):
            top = stack[depth - 1]
            if end[top] > cursor:
                begins[made], ends[made], events[made] = cursor, end[top], top
                made += 1
                cursor = end[top]
            depth -= 1
        if i == count:
            break
        if depth and start[i] > cursor:
            begins[made], ends[made], events[made] = cursor, start[i], stack[depth - 1]
            made += 1
        if fresh or start[i] > cursor or depth == 0:
            cursor = start[i]
        stack[depth] = i
        depth += 1
    return begins[:made], ends[:made], events[:made]


@njit(cache=True)
def inherit(marked: Any, parent: Any) -> Any:
    """For each event the innermost marked event among itself and its ancestors, -1 for none. int32[n]."""
    found = np.full(len(parent), -1, np.int32)
    for i in range(len(parent)):
        if marked[i]:
            found[i] = i
        elif parent[i] >= 0:
            found[i] = found[parent[i]]
    return found


@njit(cache=True)
def outermost(marked: Any, parent: Any) -> Any:
    """For each event the outermost marked event among itself and its ancestors, -1 for none. int32[n]."""
    found = np.full(len(parent), -1, np.int32)
    for i in range(len(parent)):
        if parent[i] >= 0:
            found[i] = found[parent[i]]
        if found[i] < 0 and marked[i]:
            found[i] = i
    return found


@njit(cache=True)
def inherit_value(value: Any, parent: Any, sticky: Any) -> Any:
    """Each event's own non-zero value, else its parent's; values in the bit set `sticky` are not replaced further in.
    int8[n].
    """
    found = np.zeros(len(parent), np.int8)
    for i in range(len(parent)):
        above = found[parent[i]] if parent[i] >= 0 else 0
        found[i] = above if value[i] == 0 or (sticky >> above) & 1 else value[i]
    return found


@njit(cache=True)
def not_recursive(thread: Any, name: Any, start: Any, end: Any, names: int) -> Any:
    """True where no ancestor has the same name, so that inclusive times can be summed by name. bool[n]."""
    count = len(start)
    first = np.ones(count, np.bool_)
    active = np.zeros(names, np.int32)
    stack = np.empty(count + 1, np.int32)
    depth = 0
    for i in range(count):
        fresh = i > 0 and thread[i] != thread[i - 1]
        while depth and (fresh or end[stack[depth - 1]] <= start[i]):
            depth -= 1
            active[name[stack[depth]]] -= 1
        first[i] = active[name[i]] == 0
        active[name[i]] += 1
        stack[depth] = i
        depth += 1
    return first
