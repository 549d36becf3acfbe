"""Gradients are dropped, not filled with zeros: `zero_grad(set_to_none=False)` and loops over `p.grad.zero_()`."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, call, dotted, files, is_false, keyword, replaced, walk, without_keyword

FINDINGS = ["tiny_kernels", "launch_bound", "optimizer_unfused"]
TITLE = "Drop gradients instead of zeroing them"
HYPOTHESIS = (
    "Each step writes zeros over every gradient and then adds to them; without them the backward pass writes once."
)
RISK = "A parameter without a gradient has None, not zeros: optimizers skip it, momentum and decay included."
CLASSES = ["backend", "python"]
UNTESTED: list[str] = []


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that zeroes gradients in place."""
    for file in files(tree, finding, spec, "grad"):
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Call):
                method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
                option = keyword(node, "set_to_none")
                if method == "zero_grad" and option is not None and is_false(option.value):
                    changes[node] = lambda updated: without_keyword(updated, "set_to_none")
            elif isinstance(node, cst.SimpleStatementLine):
                target = _zeroed(node)
                if target:
                    changes[node.body[0]] = cst.parse_statement(f"{target} = None\n").body[0]
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no gradient is filled with zeros (zero_grad drops them by default)")


def _zeroed(statement: cst.SimpleStatementLine) -> str | None:
    """`p.grad` of a line that zeroes it: `p.grad.zero_()`, `p.grad.data.zero_()`, `p.grad = torch.zeros_like(p)`."""
    made = call(statement)
    name = dotted(made.func) if made is not None else None
    if name and name.endswith((".grad.zero_", ".grad.data.zero_")):
        return name.removesuffix(".zero_").removesuffix(".data")
    small = statement.body[0] if len(statement.body) == 1 else None
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.value, cst.Call):
        target = dotted(small.targets[0].target) or ""
        if target.endswith(".grad") and (dotted(small.value.func) or "").endswith("zeros_like"):
            return target
    return None
