"""Declared outputs compared by value: numbers and tensors of known formats, within what the baseline's own runs differ.

Nothing that a job wrote is executed: a torch file is read by an unpickler that builds arrays and knows no other class.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import pickle
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.common.files import canonical_json, sha256_bytes

FLOOR = 1e-5  # relative to the magnitude of the array: float32 after a few thousand operations
FACTOR = 10.0
ONE_ELEMENT = 10.0  # a single element may leave by this much more than the array as a whole
OTHER_SEED = 10.0  # the spread was measured on the visible seed; another start has another one
CLOCK = re.compile(r"time|second|_s$|_ms$|duration|elapsed|speed|throughput|per_sec|fps|date", re.IGNORECASE)
DTYPES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "bf16",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}  # fmt: skip
Values = dict[str, Any]


def compare(
    names: Sequence[str], base: Path, others: Sequence[Path], candidate: Path, how: str, *, held_out: bool = False
) -> dict[str, list[dict[str, str]]]:
    """Compare output files by name: `{"same", "differing", "undecided"}`, lists of `{"path", "why"}`.

    base, others, candidate: `out` folders of a baseline run, of further baseline runs of the visible seed (the first of
    them unperturbed, the rest its spread), and of the candidate. how: values | bytes | exists. held_out: the two runs
    have another seed than those of the spread, and are allowed `OTHER_SEED` times as much.
    """
    found: dict[str, list[dict[str, str]]] = {"same": [], "differing": [], "undecided": []}
    for name in names:
        answer, why = _file(name, base, others, candidate, how, wider=OTHER_SEED if held_out else 1.0)
        found[answer].append({"path": name, "why": why})
    return found


def digest(told: dict[str, Any]) -> str:
    """One hash over the declared outputs of a run (`run.json`): their paths and their content."""
    return sha256_bytes(canonical_json([[entry["path"], entry["sha256"]] for entry in told["outputs"]]))


def _file(name: str, base: Path, others: Sequence[Path], candidate: Path, how: str, *, wider: float) -> tuple[str, str]:
    one, two = base / name, candidate / name
    if not two.is_file():
        return "differing", "the candidate does not write it"
    if how == "exists":
        return "same", "exists"
    if one.read_bytes() == two.read_bytes():
        return "same", "equal bytes"
    if how == "bytes":
        return "differing", "other bytes"
    expected, values = read(one), read(two)
    spread = [read(folder / name) for folder in others if (folder / name).is_file()]
    if expected is None:
        copies = {(folder / name).read_bytes() for folder in others if (folder / name).is_file()}
        if len(copies) > 1:
            return "undecided", "its bytes move between runs of the unmodified job, in a format that is not read"
        return "undecided", "other bytes, in a format that is not read"
    if values is None:
        return "differing", "cannot be read as the baseline's can"
    return _values(expected, [other for other in spread if other is not None], values, wider)


def _values(expected: Values, spread: list[Values], values: Values, wider: float) -> tuple[str, str]:
    moving = {
        key for other in spread[1:] for key in other if _kind(other[key]) == "text" and other[key] != spread[0].get(key)
    }
    for key in sorted({*expected, *values}):
        if CLOCK.search(key.rpartition(".")[2]) or key in moving:
            continue
        if key not in expected or key not in values:
            return "differing", f"{key}: only the {'candidate' if key in values else 'baseline'} has it"
        one, two = expected[key], values[key]
        if _kind(one) == "text" or _kind(two) == "text":
            if one != two:
                return "differing", f"{key}: {str(two)[:40]!r} instead of {str(one)[:40]!r}"
            continue
        moved = [_distance(spread[0][key], other[key]) for other in spread[1:] if key in other and key in spread[0]]
        apart = _distance(one, two)
        for number, (of, factor) in enumerate((("its norm", FACTOR), ("its largest", FACTOR * ONE_ELEMENT))):
            own = max((pair[number] for pair in moved), default=0.0)
            allowed = wider * max(FLOOR * factor / FACTOR, factor * own)
            if not apart[number] <= allowed:
                return "differing", f"{key}: apart by {apart[number]:.2g} of {of}, allowed {allowed:.2g}"
    return "same", "equal within the noise"


def _kind(value: Any) -> str:
    return "number" if isinstance(value, np.ndarray) else "text"


def _distance(one: Any, two: Any) -> tuple[float, float]:
    """Norm of the deviation relative to the norm, and largest deviation relative to the largest magnitude.

    Infinite for another shape, other integers, a moved NaN or infinity. The norm tells a wrong array from the few
    elements that rounding sends elsewhere: Adam moves an element whose gradient is next to nothing by a whole step.
    """
    never = (math.inf, math.inf)
    if _kind(one) == "text" or _kind(two) == "text" or one.shape != two.shape:
        return never
    if one.size == 0:
        return 0.0, 0.0
    if one.dtype.kind in "biu" and two.dtype.kind in "biu":
        return (0.0, 0.0) if np.array_equal(one, two) else never
    a, b = one.astype(np.float64), two.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return never
    if not finite.any():
        return 0.0, 0.0
    size, apart = a[finite], a[finite] - b[finite]
    norm, largest = (max(float(measure(size)), 1e-30) for measure in (np.linalg.norm, _largest))
    return float(np.linalg.norm(apart)) / norm, float(_largest(apart)) / largest


def _largest(values: np.ndarray) -> np.float64:
    return np.abs(values).max()


def read(path: Path) -> Values | None:
    """Numbers, arrays and texts of a file by name, or None for a format that is not read or a damaged file."""
    reader = {
        ".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".pt": _torch, ".pth": _torch, ".bin": _torch, ".npz": _npz,
        ".npy": _npz, ".safetensors": _safetensors,
    }.get(path.suffix)  # fmt: skip
    if reader is None:
        return None
    try:
        return reader(path)
    except Exception:  # a candidate can write anything
        return None


def _json(path: Path) -> Values:
    return dict(_flat("", json.loads(path.read_text(encoding="utf-8"))))


def _jsonl(path: Path) -> Values:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return dict(_flat("", lines))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves with their dotted names; numbers and arrays of numbers become arrays."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value):
            yield name, np.asarray(value)
        else:
            yield f"{name}.length", np.asarray(len(value))
            for number, inner in enumerate(value):
                yield from _flat(f"{name}.{number}" if name else str(number), inner)
    elif isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, np.asarray(value)
    else:
        yield name, str(value)


def _csv(path: Path) -> Values:
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    header = [word.strip() for word in rows[0]] if rows else []
    found: Values = {"rows": np.asarray(len(rows))}
    for number, name in enumerate(header):
        column = [row[number].strip() if number < len(row) else "" for row in rows[1:]]
        try:
            found[name] = np.asarray([float(word) if word else math.nan for word in column])
        except ValueError:
            found[name] = "\n".join(column)
    return found


def _npz(path: Path) -> Values:
    loaded = np.load(path, allow_pickle=False)
    return {"array": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}


def _safetensors(path: Path) -> Values:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bf16", "I64": "<i8", "I32": "<i4", "I16": "<i2",
             "I8": "i1", "U8": "u1", "BOOL": "?"}  # fmt: skip
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = _array(data[begin:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return found


def _array(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype)


class _Opaque:
    """Stands for any class of a pickle but tensors; it takes every argument and keeps none."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        """As a list subclass would be filled."""

    def __str__(self) -> str:
        return "(object)"


class _Dict(dict[str, Any]):
    """An OrderedDict: unlike a plain dict it takes the attributes (`_metadata`) that a state_dict is saved with."""


class _Unpickler(pickle.Unpickler):
    """Reads `torch.save`'s pickle without torch; storages come from the archive."""

    def __init__(self, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{prefix}/data.pkl")))
        self.archive, self.prefix = archive, prefix

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        return _Opaque

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, dtype, key, *_ = pid
        return _array(self.archive.read(f"{self.prefix}/data/{key}"), dtype)


def _tensor(storage: np.ndarray, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> np.ndarray:
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else offset - 1
    if offset < 0 or min(stride, default=0) < 0 or last >= len(storage):
        raise ValueError("a tensor outside its storage")
    view = np.lib.stride_tricks.as_strided(
        storage[offset:], tuple(size), [s * storage.itemsize for s in stride], writeable=False
    )
    return np.array(view)


def _torch(path: Path) -> Values:
    with contextlib.closing(zipfile.ZipFile(path)) as archive:
        prefix = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("/data.pkl")
        return dict(_flat("", _Unpickler(archive, prefix).load()))
