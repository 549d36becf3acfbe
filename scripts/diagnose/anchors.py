"""Does every place that structure.json or findings.json names lie in the source tree, with the text that is quoted?

    python -m scripts.diagnose.anchors W/structure.json --source W/source.json

Prints how many places were looked up; exit 1, and a line each, where one does not resolve.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json
from scripts.common.tree import stored


def unresolved(document: Any, tree: Path) -> tuple[int, list[str]]:
    """How many places a document names, and those whose file, line or text is not in the tree.

    A place is an object with `path` and `line`; its `code`, if any, is the stripped text of the line or begins it.
    """
    texts: dict[str, list[str]] = {}
    count, wrong = 0, []
    for place in _places(document):
        count += 1
        path, line, code = place["path"], place["line"], str(place.get("code") or "")
        if path not in texts:
            file = tree / path
            texts[path] = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        lines = texts[path]
        if not 1 <= line <= len(lines):
            wrong.append(f"{path}:{line}: " + (f"the file has {len(lines)} lines" if lines else "no such file"))
        elif code and code not in lines[line - 1] and not _name_of(code, lines[line - 1 :]):
            wrong.append(f"{path}:{line}: reads {lines[line - 1].strip()!r}, not {code!r}")
    return count, wrong


def _name_of(code: str, lines: list[str]) -> bool:
    """Whether a place quotes the name of a function that is defined there, below its decorators."""
    name = code.removeprefix("def ").partition("(")[0]
    for line in lines:
        if not line.lstrip().startswith("@"):
            return f"def {name}(" in line or f"class {name}" in line
    return False


def _places(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        if isinstance(document.get("path"), str) and isinstance(document.get("line"), int):
            yield document
        for value in document.values():
            yield from _places(value)
    elif isinstance(document, list):
        for value in document:
            yield from _places(value)


def main(argv: list[str] | None = None) -> int:
    """Check a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("document", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="source.json, or a folder with the source")
    args = parser.parse_args(argv)
    if not args.document.is_file():
        raise InputError(f"{args.document}: no such file; run the rule structure first")
    tree = args.source if args.source.is_dir() else stored(str(read_json(args.source, "source")["tree"]))
    count, wrong = unresolved(json.loads(args.document.read_text(encoding="utf-8")), tree)
    print("\n".join([*wrong, f"{count - len(wrong)} of {count} places resolve"]))
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    run(main)
