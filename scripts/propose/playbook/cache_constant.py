"""Masks and tables that a forward pass builds anew from sizes alone are built once for each size.

Either the function that builds the table gets `functools.lru_cache`, or the lines are taken out into such a function.
They must read sizes, devices, dtypes and numbers only, draw no random numbers, and what they give must not be changed
in place.
"""

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
    attribute_values,
    blocks,
    code,
    dotted,
    files,
    keyword,
    loads,
    number,
    reads,
    replaced,
    walk,
    with_import,
    writes,
)

FINDINGS = ["tiny_kernels", "launch_bound", "work_in_step"]
TITLE = "Build masks and tables once"
HYPOTHESIS = "The forward pass of every layer builds the same constant tensor again from its sizes."
RISK = "Up to 32 constants stay in memory, one for each combination of sizes, device and dtype."
CLASSES = ["backend", "python"]
UNTESTED: list[str] = []

CONSTRUCTORS = {
    "arange",
    "ones",
    "zeros",
    "full",
    "tril",
    "triu",
    "linspace",
    "eye",
    "outer",
    "sin",
    "cos",
    "exp",
    "cat",
    "stack",
    "pow",
    "log",
    "einsum",
    "polar",
    "ones_like",
    "zeros_like",
    "logspace",
    "meshgrid",
    "tensor",
    "where",
    "repeat_interleave",
    "concat",
    "sqrt",
    "abs",
}
WORTH = {
    "tril",
    "triu",
    "ones",
    "full",
    "sin",
    "cos",
    "outer",
    "linspace",
    "eye",
    "exp",
    "zeros",
    "meshgrid",
    "polar",
    "einsum",
}
METHODS = {
    "view",
    "reshape",
    "unsqueeze",
    "to",
    "bool",
    "float",
    "expand",
    "repeat",
    "sin",
    "cos",
    "exp",
    "transpose",
    "t",
    "triu",
    "tril",
    "masked_fill",
    "log",
    "size",
    "logical_not",
    "squeeze",
    "type",
    "long",
    "int",
    "outer",
    "flatten",
    "permute",
    "sqrt",
    "pow",
    "chunk",
    "triu_",
    "tril_",
    "half",
    "contiguous",
    "repeat_interleave",
}
NUMBERS = {"math.sqrt", "math.log", "math.pi", "math.log2", "float", "int", "len", "range", "max", "min"}


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file whose forward pass builds a constant."""
    why = "no forward pass that builds a mask or table from sizes alone"
    for file in files(tree, finding, spec, "def forward"):
        if file.spelled("torch.ones") is None:
            continue
        try:
            module = _cached_function(file) or _extracted(file)
        except Refusal as refusal:
            why = f"{file.path}: {refusal}"
            continue
        if module is not None:
            return {file.path: with_import(module, "import functools").code}
    raise Refusal(why)


def _is_cached(function: cst.FunctionDef) -> bool:
    return any("cache" in code(decorator) for decorator in function.decorators)


def _forwards(file: File) -> list[tuple[cst.FunctionDef, cst.ClassDef]]:
    return [
        (function, around[-1])
        for function, around in file.functions
        if around
        and isinstance(around[-1], cst.ClassDef)
        and function.name.value.startswith(("forward", "_forward", "__call__"))
    ]


# A function of its own


def _cached_function(file: File) -> cst.Module | None:
    """Decorate a module's function that builds a table from its parameters and is called by a forward pass."""
    called = {
        dotted(node.func): node
        for forward, _ in _forwards(file)
        for node in walk(forward)
        if isinstance(node, cst.Call)
    }
    for function, around in file.functions:
        node = called.get(function.name.value)
        if node is None or around or function.decorators or not _builds(file, function):
            continue
        for forward, class_ in _forwards(file):
            static = _statics(forward)
            for made in walk(forward):
                calls_it = isinstance(made, cst.Call) and dotted(made.func) == function.name.value
                if calls_it and not all(_static(file, class_, static, argument.value) for argument in made.args):
                    raise Refusal(f"{function.name.value} gets a tensor")
            _results_unchanged(forward, function.name.value)
        return replaced(file.module, {function: _decorated(file)})
    return None


