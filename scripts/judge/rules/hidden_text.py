"""What a reader sees is what Python reads: no control characters, look-alike names, codings or endless lines."""

from __future__ import annotations

import ast
import re
import unicodedata

from scripts.judge.change import Change, Hit

NAME = "hidden_text"
WHY = "K35: text that shows one thing and runs another"

COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
LONGEST = 400


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.files:
        for number, text in sorted(file.patch.added.items()):
            bad = sorted({unicodedata.name(c, f"U+{ord(c):04X}") for c in text if _hidden(c)})
            if bad:
                hits.append(Hit("refuse", file.path, number, f"holds {', '.join(bad[:3])}"))
            if len(text) > LONGEST:
                hits.append(Hit("refuse", file.path, number, f"a line of {len(text)} characters"))
            if re.search(r"\S[ \t]{60,}\S", text):
                hits.append(Hit("refuse", file.path, number, "code far to the right of the rest of its line"))
            cookie = COOKIE.match(text)
            if number <= 2 and cookie and cookie[1].lower().replace("_", "-") not in ("utf-8", "utf8"):
                hits.append(Hit("refuse", file.path, number, f"declares the coding {cookie[1]}"))
        for node in file.new(ast.Name, ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            written = _written(file, node)
            if not word.isascii() or (written is not None and not written.isascii()):
                hits.append(file.hit("refuse", node, f"the name {word} holds letters that look like others"))
    return list(dict.fromkeys(hits))


def _hidden(character: str) -> bool:
    """Control characters but tab, formats (direction marks, zero width) and private or unassigned code points."""
    return (
        character not in "\t\r" and unicodedata.category(character) in ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")
    ) or character == "\r"


def _written(file, node: ast.AST) -> str | None:  # type: ignore[no-untyped-def]
    """The source text of a name: Python folds `ｅｘｅｃ` to `exec` before anyone sees the tree."""
    lines = file.after.text.split("\n")
    number = getattr(node, "lineno", 0)
    if isinstance(node, ast.Attribute) or not 0 < number <= len(lines) or lines[number - 1].isascii():
        return None
    raw = lines[number - 1].encode()[node.col_offset : node.end_col_offset]  # type: ignore[attr-defined]
    return raw.decode(errors="replace")
