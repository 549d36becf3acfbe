"""Files of the pipeline: read and written whole or not at all, JSON with a schema line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "config" / "schemas"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place, synced, when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, schema: str, data: dict[str, Any]) -> None:
    """Write `data` under the schema line `wholejob/<kind>@<version>`, validated where `config/schemas` has the kind.

    Keys keep their order; NaN and infinity are refused (unknown is null).
    """
    document = {"schema": schema, **data}
    _validate(document, str(path))
    write_text(path, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path, kind: str) -> dict[str, Any]:
    """Read a file that `write_json` wrote; `kind` is the word between `wholejob/` and `@`.

    Raises InputError where the file is missing, is no JSON, or is of another kind.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; the rule that writes it has not run") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); delete it and run again") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(found, str) or not found.startswith(f"wholejob/{kind}@"):
        raise InputError(f"{path}: schema is {found!r}, should be 'wholejob/{kind}@...'")
    _validate(document, str(path))
    return document


def sha256_bytes(data: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes; reads the whole file (about 0.5 GB/s a core)."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(data: Any) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces; what hashes are taken of."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def _validate(document: dict[str, Any], name: str) -> None:
    kind = document["schema"].removeprefix("wholejob/").partition("@")[0]
    validator = _validator(kind)
    if validator is None:
        return
    for error in validator.iter_errors(document):
        where = ".".join(str(part) for part in error.absolute_path) or "(top level)"
        raise InputError(f"{name}: {where}: {error.message}")


@cache
def _validator(kind: str) -> Any:
    path = SCHEMAS / f"{kind}.schema.json"
    if not path.is_file():
        return None
    from jsonschema import Draft202012Validator  # 0.15 s: only where a schema exists

    return Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
