"""Texts of a trace as Python strings: escapes undone, bytes that are no UTF-8 kept visible. Shared by both scanners."""

from __future__ import annotations

import json
import re

_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])?')
_MEANING = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def decoded(raw: bytes) -> tuple[str, bool]:
    """(the text between a string's quotes, whether bytes had to be repaired). Backslashes that escape nothing stay as
    they are."""
    try:
        text, repaired = raw.decode("utf-8"), False
    except UnicodeDecodeError:
        text, repaired = raw.decode("utf-8", errors="backslashreplace"), True
        return text, repaired
    if "\\" in text:
        try:
            text = json.loads(f'"{text}"', strict=False)
        except ValueError:
            text = _ESCAPE.sub(_undone, text)
            repaired = True
    if not text.isascii():
        text = text.encode("utf-8", errors="replace").decode("utf-8")  # lone surrogates have no UTF-8
    return text, repaired


def _undone(match: re.Match[str]) -> str:
    code = match[1]
    if code is None:
        return "\\"
    return chr(int(code[1:], 16)) if code[0] == "u" else _MEANING[code]
