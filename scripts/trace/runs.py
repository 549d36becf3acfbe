"""Sorted runs of rows, kept in a spool, and their merge into one sorted table a class: an external sort.

A scanner gives up its rows block by block. Each block's rows of a class become a run, sorted by time; its texts are
numbers of a `Dictionary`.
`merged` cuts the runs of a class at the same times into groups of about `GROUP` rows and gives each group as one Arrow
table, so memory does
not grow with the trace. Cost: each column is written to the spool once, read once, and gathered once in time order.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.trace import dataset, scan

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = 1 << 17
STEP = 512  # one time in so many is kept in memory, to find places in a run without reading it


class Spool:
    """Arrays put away in memory as long as they fit `budget` bytes, then in one unlinked file in `folder`."""

    def __init__(self, folder: str | Path, budget: int = 32 << 20) -> None:
        self.folder, self.room = folder, budget
        self._lock = threading.Lock()
        self._end = 0
        self._file: Any = None

    def put(self, array: Any) -> Stored:
        """Keep a one-dimensional array; the caller may not change it afterwards."""
        with self._lock:
            if array.nbytes <= self.room:
                self.room -= array.nbytes
                return Stored(array, None, 0, array.dtype, len(array))
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix=".spool-", dir=self.folder)  # noqa: SIM115
            place = self._end
            self._end += array.nbytes
        view = memoryview(array).cast("B")
        written = 0
        while written < len(view):
            written += os.pwrite(self._file.fileno(), view[written:], place + written)
        return Stored(None, self._file, place, array.dtype, len(array))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass
class Stored:
    """An array in a spool."""

    array: Any
    file: Any
    place: int
    dtype: Any
    length: int

    def part(self, start: int, stop: int, out: Any = None) -> Any:
        """Elements [start, stop), in `out` where given (a contiguous array of that length)."""
        if self.array is not None:
            if out is None:
                return self.array[start:stop]
            out[:] = self.array[start:stop]
            return out
        if out is None:
            out = np.empty(stop - start, self.dtype)
        if stop > start:
            view = memoryview(out).cast("B")
            place, got = self.place + start * out.itemsize, 0
            while got < len(view):
                count = os.preadv(self.file.fileno(), [view[got:]], place + got)
                if not count:
                    raise OSError("the spool file ended early")
                got += count
        return out


class Dictionary:
    """Texts by number, for one stretch of a scanner's work. `values` gives them as an Arrow array, decoded and in
    normal form."""

    def __init__(self) -> None:
        self.repaired = 0
        self._make: Callable[[], tuple[list[bytes], int]] | None = None
        self._values: list[bytes] | None = None
        self._lock = threading.Lock()  # the classes are written side by side

    def freeze(self, make: Callable[[], tuple[Any, int]]) -> None:
        """Set how the texts are made: a function that gives the array and how many texts had bytes that are no
        UTF-8."""
        self._make = make

    def values(self) -> list[bytes]:
        with self._lock:
            if self._values is None:
                assert self._make is not None, "a dictionary is read before it was frozen"
                self._values, self.repaired = self._make()
                self._make = None
            return self._values


@dataclass
class Run:
    """Rows of one class and one input, sorted by time. `columns` by the scanner's numbers; `raw` the bytes of the
    `args` column."""

    cls: int
    source: int
    rows: int
    columns: dict[int, Stored]
    dictionary: Dictionary
    samples: Any
    raw: Stored | None = None
    raw_starts: Stored | None = None

    def place_of(self, time: int) -> int:
        """The first row whose time is not before `time`."""
        sample = int(np.searchsorted(self.samples, time, "left"))
        if sample == 0:
            return 0
        start = (sample - 1) * STEP
        stop = min(self.rows, sample * STEP)
        times = self.columns[scan.TS].part(start, stop)
        return start + int(np.searchsorted(times, time, "left"))


def make_run(  # noqa: PLR0917
    spool: Spool,
    cls: int,
    source: int,
    columns: dict[int, Any],
    dictionary: Dictionary,
    raw: Any,
    gather: Callable[[Any, Any, Any], Any],
) -> Run:
    """Sort rows by time (stable) and put them away. Text columns are int32 with -1 for null, the others int64 with
    `scan.NULL`.

    The columns ARGS and ARGS_LENGTH say where in `raw` each row's raw arguments stand; `gather(raw, starts, lengths)`
    copies them in order. ARGS alone is a text column: few texts that many rows share.
    """
    times = columns[scan.TS]
    if len(times) > 1 and not (times[1:] >= times[:-1]).all():
        order = np.argsort(times, kind="stable")
        columns = {number: values[order] for number, values in columns.items()}
    kept = {}
    for number, values in columns.items():
        if scan.ARGS_LENGTH not in columns or number not in (scan.ARGS, scan.ARGS_LENGTH):
            kept[number] = spool.put(np.ascontiguousarray(values))
    run = Run(cls, source, len(times), kept, dictionary, columns[scan.TS][::STEP].copy())
    if scan.ARGS_LENGTH in columns:
        lengths = columns[scan.ARGS_LENGTH]
        lengths = np.where(lengths == scan.NULL, -1, lengths)
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(np.maximum(lengths, 0), out=starts[1:])
        run.raw = spool.put(gather(raw, columns[scan.ARGS], lengths))
        run.raw_starts = spool.put(starts)
        run.columns[scan.ARGS] = spool.put(lengths.astype(np.int32))
    return run


def present(runs: list[Run], cls: str) -> list[str]:
    """Names of the columns that hold a value somewhere in these runs of a class."""
    numbers = {number for run in runs for number in run.columns}
    names = {scan.FIRST + k: column.name for k, column in enumerate(dataset.ARGUMENTS[cls])}
    names |= {
        scan.TS: "ts_ns",
        scan.DUR: "dur_ns",
        scan.NAME: "name",
        scan.CAT: "cat",
        scan.PID: "pid",
        scan.TID: "tid",
    }
    names |= {scan.ID: "id", scan.ARGS: "args"}
    return [names[number] for number in sorted(numbers)]


def merged(runs: list[Run], cls: str, rank: int, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of these runs (one class, one rank) in time order, ties in the order of the file, as tables with
    `columns`."""
    for parts in _groups(runs):
        yield _table(parts, cls, rank, columns)


