"""The bytes of a trace file as a stream: plain or gzip by content (never by suffix), any Unicode encoding, in bounded
memory.

A cut or corrupt gzip file gives every byte that can still be inflated; `Reader.loss` says what was lost.
"""

from __future__ import annotations

import codecs
import contextlib
import zlib
from pathlib import Path
from typing import IO, Any

inflate: Any
try:
    from isal import isal_zlib as inflate  # about four times faster than zlib
except ImportError:
    inflate = zlib

FEED = 1 << 17
SMALL = 1 << 12
PIECE = 1 << 22  # inflated at once: a twentieth faster than 16 MB, which leave the cache
GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Reader:
    """Decoded bytes (UTF-8) of one file. `readinto` fills a buffer; 0 means the end.

    `compressed`: gzip layers; `encoding`: what the text was written in; `loss`: lines that say what could not be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.size = self.path.stat().st_size
        self.compressed = 0
        self.encoding = "utf-8"
        self.loss: list[str] = []
        self._file: IO[bytes] = self.path.open("rb", buffering=0)
        self._source: Any = _File(self._file)
        while self._source.peek(2) == GZIP and self.compressed < 3:
            self.compressed += 1
            whole = self.compressed == 1 and hasattr(inflate, "_GzipReader")
            self._source = _Whole(self._file, self) if whole else _Inflated(self._source, self, self.compressed)
        if self._source.peek(2) == GZIP:
            self.loss.append(f"after {self.compressed} layers of gzip follows another one, which is not inflated")
        self._detect_encoding()

    def readinto(self, view: memoryview) -> int:
        """Fill `view` as far as the stream goes; the number of bytes."""
        filled = 0
        while filled < len(view):
            count = self._source.readinto(view[filled:])
            if not count:
                break
            filled += count
        return filled

    def position(self) -> int:
        """Bytes of the file read so far, for progress."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def _detect_encoding(self) -> None:
        start = self._source.peek(4)
        for mark, encoding in _BOMS:
            if start.startswith(mark):
                self._source.drop(len(mark))
                self.encoding = encoding
                break
        else:
            if len(start) == 4 and start[0] and not any(start[1:]):
                self.encoding = "utf-32-le"
            elif len(start) == 4 and start[3] and not any(start[:3]):
                self.encoding = "utf-32-be"
            elif len(start) == 4 and start[1] == 0 and start[0] and start[2]:
                self.encoding = "utf-16-le"
            elif len(start) == 4 and start[0] == 0 and start[1]:
                self.encoding = "utf-16-be"
        if self.encoding != "utf-8":
            self._source = _Recoded(self._source, self)


