"""Frozen weights that go to the device for each request and back again stay there."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, call, code, files, positional, replaced, string, texts, walk

FINDINGS = ["weights_moved"]
TITLE = "Keep frozen weights on the device"
HYPOTHESIS = "The same weights are copied to the device and back for each request, although nothing changes them."
RISK = "The weights take device memory all the time."
CLASSES = ["python"]
UNTESTED = ["devices that hold all parts of the pipeline only one after the other"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Remove the way back in the first file where a module is moved to the device and to the CPU in one function."""
    if any(re.search(r"\.backward\(|optim\.\w+\(", text) for _, text in texts(tree, spec)):
        raise Refusal("the job trains; its weights are not frozen")
    growth = (spec.get("constraints") or {}).get("memory_growth", 1.5)
    if growth <= 1.0:
        raise Refusal("constraints.memory_growth allows no more memory")
    for file in files(tree, finding, spec, '"cpu"', "'cpu'", ".cpu()"):
        changes: dict[cst.CSTNode, Any] = {}
        for function, _ in file.functions:
            there: set[str] = set()
            for node in walk(function.body):
                moved = _moved(node)
                if moved is None:
                    continue
                subject, home = moved
                if not home:
                    there.add(subject)
                elif subject in there:
                    changes[node] = cst.RemoveFromParent()
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no function that moves a module to the device and back")


def _moved(node: cst.CSTNode) -> tuple[str, bool] | None:
    """(module, is it the way back) of a line that moves one: `x.to(device)`, `self.vae = self.vae.cpu()`."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    small = node.body[0]
    made = call(node)
    if made is None and isinstance(small, cst.Assign) and isinstance(small.value, cst.Call):
        made = small.value
        if not isinstance(made.func, cst.Attribute) or code(small.targets[0].target) != code(made.func.value):
            return None
    if made is None or not isinstance(made.func, cst.Attribute):
        return None
    subject = code(made.func.value)
    if not re.search(
        r"model|vae|encoder|decoder|unet|transformer|net$|module|critic|teacher", subject.rsplit(".", 1)[-1]
    ):
        return None
    method, arguments = made.func.attr.value, positional(made)
    if method == "cpu" and not arguments:
        return subject, True
    if method == "cuda":
        return subject, False
    if method == "to" and len(arguments) == 1:
        return subject, string(arguments[0]) == "cpu" or code(arguments[0]) in (
            "torch.device('cpu')",
            'torch.device("cpu")',
        )
    return None
