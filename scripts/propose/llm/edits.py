"""Apply a model's edits: unique match with white-space and indentation repair, never by similarity, all or nothing.

An edit replaces the one place whose lines equal `search`, if need be after trailing blanks and a common indentation are
set right. Anything else is refused with what a model needs to repair it: the first line that differs, or the places
that are all possible.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WHOLE_FILE_LINES = 150

_ELISION = re.compile(
    r"^\s*(#|//)?\s*(\.\.\.|…)\s*$"
    r"|^\s*(#|//)\s*(\.\.\.|…)?.{0,20}\b(rest of|existing code|unchanged|remains? the same|as before|omitted)\b.*$",
    re.I,
)
_NUMBERED = re.compile(r"^\s*\d+\s*[:|→]")


class EditError(Exception):
    """No edit was applied; the message says why, for each edit that fails."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a file and the text that takes their place."""

    start: int
    end: int
    text: str
    number: int


def apply_edits(
    read: Callable[[str], str | None], edits: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]] = ()
) -> dict[str, str]:
    """`{path: new text}` after all edits; `read(path)` gives a file's text, None where there is no such file.

    `edits` are `{path, search, replace}`, matched against the files as they were; `files` are `{path, content}`, whole.
    Raises EditError, naming every edit that fails, and then nothing is applied.
    """
    problems: list[str] = []
    spans: dict[str, list[Span]] = {}
    texts: dict[str, str] = {}
    for number, edit in enumerate(edits, start=1):
        path = edit["path"]
        text = texts.get(path) if path in texts else read(path)
        if text is None:
            problems.append(f"edit {number}: {path}: no such file")
            continue
        texts[path] = text
        try:
            spans.setdefault(path, []).append(_span(text, edit["search"], edit["replace"], number))
        except EditError as error:
            problems.append(f"edit {number}: {path}: {error}")
    changed: dict[str, str] = {}
    for path, found in spans.items():
        try:
            changed[path] = _joined(texts[path], found)
        except EditError as error:  # noqa: PERF203 - every edit that fails is named
            problems.append(f"{path}: {error}")
    for entry in files:
        try:
            changed[entry["path"]] = _whole(entry["content"], read(entry["path"]), entry["path"] in changed)
        except EditError as error:  # noqa: PERF203
            problems.append(f"{entry['path']}: {error}")
    if not edits and not files:
        problems.append("there are no edits")
    for path, text in changed.items():
        problem = None if problems else _syntax(path, text, texts.get(path) or read(path))
        if problem:
            problems.append(problem)
    if problems:
        raise EditError("\n".join(problems))
    return changed


def _span(text: str, search: str, replace: str, number: int) -> Span:
    newline = "\r\n" if "\r\n" in text else "\n"
    search, replace = search.replace("\r\n", "\n"), replace.replace("\r\n", "\n")
    if not search.strip():
        raise EditError("`search` is empty")
    _no_slips(text, search, replace)
    plain = text.replace("\r\n", "\n")
    start, end, new = _place(plain, search, replace)
    _repeats_surroundings(plain, start, end, new)
    if plain[start:end] == new:
        raise EditError("the edit changes nothing")
    if newline == "\r\n":
        start += plain.count("\n", 0, start)
        end += plain.count("\n", 0, end)
        new = new.replace("\n", "\r\n")
    return Span(start, end, new, number)


def _repeats_surroundings(text: str, start: int, end: int, new: str) -> None:
    """Refuse a replacement that ends with the lines that follow the match anyway: they would stand there twice."""
    lines = [line.rstrip() for line in new.strip("\n").split("\n")]
    after = [line.rstrip() for line in text[end:].removeprefix("\n").split("\n")]
    quoted = [line.rstrip() for line in text[start:end].strip("\n").split("\n")]
    for count in range(len(lines) - 1, 1, -1):
        tail = lines[-count:]
        if tail == after[:count] and tail != quoted[-count:] and sum(map(bool, tail)) >= 2:
            raise EditError(f"`replace` ends with {count} lines that follow the quotation in the file; quote them too")


def _no_slips(text: str, search: str, replace: str) -> None:
    """Slips after which a match would be luck: line numbers in the quotation, an elision in the replacement."""
    lines = [line for line in search.split("\n") if line.strip()]
    if all(_NUMBERED.match(line) for line in lines) and search not in text:
        raise EditError("`search` begins its lines with line numbers; they are no part of the file")
    known = {line.strip() for line in search.split("\n")}
    for line in replace.split("\n"):
        if _ELISION.match(line) and line.strip() not in known:
            raise EditError(f"`replace` leaves code out ({line.strip()!r}); write it in full")


def _place(text: str, search: str, replace: str) -> tuple[int, int, str]:
    """(start, end, replacement) of the one match."""
    exact = [match.start() for match in re.finditer(re.escape(search), text)]
    if len(exact) == 1:
        start, end = exact[0], exact[0] + len(search)
        if _cuts_word(text, start, end):
            raise EditError(f"`search` begins or ends inside a word on line {_line(text, start)}; quote whole lines")
        if "\n" in search.strip("\n") and _cuts_line(text, start, end):
            raise EditError(
                f"`search` has several lines and begins or ends inside one, at line {_line(text, start)}; "
                "quote whole lines"
            )
        if search.endswith("\n") and not replace.endswith("\n") and replace and end < len(text):
            replace += "\n"
        return start, end, replace
    if len(exact) > 1:
        raise EditError(
            f"`search` is found {len(exact)} times, on lines {_listed(text, exact)}; quote more lines around it"
        )
    return _by_lines(text, search, replace)


