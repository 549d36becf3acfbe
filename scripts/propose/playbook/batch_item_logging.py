"""Statistics that wait for the device once, or only when they are printed, instead of once for each value.

Four shapes, each exact or equal to rounding: a gradient norm summed parameter by parameter; a list or dictionary of
`.item()`; a list of losses that is read after the loop only; a statistic that is computed each step and used under a
condition.
"""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    bare,
    blocks,
    call,
    code,
    dotted,
    files,
    loads,
    module_blocks,
    number,
    positional,
    reads,
    replaced,
    walk,
    writes,
)

FINDINGS = ["step_synchronisation", "logging_expensive"]
TITLE = "Read statistics in one go"
HYPOTHESIS = (
    "Each .item() waits for the device and costs a call from Python; one stacked read, or none, gives the same numbers."
)
RISK = "A norm over all gradients is summed in another order: the logged value agrees to rounding."
CLASSES = ["python"]
UNTESTED: list[str] = []

MUTATES = ("step(", "zero_grad", "backward(", "clip_grad", "unscale_", "load_state_dict")


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file with such a statistic; every occurrence in it."""
    for file in files(tree, finding, spec, ".item()"):
        changes: dict[cst.CSTNode, Any] = {}
        every = list(module_blocks(file.module))
        for function, _ in file.functions:
            every += list(blocks(function))
        for block in every:
            for change in (_norm_loop, _loss_list, _guarded):
                for index in range(len(block)):
                    if not any(part in changes for part in block[max(0, index - 1) : index + 5]):
                        changes |= change(file, block, index)
        # A change that is a function keeps the changes inside its node; any other replaces them.
        inside = {id(part) for node, change in changes.items() if not callable(change) for part in walk(node)}
        for node in walk(file.module):
            if id(node) not in inside:
                changes |= _comprehension(file, node)
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal("no statistic that is read value by value where one read would do")


# A gradient norm, parameter by parameter


def _norm_loop(file: File, block: Sequence[Any], index: int) -> dict[cst.CSTNode, Any]:
    """`total = 0; for p in ...: total += p.grad.norm().item() ** 2; norm = total ** 0.5`, with the clip that may
    follow.
    """
    if index == 0 or not isinstance(block[index], cst.For):
        return {}
    loop, start = block[index], assigned(block[index - 1])
    if not start or number(start[1]) != 0 or not isinstance(loop.target, cst.Name) or loop.orelse:
        return {}
    total, parameter = start[0], loop.target.value
    if not _sums_squares(loop, total, parameter):
        return {}
    result = _root(block[index + 1], total) if index + 1 < len(block) else None
    if result is None:
        return {}
    name, target = result
    if sum(loads(s, total) for s in block) != loads(loop, total) + 1:
        return {}
    root = block[index + 1]
    gone: dict[cst.CSTNode, Any] = {block[index - 1]: cst.RemoveFromParent(), root: cst.RemoveFromParent()}
    comments = [
        *block[index - 1].leading_lines,
        *[x for x in loop.leading_lines if x.comment],
        *[x for x in root.leading_lines if x.comment],
    ]
    clip = block[index + 2] if name and index + 2 < len(block) else None
    clipped = call(clip) if clip is not None else None
    source = code(loop.iter)
    if clipped is not None and (file.qualified(clipped.func) or "").endswith("torch.nn.utils.clip_grad_norm_"):
        arguments = positional(clipped)
        if len(clipped.args) == 2 and arguments and code(arguments[0]) == source and clip is not None:
            new = cst.parse_statement(f"{name} = {code(clipped)}.item()\n")
            lines = [*comments, *[x for x in clip.leading_lines if x.comment]]
            return {**gone, loop: cst.RemoveFromParent(), clip: new.with_changes(leading_lines=lines)}
    torch = file.spelled("torch.stack")
    if torch is None:
        return {}
    prefix = torch.removesuffix("stack")
    value = (
        f"{prefix}linalg.vector_norm({prefix}stack({prefix}_foreach_norm("
        f"[{parameter}.grad for {parameter} in {source} if {parameter}.grad is not None]))).item()"
    )
    new = cst.parse_statement(f"{target}{value}\n").with_changes(leading_lines=comments)
    return {**gone, loop: new}


def _sums_squares(loop: cst.For, total: str, parameter: str) -> bool:
    body: Sequence[Any] = loop.body.body
    if len(body) == 1 and isinstance(body[0], cst.If) and body[0].orelse is None:
        test = code(body[0].test)
        if test != f"{parameter}.grad is not None":
            return False
        body = body[0].body.body
    names = {}
    for line in body[:-1]:
        pair = assigned(line)
        if not pair:
            return False
        names[pair[0]] = code(pair[1])
    last = body[-1]
    if not isinstance(last, cst.SimpleStatementLine) or not isinstance(last.body[0], cst.AugAssign):
        return False
    added = last.body[0]
    if not isinstance(added.operator, cst.AddAssign) or dotted(added.target) != total:
        return False
    text = code(added.value).replace(" ", "")
    for name, value in names.items():
        text = text.replace(f"{name}.item()", f"{value}.item()") if f"{name}.item()" in text else text
    forms = [
        f"{parameter}.grad{middle}.norm({order}).item()**2"
        for middle in ("", ".data", ".detach()")
        for order in ("", "2", "p=2")
    ]
    return text in forms


def _root(statement: Any, total: str) -> tuple[str | None, str] | None:
    """(name or None, text before the value) of `norm = total ** 0.5`, `return total ** 0.5` or the square root of
    math.
    """
    pair = assigned(statement)
    value: Any = pair[1] if pair else None
    name, target = (pair[0], f"{pair[0]} = ") if pair else (None, "return ")
    if value is None and isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Return):
        value = statement.body[0].value
    if value is None:
        return None
    text = code(bare(value)).replace(" ", "")
    return (
        (name, target)
        if text in (f"{total}**0.5", f"{total}**(1/2)", f"{total}**(1./2)", f"{total}**(1.0/2)", f"math.sqrt({total})")
        else None
    )


# A list or dictionary of .item()


def _comprehension(file: File, node: cst.CSTNode) -> dict[cst.CSTNode, Any]:
    """`[f(p).item() for p in ...]` as one stacked read; the same values, bit by bit."""
    torch = file.spelled("torch.stack")
    if torch is None or not isinstance(node, (cst.ListComp, cst.DictComp)):
        return {}
    value = node.elt if isinstance(node, cst.ListComp) else node.value
    item = _item(value)
    if item is None or node.for_in.inner_for_in is not None or _per_sample(node.for_in):
        return {}
    generators = cst.Module([]).code_for_node(node.for_in).strip()
    norm = _norm_of(item)
    stacked = (
        f"{torch}({torch.removesuffix('stack')}_foreach_norm([{norm} {generators}])).tolist()"
        if norm
        else f"{torch}([{code(item)} {generators}]).tolist()"
    )
    if isinstance(node, cst.ListComp):
        return {node: cst.parse_expression(stacked)}
    return {node: cst.parse_expression(f"dict(zip([{code(node.key)} {generators}], {stacked}))")}


def _item(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if (
        isinstance(node, cst.Call)
        and not node.args
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "item"
    ):
        return node.func.value
    return None


def _norm_of(node: cst.BaseExpression) -> str | None:
    if (
        isinstance(node, cst.Call)
        and not node.args
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "norm"
    ):
        return code(node.func.value)
    return None


def _per_sample(clause: cst.CompFor) -> bool:
    """Only parameters and losses are known to be scalars' sources that are never empty."""
    text = code(clause.iter)
    return "parameters()" not in text and "losses" not in text


