"""The views over a parsed trace: one module each, found by listing. A view is a pure function from a Capture to an
Arrow table.

A view module declares `NAME`, its columns in its docstring, `view(capture) -> pyarrow.Table`, and may give
`headline(table, capture)`, numbers for `views.json`. `docs/formats.md` ("Trace views") is the contract with the rooms
that read the tables.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

PLUGINS = True


def modules() -> dict[str, ModuleType]:
    """The view modules by NAME, sorted by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NAME") and hasattr(module, "view"):
            found[module.NAME] = module
    return dict(sorted(found.items()))
