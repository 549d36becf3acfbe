"""No cuDNN attention where shapes vary: it builds a plan for each new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.propose.codemod import Refusal, entry, texts, with_setting

FINDINGS = ["new_shapes_slow_steps"]
TITLE = "No cuDNN attention for varying shapes"
HYPOTHESIS = "cuDNN's attention builds a plan for each new shape, in the step that brings it; other backends do not."
RISK = "Attention sums in another order; a flag of the process applies to every attention in it."
CLASSES = ["backend"]
UNTESTED = ["GPUs on which torch would not choose cuDNN's attention anyway"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """One line below the imports of the job's script."""
    if (spec.get("resources") or {}).get("gpus", 0) < 1:
        raise Refusal("the job has no GPU; cuDNN plays no part")
    if "global_flags" in ((spec.get("constraints") or {}).get("forbid") or []):
        raise Refusal("constraints.forbid holds global_flags")
    every = dict(texts(tree, spec))
    if any("cudnn_sdp" in text or "sdpa_kernel" in text for text in every.values()):
        raise Refusal("the job chooses its attention backend itself")
    if not any(
        word in text
        for text in every.values()
        for word in ("scaled_dot_product_attention", "MultiheadAttention", "transformers")
    ):
        raise Refusal("the job's source uses no fused attention")
    script = entry(tree, finding, spec)
    torch = script.spelled("torch.backends")
    if torch is None:
        raise Refusal(f"{script.path}: does not import torch")
    return {script.path: with_setting(script.module, f"{torch}.cuda.enable_cudnn_sdp(False)").code}
