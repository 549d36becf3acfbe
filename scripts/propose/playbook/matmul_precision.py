"""TF32 for matrix products and convolutions, only where the workload's contract allows that precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.propose.codemod import Refusal, entry, texts, with_setting

FINDINGS = ["tf32_off"]
TITLE = "Compute float32 products in TF32"
HYPOTHESIS = "Tensor cores multiply TF32 several times as fast as float32, and the workload allows that precision."
RISK = "Products keep 10 bits of mantissa instead of 23."
CLASSES = ["backend"]
UNTESTED = ["GPUs before Ampere, which have no TF32"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """One line below the imports of the job's script."""
    precision = (spec.get("constraints") or {}).get("precision", "same")
    if precision not in ("tf32", "bf16"):
        raise Refusal(f"constraints.precision is {precision!r}; the workload does not allow TF32")
    if (spec.get("resources") or {}).get("gpus", 0) < 1:
        raise Refusal("the job has no GPU")
    for path, text in texts(tree, spec):
        if "set_float32_matmul_precision" in text or "allow_tf32" in text or "fp32_precision" in text:
            raise Refusal(f"{path}: sets the precision itself")
    script = entry(tree, finding, spec)
    torch = script.spelled("torch.set_float32_matmul_precision")
    if torch is None:
        raise Refusal(f"{script.path}: does not import torch")
    return {script.path: with_setting(script.module, f'{torch}("high")').code}
