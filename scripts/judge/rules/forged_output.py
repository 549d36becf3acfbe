"""What the job says stays what it was: no writes past `print`, no words that only a judge would write."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, Hit, unparse

NAME = "forged_output"
WHY = "K5, K6, J24: a result that the job prints about itself is not a measurement"

CHANNELS = ("os.write", "os.dup", "os.dup2", "os.fdopen", "os.pipe", "os.open", "sys.stdout.write",
            "sys.stderr.write", "sys.__stdout__", "sys.__stderr__", "contextlib.redirect_stdout",
            "contextlib.redirect_stderr", "sys.displayhook", "sys.stdout.buffer", "sys.stderr.buffer",
            "os.ftruncate", "os.truncate", "os.close", "os.closerange", "fcntl", "termios", "tty",
            "syslog")  # fmt: skip
WORDS = re.compile(
    r"\b(verdict|speed-?up|PASS(ED)?|all tests|faster|equivalent|wholejob|not_measured|no_difference)\b", re.IGNORECASE
)


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} goes around ordinary output", *CHANNELS)
    for file in change.python:
        for node in file.new(ast.Constant):
            if (
                isinstance(node.value, str)
                and len(node.value) < 400
                and WORDS.search(node.value)
                and not _docstring(file, node)
            ):
                hits.append(file.hit("refuse", node, f"the text {unparse(node)} reads like a judge's answer"))
    return hits


def _docstring(file, node: ast.Constant) -> bool:  # type: ignore[no-untyped-def]
    return isinstance(file.after.parents.get(node), ast.Expr)
