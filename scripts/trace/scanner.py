"""The compiled scanner's working memory, and how its rows become runs. One `Scanner` a thread; `scan` releases the
GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.trace.compiled import module
from scripts.trace.runs import Dictionary, Run, Spool, make_run
from scripts.trace.text import decoded

PADDING = 16


class Scanner:
    """Scans blocks of an event array into runs. About 15 MB of touched memory for typical traces, 300 MB of address
    space."""

    def __init__(self, spool: Spool, kernel: Any = None) -> None:
        self.spool = spool
        self.kernel = k = kernel or module("scan_compiled")
        self.cols = np.empty((len(k.CLASSES), k.WIDTH, k.ROWS), np.int64)
        self.fill = np.zeros((len(k.CLASSES), k.WIDTH), np.int64)
        self.rows = np.zeros(len(k.CLASSES), np.int64)
        self.cursor = np.zeros(8, np.int64)
        self.table = np.zeros(k.TABLE, np.int32)
        self.hashes = np.empty(k.MAX_STRINGS, np.uint64)
        self.offsets = np.zeros(k.MAX_STRINGS + 1, np.int64)
        self.kinds = np.zeros(k.MAX_STRINGS, np.uint8)
        self.blob = np.empty(k.BLOB_BYTES + PADDING, np.uint8)
        self.raw = np.empty(k.RAW_BYTES + PADDING, np.uint8)
        self.top = np.zeros((k.OWN, 4), np.int64)
        self.entry = np.zeros((k.MAX_ARGUMENTS, 8), np.int64)
        self.dictionary = Dictionary()

    def scan(self, data: Any, start: int, stop: int, final: bool, source: int) -> tuple[int, int, list[Run], Any]:
        """Scan `data[start:stop]` (uint8, PADDING bytes longer): (how it ended, place, runs, counts). See
        `scan.scan`."""
        runs: list[Run] = []
        stats = np.zeros(self.kernel.STATISTICS, np.int64)
        self.cursor[self.kernel.ADRIFT] = 0
        while True:
            status, start = self.step(data, start, stop, final, -1, stats)
            runs += self.take_rows(source)
            if status != self.kernel.FULL:
                return status, start, runs, stats

    def step(  # noqa: PLR0917
        self, data: Any, start: int, stop: int, final: bool, limit: int, stats: Any
    ) -> tuple[int, int]:
        """One call of `scan.scan` with this working memory; the rows stay here until `take_rows`."""
        status, place = self.kernel.scan(
            data, start, stop, final, limit, self.cols, self.fill, self.rows, self.cursor, self.table, self.hashes,
            self.offsets, self.kinds, self.blob, self.raw, self.top, self.entry, stats,
        )  # fmt: skip
        return int(status), int(place)

    def finish(self) -> None:
        """Freeze the dictionary: every run's texts can be read then."""
        count, size = int(self.cursor[self.kernel.STRINGS]), int(self.cursor[self.kernel.BLOB])
        blob = np.zeros(size + PADDING, np.uint8)
        blob[:size] = self.blob[:size]
        offsets, kinds = self.offsets[: count + 1].copy(), self.kinds[:count].copy()
        self.dictionary.freeze(lambda: _texts(self.kernel, blob, offsets, kinds))
        self.dictionary = Dictionary()
        self.table.fill(0)
        self.cursor[:] = 0

    def take_rows(self, source: int) -> list[Run]:
        """The rows so far as runs; the working memory is empty then."""
        k, runs = self.kernel, []
        for c in range(len(k.CLASSES)):
            rows = int(self.rows[c])
            if not rows:
                continue
            columns = {}
            for number in np.flatnonzero(self.fill[c]).tolist():
                values = self.cols[c, number]
                values[self.fill[c, number] : rows] = k.NULL
                values = values[:rows]
                is_text = k.TYPE_OF[c, number] == 3 and number not in (k.TS, k.DUR, k.ARGS, k.ARGS_LENGTH)
                columns[number] = k.narrow(values) if is_text else values.copy()
            if k.TS not in columns:
                columns[k.TS] = np.full(rows, k.NULL)
            runs.append(make_run(self.spool, c, source, columns, self.dictionary, self.raw, k.gather))
        self.rows[:] = 0
        self.fill[:] = 0
        self.cursor[k.RAW] = 0
        if self.cursor[k.STRINGS] > k.MAX_STRINGS // 2 or self.cursor[k.BLOB] > (k.BLOB_BYTES - k.MAX_EVENT) // 2:
            self.finish()
        return runs


def _texts(kernel: Any, blob: Any, offsets: Any, kinds: Any) -> tuple[list[bytes], int]:
    """The texts of a frozen dictionary as UTF-8, and how many held bytes or escapes that are none."""
    out = np.empty(6 * len(blob) + 3 * len(kinds) + 64, np.uint8)
    starts = np.zeros(len(kinds) + 1, np.int32)
    care = np.zeros(len(kinds), np.bool_)
    data = out[: kernel.normalise(blob, offsets, kinds, out, starts, care)].tobytes()
    places = starts.tolist()
    texts, repaired = [data[a:b] for a, b in zip(places, places[1:])], 0
    for number in np.flatnonzero(care).tolist():
        if kinds[number] == kernel.JSON:
            fixed = texts[number].decode("utf-8", errors="replace")
            changed = "\ufffd" in fixed
        else:
            fixed, changed = decoded(texts[number])
        texts[number] = fixed.encode()
        repaired += changed
    return texts, repaired
