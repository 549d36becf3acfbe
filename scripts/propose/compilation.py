"""Where `torch.compile` can go, and where it cannot: what the three compiling fixes share."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    blocks,
    code,
    dotted,
    files,
    functions,
    module_blocks,
    replaced,
    texts,
    walk,
    with_keyword,
)


def compilable(tree: Path, spec: dict[str, Any]) -> None:
    """Raise Refusal where compiling cannot be right or is there already."""
    every = dict(texts(tree, spec))
    for path, text in every.items():
        if re.search(r"torch\.compile\(|(?<!re)\.compile\((dynamic=True)?\)|torch_compile|compile=True", text):
            raise Refusal(f"{path}: compiles already")
    steps = ((spec.get("measure") or {}).get("horizon") or {}).get("steps")
    if steps is not None and steps < 200:
        raise Refusal(f"the job runs {steps} steps; compilation takes longer than they do")


def compiled(tree: Path, finding: dict[str, Any], spec: dict[str, Any], options: str) -> dict[str, str]:
    """`model = torch.compile(model)` in front of the loop that first calls it; state dictionaries keep their names.

    The wrapped model is used for calls only: parameters, checkpoints and attributes go through the module itself, which
    `model.compile()` (torch 2.2) leaves as it is.
    """
    compilable(tree, spec)
    for file in files(tree, finding, spec, "model", "net"):
        every = list(module_blocks(file.module))
        for function, _ in functions(file.module):
            every += list(blocks(function))
        for block in every:
            place = _place(block)
            if place is not None:
                statement, name = place
                line = cst.parse_statement(f"{name}.compile({options})\n")
                changes = {statement: lambda updated, line=line: cst.FlattenSentinel([updated, line])}
                return {file.path: replaced(file.module, changes).code}
    for file in files(tree, finding, spec, "self.model", "self.net", "TrainingArguments"):
        changes = _own_model(file, options) or _trainer(file, options)
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no line that makes the model in the block that uses it")


def _own_model(file: File, options: str) -> dict[cst.CSTNode, Any]:
    """`self.model.compile()` behind `self.model = ...` in a class that calls it: trainers, Lightning modules."""
    for owner in walk(file.module):
        if not isinstance(owner, cst.ClassDef):
            continue
        called = {dotted(node.func) for node in walk(owner.body) if isinstance(node, cst.Call)}
        for statement in walk(owner.body):
            if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
                continue
            name = dotted(statement.body[0].targets[0].target)
            value = statement.body[0].value
            if name not in ("self.model", "self.net") or name not in called or not isinstance(value, cst.Call):
                continue
            if re.search(r"Lazy\w+\(", code(value)):
                raise Refusal(f"{file.path}: lazy layers get their weights in the first call, which cannot be compiled")
            line = cst.parse_statement(f"{name}.compile({options})\n")
            return {statement: lambda updated, line=line: cst.FlattenSentinel([updated, line])}
    return {}


def _trainer(file: File, options: str) -> dict[cst.CSTNode, Any]:
    """`torch_compile=True` of a Hugging Face trainer; its dynamic shapes are torch's own choice."""
    for node in walk(file.module):
        if isinstance(node, cst.Call) and (file.qualified(node.func) or "").endswith("TrainingArguments"):
            if options:
                raise Refusal(f"{file.path}: the trainer compiles the model itself, without this option")
            return {node: lambda updated: with_keyword(updated, "torch_compile", "True")}
    return {}


def _place(block: Sequence[Any]) -> tuple[Any, str] | None:
    """The last line that makes or moves the model in a block that calls it, optimizes it or loops over it later."""
    found = None
    for index, statement in enumerate(block):
        pair = assigned(statement)
        if not pair or not isinstance(pair[1], cst.Call) or not re.fullmatch(r"(model|net|network)", pair[0]):
            continue
        callee = dotted(pair[1].func) or code(pair[1].func)  # `Net(...).to`: the call is part of the text
        if (
            "from_pretrained" in callee
            or callee.rsplit(".", 1)[-1][:1].isupper()
            or callee.endswith((".to", ".cuda"))
            or "models." in callee
        ):
            if re.search(r"(DataParallel|LightningModule|Trainer|YOLO)(\(|$)", callee):
                continue
            called = any(
                isinstance(n, cst.Call) and dotted(n.func) == pair[0]
                for later in block[index + 1 :]
                for n in walk(later)
            )
            if called:
                found = (statement, pair[0])
    return found
