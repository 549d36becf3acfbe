"""One path for all inputs: no branch on the data's values, on literal sizes or on the number of the step."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, FileChange, Hit, called_name, unparse

NAME = "input_dispatch"
WHY = "K16, K21, K22, K23, K24, J32: exact for what is checked and sloppy for what is timed"

SIZES = {"shape", "size", "numel", "len", "dim", "ndim", "nelement", "__len__", "stride"}
VALUES = {"max", "min", "sum", "mean", "std", "var", "any", "all", "item", "norm", "abs", "equal",
          "allclose", "isclose", "isnan", "isfinite", "count_nonzero", "array_equal", "amax", "amin",
          "median", "is_nonzero", "tolist", "hash"}  # fmt: skip
COUNTERS = re.compile(
    r"(?i)^(self\.)?_*(step|it|iter|iteration|epoch|i|calls?|count(er)?|n_calls|batch_idx"
    r"|global_step|step_count|num_calls|tick|n)s?$"
)


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        assert file.after is not None
        for node in file.new(ast.If, ast.IfExp, ast.While, ast.Assert, ast.BoolOp):
            if isinstance(node, ast.Assert):
                continue
            tests = node.values if isinstance(node, ast.BoolOp) else [node.test]
            for test in tests:
                hits += _test(file, node, test)
    return _unique(hits)


def _test(file: FileChange, node: ast.AST, test: ast.AST) -> list[Hit]:
    hits = []
    for part in ast.walk(test):
        line = file.line(node)
        if isinstance(part, ast.Call) and called_name(part) in VALUES and not _of_sizes(part):
            hits.append(Hit("refuse", file.path, line, f"a branch on the values of the data: {unparse(test)}"))
        elif isinstance(part, ast.Compare):
            sides = [part.left, *part.comparators]
            literal = any(
                isinstance(s, ast.Constant)
                and isinstance(s.value, (int, float))
                and not isinstance(s.value, bool)
                and s.value > 1
                for s in sides
            )
            literal |= any(
                isinstance(s, (ast.Tuple, ast.List, ast.Set))
                and s.elts
                and all(isinstance(e, ast.Constant) for e in s.elts)
                for s in sides
            )
            if literal and any(_mentions_size(s) for s in sides):
                hits.append(Hit("refuse", file.path, line, f"a branch on a literal size: {unparse(test)}"))
            elif any(COUNTERS.match(unparse(s)) for s in sides) and any(
                isinstance(s, ast.Constant) and isinstance(s.value, int) and s.value for s in sides
            ):
                hits.append(
                    Hit("refuse", file.path, line, f"a branch on the number of the call or step: {unparse(test)}")
                )
        if (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, (ast.Mod, ast.BitAnd))
            and COUNTERS.match(unparse(part.left))
            and isinstance(part.right, ast.Constant)
        ):
            hits.append(Hit("refuse", file.path, line, f"every so many steps something else: {unparse(test)}"))
    return hits


def _mentions_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Name) and node.id in (
        "B",
        "T",
        "N",
        "H",
        "W",
        "M",
        "K",
        "D",
        "bs",
        "batch",
        "seq_len",
        "batch_size",
        "seqlen",
    ):
        return True
    return any(
        (isinstance(n, ast.Attribute) and n.attr in SIZES) or (isinstance(n, ast.Name) and n.id == "len")
        for n in ast.walk(node)
    )


def _of_sizes(call: ast.Call) -> bool:
    """`max(a.shape)`, `len(...)`: sizes, not values; `all(... for ...)` over modules or flags."""
    if isinstance(call.func, ast.Name):
        return called_name(call) not in ("float",) and (
            _mentions_size(call) or called_name(call) in ("any", "all", "hash", "min", "max", "abs", "sum")
        )
    return _mentions_size(call.func.value) if isinstance(call.func, ast.Attribute) else True


def _unique(hits: list[Hit]) -> list[Hit]:
    return list(dict.fromkeys(hits))