def _builds(file: File, function: cst.FunctionDef) -> bool:
    """Straight lines from parameters to a returned tensor, all static, at least one of them worth the cache."""
    names = {parameter.name.value for parameter in function.params.params}
    body = function.body.body if isinstance(function.body, cst.IndentedBlock) else []
    if not names or function.params.star_kwarg or isinstance(function.params.star_arg, cst.Param):
        return False
    calls: set[str] = set()
    for line in body:
        if (
            isinstance(line, cst.SimpleStatementLine)
            and isinstance(line.body[0], cst.Expr)
            and isinstance(line.body[0].value, cst.SimpleString)
        ):
            continue
        if not _static_line(file, None, names, line, calls, returns=True):
            return False
    return bool(calls & WORTH)


def _results_unchanged(forward: cst.FunctionDef, name: str) -> None:
    for node in walk(forward.body):
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and dotted(node.value.func) == name:
            for target in node.targets:
                for made in _names(target.target):
                    _unchanged(code(forward.body), made)


def _names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _names(element.value)]
    return []


def _unchanged(text: str, name: str) -> None:
    if re.search(rf"\b{re.escape(name)}(\[[^\]]*\]\s*([-+*/|&]?=)(?!=)|\s*[-+*/|&]=|\.\w+[a-z]_\()", text):
        raise Refusal(f"{name!r} is changed in place")


def _decorated(file: File) -> Any:
    torch = (file.spelled("torch.inference_mode") or "torch.inference_mode").removesuffix("inference_mode")

    def decorate(updated: cst.FunctionDef) -> cst.FunctionDef:
        # Built outside inference mode even when evaluation comes first: training could not use an inference tensor.
        texts = ["functools.lru_cache(maxsize=32)", f"{torch}inference_mode(False)"]
        decorators = [cst.Decorator(decorator=cst.parse_expression(text)) for text in texts]
        return updated.with_changes(decorators=decorators)

    return decorate


# Lines inside a forward pass


def _extracted(file: File) -> cst.Module | None:
    for forward, class_ in _forwards(file):
        for block in blocks(forward):
            run, outputs, arguments = _run(file, class_, forward, block)
            if not run:
                continue
            for name in outputs:
                _unchanged("".join(code(s) for s in block if s not in run), name)
            return _with_function(file, class_, run, outputs, arguments)
    return None


def _run(
    file: File, class_: cst.ClassDef, forward: cst.FunctionDef, block: Sequence[Any]
) -> tuple[list[Any], list[str], dict[str, str]]:
    """Adjacent static lines that are worth a cache, the names that they give to later lines, and what they read."""
    static = _statics(forward)
    for start in range(len(block)):
        made: set[str] = set()
        run: list[Any] = []
        calls: set[str] = set()
        for line in block[start:]:
            names = static | made
            if not _static_line(file, class_, names, line, calls, returns=False):
                break
            if assigned(line):
                made |= {assigned(line)[0]}
            run.append(line)
        if not calls & WORTH or not run:
            continue
        while run and not _has_constructor(file, run[0]):
            run = run[1:]
        made = set().union(*(writes(line) for line in run))
        outputs = [
            name
            for name in dict.fromkeys(n for line in run for n in writes(line))
            if _read_elsewhere(forward, run, name)
        ]
        if not run or not outputs or any(name in static for name in made):
            continue
        arguments: dict[str, str] = {}
        for line in run:
            arguments |= _arguments(file, line, static)
        return run, outputs, arguments
    return [], [], {}


def _has_constructor(file: File, line: Any) -> bool:
    return any(isinstance(n, cst.Call) and (file.qualified(n.func) or "").startswith("torch.") for n in walk(line))


def _read_elsewhere(forward: cst.FunctionDef, run: list[Any], name: str) -> bool:
    return loads(forward.body, name) > sum(loads(line, name) for line in run)


