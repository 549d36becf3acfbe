"""Whether numba is there, where its compiled code is cached, and the one line that says when it compiles."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any


def available() -> bool:
    """Whether the compiled scanner can be used; WHOLEJOB_NUMBA=0 turns it off."""
    return os.environ.get("WHOLEJOB_NUMBA") != "0" and importlib.util.find_spec("numba") is not None


@cache
def module(name: str) -> Any:
    """Import a module with compiled functions; says so, once, when its cache is empty and it has to compile."""
    folder = _cache_folder()
    if not any(folder.rglob(f"{name.removesuffix('_compiled')}.*.nbi")):
        print(f"compiling the trace parser (once, about 20 s; cached in {folder})", file=sys.stderr, flush=True)
    return importlib.import_module(f"scripts.trace.{name}")


def _cache_folder() -> Path:
    """The folder of numba's cache: NUMBA_CACHE_DIR, else the user's cache, else a temporary folder of this user."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "wholejob" / "numba"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            folder = Path(tempfile.gettempdir()) / f"wholejob-numba-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        if "numba" in sys.modules:  # imported before: the variable was read already
            sys.modules["numba"].config.CACHE_DIR = str(folder)
    return Path(os.environ["NUMBA_CACHE_DIR"])
