"""What can be trusted in a parsed trace: counts of loss, and of things that make views wrong (orphans, overlaps, odd
durations).

A `Survey` looks at the rows of one class and rank as they are written, in time order, in O(rows); `rank_report` puts a
rank's surveys together.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import arrow, scan

if TYPE_CHECKING:
    import pyarrow as pa

_STEP = re.compile(r"ProfilerStep\s*#?\s*(\d+)")
_LAUNCH = re.compile(r"Launch(?!HostFunc)|MemcpyAsync|MemsetAsync")
_COLLECTIVE = re.compile(r"nccl|rccl|oneccl|hccl|AllReduce|AllGather|ReduceScatter|AllToAll", re.IGNORECASE)
_DROPPED = {
    "out_of_range": re.compile(r"[Oo]ut-of-range\s*[=:]\s*(\d+)"),
    "dropped": re.compile(r"[Dd]ropped\s*[=:]?\s*(\d+)|(\d+) (?:activity )?records? (?:were |was )?dropped"),
    "invalid_correlation": re.compile(r"[Ii]nvalid ext correlations\s*[=:]\s*(\d+)"),
    "out_of_order": re.compile(r"out-of-order\s*[=:]\s*(\d+)"),
}
_DEPTH = 512


class Survey:
    """Counts over one class of one rank; `look` at its tables in time order."""

    def __init__(self, cls: str, kernel: Any) -> None:
        self.cls, self.kernel = cls, kernel
        self.rows = self.zero = self.negative = self.overlaps = 0
        self.first: int | None = None
        self.last: int | None = None
        self.steps: set[int] = set()
        self.correlations = Ids()
        self.launches = Ids()
        self.collectives: list[tuple[str, int, int]] = []
        self._tracks: dict[tuple[Any, Any], int] = {}
        self._last = np.full(64, scan.NULL, np.int64)
        self._open = np.zeros((2, 64, _DEPTH), np.int64)
        self._depth = np.zeros(64, np.int64)

    def look(self, table: pa.Table) -> None:
        """Count one table, whose rows follow those of the table before."""
        self.rows += len(table)
        starts = _integers(table, "ts_ns", scan.NULL)
        lengths = _integers(table, "dur_ns", scan.NULL)
        if self.cls not in ("metadata", "flow", "memory", "counter"):
            timed = np.flatnonzero((starts != scan.NULL) & (lengths != scan.NULL))
            if len(timed):
                self._durations(table, timed, starts[timed], lengths[timed])
            self._first_and_last(starts[starts != scan.NULL])
        if self.cls in ("gpu", "runtime") and "correlation" in table.column_names:
            correlations = _integers(table, "correlation", 0)
            self.correlations.add(correlations[correlations != 0])
            if self.cls == "runtime":
                launching = _matching(table, "name", _LAUNCH)
                self.launches.add(correlations[launching & (correlations != 0)])
        if self.cls == "gpu":
            self._collect(table, starts, lengths)
        if self.cls == "annotation":
            names = _texts(table, "name")
            kinds = _texts(table, "cat")
            for number in np.flatnonzero(_matching(table, "name", _STEP)).tolist():
                if kinds[number] != "gpu_user_annotation":
                    self.steps.add(int(_STEP.search(names[number])[1]))  # type: ignore[index]

    def _durations(self, table: pa.Table, timed: Any, starts: Any, lengths: Any) -> None:
        self.zero += int((lengths == 0).sum())
        self.negative += int((lengths < 0).sum())
        ends = starts + np.minimum(lengths, np.iinfo(np.int64).max - np.maximum(starts, 0))
        self._first_and_last(ends)
        tracks = self._track_numbers(table)[timed]
        if self.cls == "gpu":
            self.overlaps += int(self.kernel.overlapping(tracks, starts, ends, self._last))
        else:
            self.overlaps += int(self.kernel.crossing(tracks, starts, ends, self._open[0], self._open[1], self._depth))

    def _first_and_last(self, times: Any) -> None:
        if len(times):
            first, last = int(times.min()), int(times.max())
            self.first = first if self.first is None else min(first, self.first)
            self.last = last if self.last is None else max(last, self.last)

    def _track_numbers(self, table: pa.Table) -> Any:
        """A number for each row's (pid, tid), the same between tables."""
        sides = [_codes(table, name) for name in ("pid", "tid")]
        width = len(sides[1][1])
        pairs = sides[0][0].astype(np.int64) * width + sides[1][0]
        numbers = np.zeros(len(sides[0][1]) * width, np.int64)
        seen = np.zeros(len(numbers), np.bool_)
        seen[pairs] = True
        for pair in np.flatnonzero(seen).tolist():
            track = (sides[0][1][pair // width], sides[1][1][pair % width])
            numbers[pair] = self._tracks.setdefault(track, len(self._tracks))
        while len(self._tracks) > len(self._last):
            self._last = np.concatenate([self._last, np.full_like(self._last, scan.NULL)])
            self._open = np.concatenate([self._open, np.zeros_like(self._open)], axis=1)
            self._depth = np.concatenate([self._depth, np.zeros_like(self._depth)])
        return numbers[pairs]

    def _collect(self, table: pa.Table, starts: Any, lengths: Any) -> None:
        """Remember the collectives, for the alignment of clocks: what, begin, end."""
        places = np.flatnonzero(_matching(table, "name", _COLLECTIVE))
        if not len(places):
            return
        columns = [_texts(table, name)[places] for name in _KEY]
        columns.append(_integers(table, "in_nelems", scan.NULL)[places])
        for place, key in zip(places.tolist(), zip(*columns)):
            if starts[place] != scan.NULL and lengths[place] != scan.NULL:
                what = "|".join("" if part is None else str(part) for part in key)
                self.collectives.append((what, int(starts[place]), int(starts[place] + lengths[place])))


_KEY = ("name", "collective", "group", "dtype")


class Ids:
    """How often each id occurs: a byte an id, in pages, because correlation ids are dense."""

    PAGE = 1 << 18
    MANY = 255  # a byte that says this and more; the rest is in `_others`

    def __init__(self) -> None:
        self.count = 0
        self._pages: dict[int, Any] = {}
        self._others: dict[int, int] = {}  # what a byte cannot count, and ids so sparse that a page would be waste

    def add(self, ids: Any) -> None:
        """Count ids (int64)."""
        self.count += len(ids)
        numbers, times = np.unique(ids, return_counts=True)
        pages = numbers // self.PAGE
        edges = np.flatnonzero(np.diff(pages)) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)]):
            if start == stop:
                continue
            page = int(pages[start])
            held = self._pages.get(page)
            if held is None and stop - start < 64:
                self._count_others(numbers[start:stop], times[start:stop])
                continue
            if held is None:
                held = self._pages[page] = np.zeros(self.PAGE, np.uint8)
            places = numbers[start:stop] - page * self.PAGE
            total = held[places] + times[start:stop]
            held[places] = np.minimum(total, self.MANY)
            over = total > self.MANY
            self._count_others(numbers[start:stop][over], total[over] - self.MANY)

    def _count_others(self, numbers: Any, times: Any) -> None:
        for number, more in zip(numbers.tolist(), times.tolist()):
            self._others[number] = self._others.get(number, 0) + more

    def common(self, other: Ids) -> int:
        """How many of the ids counted here the other has too."""
        shared = sum(times for number, times in self._others.items() if other.has(number))
        for page, held in self._pages.items():
            there = np.zeros(self.PAGE, np.bool_)
            if page in other._pages:
                there |= other._pages[page] > 0
            for number in other._others:
                if number // self.PAGE == page:
                    there[number - page * self.PAGE] = True
            shared += int(held[there].sum(dtype=np.int64))
        return shared

    def has(self, number: int) -> bool:
        """Whether the id was counted."""
        page = self._pages.get(number // self.PAGE)
        return number in self._others or (page is not None and page[number % self.PAGE] > 0)


def rank_report(surveys: dict[str, Survey]) -> dict[str, Any]:
    """The counts of one rank for `quality.json`, from its surveys by class."""
    gpu, runtime = surveys["gpu"], surveys["runtime"]
    without_launch = gpu.rows - gpu.correlations.common(runtime.correlations)
    without_kernel = runtime.launches.count - runtime.launches.common(gpu.correlations)
    firsts = [survey.first for survey in surveys.values() if survey.first is not None]
    lasts = [survey.last for survey in surveys.values() if survey.last is not None]
    return {
        "rows": {cls: survey.rows for cls, survey in surveys.items()},
        "first_ns": min(firsts, default=None),
        "last_ns": max(lasts, default=None),
        "steps": sorted(surveys["annotation"].steps),
        "gpu_without_launch": without_launch,
        "launches_without_gpu": without_kernel,
        "zero_durations": {cls: survey.zero for cls, survey in surveys.items() if survey.zero},
        "negative_durations": {cls: survey.negative for cls, survey in surveys.items() if survey.negative},
        "overlaps": {cls: survey.overlaps for cls, survey in surveys.items() if survey.overlaps},
    }


def dropped_by_profiler(header: dict[str, Any]) -> dict[str, int] | None:
    """What the profiler says in its own log that it dropped; None where the trace carries no log."""
    logs = [line for key in ("INFO", "WARNING", "ERROR") for line in _strings(header.get(key))]
    if not logs:
        return None
    counts = {}
    for name, pattern in _DROPPED.items():
        found = [int(next(group for group in match if group)) for line in logs for match in _groups(pattern, line)]
        if found:
            counts[name] = sum(found)
    return counts


def _groups(pattern: re.Pattern[str], line: str) -> list[tuple[str, ...]]:
    return [match.groups() for match in pattern.finditer(line)]


def _strings(value: Any) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _integers(table: pa.Table, name: str, null: int) -> Any:
    if name not in table.column_names:
        return np.full(len(table), null, np.int64)
    return arrow.numbers(_array(table, name), null)


def _codes(table: pa.Table, name: str) -> tuple[Any, list[Any]]:
    """(dictionary codes, texts) of a text column, null as one more text."""
    if name not in table.column_names:
        return np.zeros(len(table), np.int32), [None]
    column = _array(table, name)
    texts = column.dictionary.to_pylist()
    return arrow.numbers(column.indices, len(texts)), [*texts, None]


def _array(table: pa.Table, name: str) -> Any:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _texts(table: pa.Table, name: str) -> Any:
    codes, texts = _codes(table, name)
    return np.array(texts, object)[codes]


def _matching(table: pa.Table, name: str, pattern: re.Pattern[str]) -> Any:
    """Which rows have a text that the pattern is found in; the pattern is tried once a text."""
    codes, texts = _codes(table, name)
    return np.array([bool(text and pattern.search(text)) for text in texts], np.bool_)[codes]
