"""`fused=True` for torch's Adam, AdamW, SGD and Adagrad: one kernel for all parameters instead of several for each."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    code,
    dotted,
    files,
    is_false,
    is_true,
    keyword,
    replaced,
    string,
    texts,
    walk,
    with_keyword,
    without_keyword,
)

FINDINGS = ["optimizer_unfused", "tiny_kernels", "launch_bound"]
TITLE = "Fuse the optimizer step"
HYPOTHESIS = (
    "The optimizer launches several small operations for each parameter; fused=True does the whole update in one."
)
RISK = "The update is the same formula, rounded in another order."
CLASSES = ["backend"]
HINT = "Pass fused=True to torch.optim.AdamW."
UNTESTED = ["torch older than 2.4 has no fused optimizers on CPU"]

FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
ARGUMENTS = {"lr", "betas", "weight_decay", "eps", "momentum", "amsgrad", "nesterov"}


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that builds such an optimizer; `foreach` gives way to `fused`."""
    if any("sparse=True" in text for _, text in texts(tree, spec)):
        raise Refusal("an embedding with sparse gradients: fused optimizers take dense ones only")
    why = "no optimizer of torch.optim that has a fused form"
    for file in files(tree, finding, spec, "optim"):
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if not isinstance(node, cst.Call):
                continue
            try:
                changes |= _change(file, node)
            except Refusal as refusal:
                why = f"{file.path}: {refusal}"
        changes = changes or _cuda_only(file) or _shared_arguments(file)
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal(why)


def _change(file: File, node: cst.Call) -> dict[cst.CSTNode, Any]:
    name = file.qualified(node.func) or ""
    if name.startswith("torch.optim.") and name.rsplit(".", 1)[1] in FUSED:
        return _fused(node, name.rsplit(".", 1)[1])
    if name.endswith("TrainingArguments") or name.endswith("SFTConfig"):
        optimizer = keyword(node, "optim")
        if optimizer is None or string(optimizer.value) == "adamw_torch":
            if optimizer is None:
                raise Refusal("the trainer chooses its optimizer itself; recent versions take the fused one")
            return {node: lambda updated: with_keyword(updated, "optim", '"adamw_torch_fused"')}
    return {}


def _fused(node: cst.Call, name: str) -> dict[cst.CSTNode, Any]:
    if any(argument.star for argument in node.args):
        raise Refusal(f"{name} takes its arguments from a dictionary")
    fused = keyword(node, "fused")
    if fused is not None and not is_false(fused.value) and dotted(fused.value) != "None":
        return {}
    for name_ in ("differentiable", "capturable"):
        option = keyword(node, name_)
        if option is not None and not is_false(option.value):
            raise Refusal(f"the optimizer is {name_}")
    if fused is not None and is_false(fused.value) and not is_true(fused.value):
        pass  # an explicit False is what the finding is about
    return {node: lambda updated: with_keyword(without_keyword(updated, "foreach"), "fused", "True")}


def _cuda_only(file: File) -> dict[cst.CSTNode, Any]:
    """`{"fused": True} if ... and p.is_cuda else {}`: the limit to CUDA falls, CPUs have fused kernels as well."""
    changes: dict[cst.CSTNode, Any] = {}
    for node in walk(file.module):
        if isinstance(node, cst.IfExp) and code(node.body).replace(" ", "") in (
            '{"fused":True}',
            "{'fused':True}",
            "dict(fused=True)",
        ):
            test = node.test
            if (
                isinstance(test, cst.BooleanOperation)
                and isinstance(test.operator, cst.And)
                and code(test.right).endswith(".is_cuda")
            ):
                changes[test] = test.left
    return changes


def _shared_arguments(file: File) -> dict[cst.CSTNode, Any]:
    """A trainer that chooses its class by name and keeps the arguments in a dictionary: `dict(lr=..., betas=...)`."""
    chooses = "getattr(optim" in file.text or "getattr(torch.optim" in file.text
    if not chooses or '"fused"' in file.text or "fused=" in file.text:
        return {}
    changes: dict[cst.CSTNode, Any] = {}
    for node in walk(file.module):
        if not isinstance(node, cst.If):
            continue
        branch: cst.If | cst.Else | None = node
        while isinstance(branch, cst.If):
            names = {string(part) for part in walk(branch.test) if isinstance(part, cst.SimpleString)}
            made = [part for part in walk(branch.body) if isinstance(part, cst.Call) and _is_arguments(part)]
            if len(made) == 1 and names & FUSED:
                all_fused = names <= FUSED
                tested = next(
                    (dotted(part.left) for part in walk(branch.test) if isinstance(part, cst.Comparison)), None
                )
                if all_fused:
                    changes[made[0]] = _adder("True")
                elif tested:
                    kept = ", ".join(f'"{name}"' for name in sorted(FUSED & names))
                    value = f"{tested} in {{{kept}}}" if len(names & FUSED) > 1 else f"{tested} == {kept}"
                    changes[made[0]] = _adder(f"True if {value} else None")
            branch = branch.orelse
    return {key: value for key, value in changes.items() if "fused" not in cst.Module([]).code_for_node(key)}


def _adder(value: str) -> Any:
    return lambda updated: with_keyword(updated, "fused", value)


def _is_arguments(node: cst.Call) -> bool:
    names = {argument.keyword.value for argument in node.args if argument.keyword}
    return dotted(node.func) == "dict" and "lr" in names and names <= ARGUMENTS
