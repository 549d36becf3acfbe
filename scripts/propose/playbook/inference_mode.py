"""Evaluation without gradients: `torch.inference_mode()` (or `no_grad`) around code that only measures or predicts."""

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
    blocks,
    call,
    code,
    dotted,
    files,
    module_blocks,
    replaced,
    walk,
)

FINDINGS = ["gradients_in_evaluation"]
TITLE = "Evaluate without recording gradients"
HYPOTHESIS = "Evaluation builds an autograd graph, and keeps its activations, that nothing ever uses."
RISK = "A tensor that evaluation keeps for training later would have no gradient; none is visible in the source."
CLASSES = ["backend"]
UNTESTED: list[str] = []

NAMED = re.compile(
    r"^_?(evaluat\w*|eval\w*|validat\w*|test|test_\w+|predict\w*|infer\w*|estimate_loss|generate\w*|sample|decode\w*)$"
)
TRAINING = re.compile(
    r"\.backward\(|autograd\.grad|enable_grad|set_grad_enabled|requires_grad|optimizer\.step\(|\.register_hook"
)
GUARDED = re.compile(r"no_grad|inference_mode")
NUMBERS = (".item()", "float(", ".tolist()", ".numpy()", "argmax")
FRAMEWORK = re.compile(r"LightningModule|LightningDataModule|Callback|Trainer\b")


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file with an unguarded evaluation; functions get the decorator, inline code a `with` block."""
    found = list(files(tree, finding, spec, "eval", "generate", "predict", "infer", "sample", "decode", "test"))
    keeps = any(_keeps_tensors(file) for file in files(tree, finding, spec, "def forward"))
    for file in found:
        torch = file.spelled("torch.no_grad")
        if torch is None:
            continue
        prefix = torch.removesuffix("no_grad")
        changes = {**_decorated(file, prefix, keeps), **_wrapped(file, prefix, keeps)}
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no evaluation that records gradients: each is guarded, or trains as well")


def _keeps_tensors(file: File) -> bool:
    """A module that stores tensors on itself in `forward`: inference tensors would break the next backward pass."""
    for function, _ in file.functions:
        if function.name.value == "forward":
            for node in walk(function.body):
                if isinstance(node, cst.AssignTarget) and (dotted(node.target) or "").startswith("self."):
                    return True
    return "lru_cache" in file.text and "inference_mode(False)" not in file.text


def _decorated(file: File, prefix: str, keeps: bool) -> dict[cst.CSTNode, Any]:
    changes: dict[cst.CSTNode, Any] = {}
    for function, around in file.functions:
        text = code(function)
        guarded = GUARDED.search(text) or any(
            GUARDED.search(code(decorator))
            for outer in around
            if isinstance(outer, cst.FunctionDef)
            for decorator in outer.decorators
        )
        if guarded or TRAINING.search(text) or any(outer in changes for outer in around):
            continue
        in_framework = any(
            isinstance(c, cst.ClassDef) and any(FRAMEWORK.search(code(b.value)) for b in c.bases) for c in around
        )
        if in_framework or not (_switches(function) or (NAMED.match(function.name.value) and _uses_model(function))):
            continue
        mode = "no_grad" if keeps or not any(word in text for word in NUMBERS) else "inference_mode"
        decorator = cst.Decorator(decorator=cst.parse_expression(f"{prefix}{mode}()"))
        changes[function] = _decorator(decorator)
    return changes


def _decorator(decorator: cst.Decorator) -> Any:
    def add(updated: cst.FunctionDef) -> cst.FunctionDef:
        if updated.decorators:  # below property-like decorators, next to the function
            return updated.with_changes(decorators=[*updated.decorators, decorator])
        return updated.with_changes(decorators=[decorator])

    return add


def _switches(function: cst.FunctionDef) -> bool:
    """Whether the function puts a model into evaluation mode and calls it; freezing some layers is no evaluation."""
    subjects = {subject for block in blocks(function) for s in block if (subject := _eval_subject(s))}
    if not subjects or _trains_elsewhere(function):
        return False
    called = {code(node.func) for node in walk(function.body) if isinstance(node, cst.Call)}
    return bool(subjects & called) or _uses_model(function)


def _trains_elsewhere(function: cst.FunctionDef) -> bool:
    return any(
        isinstance(node, cst.Call) and (dotted(node.func) or "").endswith((".step", ".fit")) for node in walk(function)
    )


def _uses_model(function: cst.FunctionDef) -> bool:
    """Whether something that looks like a model is called: a parameter or attribute named so, or `self(...)` of a
    module.
    """
    for node in walk(function.body):
        if isinstance(node, cst.Call):
            name = dotted(node.func) or ""
            last = name.rsplit(".", 1)[-1]
            if (
                re.search(r"model|net$|network|encoder|decoder|policy", last)
                or name == "self"
                or name.endswith(".generate")
            ):
                return True
    return False


def _eval_subject(statement: cst.CSTNode) -> str | None:
    made = call(statement)
    if made is not None and not made.args and isinstance(made.func, cst.Attribute) and made.func.attr.value == "eval":
        return code(made.func.value)
    return None


def _wrapped(file: File, prefix: str, keeps: bool) -> dict[cst.CSTNode, Any]:
    """Statements between `model.eval()` and `model.train()` in code that also trains, or loops after `eval()` in a
    script.
    """
    changes: dict[cst.CSTNode, Any] = {}
    every = list(module_blocks(file.module))
    for function, around in file.functions:
        if any(isinstance(f, cst.FunctionDef) for f in around) or GUARDED.search(
            "".join(code(d) for d in function.decorators)
        ):
            continue
        if TRAINING.search(code(function)) or _trains_elsewhere(function):
            every += list(blocks(function))
    for block in every:
        for index, statement in enumerate(block):
            subject = _eval_subject(statement)
            if subject:
                changes |= _wrap(block, index, subject, prefix, keeps)
    return changes


def _wrap(block: Sequence[Any], index: int, subject: str, prefix: str, keeps: bool) -> dict[cst.CSTNode, Any]:
    end = next((i for i in range(index + 1, len(block)) if _is_train(block[i], subject)), None)
    if end is None:
        part = [s for s in block[index + 1 :] if isinstance(s, (cst.For, cst.While))]
    else:
        part = list(block[index + 1 : end])
    text = "".join(code(s) for s in part)
    if not part or GUARDED.search(text) or TRAINING.search(text) or ".step(" in text or "def " in text:
        return {}
    if end is None and any(TRAINING.search(code(s)) for s in block[index + 1 :]):
        return {}
    mode = "no_grad" if keeps or not any(word in text for word in NUMBERS) else "inference_mode"
    if end is None:
        return {loop: _with(prefix + mode, [loop]) for loop in part}
    first = part[0]
    changes: dict[cst.CSTNode, Any] = {statement: cst.RemoveFromParent() for statement in part[1:]}
    changes[first] = _with(prefix + mode, part)
    return changes


def _with(name: str, body: list[Any]) -> cst.With:
    head = body[0]
    inner = [head.with_changes(leading_lines=[]), *body[1:]]
    return cst.With(
        items=[cst.WithItem(cst.parse_expression(f"{name}()"))],
        body=cst.IndentedBlock(body=inner),
        leading_lines=head.leading_lines,
    )


def _is_train(statement: cst.CSTNode, subject: str) -> bool:
    made = call(statement)
    return (
        made is not None
        and isinstance(made.func, cst.Attribute)
        and made.func.attr.value == "train"
        and code(made.func.value) == subject
    )
