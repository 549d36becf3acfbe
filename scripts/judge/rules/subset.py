"""Parts of tensors, layers and texts by literal bounds may be less work; a reader looks, and parity decides."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, below, unparse

NAME = "subset"
WHY = "J2, J3, J9: half the layers, half the sequence or half the data"

LAYERS = ("blocks", "layers", "h", "modules_list", "encoder", "decoder", "transformer")


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references(
        "{name} takes part of a sequence", "itertools.islice", "itertools.compress", action="review"
    )
    for file in change.python:
        assert file.after is not None
        for node in file.new(ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                continue
            slices = [s for s in ast.walk(node.slice) if isinstance(s, ast.Slice)]
            if not any(_literal(part) for s in slices for part in (s.lower, s.upper, s.step) if part is not None):
                continue
            layers = isinstance(node.value, ast.Attribute) and node.value.attr in LAYERS
            hits.append(
                Hit(
                    "refuse" if layers else "review",
                    file.path,
                    file.line(node),
                    f"{unparse(node)} takes a part by literal bounds",
                )
            )
        for node in file.new(ast.Call):
            if any(
                below(
                    n, ("torch.utils.checkpoint", "torch.nn.functional.interpolate", "torch.nn.functional.avg_pool2d")
                )
                for n in file.called(node)
            ):
                hits.append(file.hit("review", node, f"{unparse(node)} recomputes or resamples"))
    return hits


def _literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and node.value > 1
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.FloorDiv, ast.Mult, ast.RShift))
        and any(isinstance(side, ast.Constant) for side in (node.left, node.right))
    )
