"""Recorded answers, addressed by the hash of the request, so that a run can be repeated without a network or a key.

A tape is a folder with one JSON file an answer: the request, the raw response, every attempt. It never expires and can
be committed, shared and audited. Secrets are redacted before a byte is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError
from scripts.common.files import canonical_json, replacing, sha256_bytes

SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.I)
SECRET_SHAPES = re.compile(
    r"sk-[A-Za-z0-9_\-]{16,}|AIza[0-9A-Za-z_\-]{30,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}|(?i:bearer)\s+[A-Za-z0-9._\-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END [A-Z ]*PRIVATE KEY-----"
)
REDACTED = "[redacted]"


def key_of(request: Mapping[str, Any], sample: int) -> str:
    """SHA-256 of the canonical request: provider, model, messages, tools, schema, parameters, and the sample's number.

    The address of a server, keys and headers are no part of it.
    """
    return sha256_bytes(canonical_json({**request, "sample": sample}))


def redacted(value: Any, environment: Mapping[str, str] | None = None) -> Any:
    """The value with secrets replaced in every string: what the environment holds under a telling name, and known
    shapes.
    """
    environment = os.environ if environment is None else environment
    secrets = sorted(
        (v for k, v in environment.items() if SECRET_NAMES.search(k) and len(v) >= 8), key=len, reverse=True
    )
    return _redacted(value, secrets)


def _redacted(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return SECRET_SHAPES.sub(REDACTED, value)
    if isinstance(value, Mapping):
        return {_redacted(key, secrets): _redacted(inner, secrets) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(inner, secrets) for inner in value]
    return value


def source_key_of(request: Mapping[str, Any], sample: int, context: Mapping[str, Any]) -> str:
    """SHA-256 of a request without its messages, and of the source, finding and turn that they were made for.

    Messages hold measured values, which no two machines share; this is what an answer depends on besides them.
    """
    rest = {name: value for name, value in request.items() if name != "messages"}
    return sha256_bytes(canonical_json({**rest, "sample": sample, "context": dict(context)}))


class Tape:
    """A folder of recorded answers. `mode`: replay (a miss is an error), record (a miss asks) or live (always asks).

    With `match="source"` a replay that has no answer to the very request takes the one that was recorded for the same
    source, finding, prompts and parameters; the caller says so.
    """

    def __init__(self, folder: Path, mode: str, match: str = "request") -> None:
        if mode not in ("replay", "record", "live"):
            raise InputError(f"llm.record: {mode!r} is none; should be replay, record or live")
        if match not in ("request", "source"):
            raise InputError(f"llm.match: {match!r} is none; should be request or source")
        self.folder, self.mode, self.match = folder, mode, match

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.folder / f"{key}.json"

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every recorded answer, by name of its file. Raises InputError for a torn one."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"{path}: not JSON ({error}); delete it and record again") from None
            if entry.get("schema") == "wholejob/tape@1":
                yield dict(entry)

    def play(self, key: str, source_key: str | None = None) -> dict[str, Any] | None:
        """The recorded answer, or None where the mode lets us ask. Raises InputError on a miss in replay."""
        if self.mode == "live":
            return None
        path = self.path(key)
        if not path.is_file():
            if self.mode == "replay":
                if self.match == "source" and source_key is not None:
                    found = [entry for entry in self.entries() if entry.get("source_key") == source_key]
                    if found:
                        return found[0]
                raise InputError(
                    f"{self.folder}: no answer {key[:16]}... is recorded for this request; "
                    "set llm.record to record (and give a key) to ask, give the tape that belongs to these inputs, "
                    "or with llm.match: source accept an answer that was recorded with other measured values"
                )
            return None
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}: not JSON ({error}); delete it and record again") from None
        if entry.get("schema") != "wholejob/tape@1" or entry.get("key") != key:
            raise InputError(f"{path}: is no answer to {key[:16]}...; delete it and record again")
        return dict(entry)

    def record(self, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Store an answer whole, redacted; returns it as it is stored."""
        document = redacted({"schema": "wholejob/tape@1", "key": key, **entry})
        with replacing(self.path(key)) as temporary:
            temporary.write_text(
                json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
            )
        return dict(document)


def default_mode(environment: Mapping[str, str], has_key: bool) -> str:
    """`replay` in continuous integration or without a key, else `record`."""
    return "replay" if environment.get("CI", "").lower() in ("1", "true", "yes") or not has_key else "record"
