"""`torch.backends.cudnn.benchmark = True` for convolutions of fixed shapes."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, dotted, entry, files, is_false, replaced, texts, walk, with_setting

FINDINGS = ["cudnn_benchmark_off"]
TITLE = "Let cuDNN choose its algorithms by measuring"
HYPOTHESIS = "Shapes do not change, so measuring each convolution once finds the fastest algorithm for all steps."
RISK = "Another algorithm sums in another order, and the choice may differ between runs."
CLASSES = ["backend"]
UNTESTED = ["inputs of varying sizes, for which every new size would be measured"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """The flag that is False becomes True, or one line below the imports of the job's script."""
    if (spec.get("resources") or {}).get("gpus", 0) < 1:
        raise Refusal("the job has no GPU")
    every = dict(texts(tree, spec))
    if any(
        re.search(r"use_deterministic_algorithms\(True|cudnn\.deterministic\s*=\s*True|deterministic=True", text)
        for text in every.values()
    ):
        raise Refusal("the job asks for deterministic algorithms")
    if not any(re.search(r"Conv[123]d|conv[123]d\(|torchvision\.models", text) for text in every.values()):
        raise Refusal("the job's source has no convolution")
    for file in files(tree, finding, spec, "cudnn"):
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Assign) and (dotted(node.targets[0].target) or "").endswith("cudnn.benchmark"):
                if not is_false(node.value):
                    raise Refusal("the flag is set already")
                changes[node] = lambda updated: updated.with_changes(value=cst.Name("True"))
        if changes:
            return {file.path: replaced(file.module, changes).code}
    script = entry(tree, finding, spec)
    torch = script.spelled("torch.backends")
    if torch is None:
        raise Refusal(f"{script.path}: does not import torch")
    return {script.path: with_setting(script.module, f"{torch}.cudnn.benchmark = True").code}
