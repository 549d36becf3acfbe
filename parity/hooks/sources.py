"""What a process leaves and uses on disk, and the states of its random generators; looked at once, at exit."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from typing import Any, Dict, List, Optional

MAX_ENTRIES = 20000
SKIPPED = {"__pycache__", ".git", ".venv", "node_modules", ".snakemake"}


_main: List[str] = []


def remember_main() -> None:
    """Keep the main script's path while it is known: Python deletes it before exit handlers run."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(file, str):
        _main.append(os.path.abspath(file))


def hashes(tree: Optional[str]) -> Dict[str, str]:
    """`{path relative to tree: sha256}` of every imported module's file (and the main script) under `tree`."""
    if not tree:
        return {}
    root = os.path.realpath(tree)
    found = {}
    for module in [*list(sys.modules.values()), *_main]:
        try:
            file = module if isinstance(module, str) else getattr(module, "__file__", None)
            if not isinstance(file, str):
                continue
            path = os.path.realpath(file)
            if path.startswith(root + os.sep) and os.path.isfile(path):
                found[os.path.relpath(path, root).replace(os.sep, "/")] = sha256(path)
        except Exception:  # modules may be any object
            continue
    return dict(sorted(found.items()))


def sha256(path: str) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def matching(folder: str, patterns: List[str]) -> List[str]:
    """Files under `folder` (or anywhere, for an absolute pattern) that match the globs: sorted relative paths."""
    found = set()
    for pattern in patterns:
        base = pattern if os.path.isabs(pattern) else os.path.join(folder, pattern)
        for path in glob.glob(base, recursive=True):
            if os.path.isfile(path):
                found.add(os.path.relpath(path, folder).replace(os.sep, "/"))
    return sorted(found)


def written(folder: str, since_ns: int) -> Optional[List[str]]:
    """Files under the working directory that changed since then; None where the directory is too large to walk."""
    from parity.recorder import folder as own

    mine = os.path.realpath(own())
    found, entries = [], 0
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name not in SKIPPED and os.path.realpath(os.path.join(place, name)) != mine
        ]
        entries += len(names)
        if entries > MAX_ENTRIES:
            return None
        for name in names:
            path = os.path.join(place, name)
            try:
                if os.stat(path).st_mtime_ns >= since_ns and not name.endswith(".pyc"):
                    found.append(os.path.relpath(path, folder).replace(os.sep, "/"))
            except OSError:
                continue
    return sorted(found)


def generator_states(torch: Any) -> Dict[str, Any]:
    """Short fingerprints of the generators' states: equal when the same numbers were drawn from the same seeds."""
    import random

    def short(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:16]

    numpy = sys.modules.get("numpy")
    states: Dict[str, Any] = {
        "random": short(repr(random.getstate()).encode()),
        "numpy": None,
        "torch": None,
        "cuda": [],
    }
    try:
        states["torch"] = short(bytes(torch.get_rng_state().tolist()))
        if numpy is not None:
            state = numpy.random.get_state()
            states["numpy"] = short(state[1].tobytes() + repr(state[2:]).encode())
        if torch.cuda.is_initialized():
            states["cuda"] = [short(bytes(state.tolist())) for state in torch.cuda.get_rng_state_all()]
    except Exception:
        pass
    return states
