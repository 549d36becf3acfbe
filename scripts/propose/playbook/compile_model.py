"""`torch.compile` of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.propose.compilation import compiled

FINDINGS = ["compile_missed", "launch_bound", "tiny_kernels"]
TITLE = "Compile the model"
HYPOTHESIS = "The step is many small operations launched from Python; compiled, they are fused and launched together."
RISK = "Compilation takes seconds to minutes before the first step; sums are taken in another order."
CLASSES = ["backend", "python"]
UNTESTED = ["machines without a C++ compiler or Triton"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """`torch.compile` around the model, once, where training or evaluation begins to use it."""
    return compiled(tree, finding, spec, "")
