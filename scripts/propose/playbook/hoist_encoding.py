"""A text is encoded once, not for each batch: `encode(text[a:b])` becomes a slice of the encoded text.

Right only where the encoding goes element by element (`[stoi[c] for c in s]`), for then encoding and slicing commute;
that is checked in the source, and so is that neither the text nor the table changes after it was made.
"""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    bare,
    blocks,
    code,
    dotted,
    files,
    functions,
    keyword,
    loads,
    positional,
    replaced,
    texts,
    walk,
)

FINDINGS = ["work_in_step", "loader_bound"]
TITLE = "Encode the text once"
HYPOTHESIS = "Each batch turns text into numbers again in Python, one element at a time; the numbers never change."
RISK = "The encoded text stays in memory, 8 bytes a character."
CLASSES = ["python"]
UNTESTED: list[str] = []

INTEGER = re.compile(r"^(torch\.)?(long|int64)$")


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that encodes slices of a stored text in a method or function."""
    why = "no encoding, element by element, of a stored text inside a function"
    everything = list(texts(tree, spec))
    for file in files(tree, finding, spec, "tensor(", "LongTensor("):
        for function, around in file.functions:
            class_ = around[-1] if around and isinstance(around[-1], cst.ClassDef) else None
            if function.name.value == "__init__" or len(around) > 1 or (around and class_ is None):
                continue
            try:
                module = _rewrite(file, function, class_, everything)
            except Refusal as refusal:
                why = f"{file.path}: {refusal}"
                continue
            if module is not None:
                return {file.path: module.code}
    raise Refusal(why)


def _rewrite(
    file: File, function: cst.FunctionDef, class_: cst.ClassDef | None, everything: list[tuple[str, str]]
) -> cst.Module | None:
    for block in blocks(function):
        for index, statement in enumerate(block):
            for node in walk(statement):
                encoded = _encoded_operand(file, class_, node)
                if encoded is None:
                    continue
                source, definition = _source(file, class_, block, index, encoded)
                if source is None:
                    continue
                _never_changes(source, class_, file, everything)
                return _edit(
                    file=file, function=function, class_=class_, block=block, index=index, node=node, operand=encoded,
                    source=source, definition=definition,
                )  # fmt: skip
    return None


def _encoded_operand(file: File, class_: cst.ClassDef | None, node: cst.CSTNode) -> cst.BaseExpression | None:
    """`X` of `[table[c] for c in X]`, or of `encode(X)` where that is what `encode` does."""
    comprehension = _comprehension(node)
    if comprehension is not None:
        return comprehension
    if isinstance(node, cst.Call) and len(node.args) == 1 and not node.args[0].star and node.args[0].keyword is None:
        name = dotted(node.func) or ""
        parameter, body = _encoder(file, class_, name)
        if body is not None and parameter == dotted(_comprehension(body)):
            return node.args[0].value
    return None


def _comprehension(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """The iterated expression of `[table[c] for c in X]`, `table` being a plain or `self.` name."""
    if (
        not isinstance(node, cst.ListComp)
        or node.for_in.ifs
        or node.for_in.inner_for_in
        or not isinstance(node.for_in.target, cst.Name)
    ):
        return None
    element, variable = node.elt, node.for_in.target.value
    looked_up = False
    if isinstance(element, cst.Subscript) and len(element.slice) == 1 and isinstance(element.slice[0].slice, cst.Index):
        looked_up = dotted(element.slice[0].slice.value) == variable and bool(dotted(element.value))
    elif isinstance(element, cst.Call) and len(element.args) == 1 and dotted(element.args[0].value) == variable:
        looked_up = dotted(element.func) in ("ord", "int")
    return node.for_in.iter if looked_up else None


def _encoder(file: File, class_: cst.ClassDef | None, name: str) -> tuple[str, cst.BaseExpression | None]:
    """(parameter, returned expression) of a one-line function, lambda or method."""
    owner = class_ if name.startswith("self.") else None
    return _encoders(file).get((owner, name.removeprefix("self.")), ("", None))


@lru_cache(maxsize=64)
def _encoders(file: File) -> dict[tuple[cst.ClassDef | None, str], tuple[str, cst.BaseExpression | None]]:
    """Functions, methods and lambdas of one parameter that return one expression: `{(class or None, name): ...}`."""
    found: dict[tuple[cst.ClassDef | None, str], tuple[str, cst.BaseExpression | None]] = {}
    for statement in file.module.body:
        pair = assigned(statement)
        if pair and isinstance(pair[1], cst.Lambda) and len(pair[1].params.params) == 1:
            found[None, pair[0]] = (pair[1].params.params[0].name.value, pair[1].body)
    for function, around in file.functions:
        owner = around[-1] if around and isinstance(around[-1], cst.ClassDef) else None
        if around and owner is None:
            continue
        lines = [s for s in function.body.body if isinstance(s, cst.SimpleStatementLine)]
        lines = [
            s for s in lines if not (isinstance(s.body[0], cst.Expr) and isinstance(s.body[0].value, cst.SimpleString))
        ]
        parameters = [p.name.value for p in function.params.params][1 if owner else 0 :]
        if len(lines) == 1 and isinstance(lines[0].body[0], cst.Return) and len(parameters) == 1:
            found[owner, function.name.value] = (parameters[0], lines[0].body[0].value)
    return found


def _source(
    file: File, class_: cst.ClassDef | None, block: Sequence[cst.BaseStatement], index: int, operand: cst.BaseExpression
) -> tuple[str | None, int | None]:
    """(`self.text` or a module's variable, index of the line that cut the local piece from it)."""
    text = _cut_from(file, class_, operand)
    if text:
        return text, None
    if isinstance(operand, cst.Name):
        for at in range(index - 1, -1, -1):
            pair = assigned(block[at])
            if pair and pair[0] == operand.value:
                return _cut_from(file, class_, pair[1]), at
    return None, None


def _cut_from(file: File, class_: cst.ClassDef | None, node: cst.BaseExpression) -> str | None:
    """The one stored sequence that an expression of slices and conditions takes its value from."""
    node = bare(node)
    if isinstance(node, cst.IfExp):
        first, second = _cut_from(file, class_, node.body), _cut_from(file, class_, node.orelse)
        return first if first == second else None
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Slice):
        return _cut_from(file, class_, node.value)
    name = dotted(node)
    if name is None:
        return None
    if class_ is not None and name.startswith("self.") and name.count(".") == 1:
        return name
    if any((pair := assigned(s)) and pair[0] == name for s in file.module.body):
        return name
    return None


