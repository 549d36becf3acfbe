"""No silent way back to the old computation, and no error swallowed around the new one."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, unparse

NAME = "fallback"
WHY = "K29, J26, J39: a fast path that always fails leaves the old one, or nothing, running under the new name"

# Errors that belong to ordinary control flow.
CONTROL_FLOW = {
    "StopIteration",
    "KeyError",
    "IndexError",
    "queue.Empty",
    "Empty",
    "queue.Full",
    "Full",
    "AttributeError",
}
MISSING = {"ImportError", "ModuleNotFoundError"}


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references(
        "{name} swallows errors", "contextlib.suppress", "torch._dynamo.config.suppress_errors"
    )
    for file in change.python:
        hits += _handlers(file)
    return hits


def _handlers(file: FileChange) -> list[Hit]:
    assert file.after is not None
    hits = []
    for node in file.after.nodes:
        if not isinstance(node, ast.Try) or not any(
            line in file.added for line in range(node.lineno, (node.end_lineno or 0) + 1)
        ):
            continue
        if file.before and ast.dump(node) in {ast.dump(n) for n in file.before.nodes if isinstance(n, ast.Try)}:
            continue
        line = file.line(node)
        if any(
            isinstance(n, (ast.Return, ast.Break, ast.Continue))
            for statement in node.finalbody
            for n in ast.walk(statement)
        ):
            hits.append(Hit("refuse", file.path, line, "a jump in `finally` swallows every error"))
        for handler in node.handlers:
            caught = {unparse(t) for t in _types(handler.type)}
            if _raises(handler):
                continue
            if (
                caught
                and caught <= MISSING
                and all(isinstance(s, (ast.Import, ast.ImportFrom, ast.Assign)) for s in node.body)
            ):
                hits.append(
                    Hit("review", file.path, line, "an optional import; parity's `executed` says which path ran")
                )
            elif caught and caught <= CONTROL_FLOW and len(node.body) <= 2:
                hits.append(Hit("review", file.path, line, f"except {', '.join(sorted(caught))} as control flow"))
            else:
                what = ", ".join(sorted(caught)) or "everything"
                hits.append(
                    Hit("refuse", file.path, line, f"catches {what} around changed code and goes on; let it fail")
                )
    hits += [
        file.hit("refuse", node, "a context manager that may swallow errors")
        for node in file.new(ast.FunctionDef)
        if node.name == "__exit__" and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node))
    ]
    return hits


def _types(node: ast.expr | None) -> list[ast.expr]:
    return [] if node is None else list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _raises(handler: ast.ExceptHandler) -> bool:
    """Whether the handler's last statement always raises."""
    return isinstance(handler.body[-1], ast.Raise)
