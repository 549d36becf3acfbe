"""From codes and event indices to Arrow columns: names, frames, tables with a fixed order of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

    from scripts.trace.capture import Host

Ints = NDArray[Any]


def words(codes: Ints, names: list[str]) -> pa.Array:
    """Names by code, null for -1, as a dictionary column."""
    import pyarrow as pa

    codes = np.asarray(codes, np.int64)
    used, inverse = np.unique(codes, return_inverse=True)
    lost = int((used < 0).sum())
    values = pa.array([names[code] for code in used[lost:].tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array((inverse - lost).astype(np.int32), mask=inverse < lost), values)


def integers(values: Ints, missing: Ints | None = None) -> pa.Array:
    """int64, null where `missing`."""
    import pyarrow as pa

    return pa.array(np.asarray(values, np.int64), mask=missing)


def floats(values: Any, missing: Ints | None = None) -> pa.Array:
    """float64, null where `missing` or not finite."""
    import pyarrow as pa

    array = np.asarray(values, np.float64)
    bad = ~np.isfinite(array)
    return pa.array(np.where(bad, 0.0, array), mask=bad if missing is None else bad | missing)


def ratio(part: Any, whole: Any) -> pa.Array:
    """part / whole, null where the whole is not positive."""
    top, bottom = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return floats(np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0))


def name_of(host: Host, events: Ints) -> Ints:
    """Name code of each host event, -1 for none."""
    events = np.asarray(events)
    if not len(host):
        return np.full(len(events), -1, np.int64)
    return np.where(events >= 0, host.name[np.maximum(events, 0)], -1).astype(np.int64)


def place(host: Host, codes: Ints) -> dict[str, pa.Array]:
    """`path`, `line`, `function` of python frames given by name code, null for -1."""
    import pyarrow as pa

    frames = [host.frames[code] if code >= 0 else None for code in np.asarray(codes).tolist()]
    return {
        "path": pa.array([frame.path if frame else None for frame in frames], pa.string()),
        "line": pa.array([frame.line if frame else None for frame in frames], pa.int64()),
        "function": pa.array([frame.function if frame else None for frame in frames], pa.string()),
    }


def at(source: Ints, index: Ints, missing: int = -1) -> Ints:
    """`source[index]`, `missing` where the index is -1."""
    index = np.asarray(index)
    if not len(source):
        return np.full(len(index), missing, np.int64)
    return np.where(index >= 0, source[np.maximum(index, 0)], missing)