class _Source:
    """Bytes that a subclass makes in pieces (`_more`), with a look ahead."""

    def __init__(self) -> None:
        self._held = b""
        self._at = 0

    def _more(self) -> bytes:
        """The next piece, b"" at the end."""
        raise NotImplementedError

    def peek(self, count: int) -> bytes:
        while len(self._held) - self._at < count:
            piece = self._more()
            if not piece:
                break
            self._held = self._held[self._at :] + piece
            self._at = 0
        return self._held[self._at : self._at + count]

    def drop(self, count: int) -> None:
        self._at += count

    def read(self, count: int) -> bytes:
        if self._at >= len(self._held):
            self._held, self._at = self._more(), 0
        piece = self._held[self._at : self._at + count]
        self._at += len(piece)
        return piece

    def readinto(self, view: memoryview) -> int:
        if self._at >= len(self._held):
            self._held, self._at = self._more(), 0
        piece = memoryview(self._held)[self._at : self._at + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _File(_Source):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self.file = file

    def _more(self) -> bytes:
        return self.file.read(FEED)

    def readinto(self, view: memoryview) -> int:
        if self._at < len(self._held):
            return super().readinto(view)
        return self.file.readinto(view)  # type: ignore[attr-defined, no-any-return]


class _Whole(_Source):
    """A gzip file that isal inflates straight into the caller's buffer: no memory and no copy for each piece, about a
    third of what inflating costs.

    It tells nothing of what lies before a fault: at the first one the file is read from its start again by `_Inflated`,
    which gives every byte up to it.
    """

    def __init__(self, file: IO[bytes], reader: Reader) -> None:
        super().__init__()
        file.seek(0)
        self.file, self.reader = file, reader
        self.inflater: Any = inflate._GzipReader(file, FEED)
        self.given = 0
        self.faulty: _Inflated | None = None

    def _more(self) -> bytes:
        piece = bytearray(FEED)
        count = self._fill(memoryview(piece))
        return bytes(piece[:count])

    def readinto(self, view: memoryview) -> int:
        return super().readinto(view) if self._at < len(self._held) else self._fill(view)

    def _fill(self, view: memoryview) -> int:
        if self.faulty is None:
            try:
                count: int = self.inflater.readinto(view[:PIECE])
            except (EOFError, OSError, zlib.error, inflate.error):
                self.file.seek(0)
                self.faulty = _Inflated(_File(self.file), self.reader, 1)
                left = self.given
                while left and (piece := self.faulty.read(left)):
                    left -= len(piece)
            else:
                self.given += count
                return count
        return self.faulty.readinto(view)


class _Inflated(_Source):
    """gzip, member after member. On corrupt data the member is inflated again in small steps, to get its last whole
    bytes."""

    def __init__(self, source: _Source, reader: Reader, layer: int) -> None:
        super().__init__()
        self.source, self.reader, self.layer = source, reader, layer
        self.feed = FEED if layer == 1 else SMALL  # an inner layer cannot be read again: a fault loses one feed
        self.inflater: Any = inflate.decompressobj(wbits=31)
        self.pending = b""
        self.given = 0
        self.done = False

    def _more(self) -> bytes:
        while not self.done:
            feed = self.pending or self.source.read(self.feed)
            self.pending = b""
            if not feed:
                self.done = True
                self.reader.loss.append("the gzip stream ends early")
                return b""
            try:
                data: bytes = self.inflater.decompress(feed)
            except (zlib.error, inflate.error) as error:
                self.done = True
                self.reader.loss.append(f"the gzip stream is corrupt after {self.given} bytes ({error})")
                return self._salvage()
            self.given += len(data)
            if self.inflater.eof:
                self._next_member(self.inflater.unused_data)
            if data:
                return data
        return b""

    def _next_member(self, rest: bytes) -> None:
        rest = rest.lstrip(b"\0")
        while len(rest) < 2:
            more = self.source.read(self.feed)
            if not more:
                break
            rest = (rest + more).lstrip(b"\0")
        if rest.startswith(GZIP):
            self.inflater = inflate.decompressobj(wbits=31)
            self.pending = rest
            return
        self.done = True
        if rest:
            self.reader.loss.append(f"{len(rest)} bytes or more of something else follow the gzip stream")

    def _salvage(self) -> bytes:
        """What lies between the last good piece and the corrupt byte (first layer only: it can be read again)."""
        if self.layer > 1:
            return b""
        data, inflater, skipped = bytearray(), zlib.decompressobj(wbits=31), 0
        between = False  # members, where zeros may lie
        with self.reader.path.open("rb") as file:
            while feed := file.read(SMALL):
                while feed := feed.lstrip(b"\0") if between else feed:
                    before, between, start = inflater.copy(), False, max(0, self.given - skipped)
                    try:
                        piece = inflater.decompress(feed)
                    except zlib.error:
                        return bytes(data + _to_the_fault(before, feed)[start:])
                    data += piece[start:]
                    skipped += len(piece)
                    feed = b""
                    if inflater.eof:
                        feed, inflater, between = inflater.unused_data, zlib.decompressobj(wbits=31), True
        return bytes(data)


def _to_the_fault(inflater: Any, feed: bytes) -> bytes:
    """What a piece gives up to the byte that cannot be inflated."""
    data = bytearray()
    with contextlib.suppress(zlib.error):
        for byte in feed:
            data += inflater.decompress(bytes([byte]))
    return bytes(data)


class _Recoded(_Source):
    def __init__(self, source: _Source, reader: Reader) -> None:
        super().__init__()
        self.source, self.reader = source, reader
        self.decoder = codecs.getincrementaldecoder(reader.encoding)(errors="replace")
        self.ended = False

    def _more(self) -> bytes:
        while not self.ended:
            piece = self.source.read(FEED)
            self.ended = not piece
            if self.ended and (cut := self.decoder.getstate()[0]):
                self.reader.loss.append(f"the {self.reader.encoding} text ends inside a character ({len(cut)} bytes)")
            text = self.decoder.decode(piece, final=self.ended)
            if text:
                return text.encode("utf-8", errors="replace")
        return b""
