"""The guard's rules, one a file, found by listing this folder.

A rule has `NAME` (its file's name), `WHY` (the false wins it is against, by their numbers in the facts sheet, J whole
job, K kernel) and `check(change) -> list[Hit]`. A rule that raises refuses the patch.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

PLUGINS = True


@cache
def rules() -> tuple[ModuleType, ...]:
    """Every rule module of this folder, sorted by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)
