"""Known fixes, one file each: `fix(tree, finding, spec) -> {path: new text}`, or `Refusal` with the missing
precondition.

Each file declares `FINDINGS` (ids that it answers), `TITLE`, `HYPOTHESIS`, `RISK`, `CLASSES` and `UNTESTED`. Adding a
fix is adding a file.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

PLUGINS = True


@cache
def fixes() -> dict[str, ModuleType]:
    """Name -> module of every fix, by listing this folder."""
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def fixes_for(finding: str) -> list[str]:
    """Names of the fixes that answer a finding's id; a fix's place in `FINDINGS` does not matter."""
    return [name for name, module in fixes().items() if finding in module.FINDINGS]
