"""`torch.compile` of the repeated blocks only: compiled once, used for every layer."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import Refusal, code, dotted, files, replaced, walk
from scripts.propose.compilation import compilable

FINDINGS = ["compile_missed", "launch_bound", "startup_dominates"]
TITLE = "Compile the repeated blocks"
HYPOTHESIS = "The model is one block many times; compiled once, the block serves every layer and starts up sooner."
RISK = "Compilation takes seconds before the first step; sums are taken in another order."
CLASSES = ["backend", "python"]
UNTESTED = ["machines without a C++ compiler or Triton"]


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Compile each member of a `ModuleList` in place, behind the line that makes it."""
    compilable(tree, spec)
    for file in files(tree, finding, spec, "ModuleList"):
        for function, around in file.functions:
            if function.name.value != "__init__" or not around:
                continue
            for statement in walk(function.body):
                if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
                    continue
                target, value = dotted(statement.body[0].targets[0].target), statement.body[0].value
                if (
                    target
                    and isinstance(value, cst.Call)
                    and file.qualified(value.func) == "torch.nn.ModuleList"
                    and _repeats(value)
                ):
                    lines = cst.parse_statement(f"for block in {target}:\n    block.compile()\n")
                    changes = {statement: lambda updated, lines=lines: cst.FlattenSentinel([updated, lines])}
                    return {file.path: replaced(file.module, changes).code}
    raise Refusal("no ModuleList of equal blocks")


def _repeats(value: cst.Call) -> bool:
    """`ModuleList([Block(config) for _ in range(n)])`: the same class each time."""
    return (
        len(value.args) == 1
        and isinstance(value.args[0].value, (cst.ListComp, cst.GeneratorExp))
        and bool(re.match(r"[A-Z]\w*\(", code(value.args[0].value.elt)))
    )
