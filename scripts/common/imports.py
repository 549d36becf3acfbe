"""Which files of this repository a script imports, so that a rule reruns when its own code changes."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from scripts.common.files import sha256_file, write_text

ROOT = Path(__file__).resolve().parents[2]
STAMPS = Path("results/store/code")
PACKAGES = ("scripts", "parity")


def code(name: str) -> list[str]:
    """Files of the module `scripts.<name>`: its own and every one of ours that it imports, sorted."""
    start = _file(f"scripts.{name}")
    if start is None:
        raise ValueError(f"no module scripts.{name}")
    return list(_closure(start))


def stamp(name: str) -> str:
    """A file that lists `scripts.<name>` and every file of ours that it imports, with their hashes; one input of its rule.

    Written when the Snakefile is parsed, and only where its content changes. One input instead of some forty for each job
    keeps the graph small; a rule reruns on the same edits.
    """
    text = "".join(f"{_hash(path)}  {path}\n" for path in code(name))
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
    names = set()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    package = Path(path).parent.as_posix().replace("/", ".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                kept = parts[: len(parts) - node.level + 1]
                base = ".".join([*kept, base]).rstrip(".")
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    files = {file for name in names for file in _files(name)}
    if any(isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "PLUGINS" for n in tree.body):
        folder = (ROOT / path).parent
        files |= {p.relative_to(ROOT).as_posix() for p in folder.iterdir() if p.suffix == ".py"}
    return tuple(sorted(files - {path}))


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
