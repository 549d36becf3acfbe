"""Deterministic mode that does not fill new tensors: `torch.utils.deterministic.fill_uninitialized_memory = False`."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, code, files, is_false, replaced, texts, walk

FINDINGS = ["deterministic_fill", "tiny_kernels"]
TITLE = "Do not fill new tensors in deterministic mode"
HYPOTHESIS = (
    "Deterministic mode writes NaN into every tensor that is made without values, one more kernel for each allocation."
)
RISK = "A program that reads memory it never wrote is no longer found out; results of others do not change."
CLASSES = ["backend", "python"]
UNTESTED: list[str] = []


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """One line behind the call that switches deterministic mode on, in the first file that has one."""
    if any("fill_uninitialized_memory" in text for _, text in texts(tree, spec)):
        raise Refusal("the fill is set already")
    for file in files(tree, finding, spec, "use_deterministic_algorithms"):
        for statement in walk(file.module):
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for node in walk(statement):
                if isinstance(node, cst.Call) and file.qualified(node.func) == "torch.use_deterministic_algorithms":
                    if node.args and is_false(node.args[0].value):
                        continue
                    prefix = code(node.func).removesuffix("use_deterministic_algorithms")
                    if prefix == code(node.func) or not prefix:
                        prefix = "torch."
                    line = cst.parse_statement(f"{prefix}utils.deterministic.fill_uninitialized_memory = False\n")
                    behind = {statement: lambda updated, line=line: cst.FlattenSentinel([updated, line])}
                    return {file.path: replaced(file.module, behind).code}
    raise Refusal("the job does not switch deterministic mode on")
