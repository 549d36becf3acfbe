"""Convolutional models and their inputs in channels-last memory format."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import File, Refusal, assigned, code, dotted, files, replaced, texts, walk

FINDINGS = ["channels_last_missed"]
TITLE = "Keep images in channels-last order"
HYPOTHESIS = "The fast convolution kernels read channels last; each convolution now converts its input and output."
RISK = "Values agree to rounding; code that calls view() on an image tensor fails on the other layout."
CLASSES = ["backend"]
UNTESTED = ["models that flatten activations with view()"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """`.to(memory_format=torch.channels_last)` on the model, where it is made or moved; torch converts the inputs
    itself.
    """
    every = dict(texts(tree, spec))
    if any("channels_last" in text for text in every.values()):
        raise Refusal("channels_last is used already")
    if not any(re.search(r"Conv2d|conv2d\(|torchvision\.models|timm", text) for text in every.values()):
        raise Refusal("the job's source has no two-dimensional convolution")
    for file in files(tree, finding, spec, "model", "net"):
        torch = file.spelled("torch.channels_last")
        moved = _moved(file)
        if torch is None or moved is None:
            continue
        text = f"{code(moved)}.to(memory_format={torch})"
        return {file.path: replaced(file.module, {moved: cst.parse_expression(text)}).code}
    raise Refusal("no line that makes or moves the model")


def _moved(file: File) -> cst.BaseExpression | None:
    """The value of `model = Net(...)`, `model = model.to(device)` or `self.model = ...`; the last before training."""
    found: cst.BaseExpression | None = None
    for node in walk(file.module):
        pair = assigned(node)
        name, value = pair if pair else (None, None)
        if (
            pair is None
            and isinstance(node, cst.Assign)
            and (dotted(node.targets[0].target) or "") in ("self.model", "self.net")
        ):
            name, value = dotted(node.targets[0].target), node.value
        if (
            name is None
            or not isinstance(value, cst.Call)
            or not re.fullmatch(r"(self\.)?(model|net|network|backbone)", name)
        ):
            continue
        callee = dotted(value.func) or code(value.func)
        last = callee.rsplit(".", 1)[-1]
        wrapped = callee.endswith(("DataParallel", "DistributedDataParallel", "compile", "Trainer"))
        made = last in ("to", "cuda", "create_model") or last[:1].isupper() or "models." in callee
        if made and not wrapped:
            found = value
    return found