# A list of losses that is read after the loop


def _loss_list(file: File, block: Sequence[Any], index: int) -> dict[cst.CSTNode, Any]:
    """`losses.append(loss.item())` keeps the tensor; the list becomes numbers in one read behind the loop."""
    loop = block[index]
    torch = file.spelled("torch.stack")
    if not isinstance(loop, (cst.For, cst.While)) or torch is None:
        return {}
    for before in block[:index]:
        pair = assigned(before)
        if not pair or not isinstance(pair[1], cst.List) or pair[1].elements:
            continue
        name = pair[0]
        appended = [
            node
            for node in walk(loop.body)
            if isinstance(node, cst.Call) and dotted(node.func) == f"{name}.append" and len(node.args) == 1
        ]
        if len(appended) != 1 or loads(loop, name) != 1:
            continue
        item = _item(appended[0].args[0].value)
        if item is None or not any(loads(after, name) for after in block[index + 1 :]):
            continue
        behind = cst.parse_statement(f"{name} = {torch}({name}).tolist() if {name} else []\n")
        kept = cst.Arg(cst.parse_expression(f"{code(item)}.detach()"))
        return {
            appended[0]: lambda updated, kept=kept: updated.with_changes(args=[kept]),
            loop: lambda updated, behind=behind: cst.FlattenSentinel([updated, behind]),
        }
    return {}


# A statistic under a condition


def _guarded(_: File, block: Sequence[Any], index: int) -> dict[cst.CSTNode, Any]:
    """A value that is read under one later condition only is computed under that condition, where it stands."""
    pair = assigned(block[index])
    if not pair or not _statistic(pair[1]):
        return {}
    name = pair[0]
    readers = [later for later in block if later is not block[index] and loads(later, name)]
    if len(readers) != 1 or not isinstance(readers[0], cst.If) or readers[0].orelse is not None:
        return {}
    user = readers[0]
    where = list(block).index(user)
    test_names = set(reads(user.test))
    between = block[index:where]
    if where < index or name in test_names or any(isinstance(part, (cst.Call, cst.Await)) for part in walk(user.test)):
        return {}
    if any(test_names & writes(statement) for statement in between) or any(
        name in writes(s) for s in block if s is not block[index]
    ):
        return {}
    inner = block[index].with_changes(leading_lines=[])
    guarded = cst.If(test=user.test, body=cst.IndentedBlock(body=[inner]), leading_lines=block[index].leading_lines)
    return {block[index]: guarded}


def _statistic(value: cst.BaseExpression) -> bool:
    """Reads device values and changes nothing: `.item()`, norms, means; no call that draws random numbers or trains."""
    text = code(value)
    if ".item()" not in text and ".tolist()" not in text:
        return False
    allowed = {
        "item",
        "tolist",
        "norm",
        "mean",
        "std",
        "sum",
        "abs",
        "max",
        "min",
        "detach",
        "data",
        "float",
        "argmax",
        "eq",
        "cpu",
        "numel",
        "size",
        "parameters",
        "named_parameters",
        "sqrt",
        "pow",
        "square",
    }
    for part in walk(value):
        if isinstance(part, cst.Call):
            called = part.func.attr.value if isinstance(part.func, cst.Attribute) else dotted(part.func)
            if called not in allowed | {"sum", "len", "max", "min", "float"}:
                return False
    return True
