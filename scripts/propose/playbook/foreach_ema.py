"""A moving average of weights over lists of tensors: `torch._foreach_mul_` and `_foreach_add_` for a loop over
parameters.
"""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    blocks,
    call,
    code,
    files,
    keyword,
    loads,
    module_blocks,
    positional,
    reads,
    replaced,
    writes,
)

FINDINGS = ["ema_loop", "tiny_kernels", "launch_bound"]
TITLE = "Average the weights in lists"
HYPOTHESIS = (
    "The moving average launches two or three small operations for each tensor; the list forms do all in a few."
)
RISK = "The product and the sum may be rounded once instead of twice."
CLASSES = ["python"]
UNTESTED = ["tensors of one list on several devices"]


@dataclass(frozen=True)
class Update:
    """`average = decay * average + weight * value`, as source text, and how deep in the loop it stands."""

    average: str
    value: str
    decay: str
    weight: str


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file with such a loop."""
    why = "no loop that averages tensors one by one"
    for file in files(tree, finding, spec, "ema", "EMA", "decay", "momentum", "teacher"):
        torch = file.spelled("torch.no_grad")
        if torch is None:
            continue
        every = list(module_blocks(file.module))
        for function, _ in file.functions:
            every += list(blocks(function))
        changes: dict[cst.CSTNode, Any] = {}
        for block in every:
            for statement in block:
                if isinstance(statement, cst.For):
                    try:
                        changes |= _listed(file, statement, torch.removesuffix("no_grad"))
                    except Refusal as refusal:
                        why = f"{file.path}: {refusal}"
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal(why)


def _listed(file: File, loop: cst.For, torch: str) -> dict[cst.CSTNode, Any]:
    body: Sequence[Any] = loop.body.body
    inner = body[0] if len(body) == 1 and isinstance(body[0], cst.If) and body[0].orelse is None else None
    lines: Sequence[Any] = inner.body.body if inner is not None else body
    update, used = _update(lines)
    if update is None or loop.orelse is not None or len(lines) != used:
        return {}
    changing = writes(loop)
    for text in (update.decay, update.weight):
        if set(reads(cst.parse_expression(text))) & changing:
            raise Refusal(f"{text} differs from tensor to tensor")
    for name in ("averages", "values"):
        if loads(file.module, name):
            raise Refusal(f"the name {name!r} is taken")
    append = cst.parse_module(f"averages.append({update.average})\nvalues.append({update.value})\n").body
    comments = [x for line in lines for x in line.leading_lines if x.comment]
    first = append[0].with_changes(leading_lines=comments, trailing_whitespace=lines[-1].trailing_whitespace)
    collected = inner if inner is not None else loop
    new_body = collected.body.with_changes(body=[first, *append[1:]])
    new_loop = loop.with_changes(leading_lines=[], body=new_body)
    if inner is not None:
        new_loop = loop.with_changes(
            leading_lines=[], body=loop.body.with_changes(body=[inner.with_changes(body=new_body)])
        )
    before = cst.parse_statement("averages, values = [], []\n").with_changes(leading_lines=loop.leading_lines)
    after = cst.parse_module(
        f"{torch}_foreach_mul_(averages, {update.decay})\n"
        f"{torch}_foreach_add_(averages, values, alpha={update.weight})\n"
    ).body
    return {loop: cst.FlattenSentinel([before, new_loop, *after])}


def _update(lines: Sequence[Any]) -> tuple[Update | None, int]:
    """The update that the lines are, and how many of them it takes."""
    if len(lines) == 1:
        return _chained(lines[0]), 1
    if len(lines) == 2:
        return _two_lines(lines[0], lines[1]), 2
    return None, 0


def _chained(line: Any) -> Update | None:
    """`e.mul_(d).add_(p, alpha=1 - d)` or `e.lerp_(p, 1 - d)`."""
    made = call(line)
    if made is None or not isinstance(made.func, cst.Attribute):
        return None
    method, arguments = made.func.attr.value, positional(made)
    if method == "lerp_" and len(arguments) == 2:
        weight = code(arguments[1])
        return Update(code(made.func.value), code(arguments[0]), _one_minus(weight), weight)
    inner, alpha = made.func.value, keyword(made, "alpha")
    if (
        method != "add_"
        or len(arguments) != 1
        or not isinstance(inner, cst.Call)
        or not isinstance(inner.func, cst.Attribute)
    ):
        return None
    if inner.func.attr.value != "mul_" or len(positional(inner)) != 1:
        return None
    value, weight = (code(arguments[0]), code(alpha.value)) if alpha else _product(arguments[0])
    return None if weight is None else Update(code(inner.func.value), value, code(positional(inner)[0]), weight)


def _two_lines(first: Any, second: Any) -> Update | None:
    """`v *= d` and `v += (1 - d) * w`."""
    scaled, added = assigned(first), assigned(second)
    if not scaled or not added or scaled[0] != added[0]:
        return None
    if not isinstance(first.body[0], cst.AugAssign) or not isinstance(second.body[0], cst.AugAssign):
        return None
    if not isinstance(first.body[0].operator, cst.MultiplyAssign) or not isinstance(
        second.body[0].operator, cst.AddAssign
    ):
        return None
    value, weight = _product(second.body[0].value)
    return None if weight is None else Update(scaled[0], value, code(first.body[0].value), weight)


def _product(node: cst.BaseExpression) -> tuple[str, str | None]:
    """(tensor, factor) of `(1 - d) * w` or `w * (1 - d)`: the factor is the side with a number in it."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return code(node), None
    left, right = code(node.left), code(node.right)
    if left.replace(" ", "").startswith(("1-", "1.0-")):
        return right, left
    if right.replace(" ", "").startswith(("1-", "1.0-")):
        return left, right
    return left, None


def _one_minus(text: str) -> str:
    plain = text.replace(" ", "")
    for start in ("1-", "1.0-"):
        if plain.startswith(start) and plain[len(start) :].replace("_", "").replace(".", "").isalnum():
            return plain[len(start) :]
    return f"1 - ({text})"