def _statics(forward: cst.FunctionDef) -> set[str]:
    """Local names of sizes: `B, T, C = x.shape`, `T = x.size(1)`, `T = x.shape[1]`, each bound once."""
    found: dict[str, int] = {}
    for node in walk(forward.body):
        if isinstance(node, cst.Assign) and _is_size(node.value):
            for target in node.targets:
                for name in _names(target.target):
                    found[name] = found.get(name, 0) + 1
    bound = [
        name for s in walk(forward.body) if isinstance(s, (cst.Assign, cst.AugAssign, cst.For)) for name in writes(s)
    ]
    return {name for name in found if bound.count(name) == 1}


def _is_size(node: cst.BaseExpression) -> bool:
    text = code(node)
    return bool(
        re.fullmatch(
            r"[\w.]+\.(shape|size\(\))(\[[-\d:]+\])?|[\w.]+\.size\(-?\d\)|[\w.]+\.shape\[-?\d\]|len\([\w.]+\)", text
        )
    )


def _static_line(
    file: File, class_: cst.ClassDef | None, names: set[str], line: Any, calls: set[str], *, returns: bool
) -> bool:
    """Whether a line is static; adds what it binds to `names` and the constructors that it calls to `calls`."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    if isinstance(small, cst.Return):
        if not returns or small.value is None:
            return False
        value, bound = small.value, []
    elif isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        value, bound = small.value, _names(target)
        if isinstance(target, cst.Subscript):
            if dotted(target.value) not in names:
                return False
        elif not bound:
            return False
    else:
        pair = assigned(line)
        if not pair:
            return False
        value, bound = pair[1], [pair[0]]
    if not _static(file, class_, names, value):
        return False
    for node in walk(value):
        if isinstance(node, cst.Call):
            name = file.qualified(node.func) or ""
            calls.add(
                name.rsplit(".", 1)[-1]
                if name.startswith("torch.")
                else node.func.attr.value
                if isinstance(node.func, cst.Attribute)
                else ""
            )
    names |= set(bound)
    return True


def _static(file: File, class_: cst.ClassDef | None, names: set[str], node: cst.CSTNode) -> bool:
    """Whether an expression depends on sizes, devices, dtypes, numbers and static names only."""
    if isinstance(node, cst.Call):
        name = file.qualified(node.func) or ""
        if name.startswith("torch."):
            if name.split(".")[-1] not in CONSTRUCTORS or keyword(node, "requires_grad") or keyword(node, "generator"):
                return False
        elif name in NUMBERS:
            pass
        elif _is_size(node):
            return True
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in METHODS:
            if not _static(file, class_, names, node.func.value):
                return False
        else:
            return False
        return all(_static(file, class_, names, argument.value) for argument in node.args)
    if isinstance(node, cst.Name):
        return node.value in names or node.value in ("None", "True", "False") or _module_constant(file, node.value)
    if isinstance(node, cst.Attribute):
        name = dotted(node) or ""
        if name.endswith((".device", ".dtype")) or _is_size(node):
            return True
        if name.startswith("self.") and class_ is not None:
            return _plain_attribute(class_, name[5:])
        qualified = file.qualified(node) or ""
        return qualified.startswith(("torch.", "math.")) or (name.partition(".")[0] in names and False)
    if isinstance(node, cst.Subscript) and _is_size(node):
        return True
    if isinstance(
        node,
        (
            cst.Lambda,
            cst.ListComp,
            cst.GeneratorExp,
            cst.DictComp,
            cst.SetComp,
            cst.Await,
            cst.NamedExpr,
            cst.FormattedString,
        ),
    ):
        return False
    return all(_static(file, class_, names, child) for child in node.children)


def _module_constant(file: File, name: str) -> bool:
    values = [pair[1] for s in file.module.body if (pair := assigned(s)) and pair[0] == name]
    return len(values) == 1 and (number(values[0]) is not None)


def _plain_attribute(class_: cst.ClassDef, name: str) -> bool:
    """An attribute that `__init__` sets once to a number: a parameter, a field of the configuration, arithmetic on
    them.
    """
    values = attribute_values(class_, name)
    return (
        len(values) == 1
        and bool(re.fullmatch(r"[\w.\s/*+-]+|\w+\(?[\w.\s/*]+\)?", code(values[0])))
        and "nn." not in code(values[0])
    )


def _arguments(file: File, line: Any, static: set[str]) -> dict[str, str]:
    """`{expression in the forward pass: parameter name}` of what a static line reads from outside."""
    found: dict[str, str] = {}
    skip: set[int] = set()
    for node in walk(line):
        if id(node) in skip:
            continue
        text = None
        if isinstance(node, (cst.Call, cst.Subscript, cst.Attribute)) and _is_size(node):
            text, name = code(node), "size_" + re.sub(r"\W+", "_", code(node)).strip("_")
        elif isinstance(node, cst.Attribute):
            dotted_name = dotted(node) or ""
            if dotted_name.endswith((".device", ".dtype")) and not (file.qualified(node) or "").startswith("torch."):
                text, name = dotted_name, dotted_name.rsplit(".", 1)[1]
            elif dotted_name.startswith("self."):
                text, name = dotted_name, dotted_name[5:]
        elif isinstance(node, cst.Name) and node.value in static and node.value in set(reads(line)):
            text, name = node.value, node.value
        if text is not None:
            found[text] = name
            skip |= {id(part) for part in walk(node)}
    return found


def _with_function(
    file: File, class_: cst.ClassDef, run: list[Any], outputs: list[str], arguments: dict[str, str]
) -> cst.Module:
    name = f"_{outputs[0].strip('_').lower()}_table" if len(outputs) > 1 else f"_cached_{outputs[0].strip('_').lower()}"
    parameters = list(arguments.values())
    if re.search(rf"\b{name}\b", file.text) or len(set(parameters)) != len(parameters):
        raise Refusal(f"the lines read {' and '.join(arguments)}, which have no clear names of their own")
    lines = [_renamed(line, arguments) for line in run]
    head = lines[0].with_changes(leading_lines=[])
    function = cst.parse_statement(f"def {name}({', '.join(parameters)}):\n    return {', '.join(outputs)}\n")
    assert isinstance(function, cst.FunctionDef)
    last = lines[-1].body[0]
    if len(outputs) == 1 and isinstance(last, cst.Assign) and dotted(last.targets[0].target) == outputs[0]:
        tail = [
            cst.SimpleStatementLine(
                [cst.Return(last.value)], leading_lines=lines[-1].leading_lines if len(lines) > 1 else []
            )
        ]
        body = [*([head, *lines[1:-1]] if len(lines) > 1 else []), *tail]
        behind = run[-1].trailing_whitespace
    else:
        behind = cst.TrailingWhitespace()
        body = [head, *lines[1:], *function.body.body]
    function = _decorated(file)(function.with_changes(body=function.body.with_changes(body=body)))
    made = cst.parse_statement(f"{', '.join(outputs)} = {name}({', '.join(arguments)})\n").with_changes(
        leading_lines=run[0].leading_lines, trailing_whitespace=behind
    )
    changes: dict[cst.CSTNode, Any] = {line: cst.RemoveFromParent() for line in run[1:]}
    changes[run[0]] = made
    two = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    above = list(class_.leading_lines)
    changes[class_] = lambda updated: cst.FlattenSentinel(
        [function.with_changes(leading_lines=above if above else two), updated.with_changes(leading_lines=two)]
    )
    return replaced(file.module, changes)


def _renamed(line: Any, arguments: dict[str, str]) -> Any:
    changes: dict[cst.CSTNode, Any] = {}
    skip: set[int] = set()
    for node in walk(line):
        if id(node) in skip or not isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
            continue
        if code(node) in arguments and code(node) != arguments[code(node)]:
            changes[node] = cst.parse_expression(arguments[code(node)])
            skip |= {id(part) for part in walk(node)}
    return replaced(line, changes)