def _never_changes(source: str, class_: cst.ClassDef | None, file: File, everything: list[tuple[str, str]]) -> None:
    attribute = source.removeprefix("self.")
    writers = 0
    for function, around in file.functions:
        if class_ is None or not around or around[-1] is not class_:
            continue
        for node in walk(function):
            if isinstance(node, (cst.AssignTarget, cst.AugAssign)) and dotted(node.target) == source:
                writers += 1
                if function.name.value != "__init__" or isinstance(node, cst.AugAssign):
                    raise Refusal(f"{source} changes in {function.name.value}")
    if class_ is None:
        writers = sum(1 for s in file.module.body if (pair := assigned(s)) and pair[0] == source)
        if re.search(rf"global\s+[^\n]*\b{re.escape(source)}\b", file.text):
            raise Refusal(f"{source} is a global that functions change")
    if writers != 1:
        raise Refusal(f"{source} is set {writers} times")
    pattern = re.compile(rf"(?<!self)\.{re.escape(attribute)}\s*(=(?!=)|\+=|\[[^\]]*\]\s*=(?!=)|\.append\()")
    for path, text in everything:
        if class_ is not None and pattern.search(text):
            raise Refusal(f"{path} changes {attribute} from outside")


def _edit(
    *,
    file: File,
    function: cst.FunctionDef,
    class_: cst.ClassDef | None,
    block: Sequence[cst.BaseStatement],
    index: int,
    node: cst.CSTNode,
    operand: cst.BaseExpression,
    source: str,
    definition: int | None,
) -> cst.Module:
    wrapper, name = _wrapper(file, function, block, index, node)
    store = _free_name(file, source)
    whole = replaced(node, {operand: cst.parse_expression(source)})
    dtype = keyword(wrapper[0], "dtype")
    made = cst.Call(func=wrapper[0].func, args=[cst.Arg(whole), *([dtype] if dtype else [])])
    stored = cst.parse_statement(f"{store} = {code(made)}\n")
    changes: dict[cst.CSTNode, Any] = {}
    if definition is None:
        cut = _substituted(operand, source, store)
        target_changes = {call_: _inner(call_, node, cut) for call_ in wrapper} if name is None else {node: cut}
        changes |= target_changes
    else:
        line = block[definition]
        pair = assigned(line)
        assert pair is not None
        if loads(function.body, pair[0]) != 1:
            raise Refusal(f"the uncoded {pair[0]!r} is used as well")
        cut = _substituted(pair[1], source, store)
        if name is None:
            changes[wrapper[0]] = (
                cut
                if not isinstance(cut, cst.IfExp) or _stands_alone(block[index], wrapper[0])
                else _parenthesised(cut)
            )
        else:
            changes[node] = cut
        changes[line] = cst.RemoveFromParent()
        if line.leading_lines:
            kept = line.leading_lines
            changes[block[index]] = lambda updated: updated.with_changes(leading_lines=[*kept, *updated.leading_lines])
    if name is not None:
        for call_ in wrapper:
            changes[call_] = positional(call_)[0]
    _not_modified(function, block[index])
    return _with_stored(file, class_, function, stored, changes=changes, source=source)


