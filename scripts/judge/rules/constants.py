"""What was computed stays computed: no constant, stored or tabulated answers in its place."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, called_name, own_nodes, statements, unparse

NAME = "constants"
WHY = "K9, K17, K24, J25: an answer that is known beforehand is fast and is no computation"

FILLS = {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "tensor", "as_tensor",
         "new_zeros", "new_ones", "new_full", "new_tensor", "FloatTensor", "scalar_tensor", "array",
         "eye", "float", "int", "Tensor"}  # fmt: skip
TABLE = 16


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        hits += [*_functions(file), *_names(file), *_tables(file), *_zeroed(file)]
    return hits


def _functions(file: FileChange) -> list[Hit]:
    """Functions that now return a constant where they computed."""
    assert file.after is not None
    hits = []
    for name, function in file.after.functions.items():
        old = file.before.functions.get(name) if file.before else None
        if old is None or ast.dump(old) == ast.dump(function):
            continue
        before = [unparse(n.value, 300) for n in own_nodes(old) if isinstance(n, ast.Return) and n.value]
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value and unparse(node.value, 300) not in before and before:
                value = _look_through(function, node.value)
                if _constant(value) and not _none(value):
                    hits.append(
                        Hit(
                            "refuse",
                            file.path,
                            node.lineno,
                            f"{name} computed its result and now returns {unparse(value)}",
                        )
                    )
        if before and not any(isinstance(n, (ast.Return, ast.Yield, ast.Raise)) for n in own_nodes(function)):
            hits.append(Hit("refuse", file.path, function.lineno, f"{name} returned a result and returns none"))
        if len(statements(function)) <= 1 < len(statements(old)) and isinstance(
            function.body[-1], (ast.Pass, ast.Expr)
        ):
            trivial = isinstance(getattr(function.body[-1], "value", None), (ast.Constant, type(None)))
            if trivial:
                hits.append(Hit("refuse", file.path, function.lineno, f"{name} is empty now"))
    return hits


def _names(file: FileChange) -> list[Hit]:
    """Names whose computed value gave way to a constant, by function; buffers written in place do not count."""
    if file.before is None or file.after is None:
        return []
    hits = []
    for function, now in file.after.functions.items():
        old = file.before.functions.get(function)
        if old is None:
            continue
        was = _bindings(old)
        written = {name for node in own_nodes(now) for name in _in_place(node)}
        for name, values in _bindings(now).items():
            texts = [ast.dump(v) for v in was.get(name, [])]
            gone = [v for v in was.get(name, []) if ast.dump(v) not in {ast.dump(x) for x in values} and _computes(v)]
            new = [v for v in values if ast.dump(v) not in texts]
            if gone and new and name not in written and all(_constant(v) for v in new):
                line = next((v.lineno for v in new if v.lineno in file.added), new[-1].lineno)
                hits.append(Hit("refuse", file.path, line, f"{name} was computed and is {unparse(new[-1])}"))
    return hits


def _tables(file: FileChange) -> list[Hit]:
    hits = []
    for node in file.new(ast.List, ast.Tuple, ast.Set, ast.Dict):
        parts = node.values if isinstance(node, ast.Dict) else node.elts
        values = [
            getattr(_unsigned(part), "value", None) for part in parts if isinstance(_unsigned(part), ast.Constant)
        ]
        numbers = [value for value in values if isinstance(value, (int, float))]
        floats = [value for value in numbers if isinstance(value, float)]
        if len(numbers) >= TABLE or len(floats) >= TABLE // 2:
            hits.append(
                file.hit("refuse", node, f"a table of {len(numbers)} numbers: results do not stand in the source")
            )
    for node in file.new(ast.Constant):
        if isinstance(node.value, bytes) and len(node.value) > 64:
            hits.append(file.hit("refuse", node, f"{len(node.value)} bytes of data in the source"))
        elif isinstance(node.value, str) and len(node.value) > 200 and " " not in node.value.strip():
            hits.append(file.hit("refuse", node, f"{len(node.value)} characters of data in the source"))
    return hits


def _zeroed(file: FileChange) -> list[Hit]:
    """`x * 0`, and `x` in a product with a tensor of zeros."""
    hits = []
    for node in file.new(ast.BinOp):
        zero = any(
            isinstance(s, ast.Constant) and s.value in (0, 0.0) and not isinstance(s.value, bool)
            for s in (node.left, node.right)
        )
        if isinstance(node.op, ast.Mult) and zero:
            hits.append(file.hit("refuse", node, f"{unparse(node)} throws a result away"))
    return hits


def _bindings(tree: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in own_nodes(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    if isinstance(part, ast.Name):
                        found.setdefault(part.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node.value)
    return found


def _computes(node: ast.expr) -> bool:
    return not _constant(node)


def _constant(node: ast.expr) -> bool:
    """A literal, or a tensor filled with literals; sizes may be anything."""
    node = _unsigned(node)
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Tuple, ast.List)):
        return bool(node.elts) and all(_constant(e) for e in node.elts)
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name in ("zeros", "ones", "zeros_like", "ones_like", "new_zeros", "new_ones", "eye"):
            return True
        if name in FILLS:
            values = node.args[1:] if name.startswith(("full", "new_full")) else node.args[:1]
            return bool(values) and all(_constant(v) for v in values)
        if isinstance(node.func, ast.Attribute) and name in (
            "item",
            "to",
            "requires_grad_",
            "expand",
            "clone",
            "sum",
            "mean",
            "float",
            "squeeze",
            "view",
        ):
            return _constant(node.func.value)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    return False


def _look_through(function: ast.AST, node: ast.expr) -> ast.expr:
    """The one value of a local name that is assigned once."""
    if isinstance(node, ast.Tuple):
        last = [e for e in node.elts if not isinstance(e, ast.Constant)]
        return ast.Tuple([_look_through(function, e) for e in node.elts], ast.Load()) if last else node
    if isinstance(node, ast.Name):
        values = [
            n.value
            for n in own_nodes(function)
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
        ]
        changed = any(
            isinstance(n, ast.AugAssign) and getattr(n.target, "id", None) == node.id for n in own_nodes(function)
        )
        if len(values) == 1 and not changed and node.id not in {t for n in own_nodes(function) for t in _in_place(n)}:
            return values[0]
    return node


def _in_place(node: ast.AST) -> list[str]:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.attr.endswith("_")
    ):
        return [node.func.value.id]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return [node.value.id]
    return []


def _unsigned(node: ast.expr) -> ast.expr:
    return node.operand if isinstance(node, ast.UnaryOp) else node


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