def _groups(runs: list[Run]) -> Iterator[list[tuple[Run, int, int]]]:
    """Slices of the runs that lie in the same stretch of time, about GROUP rows together."""
    total = sum(run.rows for run in runs)
    if total <= GROUP + GROUP // 2:
        if total:
            yield [(run, 0, run.rows) for run in runs]
        return
    samples = np.sort(np.concatenate([run.samples for run in runs]))
    cuts = samples[GROUP // STEP :: GROUP // STEP]
    same = np.unique(cuts[1:][cuts[1:] == cuts[:-1]])  # so many events at one time that they fill groups of their own
    cuts = np.unique(np.concatenate([cuts, same + 1]))
    start = [0] * len(runs)
    for cut in [*cuts.tolist(), None]:
        stop = [run.rows if cut is None else run.place_of(cut) for run in runs]
        parts = [(run, a, b) for run, a, b in zip(runs, start, stop) if b > a]
        start = stop
        rows = sum(b - a for _, a, b in parts)
        if rows > 4 * GROUP and len(np.unique([_time(run, row) for run, a, b in parts for row in (a, b - 1)])) == 1:
            for run, a, b in parts:  # one time throughout: already in order
                for row in range(a, b, GROUP):
                    yield [(run, row, min(b, row + GROUP))]
        elif rows:
            yield parts


def _time(run: Run, row: int) -> int:
    return int(run.columns[scan.TS].part(row, row + 1)[0])


def _table(parts: list[tuple[Run, int, int]], cls: str, rank: int, columns: list[str]) -> pa.Table:
    import pyarrow as pa

    from scripts.trace import arrow

    rows = sum(stop - start for _, start, stop in parts)
    times = _column(parts, scan.TS, rows, np.int64, scan.NULL)
    order = None
    if len(parts) > 1 and not (times[1:] >= times[:-1]).all():
        order = np.argsort(times, kind="stable")
    numbers = {column.name: scan.FIRST + k for k, column in enumerate(dataset.ARGUMENTS[cls])}
    numbers |= {
        "ts_ns": scan.TS,
        "dur_ns": scan.DUR,
        "name": scan.NAME,
        "cat": scan.CAT,
        "pid": scan.PID,
        "tid": scan.TID,
    }
    numbers |= {"id": scan.ID, "args": scan.ARGS}
    arrays, names = [], []
    for column in dataset.COLUMNS[cls]:
        if column.name == "rank":
            array = arrow.array(np.full(rows, rank, np.int32))
        elif column.name not in columns:
            continue
        elif column.name == "args":
            array = _raw(parts, rows, order)
        elif column.type == dataset.TEXT:
            array = _texts(parts, numbers[column.name], rows, order)
        else:
            values = (
                times if column.name == "ts_ns" else _column(parts, numbers[column.name], rows, np.int64, scan.NULL)
            )
            values = values if order is None else values[order]
            missing = values == scan.NULL
            if column.type == dataset.FLOAT:
                array = arrow.array(values.view(np.float64), missing)
            elif column.type == dataset.SMALL:
                array = arrow.array(values.astype(np.int32), missing)
            else:
                array = arrow.array(values, missing)
        arrays.append(array)
        names.append(column.name)
    return pa.table(arrays, names=names)


def _column(parts: list[tuple[Run, int, int]], number: int, rows: int, dtype: Any, null: int) -> Any:
    """One column of the slices, one after the other."""
    out, at = np.empty(rows, dtype), 0
    for run, start, stop in parts:
        piece = out[at : at + stop - start]
        stored = run.columns.get(number)
        if stored is None:
            piece[:] = null
        else:
            stored.part(start, stop, piece)
        at += stop - start
    return out


def _texts(parts: list[tuple[Run, int, int]], number: int, rows: int, order: Any) -> pa.Array:
    """A text column as a dictionary array: the texts that occur, sorted, so that the file does not depend on threads."""
    import pyarrow as pa

    from scripts.trace import arrow

    ids = _column(parts, number, rows, np.int32, -1)
    dictionaries: dict[int, tuple[Dictionary, list[tuple[int, int]]]] = {}
    at = 0
    for run, start, stop in parts:
        spans = dictionaries.setdefault(id(run.dictionary), (run.dictionary, []))[1]
        spans.append((at, at + stop - start))
        at += stop - start
    found: list[tuple[Any, list[bytes], int, list[tuple[int, int]]]] = []
    for dictionary, spans in dictionaries.values():
        values = dictionary.values()
        used = np.zeros(len(values) + 1, np.bool_)  # the last place is null's, -1
        for a, b in spans:
            used[ids[a:b]] = True
        used[-1] = False
        numbers = np.flatnonzero(used)
        found.append((numbers, [values[number] for number in numbers.tolist()], len(values), spans))
    texts = sorted({text for _, some, _, _ in found for text in some})
    place_of_text = {text: place for place, text in enumerate(texts)}
    for numbers, some, size, spans in found:
        places = np.full(size + 1, -1, np.int32)
        places[numbers] = np.fromiter(map(place_of_text.__getitem__, some), np.int32, len(some))
        for a, b in spans:
            ids[a:b] = places[ids[a:b]]
    if order is not None:
        ids = ids[order]
    return pa.DictionaryArray.from_arrays(arrow.array(ids, ids < 0), arrow.strings(texts))


def _raw(parts: list[tuple[Run, int, int]], rows: int, order: Any) -> pa.Array:
    """The raw arguments as a string array; bytes that are no UTF-8 become U+FFFD."""
    import pyarrow as pa

    from scripts.trace import arrow

    lengths = _column(parts, scan.ARGS, rows, np.int32, -1)
    shared, at = {}, 0
    for number, (run, start, stop) in enumerate(parts):
        if run.raw is None and scan.ARGS in run.columns:
            mine = lengths[at : at + stop - start]
            texts = run.dictionary.values()
            shared[number] = b"".join([texts[one] for one in mine.tolist() if one >= 0])
            sizes = np.fromiter(map(len, texts), np.int32, len(texts))
            mine[:] = np.where(mine >= 0, sizes[mine], -1)
        at += stop - start
    starts = np.zeros(rows + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=starts[1:])
    data, at = np.empty(int(starts[-1]), np.uint8), 0
    for number, (run, start, stop) in enumerate(parts):
        if number in shared:
            data[at : at + len(shared[number])] = np.frombuffer(shared[number], np.uint8)
            at += len(shared[number])
            continue
        if run.raw is None or run.raw_starts is None:
            continue
        first, last = run.raw_starts.part(start, start + 1)[0], run.raw_starts.part(stop, stop + 1)[0]
        run.raw.part(int(first), int(last), data[at : at + int(last - first)])
        at += int(last - first)
    valid = lengths >= 0
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(starts), pa.py_buffer(data)]
    if len(data) and data.max() >= 0x80:
        texts = pa.Array.from_buffers(pa.binary(), rows, buffers).to_pylist()
        repaired = [b"" if t is None else t.decode("utf-8", errors="replace").encode() for t in texts]
        plain = arrow.strings(repaired)
        array = pa.Array.from_buffers(pa.string(), rows, [bits, *plain.buffers()[1:]])
    else:
        array = pa.Array.from_buffers(pa.string(), rows, buffers)
    return array if order is None else array.take(arrow.array(order))
