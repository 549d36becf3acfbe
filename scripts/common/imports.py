"""Which files of this repository a script imports, so that a rule reruns when its own code changes."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.files import sha256_file, write_text

ROOT = Path(__file__).resolve().parents[2]
STAMPS = Path("results/store/code")
PACKAGES = ("scripts", "parity")
MEMORY = "imports.json"
FORGET = 5000  # contents, after which the memory of old ones is dropped


def code(name: str) -> list[str]:
    """Files of the module `scripts.<name>`: its own and every one of ours that it imports, sorted."""
    start = _file(f"scripts.{name}")
    if start is None:
        raise ValueError(f"no module scripts.{name}")
    return list(_closure(start))


def stamp(name: str, also: Sequence[str] = ()) -> str:
    """A file that lists `scripts.<name>` and every file of ours that it imports, with their hashes; one input of its rule.

    also: further files that the script reads by listing a folder, templates for example.
    Written when the Snakefile is parsed, and only where its content changes. One input instead of some forty for each job
    keeps the graph small; a rule reruns on the same edits.
    """
    known = len(_memory())
    text = "".join(f"{_hash(path)}  {path}\n" for path in [*code(name), *also])
    if len(_memory()) > known:
        write_text(STAMPS / MEMORY, json.dumps(_memory()))
    place = STAMPS / f"{name}.sha256"
    if not place.is_file() or place.read_text(encoding="utf-8") != text:
        write_text(place, text)
    return place.as_posix()


@cache
def _hash(path: str) -> str:
    return sha256_file(ROOT / path)


@cache
def _closure(start: str) -> tuple[str, ...]:
    seen, todo = {start}, [start]
    while todo:
        found = set(_direct(todo.pop())) - seen
        seen |= found
        todo += found
    return tuple(sorted(seen))


@cache
def _direct(path: str) -> tuple[str, ...]:
    """Imported files, and for a package that finds its parts by listing (`PLUGINS = True`), those parts."""
    names, plugins = _parsed(path)
    package = Path(path).parent.as_posix().replace("/", ".").split(".")
    files: set[str] = set()
    for level, name in names:
        base = ".".join([*package[: len(package) - level + 1], name]).rstrip(".") if level else name
        files |= set(_files(base))
    if plugins:
        folder = (ROOT / path).parent
        files |= {p.relative_to(ROOT).as_posix() for p in folder.iterdir() if p.suffix == ".py"}
    return tuple(sorted(files - {path}))


def _parsed(path: str) -> Any:
    """What a file imports, as (dots, name), and whether it finds its parts by listing.

    Parsing some two hundred files takes longer than the rest of a call that does nothing, so what a content imports is kept.
    """
    known = _memory()
    digest = _hash(path)
    if digest not in known:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names: set[tuple[int, str]] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {(0, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                names |= {(node.level, base)}
                names |= {(node.level, f"{base}.{alias.name}".lstrip(".")) for alias in node.names}
        plugins = any(isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "PLUGINS" for n in tree.body)
        known[digest] = [sorted(names), plugins]
    return known[digest]


@cache
def _memory() -> dict[str, Any]:
    """Imports by content hash, from the calls before; empty where there are none or the file is damaged."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = dict(json.loads((STAMPS / MEMORY).read_text(encoding="utf-8")))
    return known if len(known) < FORGET else {}


def _files(module: str) -> list[str]:
    """The module's file and the `__init__.py` of each package above it."""
    parts = module.split(".")
    found = [_file(".".join(parts[:depth])) for depth in range(1, len(parts) + 1)]
    return [file for file in found if file]


def _file(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return None
    base = Path(*parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if (ROOT / path).is_file():
            return path.as_posix()
    return None
