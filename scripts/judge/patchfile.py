"""A canonical git diff, parsed strictly: what cannot be read exactly is an error, never a guess.

The guard decides from this reading before anything of the patch runs, and then checks that `git apply` understood the
same thing. Format: `git diff --no-renames --full-index` (git's diff-format documentation, "Generating patch text with
-p").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADER = re.compile(r"diff --git a/(?P<old>.+) b/(?P<new>.+)\Z")
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?\Z")
INDEX = re.compile(r"index ([0-9a-f]{7,64})\.\.([0-9a-f]{7,64})(?: (\d{6}))?\Z")
NO_NEWLINE = "\\ No newline at end of file"
FORBIDDEN_EXTENSIONS = ("rename from", "rename to", "copy from", "copy to", "similarity index", "dissimilarity index")
REGULAR, EXECUTABLE, SYMLINK, SUBMODULE = "100644", "100755", "120000", "160000"


class PatchError(ValueError):
    """The text is no canonical git diff; the message says where and what would be right."""


@dataclass
class Hunk:
    """`lines` holds (kind, text): kind " ", "+" or "-", text without its line end."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: list[tuple[str, str]] = field(default_factory=list)
    old_ends_bare: bool = False
    new_ends_bare: bool = False


@dataclass
class FilePatch:
    """The change of one path. `status`: added, deleted, modified; modes are git's, None where the patch names none."""

    path: str
    status: str = "modified"
    old_mode: str | None = None
    new_mode: str | None = None
    binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def added(self) -> dict[int, str]:
        """Added lines by their number in the new file."""
        return self._lines("+")

    @property
    def removed(self) -> dict[int, str]:
        """Removed lines by their number in the old file."""
        return self._lines("-")

    @property
    def cuts(self) -> list[int]:
        """For each run of removed lines without an added one: the number of the new file's line after it."""
        places = []
        for hunk in self.hunks:
            number, run = hunk.new_start if hunk.new_count else hunk.new_start + 1, ""
            for kind, _ in [*hunk.lines, (" ", "")]:
                if kind == " ":
                    if run and "+" not in run:
                        places.append(number)
                    run = ""
                else:
                    run += kind
                number += kind != "-"
        return places

    def _lines(self, wanted: str) -> dict[int, str]:
        found = {}
        for hunk in self.hunks:
            start, count = (hunk.new_start, hunk.new_count) if wanted == "+" else (hunk.old_start, hunk.old_count)
            number = start if count else start + 1
            for kind, text in hunk.lines:
                if kind == wanted:
                    found[number] = text
                number += kind in (" ", wanted)
        return found


def parse(text: str) -> list[FilePatch]:
    """Files of a canonical git diff, in its order. Empty text is an empty list. Linear in the text.

    Raises PatchError for anything else: mail headers, plain `diff -u`, renames and copies, names that the two headers
    spell differently, names twice, counts that do not add up, text behind the last hunk.
    """
    lines = text.split("\n")
    if lines[-1] != "":
        raise PatchError("the last line has no line end; a git diff ends with one")
    lines.pop()
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        at = _file(lines, at, files)
    names = [file.path for file in files]
    for name in names:
        if names.count(name) > 1:
            raise PatchError(f"{name} appears twice; one section a file is right")
    return files


def apply_text(file: FilePatch, before: str | None) -> str | None:
    """The new text by our own reading of the hunks; None where the file is deleted.

    Raises PatchError where a context or removed line is not what the old text has. Linear in the file.
    """
    old = _split(before or "")
    if file.status == "added" and before is not None:
        raise PatchError(f"{file.path}: is new in the patch but exists in the tree")
    if file.status != "added" and before is None:
        raise PatchError(f"{file.path}: does not exist in the tree")
    new: list[str] = []
    at = 0
    for hunk in file.hunks:
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        if start < at:
            raise PatchError(f"{file.path}: hunks overlap or are out of order at old line {hunk.old_start}")
        new += old[at:start]
        at = start
        for kind, text in hunk.lines:
            if kind in " -":
                if at >= len(old) or old[at].rstrip("\n") != text:
                    raise PatchError(f"{file.path}: old line {at + 1} is not what the patch says")
                if kind == " ":
                    new.append(old[at])
                at += 1
            else:
                new.append(text + "\n")
        if hunk.new_ends_bare and new:
            new[-1] = new[-1].removesuffix("\n")
        elif hunk.lines and hunk.lines[-1][0] == " " and not hunk.old_ends_bare and new and not new[-1].endswith("\n"):
            raise PatchError(f"{file.path}: the patch does not say that the last line has no line end")
    new += old[at:]
    if file.status == "deleted":
        if new:
            raise PatchError(f"{file.path}: is deleted but lines of it are left")
        return None
    return "".join(new)


