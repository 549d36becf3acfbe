"""Copies of batches to the device do not wait: `non_blocking=True`, from pinned memory."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, code, files, is_false, keyword, positional, replaced, walk, with_keyword

FINDINGS = ["pageable_copies"]
TITLE = "Copy batches without waiting"
HYPOTHESIS = (
    "Each copy from pageable memory stops the program until it is done; pinned, non-blocking ones overlap with work."
)
RISK = "The host must not change a batch before its copy is done; loaders do not."
CLASSES = ["backend"]
UNTESTED = ["data sets that hand out the same buffer again"]

DEVICE = re.compile(r"device|cuda|gpu|rank", re.I)


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that has both a loader and blocking copies in a loop over it."""
    if (spec.get("resources") or {}).get("gpus", 0) < 1:
        raise Refusal("the job has no GPU to copy to")
    why = "no copy of a batch to the device in a loop"
    for file in files(tree, finding, spec, ".to(", ".cuda("):
        changes: dict[cst.CSTNode, Any] = {}
        for loop in walk(file.module):
            if isinstance(loop, cst.For):
                for node in walk(loop.body):
                    if isinstance(node, cst.Call) and _copies(node):
                        changes[node] = lambda updated: with_keyword(updated, "non_blocking", "True")
        if not changes:
            continue
        loaders = [
            n
            for n in walk(file.module)
            if isinstance(n, cst.Call) and (file.qualified(n.func) or "").endswith("data.DataLoader")
        ]
        if not loaders and "pin_memory" not in file.text:
            why = (
                f"{file.path}: the batches' memory is not pinned and their loader is not here; copies would still wait"
            )
            continue
        for loader in loaders:
            pinned = keyword(loader, "pin_memory")
            if pinned is None or is_false(pinned.value):
                changes[loader] = lambda updated: with_keyword(updated, "pin_memory", "True")
        return {file.path: replaced(file.module, changes).code}
    raise Refusal(why)


def _copies(node: cst.Call) -> bool:
    if (
        not isinstance(node.func, cst.Attribute)
        or keyword(node, "non_blocking")
        or re.search("model|net$", code(node.func.value))
    ):
        return False
    if node.func.attr.value == "cuda":
        return True
    arguments = positional(node)
    return node.func.attr.value == "to" and len(arguments) == 1 and bool(DEVICE.search(code(arguments[0])))
