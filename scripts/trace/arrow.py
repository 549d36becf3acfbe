"""Arrow arrays from numpy without a copy and without pandas, which `pyarrow.array` imports (0.3 s, more than a small trace takes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def array(values: Any, missing: Any = None) -> pa.Array:
    """Numbers as an Arrow array that shares their memory; `missing` (bool, same length) is null."""
    bits = None
    if missing is not None and missing.any():
        bits = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64()}[values.dtype.name]
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def strings(texts: Sequence[bytes]) -> pa.Array:
    """UTF-8 texts as a string array without nulls."""
    starts = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, texts), np.int32, len(texts)), out=starts[1:])
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(starts), pa.py_buffer(b"".join(texts))])


def numbers(column: pa.Array, null: int) -> Any:
    """An integer array as numpy, null as `null`; shares memory where nothing is null."""
    kind = np.dtype(str(column.type))
    bits, data = column.buffers()
    if not len(column):
        return np.zeros(0, kind)
    values = np.frombuffer(data, kind, len(column), column.offset * kind.itemsize)
    if not column.null_count:
        return values
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[column.offset : column.offset + len(column)]
    return np.where(valid.astype(np.bool_), values, np.array(null, kind))