def _split(text: str) -> list[str]:
    """Lines with their ends, split at line feeds only (`splitlines` knows more ends than git does)."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _file(lines: list[str], at: int, files: list[FilePatch]) -> int:
    match = HEADER.match(lines[at])
    if not match:
        raise PatchError(f"line {at + 1}: {lines[at][:60]!r} where 'diff --git a/PATH b/PATH' should stand")
    if match["new"] != match["old"]:
        raise PatchError(f"line {at + 1}: the two names differ; renames and quoted names are not canonical")
    file = FilePatch(match["new"])
    files.append(file)
    at += 1
    indexed = False
    while at < len(lines) and not lines[at].startswith(("--- ", "diff --git ", "GIT binary patch", "Binary files ")):
        at, indexed = _extension(lines[at], at, file, indexed)
    if at == len(lines) or lines[at].startswith("diff --git "):
        return at
    if not lines[at].startswith("--- "):
        file.binary = True
        while at < len(lines) and not lines[at].startswith("diff --git "):
            at += 1
        return at
    old = "/dev/null" if file.status == "added" else f"a/{file.path}"
    new = "/dev/null" if file.status == "deleted" else f"b/{file.path}"
    if lines[at].rstrip("\t") != f"--- {old}":
        raise PatchError(f"line {at + 1}: {lines[at][:60]!r} should be '--- {old}'")
    if at + 1 >= len(lines) or lines[at + 1].rstrip("\t") != f"+++ {new}":
        raise PatchError(f"line {at + 2}: should be '+++ {new}'")
    at += 2
    if at == len(lines) or not lines[at].startswith("@@ "):
        raise PatchError(f"line {at + 1}: {file.path} has no hunk")
    while at < len(lines) and lines[at].startswith("@@ "):
        at = _hunk(lines, at, file)
    return at


def _extension(line: str, at: int, file: FilePatch, indexed: bool) -> tuple[int, bool]:
    """Read one extended header line."""
    if line.startswith(FORBIDDEN_EXTENSIONS):
        raise PatchError(f"line {at + 1}: {line[:40]!r}: renames and copies are not canonical; use --no-renames")
    for words, status in (("new file mode ", "added"), ("deleted file mode ", "deleted")):
        if line.startswith(words):
            if file.status != "modified":
                raise PatchError(f"line {at + 1}: {file.path} is added and deleted at once")
            file.status = status
            setattr(file, "new_mode" if status == "added" else "old_mode", line.removeprefix(words))
            return at + 1, indexed
    for words, name in (("old mode ", "old_mode"), ("new mode ", "new_mode")):
        if line.startswith(words):
            setattr(file, name, line.removeprefix(words))
            return at + 1, indexed
    index = INDEX.match(line)
    if index and not indexed:
        if index[3] and file.status == "modified" and file.old_mode is None:
            file.old_mode = file.new_mode = index[3]
        return at + 1, True
    raise PatchError(f"line {at + 1}: {line[:60]!r} is no header line of a git diff")


def _hunk(lines: list[str], at: int, file: FilePatch) -> int:
    match = HUNK.match(lines[at])
    if not match:
        raise PatchError(f"line {at + 1}: {lines[at][:60]!r} is no hunk header")
    old_start, old_count, new_start, new_count = (int(g) if g is not None else 1 for g in match.groups())
    hunk = Hunk(old_start, old_count, new_start, new_count)
    at += 1
    while old_count or new_count:
        if at == len(lines):
            raise PatchError(f"{file.path}: the patch ends inside a hunk")
        kind, text = lines[at][:1], lines[at][1:]
        if lines[at] == NO_NEWLINE:
            _bare(hunk, at)
        elif kind in (" ", "+", "-") and lines[at]:
            old_count -= kind != "+"
            new_count -= kind != "-"
            hunk.lines.append((kind, text))
        else:
            raise PatchError(f"line {at + 1}: {lines[at][:60]!r} is no line of a hunk")
        if old_count < 0 or new_count < 0:
            raise PatchError(f"line {at + 1}: the hunk has more lines than its header says")
        at += 1
    if at < len(lines) and lines[at] == NO_NEWLINE:
        _bare(hunk, at)
        at += 1
    if at < len(lines) and not lines[at].startswith(("@@ ", "diff --git ")):
        raise PatchError(f"line {at + 1}: {lines[at][:60]!r} behind the hunk; its header says that it is complete")
    file.hunks.append(hunk)
    return at


def _bare(hunk: Hunk, at: int) -> None:
    if not hunk.lines:
        raise PatchError(f"line {at + 1}: no line before 'No newline at end of file'")
    kind = hunk.lines[-1][0]
    hunk.old_ends_bare |= kind in " -"
    hunk.new_ends_bare |= kind in " +"
