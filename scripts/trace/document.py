"""What stands around a trace's events: where the list of events begins, and the document's other keys.

Works on fragments, because the keys may stand before or after the events, nested, cut or malformed; the events never
depend on them.
"""

from __future__ import annotations

import json
import re
from typing import Any

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KEY = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_NEXT_KEY = re.compile(r'[\]}"\w]\s*,\s*(?="[^"\\\n]{1,64}"\s*:)')
_DECODER = json.JSONDecoder(strict=False)


def events_start(data: bytes) -> int:
    """Place after the `[` of the list of events, or -1. A document that is a list of objects is the list of events
    itself."""
    start = len(data) - len(data.lstrip(b" \t\r\n\0"))
    if data[start : start + 1] == b"[":
        return start + 1
    found = EVENTS_KEY.search(data)
    return found.end() if found else -1


def keys(fragment: bytes) -> tuple[dict[str, Any], int]:
    """(the keys and values of a piece of an object, bytes of something else after its end). Values that are no JSON
    are left out."""
    text = fragment.decode("utf-8", errors="backslashreplace").strip(" \t\r\n\0").removeprefix("{")
    found: dict[str, Any] = {}
    at = 0
    while match := _KEY.match(text, at):
        try:
            value, at = _DECODER.raw_decode(text, match.end())
            found[match[1]] = value
        except (ValueError, RecursionError):  # noqa: PERF203
            following = _NEXT_KEY.search(text, match.end())
            if not following:
                return found, 0
            at = following.end()
    rest = text[at:].lstrip(" \t\r\n\0,")
    while rest[:1] in ("}", "]"):
        rest = rest[1:].lstrip(" \t\r\n\0,")
    return found, len(rest.encode(errors="replace"))


def complaint(start: bytes) -> str:
    """Why a file is no trace, for people, by how it begins."""
    if not start.strip(b" \t\r\n\0"):
        return "the file is empty"
    text = start.lstrip(b" \t\r\n\0\xef\xbb\xbf")
    if text[:1] not in (b"{", b"["):
        return "it is not JSON"
    if b'"nodes"' in start and b'"schema"' in start:
        return "it is a PyTorch execution trace (nodes), which has no times"
    return "it has no list `traceEvents` of events with a phase"
