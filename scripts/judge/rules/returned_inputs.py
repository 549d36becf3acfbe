"""A function that computed something does not hand back what it was given."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, called_name, own_nodes, parameters, statements, unparse

NAME = "returned_inputs"
WHY = "K15, K16: identity passes where the inputs happen to satisfy the answer"

TRIVIAL = {"clone", "contiguous", "view", "reshape", "detach", "to", "type_as", "expand_as", "float",
           "view_as", "requires_grad_", "alias", "Identity", "identity", "squeeze", "unsqueeze"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} replaces a layer by nothing", "torch.nn.Identity")
    for file in change.python:
        assert file.after is not None
        for name, function in file.after.functions.items():
            old = file.before.functions.get(name) if file.before else None
            if old is not None and ast.dump(old) == ast.dump(function):
                continue
            hits += _returns(file, name, function, old)
        for node in file.new(ast.Lambda):
            args = {a.arg for a in node.args.args}
            if args and isinstance(node.body, ast.Name) and node.body.id in args and not _key(file, node):
                hits.append(file.hit("refuse", node, f"{unparse(node)} returns its input"))
    return hits


def _returns(file: FileChange, name: str, function: ast.AST, old: ast.AST | None) -> list[Hit]:
    """New returns of a parameter that nothing in the function changed."""
    names = set(parameters(function))
    rebound = {n.id for n in own_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    rebound |= _written(function)
    before = {unparse(n.value, 300) for n in own_nodes(old) if isinstance(n, ast.Return) and n.value} if old else set()
    hits = []
    for node in own_nodes(function):
        if (
            not isinstance(node, ast.Return)
            or node.value is None
            or (unparse(node.value, 300) in before and not _gutted(function, old))
        ):
            continue
        core = _core(node.value)
        if isinstance(core, ast.Name) and core.id in names - rebound:
            hits.append(Hit("refuse", file.path, node.lineno, f"{name} returns its input: {unparse(node)}"))
        elif isinstance(core, ast.Name) and core.id in names and _early(function, node):
            hits.append(Hit("refuse", file.path, node.lineno, f"{name} returns its input early: {unparse(node)}"))
    return hits


def _gutted(function: ast.AST, old: ast.AST | None) -> bool:
    """The old function computed before the same return; the new one only returns."""
    return old is not None and len(statements(function)) == 1 < len(statements(old))


def _early(function: ast.AST, node: ast.Return) -> bool:
    """A return before the first assignment to what it returns."""
    core = _core(node.value) if node.value else None
    stores = [
        n.lineno
        for n in own_nodes(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == getattr(core, "id", None)
    ]
    return bool(stores) and node.lineno < min(stores)


def _core(node: ast.expr) -> ast.expr:
    """The expression without calls and operations that change nothing (`x.clone() * 1 + 0`)."""
    while True:
        if isinstance(node, ast.Call) and called_name(node) in TRIVIAL:
            if isinstance(node.func, ast.Attribute) and not _module(node.func.value):
                node = node.func.value
            elif node.args:
                node = node.args[0]
            else:
                return node
        elif isinstance(node, ast.BinOp) and _neutral(node):
            node = node.left if isinstance(node.right, ast.Constant) else node.right
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, (ast.Slice, ast.Constant))
            and unparse(node.slice) in (":", "Ellipsis", "...")
        ):
            node = node.value
        else:
            return node


def _neutral(node: ast.BinOp) -> bool:
    value = (
        node.right.value
        if isinstance(node.right, ast.Constant)
        else node.left.value
        if isinstance(node.left, ast.Constant)
        else None
    )
    one = isinstance(node.op, (ast.Mult, ast.Div, ast.Pow)) and value in (1, 1.0)
    return one or (isinstance(node.op, (ast.Add, ast.Sub)) and value in (0, 0.0) and value is not None)


def _module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "F", "nn")


def _written(function: ast.AST) -> set[str]:
    """Parameters that the function changes in place."""
    names = set()
    for node in own_nodes(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            if node.func.attr.endswith("_") or node.func.attr in ("append", "extend", "update", "add", "step", "apply"):
                names.add(node.func.value.id)
        elif (
            isinstance(node, (ast.Subscript, ast.Attribute))
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
        ):
            names.add(node.value.id)
        elif isinstance(node, ast.Call):
            names |= (
                {a.id for a in node.args if isinstance(a, ast.Name)} if isinstance(node.func, ast.Subscript) else set()
            )
    return names


def _key(file: FileChange, node: ast.AST) -> bool:
    assert file.after is not None
    parent = file.after.parents.get(node)
    return isinstance(parent, ast.keyword) and parent.arg in ("key", "collate_fn", "default", "type")
