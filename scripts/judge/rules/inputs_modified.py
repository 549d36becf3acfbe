"""Arguments are not changed under the caller's hands without a reader having seen it."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Function, Hit, own_nodes, parameters, unparse

NAME = "inputs_modified"
WHY = "K13: inputs changed in place make the next computation, or the reference, easier"

ASKED = {
    "y",
    "targets",
    "labels",
    "target",
    "idx",
    "inputs",
    "input",
    "tokens",
}  # what the job is asked, not activations


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        assert file.after is not None
        new = {id(n) for n in file.new(ast.Call, ast.Subscript)}
        for function in (n for n in file.after.nodes if isinstance(n, Function)):
            names = set(parameters(function))
            stored = {
                n.id: n.lineno for n in own_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            for node in own_nodes(function):
                target = None
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr.endswith("_")
                    and not node.func.attr.startswith("_")
                ):
                    target = node.func.value
                elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                    target = node.value
                if id(node) not in new or not isinstance(target, ast.Name) or target.id not in names:
                    continue
                if stored.get(target.id, 1 << 30) < file.line(node):
                    continue
                asked = target.id in ASKED and function.name in ("forward", "loss", "compute_loss")
                reason = f"{unparse(node)} changes the argument {target.id} in place"
                hits.append(file.hit("refuse" if asked else "review", node, reason))
    return hits
