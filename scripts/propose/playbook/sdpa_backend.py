"""The attention backend: `sdpa` instead of `eager` in transformers, and no cuDNN plans for shapes that vary."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    Refusal,
    entry,
    files,
    keyword,
    replaced,
    string,
    texts,
    walk,
    with_keyword,
    with_setting,
)

FINDINGS = ["new_shapes_slow_steps", "attention_math_path"]
TITLE = "Choose the attention backend"
HYPOTHESIS = "The chosen attention is slow: eager writes all weights to memory, cuDNN builds a plan for each new shape."
RISK = "Attention sums in another order; a flag of the process applies to every attention in it."
CLASSES = ["backend", "config"]
UNTESTED = ["models that return attention weights"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """`attn_implementation=\"sdpa\"` for an eager one; else, for varying shapes on a GPU, cuDNN's backend off."""
    for file in files(tree, finding, spec, "eager"):
        if "output_attentions=True" in file.text:
            raise Refusal(f"{file.path}: asks for attention weights, which sdpa does not give")
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            option = keyword(node, "attn_implementation") if isinstance(node, cst.Call) else None
            if option is not None and string(option.value) == "eager":
                value = file.module.code_for_node(option.value).replace("eager", "sdpa")
                changes[node] = lambda updated, value=value: with_keyword(updated, "attn_implementation", value)
        if changes:
            return {file.path: replaced(file.module, changes).code}
    if finding.get("id") != "new_shapes_slow_steps":
        raise Refusal('no attn_implementation="eager"')
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
