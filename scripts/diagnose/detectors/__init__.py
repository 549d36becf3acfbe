"""Detectors, one a file, found by listing this folder: adding one touches nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

PLUGINS = True


def modules() -> list[ModuleType]:
    """The detector modules, sorted by name. Each has `LOOKED_FOR` and `detect(job)`."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
