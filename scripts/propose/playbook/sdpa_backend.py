"""The attention of transformers: `sdpa` instead of `eager`."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, files, keyword, replaced, string, walk, with_keyword

FINDINGS = ["attention_math_path", "new_shapes_slow_steps"]
TITLE = "Choose the attention backend"
HYPOTHESIS = (
    "Eager attention writes all weights to memory and reads them back; the fused kernels keep them on the chip."
)
RISK = "Attention sums in another order."
CLASSES = ["backend", "config"]
UNTESTED = ["models that return attention weights"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """`attn_implementation=\"sdpa\"` for an eager one, in the first file that has one."""
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
    raise Refusal('no attn_implementation="eager"')