def _by_lines(text: str, search: str, replace: str) -> tuple[int, int, str]:
    """Match whole lines, trailing blanks ignored, shifted by one common indentation."""
    wanted = [line.rstrip() for line in search.strip("\n").split("\n")]
    while wanted and not wanted[0]:
        wanted.pop(0)
    while wanted and not wanted[-1]:
        wanted.pop()
    lines = text.split("\n")
    found = []
    for at in range(len(lines) - len(wanted) + 1):
        shift = _shift(wanted, lines[at : at + len(wanted)])
        if shift is not None:
            found.append((at, shift))
    if not found:
        raise EditError(_divergence(lines, wanted))
    if len(found) > 1:
        listed = ", ".join(str(at + 1) for at, _ in found[:10])
        raise EditError(f"`search` is found {len(found)} times, at lines {listed}; quote more lines around it")
    at, shift = found[0]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    start, end = starts[at], starts[at + len(wanted)] - 1
    new = "\n".join(_shifted(line, shift) for line in replace.strip("\n").split("\n")) if replace.strip() else ""
    if not replace.strip() and end < len(text):
        end += 1  # the lines go, with their line break
    return start, end, new


def _shift(wanted: list[str], lines: list[str]) -> tuple[str, str] | None:
    """(prefix that `wanted` lacks, prefix that it has too much), the same for every line; None where they differ."""
    shift: tuple[str, str] | None = None
    for quoted, line in zip(wanted, lines, strict=True):
        line = line.rstrip()
        if not quoted or not line:
            if quoted or line:
                return None
            continue
        if quoted.lstrip() != line.lstrip():
            return None
        have, should = quoted[: len(quoted) - len(quoted.lstrip())], line[: len(line) - len(line.lstrip())]
        if should.endswith(have):
            this = (should[: len(should) - len(have)], "")
        elif have.endswith(should):
            this = ("", have[: len(have) - len(should)])
        else:
            return None
        if shift is not None and this != shift:
            return None
        shift = this
    return shift


def _shifted(line: str, shift: tuple[str, str]) -> str:
    lacks, excess = shift
    if not line.strip():
        return ""
    if excess:
        if not line.startswith(excess):
            raise EditError("the indentation of `replace` does not fit that of `search`")
        return line[len(excess) :]
    return lacks + line


def _divergence(lines: list[str], wanted: list[str]) -> str:
    """The first quoted line that differs at the place where most of the lines before it agree."""
    best, place = 0, -1
    for at in range(len(lines)):
        count = 0
        while count < len(wanted) and at + count < len(lines) and wanted[count].strip() == lines[at + count].strip():
            count += 1
        if count > best:
            best, place = count, at
    if best == 0:
        return f"`search` is not in the file; its first line {wanted[0].strip()[:120]!r} is nowhere"
    if best == len(wanted):
        return f"the lines are at {place + 1}, but their indentation differs from line to line; quote them exactly"
    there = lines[place + best].rstrip() if place + best < len(lines) else "(end of file)"
    quoted = wanted[best][:160]
    return f"line {best + 1} of `search` is {quoted!r}, the file has {there[:160]!r} on line {place + best + 1}"


def _cuts_word(text: str, start: int, end: int) -> bool:
    before = start > 0 and _word(text[start - 1]) and _word(text[start])
    after = end < len(text) and _word(text[end]) and _word(text[end - 1])
    return before or after


def _cuts_line(text: str, start: int, end: int) -> bool:
    before = text[text.rfind("\n", 0, start) + 1 : start]
    stop = text.find("\n", end)
    after = "" if text[end - 1] == "\n" else text[end : stop if stop >= 0 else len(text)]
    return bool(before.strip() or after.strip())


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _listed(text: str, positions: Sequence[int]) -> str:
    return ", ".join(str(_line(text, position)) for position in positions[:10])


def _joined(text: str, spans: list[Span]) -> str:
    spans = sorted(spans, key=lambda span: span.start)
    for before, after in zip(spans, spans[1:], strict=False):
        if after.start < before.end or (after.start, after.end) == (before.start, before.end):
            raise EditError(f"edits {before.number} and {after.number} overlap; make one edit of them")
    parts, at = [], 0
    for span in spans:
        parts += [text[at : span.start], span.text]
        at = span.end
    return "".join([*parts, text[at:]])


def _whole(content: str, old: str | None, edited: bool) -> str:
    if edited:
        raise EditError("has edits and a whole new content; give one of them")
    if old is not None and old.count("\n") > WHOLE_FILE_LINES:
        raise EditError(f"has {old.count(chr(10))} lines; whole files are for up to {WHOLE_FILE_LINES}, use edits")
    if not content.strip():
        raise EditError("the new content is empty")
    known = {line.strip() for line in (old or "").split("\n")}
    for line in content.split("\n"):
        if _ELISION.match(line) and line.strip() not in known:
            raise EditError(f"the new content leaves code out ({line.strip()!r}); write it in full")
    if content == old:
        raise EditError("the new content changes nothing")
    return content if content.endswith("\n") else content + "\n"


def _syntax(path: str, text: str, old: str | None) -> str | None:
    """A Python file that parsed before must parse after."""
    if not path.endswith(".py"):
        return None
    try:
        if old is not None:
            ast.parse(old)
    except SyntaxError:
        return None
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"{path}: line {error.lineno}: does not parse after the edit: {error.msg}"
    return None
