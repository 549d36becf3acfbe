"""Columns of an export that our tables do not know, as the raw JSON of the `args` column: nothing of a row is lost.

Most such columns hold few values, so that the texts are made once a combination of values and shared by its rows; a
column with as many values as rows costs a formatted number a row.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.trace import scan
from scripts.trace.grouping import Groups

Ints = NDArray[Any]
Leftover = tuple[Ints, list[bytes]]  # each row's number of a text; the texts, empty for a row without


def texts(columns: dict[str, Any], rows: int) -> Leftover | None:
    """`{"a":1,"b":"x"}` for each row, without the columns that are null there; None where all are null everywhere.

    A column is int64 with `scan.NULL`, or a list of values with None.
    """
    narrow: list[tuple[Ints, list[bytes]]] = []
    wide: list[list[bytes]] = []
    for name, values in columns.items():
        code, said = _said(name, values)
        if not any(said):
            continue
        if len(said) > max(rows // 4, 64):
            wide.append([said[one] for one in code.tolist()])
        else:
            narrow.append((code, said))
    if not narrow and not wide:
        return None
    code, combined = _combined(narrow, rows)
    if wide:
        pieces = [[combined[one] for one in code.tolist()], *wide] if narrow else wide
        combined = [b",".join(filter(None, parts)) for parts in zip(*pieces)]
        code = np.arange(rows)
    return code, [b"{" + one + b"}" if one else b"" for one in combined]


def raw(found: Leftover) -> tuple[Ints, Ints, Ints]:
    """The same as one array of bytes, each row's place in it, and its length (scan.NULL: none)."""
    code, said = found
    lengths = np.fromiter(map(len, said), np.int64, len(said))
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(bytearray(b"".join(said)) + bytes(8), np.uint8)  # writable, as the scanner's own
    return data, starts[code], np.where(lengths > 0, lengths, scan.NULL)[code]


def _said(name: str, values: Any) -> tuple[Ints, list[bytes]]:
    """The rows' codes, and `"name":value` by code, empty for null."""
    key = json.dumps(name).encode() + b":"
    if isinstance(values, list):
        known: dict[Any, int] = {}
        code = np.fromiter((known.setdefault((type(one), one), len(known)) for one in values), np.int64, len(values))
        return code, [b"" if one is None else key + _json(one) for _, one in known]
    if len(values) and (values == values[0]).all():
        distinct, code = values[:1], np.zeros(len(values), np.int64)
    else:
        distinct, code = np.unique(values, return_inverse=True)
    return code, [b"" if one == scan.NULL else key + b"%d" % one for one in distinct.tolist()]


def _json(value: Any) -> bytes:
    if isinstance(value, bytes):  # a blob: as hexadecimal digits, as SQLite itself writes one
        return json.dumps("x'" + value.hex() + "'").encode()
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="replace")


def _combined(narrow: list[tuple[Ints, list[bytes]]], rows: int) -> tuple[Ints, list[bytes]]:
    """Codes of the combinations of values that occur, and their texts."""
    if not narrow:
        return np.zeros(rows, np.int64), [b""]
    varying = [code for code, said in narrow if len(said) > 1]
    if not varying:
        return np.zeros(rows, np.int64), [b",".join(filter(None, (said[0] for _, said in narrow)))]
    groups = Groups(*varying)
    first = groups.first.tolist()
    return groups.of, [b",".join(filter(None, (said[code[row]] for code, said in narrow))) for row in first]
