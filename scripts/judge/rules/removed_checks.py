"""Assertions, validation and error handling that the job had are not an overhead to cut."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, unparse

NAME = "removed_checks"
WHY = "J16, J20, J27, J39: a job that no longer notices a broken model is faster and is not better"


def check(change: Change) -> list[Hit]:
    hits = []
    before: list[tuple[str, str]] = []
    after: list[str] = []
    for file in change.files:
        before += [(file.path, text) for text in _checks(file.before.tree)] if file.before else []
        after += _checks(file.after.tree) if file.after else []
    for path, text in before:
        if text in after:
            after.remove(text)
        else:
            action = (
                "refuse" if any(word in text.lower() for word in ("isnan", "isfinite", "isinf", "nan")) else "review"
            )
            hits.append(Hit(action, path, None, f"a check is gone: {text}"))
    return hits


def _checks(tree: ast.AST) -> list[str]:
    return [unparse(n, 120) for n in ast.walk(tree) if isinstance(n, (ast.Assert, ast.Raise))]
