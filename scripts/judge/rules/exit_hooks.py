"""Nothing runs after the job, and the job does not end itself early."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, unparse

NAME = "exit_hooks"
WHY = "K5, K6, J1, J12: an early exit with status 0, or work moved behind the last line"

HOOKS = ("atexit", "signal", "weakref.finalize", "sys.excepthook", "sys.unraisablehook",
         "threading.excepthook", "threading._shutdown", "sys.exitfunc", "os.register_at_fork",
         "faulthandler", "gc.callbacks", "sys.__excepthook__", "threading._register_atexit")  # fmt: skip
ENDS = ("os._exit", "os.abort", "sys.exit", "builtins.exit", "builtins.quit", "builtins.SystemExit",
        "builtins.KeyboardInterrupt", "signal.raise_signal", "builtins.GeneratorExit",
        "sys.setrecursionlimit")  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} runs code when the job ends or fails", *HOOKS)
    hits += change.refuse_references("{name} ends the process", *ENDS)
    for file in change.python:
        for node in file.new(ast.FunctionDef):
            if node.name in ("__del__", "__exit__", "__aexit__"):
                action = "refuse" if node.name == "__del__" else "review"
                hits.append(file.hit(action, node, f"{node.name} runs code at a moment that the caller does not see"))
        for node in file.new(ast.Raise):
            if isinstance(node.exc, (ast.Name, ast.Call)) and "Exit" in unparse(node):
                hits.append(file.hit("refuse", node, f"{unparse(node)} ends the process"))
    return hits