def _wrapper(
    file: File, function: cst.FunctionDef, block: Sequence[cst.BaseStatement], index: int, node: cst.CSTNode
) -> tuple[list[cst.Call], str | None]:
    """The `torch.tensor(...)` around the encoding; or those around every use of the name that it is assigned to."""
    for part in walk(block[index]):
        if _is_tensor(file, part) and positional(part)[0] is node:
            return [part], None
    pair = assigned(block[index])
    if not pair or pair[1] is not node:
        raise Refusal("the encoded list is used in another way than to make a tensor")
    name = pair[0]
    found = []
    for part in walk(function.body):
        if _is_tensor(file, part):
            inner = positional(part)[0]
            if dotted(inner) == name or (
                isinstance(inner, cst.Subscript) and dotted(inner.value) == name and loads(inner, name) == 1
            ):
                found.append(part)
    if not found or loads(function.body, name) != len(found):
        raise Refusal(f"the encoded list {name!r} is used in another way than to make tensors")
    return found, name


def _is_tensor(file: File, node: cst.CSTNode) -> bool:
    """`torch.tensor(x)` or `torch.tensor(x, dtype=torch.long)`, `torch.LongTensor(x)`: default integers."""
    if not isinstance(node, cst.Call) or len(positional(node)) != 1:
        return False
    name = file.qualified(node.func)
    if name == "torch.LongTensor":
        return len(node.args) == 1
    if name not in ("torch.tensor", "torch.as_tensor"):
        return False
    names = {a.keyword.value for a in node.args if a.keyword}
    dtype = keyword(node, "dtype")
    return names <= {"dtype"} and (dtype is None or bool(INTEGER.match(code(dtype.value))))


def _inner(call_: cst.Call, node: cst.CSTNode, cut: cst.BaseExpression) -> cst.BaseExpression:
    assert positional(call_)[0] is node
    return cut


def _substituted(node: Any, source: str, store: str) -> Any:
    changes = {
        part: cst.parse_expression(store)
        for part in walk(node)
        if isinstance(part, cst.BaseExpression) and dotted(part) == source
    }
    return replaced(node, changes)


def _stands_alone(statement: cst.BaseStatement, node: cst.Call) -> bool:
    pair = assigned(statement)
    return pair is not None and pair[1] is node


def _parenthesised(node: Any) -> Any:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _free_name(file: File, source: str) -> str:
    base = source.removeprefix("self.")
    name = f"encoded_{base}"
    if re.search(rf"\b{name}\b", file.text):
        raise Refusal(f"{name} exists already")
    return f"self.{name}" if source.startswith("self.") else name


def _not_modified(function: cst.FunctionDef, statement: cst.BaseStatement) -> None:
    """A slice is a view of the stored tensor: refuse where the function writes into it."""
    pair = assigned(statement)
    if not pair:
        return
    pattern = re.compile(rf"\b{pair[0]}(\[[^\]]*\]\s*(=(?!=)|[-+*/]=)|\s*[-+*/]=|\.\w+_\()")
    if pattern.search(code(function)):
        raise Refusal(f"{pair[0]!r} is changed in place")


def _with_stored(
    file: File,
    class_: cst.ClassDef | None,
    function: cst.FunctionDef,
    stored: Any,
    *,
    changes: dict[cst.CSTNode, Any],
    source: str,
) -> cst.Module:
    if class_ is None:
        at = max(i for i, s in enumerate(file.module.body) if (pair := assigned(s)) and pair[0] == source)
        place = list(file.module.body).index(function)
        if place < at:
            raise Refusal(f"{source} is made below the function that encodes it")
        module = replaced(file.module, changes)
        body = list(module.body)
        body.insert(place, stored)
        return module.with_changes(body=body)
    maker = next((f for f, around in functions(class_) if f.name.value == "__init__" and not around), None)
    if maker is None or not isinstance(maker.body, cst.IndentedBlock):
        raise Refusal("the class has no __init__ to encode in")
    if any(isinstance(node, cst.Return) for node in walk(maker)):
        raise Refusal("__init__ returns early")
    changes[maker.body] = lambda updated: updated.with_changes(body=[*updated.body, stored])
    return replaced(file.module, changes)
