"""The scanner without numba: for small traces, where loading compiled code costs more than it saves, and where numba
is missing.

Each event goes through `json`'s C scanner; what that refuses, and what is rare, goes through `scan.scan` as plain
Python, one event at a
time. So the rows, the repairs and the counts are those of the compiled scanner. About 12 us an event (25 MB/s), ten
times the compiled scanner.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from scripts.trace import dataset, scan
from scripts.trace.runs import Dictionary, Run, Spool, make_run
from scripts.trace.scanner import Scanner

_GAP = re.compile(r"[ \t\r\n,]*")
_WHITE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63) + 1, 2**63)


class Real(str):
    """A JSON number that is no integer, as its own text."""

    __slots__ = ()


class _Unusual(Exception):
    """An event that the general scanner has to read."""


def _refuse(word: str) -> Any:
    raise ValueError(word)


_scan_once: Any = json.JSONDecoder(parse_float=Real, parse_constant=_refuse).scan_once  # type: ignore[attr-defined]


class _Layout:
    """Where the arguments of a class go: key -> (place in the row, type); an empty row; which places hold texts."""

    def __init__(self, cls: str) -> None:
        columns = dataset.ARGUMENTS[cls]
        self.keys = {key: (scan.FIRST + k, column.type) for k, column in enumerate(columns) for key in column.keys}
        self.empty = [scan.NULL] * (scan.FIRST + len(columns))
        self.texts = {scan.FIRST + k for k, column in enumerate(columns) if column.type == dataset.TEXT}
        self.texts |= {scan.NAME, scan.CAT, scan.PID, scan.TID, scan.ID}


_LAYOUTS = [_Layout(cls) for cls in dataset.CLASSES]
_PHASES = {"M": scan.METADATA, "s": scan.FLOW, "t": scan.FLOW, "f": scan.FLOW, "C": scan.COUNTER}
_CATEGORIES = {word: int(cls) for word, cls in zip(scan.WORDS, scan.CLASS_OF_WORD) if cls >= 0}
_OWN = frozenset(("name", "cat", "pid", "tid", "ts", "dur", "id", "ph", "args", "bp", "s"))


class PlainScanner:
    """The same interface as `scanner.Scanner`."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.numbers: dict[str, int] = {}
        self.written: dict[str, str] = {}
        self.dictionary = Dictionary()
        self.rows: list[list[list[int]]] = [[] for _ in dataset.CLASSES]
        self.raw: list[list[bytes | None]] = [[] for _ in dataset.CLASSES]
        self.general = Scanner(spool, scan)
        self.text, self.at, self.after = "", 0, 0

    def scan(self, data: Any, start: int, stop: int, final: bool, source: int) -> tuple[int, int, list[Run], Any]:
        """See `scanner.Scanner.scan`."""
        block = bytes(data[:stop])
        self.text = text = block.decode("latin-1")  # one character a byte: places are the same
        stats = np.zeros(scan.STATISTICS, np.int64)
        runs: list[Run] = []
        at, events, adrift = start, 0, 0
        while True:
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("{", at):
                try:
                    event, after = _scan_once(text, at)
                    self.at, self.after = at, after
                    self._store(event, stats)
                    events += 1
                    at, adrift = after, 0
                    continue
                except (ValueError, OverflowError, StopIteration, RecursionError, _Unusual):
                    pass
            self.general.cursor[scan.ADRIFT] = adrift
            status, at = self.general.step(block, at, stop, final, 1, stats)
            adrift = int(self.general.cursor[scan.ADRIFT])
            if status == scan.FULL:
                runs += self.general.take_rows(source)
            elif status != scan.LIMIT:
                break
        stats[scan.EVENTS] += events
        self.text = ""
        return status, at, [*runs, *self._take_rows(source), *self.general.take_rows(source)], stats

    def finish(self) -> None:
        """Freeze the dictionaries."""
        texts = list(self.numbers)
        self.dictionary.freeze(lambda: ([_encoded(text) for text in texts], 0))
        self.general.finish()

    def _store(self, event: dict[str, Any], stats: Any) -> None:
        """Append the event's rows. Raises _Unusual, before it changes anything, for what the general scanner must
        read."""
        phase, name, arguments = event.get("ph"), event.get("name"), event.get("args")
        if type(phase) is not str or not phase or (type(arguments) is not dict and "args" in event):
            raise _Unusual
        c = _class_of(phase, name, event.get("cat"), arguments)
        layout = _LAYOUTS[c]
        row = layout.empty.copy()
        for number, key in ((scan.NAME, "name"), (scan.CAT, "cat"), (scan.PID, "pid"), (scan.TID, "tid")):
            value = event.get(key)
            if value is not None:
                row[number] = self._text(value)
        rounded = 0
        time, length = event.get("ts"), event.get("dur")
        if time is not None:
            row[scan.TS], rounded = _nanoseconds(time)
        if length is not None:
            row[scan.DUR], inexact = _nanoseconds(length)
            rounded += inexact
        identity = event.get("id")
        if identity is not None:
            if c == scan.FLOW and type(identity) is int and identity in _INT64:
                row[scan.F_ID] = identity
            else:
                row[scan.F_TEXT if c == scan.FLOW else scan.ID] = self._text(identity)
        if c == scan.FLOW:
            row[scan.F_PHASE] = self._text(phase)
        elif c == scan.ANNOTATION:
            row[scan.A_PHASE] = self._text(phase)
        raw: list[str] = []
        for key in ("bp", "s"):
            value = event.get(key)
            if value is None:
                continue
            if key == "bp" and c == scan.FLOW:
                row[scan.F_BINDING] = self._text(value)
            elif key == "s" and c in (scan.ANNOTATION, scan.MEMORY):
                row[scan.A_SCOPE if c == scan.ANNOTATION else scan.M_SCOPE] = self._text(value)
            else:
                raw.append(self._raw(key, value, "event."))
        series: list[tuple[int, int]] = []
        if event.keys() <= _OWN:
            if arguments:
                self._arguments(arguments, layout, row, raw, series if c == scan.COUNTER else None)
        else:
            for key, value in event.items():
                if key == "args":
                    self._arguments(value, layout, row, raw, series if c == scan.COUNTER else None)
                elif key not in _OWN:
                    raw.append(self._raw(key, value, "event."))
        stats[scan.ROUNDED] += rounded
        stats[scan.NO_TIME] += time is None and phase[0] != "M"
        stats[scan.NO_DURATION] += length is None and phase[0] == "X"
        texts = ("{" + ",".join(raw) + "}").encode("latin-1") if raw else None
        for label, value in series or [(scan.NULL, scan.NULL)]:
            if series:
                row = row.copy()
                row[scan.C_SERIES], row[scan.C_VALUE] = label, value
            self.rows[c].append(row)
            self.raw[c].append(texts)
            texts = None

    def _arguments(
        self, arguments: dict[str, Any], layout: _Layout, row: list[int], raw: list[str], series: Any
    ) -> None:
        """Put each argument into its column, or into the raw arguments."""
        for key, value in arguments.items():
            kind = type(value)
            if series is not None and (kind is int or kind is Real):
                series.append((self._text(key), scan.float_bits(float(value) or 0.0)))  # type: ignore[call-arg]
                continue
            place, column = layout.keys.get(key, (0, ""))
            if place and row[place] == scan.NULL:
                if column == dataset.INT:
                    if kind is int and value in _INT64:
                        row[place] = value
                        continue
                elif column == dataset.TEXT:
                    if kind is list or kind is dict:
                        row[place] = self._number(self._json(key))
                        continue
                    if value is not None:
                        row[place] = self._text(value)
                        continue
                elif column == dataset.SMALL:
                    if kind is int and value in _INT32:
                        row[place] = value
                        continue
                elif kind is int or kind is Real:
                    row[place] = scan.float_bits(float(value) or 0.0)  # type: ignore[call-arg]
                    continue
                if value is None:
                    continue
            raw.append(self._raw(key, value, ""))

    def _number(self, text: str) -> int:
        """Number of a text among those seen."""
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.numbers)
        return number

    def _text(self, value: Any) -> int:
        """Number of a value in a text column: a string, or a number or literal as it is written."""
        kind = type(value)
        if kind is int:
            value = str(value)
        elif kind is Real:
            value = str.__str__(value)
        elif kind is bool:
            value = "true" if value else "false"
        elif kind is not str:
            raise _Unusual
        elif not value.isascii():  # the block was read as latin-1
            if self._escaped():
                raise _Unusual
            try:
                value = value.encode("latin-1").decode("utf-8")
            except UnicodeError:
                raise _Unusual from None
        return self._number(value)

    def _escaped(self) -> bool:
        return self.text.find("\\", self.at, self.after) >= 0

    def _raw(self, key: str, value: Any, prefix: str) -> str:
        """`"key":value` as the general scanner would copy it."""
        kind = type(value)
        if self._escaped():
            raise _Unusual
        if kind is int:
            written = str(value)
        elif kind is Real:
            written = str.__str__(value)
        elif kind is str:
            written = f'"{value}"'
        elif value is None or kind is bool:
            written = json.dumps(value)
        else:
            written = self._json(key)
        return f'"{prefix}{key}":{written}'

    def _json(self, key: str) -> str:
        """The list or object of a key as it is written, without white space."""
        text, quoted = self.text, f'"{key}"'
        start = text.find(quoted, self.at, self.after)
        while start >= 0:
            value = start + len(quoted)
            while text[value] in " \t\r\n:":
                value += 1
            if text[value] in "[{" and text[start + len(quoted) : value].strip() == ":":
                break
            start = text.find(quoted, start + 1, self.after)
        else:
            raise _Unusual
        written = text[value : _scan_once(text, value)[1]]
        found = self.written.get(written)
        if found is None:
            if not written.isascii() or "\\" in written:
                raise _Unusual
            if len(self.written) > 10_000:
                self.written.clear()
            found = self.written[written] = _WHITE.sub(r"\1", written)
        return found

    def _take_rows(self, source: int) -> list[Run]:
        runs = []
        for c, rows in enumerate(self.rows):
            if not rows:
                continue
            layout, columns = _LAYOUTS[c], {}
            for number, cells in enumerate(zip(*rows)):
                values = np.array(cells, np.int64)
                if number != scan.TS and (values == scan.NULL).all():
                    continue
                if number in layout.texts:
                    values = np.where(values == scan.NULL, -1, values).astype(np.int32)
                columns[number] = values
            texts = self.raw[c]
            if any(texts):
                columns[scan.ARGS] = np.arange(len(texts))
                columns[scan.ARGS_LENGTH] = np.array([scan.NULL if t is None else len(t) for t in texts], np.int64)
            runs.append(make_run(self.spool, c, source, columns, self.dictionary, texts, _joined))
            self.rows[c], self.raw[c] = [], []
        return runs


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _class_of(phase: str, name: Any, category: Any, arguments: Any) -> int:
    """`scan.class_of` of an event as `json` gives it."""
    c = _PHASES.get(phase[0])
    if c is not None:
        return c
    if phase[0] in "iIRn":
        return scan.MEMORY if name == "[memory]" else scan.ANNOTATION
    if type(category) is str:
        c = _CATEGORIES.get(category)
        if c is not None:
            return c
        return scan.RUNTIME if category.endswith(("_runtime", "_driver")) else scan.ANNOTATION
    return scan.GPU if arguments and "Task Type" in arguments else scan.ANNOTATION


def _joined(texts: list[bytes | None], order: Any, _: Any) -> Any:
    return np.frombuffer(b"".join(texts[place] or b"" for place in order.tolist()), np.uint8)


def _nanoseconds(value: Any) -> tuple[int, int]:
    """(int64 nanoseconds, whether digits were rounded) of microseconds as `json` gave them."""
    kind = type(value)
    if kind is int:
        time = value * 1000
        if time in _INT64:
            return time, 0
    elif kind is Real:
        whole, _, part = value.partition(".")
        if len(part) <= 3 and part.isdigit():
            time = int(whole + part + "000"[len(part) :])
            if time in _INT64:
                return time, 0
    elif kind is not str:
        raise _Unusual
    data = str(value).encode("latin-1")
    good, time, inexact = scan.nanoseconds(data, 0, len(data))
    if not good:
        raise _Unusual
    return time, int(inexact)
