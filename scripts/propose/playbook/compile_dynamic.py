"""`torch.compile` with dynamic shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.propose.compilation import compiled

FINDINGS = ["new_shapes_slow_steps", "compile_missed", "launch_bound"]
TITLE = "Compile the model for varying shapes"
HYPOTHESIS = "The step is many small operations; shapes vary, so the compiled code must not be made for each of them."
RISK = "Compilation takes seconds to minutes before the first step; sums are taken in another order."
CLASSES = ["backend", "python"]
UNTESTED = ["machines without a C++ compiler or Triton"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """`torch.compile(dynamic=True)` around the model."""
    return compiled(tree, finding, spec, "dynamic=True")
