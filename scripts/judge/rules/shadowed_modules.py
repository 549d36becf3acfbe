"""No new file takes the place of a module that the job, the recorder or Python itself imports."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath

from scripts.judge.change import Change, Hit, imports

NAME = "shadowed_modules"
WHY = "J17, J18, J35: a local torch.py, random.py or sitecustomize.py is loaded in the real one's place"

OURS = {
    "parity",
    "sitecustomize",
    "usercustomize",
    "scripts",
    "conftest",
    "torch",
    "numpy",
    "pandas",
    "transformers",
    "triton",
}


def check(change: Change) -> list[Hit]:
    known = set(sys.stdlib_module_names) | OURS
    for file in change.python:
        sides = [m for m in (file.before, file.after) if m]
        known |= {name.partition(".")[0] for module in sides for name in imports(module) if not name.startswith(".")}
    before = {path for path in change.paths if path not in {f.path for f in change.files if f.patch.status == "added"}}
    local = {PurePosixPath(path).stem for path in before} | {
        part for path in before for part in PurePosixPath(path).parts[:-1]
    }
    hits = []
    for file in change.files:
        if file.patch.status != "added":
            continue
        parts = PurePosixPath(file.path)
        names = (
            {parts.name.partition(".")[0], *parts.parts[:-1]}
            if parts.suffix in (".py", ".so", ".pyd", ".pyc", ".pth")
            else set()
        )
        # A new module that only this patch imports is the patch's own; the standard library and what is installed are
        # not.
        foreign = sorted(
            n
            for n in names
            if n in known and n not in local and (n in sys.stdlib_module_names or n in OURS or _installed(n))
        )
        if foreign:
            hits.append(Hit("refuse", file.path, 1, f"the file would be imported in place of {foreign[0]}"))
    return hits


def _installed(name: str) -> bool:
    """Whether the judge's own environment has a module of that name (found by its place, never imported)."""
    return any((PurePosixPath(folder) and _exists(folder, name)) for folder in sys.path if folder.endswith("-packages"))


def _exists(folder: str, name: str) -> bool:
    from pathlib import Path

    return (Path(folder) / name).is_dir() or (Path(folder) / f"{name}.py").is_file()
