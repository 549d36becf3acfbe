"""One trace file, block by block, to runs: reads, splits where events seem to begin, scans in parallel, and checks
every split.

A block is cut at the last place that looks like the start of an event, and the next block starts there at once. The
guess is checked: only when
the scan of a block ends exactly at its cut is the next block's result kept. Otherwise the next block is scanned again
with what was left over, so
no event is lost to a cut inside a string or a list. Memory: `jobs + 2` blocks.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from scripts.trace import document, scan
from scripts.trace.runs import Run
from scripts.trace.stream import Reader

BLOCK = 16 << 20
PADDING = 16
HEADER = 16 << 20
_SPLIT = re.compile(rb"\}\s*,\s*(?=\{)")


@dataclass
class Parsed:
    """What came of one file: its rows, its counts (`scan`'s numbers), the document's other keys, and what was lost, in
    words."""

    path: Path
    source: int
    runs: list[Run] = field(default_factory=list)
    stats: Any = None
    header: dict[str, Any] = field(default_factory=dict)
    loss: list[str] = field(default_factory=list)
    bytes_read: int = 0
    file_bytes: int = 0
    compressed: bool = False
    encoding: str = "utf-8"
    trailing_bytes: int = 0
    found: bool = False  # the list of events
    closed: bool = False  # its end
    start: bytes = b""
    again: int = 0  # blocks whose start was guessed wrongly and that were scanned again
    kind: str = "chrome"
    refusal: str = ""
    rank_from: str = ""


class Workers:
    """Scanners, one a thread, and the block buffers that they share. `inline`: no threads, for the plain scanner."""

    def __init__(self, make: Callable[[], Any], jobs: int, *, inline: bool = False) -> None:
        self.make, self.jobs, self.inline = make, jobs, inline
        self.scanners: list[Any] = []
        self.idle: SimpleQueue[Any] = SimpleQueue()
        self.pool = ThreadPoolExecutor(jobs)
        self.buffers: list[Any] = []

    def submit(self, *work: Any) -> Future[Any]:
        """Scan in a thread; the result is that of `Scanner.scan`."""
        if self.inline:
            future: Future[Any] = Future()
            future.set_result(self.scan(*work))
            return future
        return self.pool.submit(self.scan, *work)

    def scan(self, *work: Any) -> Any:
        """Scan now, with an idle scanner."""
        if self.idle.empty() and len(self.scanners) <= self.jobs:
            self.scanners.append(self.make())
            scanner = self.scanners[-1]
        else:
            scanner = self.idle.get()
        try:
            return scanner.scan(*work)
        finally:
            self.idle.put(scanner)

    def buffer(self, size: int) -> Any:
        """A block buffer that holds `size` bytes and the padding."""
        for place, held in enumerate(self.buffers):
            if len(held) >= size + PADDING:
                return self.buffers.pop(place)
        return np.empty(size + PADDING, np.uint8)

    def give_back(self, buffer: Any) -> None:
        if len(self.buffers) < self.jobs + 2:
            self.buffers.append(buffer)

    def finish(self) -> None:
        """Freeze every dictionary and end the threads."""
        self.pool.shutdown()
        for scanner in self.scanners:
            scanner.finish()
        self.buffers.clear()


@dataclass
class _Block:
    buffer: Any
    stop: int
    future: Future[Any]


class _Chain:
    """Bytes that were read already, then the rest of the reader."""

    def __init__(self, pieces: list[bytes], reader: Any) -> None:
        self.pieces, self.reader = deque(pieces), reader

    def readinto(self, view: memoryview) -> int:
        filled = 0
        while self.pieces and filled < len(view):
            piece = self.pieces[0]
            count = min(len(piece), len(view) - filled)
            view[filled : filled + count] = piece[:count]
            filled += count
            if count < len(piece):
                self.pieces[0] = piece[count:]
            else:
                self.pieces.popleft()
        return filled + (self.reader.readinto(view[filled:]) if filled < len(view) else 0)


def parse_file(path: Path, source: int, workers: Workers, progress: Callable[[int, int], None] | None = None) -> Parsed:
    """Read one Chrome trace file into runs. Never raises for what the file holds; `Parsed.found` is False where it is
    no trace."""
    reader = Reader(path)
    parsed = Parsed(path, source, stats=np.zeros(scan.STATISTICS, np.int64), file_bytes=reader.size)
    try:
        stream: Any = _Counted(reader, parsed, progress)
        while stream is not None:
            rest = _find_events(stream, parsed)
            if rest is None:
                break
            stream = _Events(parsed, workers).run(_Chain([rest], stream))
    finally:
        reader.close()
    parsed.loss += reader.loss
    parsed.compressed, parsed.encoding = reader.compressed > 0, reader.encoding
    return parsed


class _Counted:
    def __init__(self, reader: Reader, parsed: Parsed, progress: Callable[[int, int], None] | None) -> None:
        self.reader, self.parsed, self.progress = reader, parsed, progress

    def readinto(self, view: memoryview) -> int:
        count = self.reader.readinto(view)
        if not self.parsed.start:
            self.parsed.start = bytes(view[: min(count, 1 << 16)])
        self.parsed.bytes_read += count
        if self.progress:
            self.progress(self.reader.position(), self.reader.size)
        return count


def _find_events(stream: Any, parsed: Parsed) -> bytes | None:
    """Read up to the list of events; the bytes after its `[`, or None where no (further) list comes. Keeps the keys
    before it."""
    data, size, dropped = bytearray(), 1 << 16, False
    while True:
        piece = bytearray(size)
        count = stream.readinto(memoryview(piece))
        data += piece[:count]
        start = -1 if parsed.found and data.lstrip()[:1] == b"[" else document.events_start(bytes(data))
        if start >= 0 or not count:
            break
        if len(data) > HEADER:  # far from any events: keep the start for the keys, look on in the rest
            dropped = True
            del data[: len(data) - 64]
        size = min(2 * size, BLOCK)
    if dropped:
        parsed.loss.append("more than 16 MB stand before the events; their keys were not kept")
    fragment = bytes(data) if start < 0 else bytes(data[:start]).rpartition(b'"traceEvents"')[0]
    found, trailing = document.keys(fragment)
    parsed.header = {**parsed.header, **{key: value for key, value in found.items() if key != "traceEvents"}}
    if start < 0:
        parsed.trailing_bytes += trailing if parsed.found else 0
        return None
    parsed.found = True
    return bytes(data[start:])


class _Events:
    """The list of events: blocks in flight, in order."""

    def __init__(self, parsed: Parsed, workers: Workers) -> None:
        self.parsed, self.workers = parsed, workers
        self.flying: deque[_Block] = deque()
        self.left = b""  # an event that began before the oldest block in flight
        self.rest: list[bytes] | None = None  # what follows the list, once its end was seen

    def run(self, stream: Any) -> Any:
        """Scan to the list's end; a stream of what follows it, or None where the file ends first."""
        tail, final = b"", False
        while not final and self.rest is None:
            buffer = self.workers.buffer(max(BLOCK, 2 * len(tail)))
            buffer[: len(tail)] = np.frombuffer(tail, np.uint8)
            room = len(buffer) - PADDING
            count = len(tail) + stream.readinto(memoryview(buffer)[len(tail) : room])
            final = count < room
            buffer[count : count + PADDING] = 0
            stop = count if final else _split(buffer, count)
            tail = bytes(buffer[stop:count])
            future = self.workers.submit(buffer, 0, stop, final, self.parsed.source)
            self.flying.append(_Block(buffer, stop, future))
            while self.rest is None and len(self.flying) > self.workers.jobs:
                self._settle(final=final and len(self.flying) == 1)
        while self.rest is None and self.flying:
            self._settle(final=final and len(self.flying) == 1)
        if self.rest is None:
            return None
        self.parsed.closed = True
        for block in self.flying:  # scanned as events, but they follow the list's end
            block.future.result()
            self.rest.append(bytes(block.buffer[: block.stop]))
            self.workers.give_back(block.buffer)
        return _Chain([*self.rest, tail], stream)

    def _settle(self, *, final: bool) -> None:
        """Take the oldest block's result, or scan it again when its start turned out to be inside an event."""
        block = self.flying.popleft()
        data, stop = block.buffer, block.stop
        status, place, runs, stats = block.future.result()
        if self.left:
            self.parsed.again += 1
            data = np.zeros(len(self.left) + stop + PADDING, np.uint8)
            data[: len(self.left)] = np.frombuffer(self.left, np.uint8)
            data[len(self.left) : len(self.left) + stop] = block.buffer[:stop]
            stop += len(self.left)
            status, place, runs, stats = self.workers.scan(data, 0, stop, final, self.parsed.source)
        self.parsed.runs += runs
        self.parsed.stats += stats
        self.left = bytes(data[place:stop]) if status == scan.UNFINISHED else b""
        if status == scan.END:
            self.rest = [bytes(data[place:stop])]
        self.workers.give_back(block.buffer)


def _split(buffer: Any, count: int) -> int:
    """The last place that looks like an event's start; `count` where none does."""
    for reach in (1 << 14, 1 << 18, count):
        start = max(0, count - reach)
        found = [match.end() for match in _SPLIT.finditer(memoryview(buffer)[start:count])]
        if found:
            return start + found[-1]
    return count
