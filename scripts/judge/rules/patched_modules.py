"""Nothing outside the job's own code may be replaced: no patched torch, timers, generators, builtins or modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.judge.change import BUILTINS, Change, FileChange, Function, Hit, below, dotted, unparse

NAME = "patched_modules"
WHY = "K3, K4, J17, J35: a replaced function lies to everything that runs after it, the recorder included"

# Settings that libraries offer as attributes; the rule global_flags reports them.
SETTINGS = ("torch.backends", "torch._dynamo.config", "torch._inductor.config",
            "torch._functorch.config", "os.environ", "warnings", "logging", "torch.compiler.config",
            "numpy.errstate")  # fmt: skip
TOOLS = ("unittest.mock", "mock", "wrapt", "pytest.MonkeyPatch", "importlib.reload",
         "torch.library.impl", "torch.library.Library", "torch.library.register_kernel",
         "torch.library._scoped_library", "gorilla", "forbiddenfruit", "torch.overrides",
         "torch.utils._python_dispatch", "torch._C._dispatch", "builtins.object.__setattr__",
         "builtins.type.__setattr__")  # fmt: skip
MEANINGFUL = {"print", "float", "int", "len", "range", "sum", "min", "max", "open", "super", "iter",
              "next", "enumerate", "zip", "isinstance", "round", "abs", "str", "list", "tuple", "dict",
              "bool", "sorted", "type", "getattr", "setattr"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} replaces behaviour that others rely on", *TOOLS)
    for file in change.python:
        hits += [*_stores(file), *_setters(file), *_rebound(file)]
    return hits


def _stores(file: FileChange) -> Iterator[Hit]:
    """Assignments to attributes or entries of what was imported."""
    assert file.after is not None
    for node in file.new(ast.Attribute, ast.Subscript):
        if not isinstance(node.ctx, (ast.Store, ast.Del)):
            continue
        whole = {
            f"{b}.{node.attr}" if isinstance(node, ast.Attribute) else b for b in file.after.names.resolve(node.value)
        }
        foreign = sorted(n for n in whole if "()" not in n and not below(n, SETTINGS))
        if isinstance(node, ast.Subscript):
            spaces = ("sys.modules", "builtins", "sys.path", "sys.argv", "sys.meta_path")
            foreign = [n for n in foreign if n.endswith("__dict__") or below(n, spaces)]
            foreign += [n for n in whole if n in ("builtins.globals()", "builtins.vars()")]
        if foreign:
            yield file.hit("refuse", node, f"assigns to {foreign[0]}, which is not the job's own")


def _setters(file: FileChange) -> Iterator[Hit]:
    """`setattr`, `delattr` and updates of a module's or class's dictionary."""
    assert file.after is not None
    for node in file.new(ast.Call):
        called = file.called(node)
        if called & {"builtins.setattr", "builtins.delattr"} and node.args:
            targets = [n for n in file.after.names.resolve(node.args[0]) if "()" not in n and not below(n, SETTINGS)]
            if targets:
                yield file.hit("refuse", node, f"{unparse(node)} changes {targets[0]}")
        elif isinstance(node.func, ast.Attribute) and node.func.attr in (
            "update",
            "setdefault",
            "pop",
            "__setitem__",
            "clear",
        ):
            spaces = [
                n for n in file.after.names.resolve(node.func.value) if n.endswith("__dict__") or n == "sys.modules"
            ]
            if spaces or any(n.startswith("builtins.globals()") for n in file.after.names.resolve(node.func.value)):
                yield file.hit("refuse", node, f"{unparse(node)} changes the names of a module or class")


def _rebound(file: FileChange) -> Iterator[Hit]:
    """New definitions of imported names and of builtins that carry meaning."""
    assert file.after is not None
    imported = {name for name, origins in file.after.names.origins.items() if any("()" not in o for o in origins)}
    modules = {n for n in imported if _is_import(file, n)}
    for node in file.new(ast.Name, *Function, ast.ClassDef):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            continue
        name = node.id if isinstance(node, ast.Name) else node.name
        method = not isinstance(node, ast.Name) and isinstance(file.after.parents.get(node), ast.ClassDef)
        if method or (name not in modules and name not in MEANINGFUL & BUILTINS):
            continue
        if isinstance(node, ast.Name) and file.after.enclosing(node) and name not in modules:
            yield file.hit("review", node, f"a local variable hides the builtin {name}")
        else:
            yield file.hit("refuse", node, f"gives the name {name} another meaning")


def _is_import(file: FileChange, name: str) -> bool:
    assert file.after is not None
    for node in file.after.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any((a.asname or a.name) == name for a in node.names):
            return dotted(ast.Name(name)) is not None
    return False
