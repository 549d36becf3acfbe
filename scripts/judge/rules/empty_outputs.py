"""Uninitialised memory is filled before anyone reads it."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Function, Hit, called_name, own_nodes, unparse

NAME = "empty_outputs"
WHY = "K11, K9: an `empty` output that nothing writes may hold the reference's answer from recycled memory"

EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "ndarray"}


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        assert file.after is not None
        for node in file.new(ast.Call):
            if called_name(node) in EMPTY and not any(k.arg == "out" for k in node.keywords):
                hits += _unwritten(file, node)
        for node in file.new(ast.Call):
            if called_name(node) in (
                "resize_",
                "set_",
                "as_strided_",
                "frombuffer",
                "from_blob",
                "from_buffer",
                "from_dlpack",
            ):
                hits.append(file.hit("refuse", node, f"{unparse(node)} shows memory that nothing wrote"))
    return hits


def _unwritten(file: FileChange, node: ast.Call) -> list[Hit]:
    assert file.after is not None
    parent = file.after.parents.get(node)
    line = file.line(node)
    if called_name(node) == "ndarray" and "numpy.ndarray" not in file.called(node):
        return []
    if isinstance(parent, ast.Attribute):  # torch.empty(...).normal_() and the like write it at once
        return [] if parent.attr.endswith("_") else _chain(file, parent, line)
    if isinstance(parent, ast.Call) and called_name(parent) in ("Parameter", "register_buffer", "Buffer"):
        return [
            Hit(
                "review",
                file.path,
                line,
                f"{unparse(parent)} starts uninitialised; the first values must come from an initialiser",
            )
        ]
    if isinstance(parent, ast.keyword) and parent.arg == "out":
        return []
    if not isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        return [Hit("refuse", file.path, line, f"{unparse(node)} is used without being written")]
    target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
    text = unparse(target, 200)
    scope = next((n for n in file.after.above(node) if isinstance(n, (*Function, ast.Module))), file.after.tree)
    if isinstance(target, ast.Attribute):  # self.buffer: written in any method of the file
        scope = file.after.tree
    nodes = list(ast.walk(scope)) if scope is file.after.tree else list(own_nodes(scope))
    if any(_writes(n, text) for n in nodes):
        return []
    return [Hit("refuse", file.path, line, f"{text} comes from {called_name(node)} and nothing writes it")]


def _chain(file: FileChange, parent: ast.Attribute, line: int) -> list[Hit]:
    """`empty(...).view(...)`: judged as if the outer call were the empty one."""
    assert file.after is not None
    outer = file.after.parents.get(parent)
    return (
        _unwritten(file, outer)
        if isinstance(outer, ast.Call)
        else [Hit("refuse", file.path, line, f"{unparse(parent)} is used without being written")]
    )


def _writes(node: ast.AST, text: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return unparse(node.value, 200) == text
    if isinstance(node, ast.AugAssign):
        return unparse(node.target, 200).startswith(text + "[")
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and not node.func.attr.endswith("__"):
        return unparse(node.func.value, 200).split("[")[0] == text
    if any(k.arg == "out" and text in unparse(k.value, 200) for k in node.keywords):
        return True
    if isinstance(node.func, ast.Subscript):  # kernel[grid](out, ...)
        return any(unparse(a, 200) == text for a in [*node.args, *(k.value for k in node.keywords)])
    if any(k.arg == "beta" and isinstance(k.value, ast.Constant) and k.value.value == 0 for k in node.keywords):
        return bool(node.args) and unparse(node.args[0], 200) == text  # baddbmm and addmm do not read it then
    return called_name(node) in ("copyto", "put", "fill", "readinto", "recv", "all_gather_into_tensor") and any(
        unparse(a, 200) == text for a in node.args
    )
