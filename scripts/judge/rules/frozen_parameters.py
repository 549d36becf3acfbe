"""The optimizer gets every parameter, and keeps its kind."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, Hit, Module, called_name, unparse

NAME = "frozen_parameters"
WHY = "J6, J9: an optimizer over fewer parameters, or another one, does less"

OPTIMIZERS = re.compile(
    r"^(SGD|Adam|AdamW|Adamax|Adagrad|Adadelta|RMSprop|NAdam|RAdam|LBFGS|Lion|Muon|Adafactor|LAMB|LARS|Shampoo|SOAP"
    r"|FusedAdam|Rprop|ASGD|SparseAdam)(8bit|Fused)?$"
)
SAME = {"FusedAdam": "AdamW"}  # apex's FusedAdam is AdamW by default


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.both:
        assert file.before is not None and file.after is not None
        old, new = _optimizers(file.before), _optimizers(file.after)
        if {_kind(n) for n in old} != {_kind(n) for n in new} and old:
            hits.append(Hit("refuse", file.path, None, f"the optimizer was {_names(old)} and is {_names(new)}"))
        known = {unparse(n.args[0], 200) for n in old if n.args}
        for node in new:
            if node.args and unparse(node.args[0], 200) not in known and node.lineno in file.added:
                fewer = any(isinstance(n, (ast.comprehension)) and n.ifs for n in ast.walk(node.args[0]))
                fewer |= any(isinstance(n, ast.Slice) for n in ast.walk(node.args[0])) or ".parameters()" in unparse(
                    node.args[0], 500
                ).replace("model.parameters()", "")
                hits.append(
                    Hit(
                        "refuse" if fewer else "review",
                        file.path,
                        node.lineno,
                        f"the optimizer's parameters are now {unparse(node.args[0])}",
                    )
                )
    return hits


def _optimizers(module: Module) -> list[ast.Call]:
    return [n for n in module.nodes if isinstance(n, ast.Call) and OPTIMIZERS.match(called_name(n))]


def _kind(node: ast.Call) -> str:
    return SAME.get(called_name(node), called_name(node).removesuffix("Fused"))


def _names(nodes: list[ast.Call]) -> str:
    return ", ".join(sorted({called_name(n) for n in nodes})) or "none"
