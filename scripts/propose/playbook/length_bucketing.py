"""Batches of similar lengths, only where the workload allows another order of the data."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, files, is_false, keyword, replaced, texts, walk, with_keyword

FINDINGS = ["padding_waste", "new_shapes_slow_steps"]
TITLE = "Group samples of similar length"
HYPOTHESIS = "Batches mix short and long samples, so most of a batch is padding."
RISK = "Samples come in another order, so the loss of each step is another one."
CLASSES = ["config", "python"]
UNTESTED = ["models whose training depends on mixed batches", "transformers 4, which has another name for the option"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """The sampling strategy of a Hugging Face trainer; `group_by_length=True` where the script knows that older
    option.
    """
    constraints = spec.get("constraints") or {}
    if constraints.get("data_order", "fixed") != "free" and "data_order" not in (constraints.get("allow") or []):
        raise Refusal("constraints.data_order is fixed; grouping changes the order of the samples")
    if any("group_by_length" in text and "group_by_length=False" not in text for _, text in texts(tree, spec)):
        raise Refusal("samples are grouped already")
    for file in files(tree, finding, spec, "TrainingArguments", "SFTConfig"):
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Call) and (file.qualified(node.func) or "").endswith(
                ("TrainingArguments", "SFTConfig")
            ):
                option = keyword(node, "group_by_length")
                if option is not None and is_false(option.value):
                    changes[node] = lambda updated: with_keyword(updated, "group_by_length", "True")
                elif keyword(node, "train_sampling_strategy") is None:
                    changes[node] = lambda updated: with_keyword(
                        updated, "train_sampling_strategy", '"group_by_length"'
                    )
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no Hugging Face trainer, whose samples could be grouped by a setting")
