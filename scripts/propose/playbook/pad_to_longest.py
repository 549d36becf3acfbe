"""Batches are padded to their longest member, not to the longest that is allowed."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, files, keyword, replaced, string, texts, walk, with_keyword

FINDINGS = ["padding_waste"]
TITLE = "Pad to the longest of the batch"
HYPOTHESIS = "Every layer computes padding that masks throw away; most batches are much shorter than the limit."
RISK = "Shapes differ from batch to batch, so plans are built for each; positions of left-padded tokens shift."
CLASSES = ["config"]
UNTESTED = ["models that read absolute positions without a mask"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file with `padding=\"max_length\"`, in tokenizer calls and collators."""
    if any("torch.compile(" in text and "dynamic=True" not in text for _, text in texts(tree, spec)):
        raise Refusal("the model is compiled for fixed shapes")
    for file in files(tree, finding, spec, "max_length"):
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Call):
                padding = keyword(node, "padding")
                if padding is not None and string(padding.value) == "max_length":
                    value = file.module.code_for_node(padding.value).replace("max_length", "longest")
                    changes[node] = lambda updated, value=value: with_keyword(updated, "padding", value)
        if changes:
            if ".map(" in file.text and "batched=True" in file.text and "DataCollator" not in file.text:
                raise Refusal(f"{file.path}: the data set is padded once by map(); batches are made from it later")
            return {file.path: replaced(file.module, changes).code}
    raise Refusal('no padding="max_length"')
