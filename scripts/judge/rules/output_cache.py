"""A memo may be keyed by shapes; one keyed by addresses, identities or samples of the data returns stale answers."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Function, Hit, below, called_name, own_nodes, unparse

NAME = "output_cache"
WHY = "K7, K8, K9, K10, J34: the same buffer with new content must give a new answer"

IDENTITIES = {"data_ptr", "_version", "_cdata", "untyped_storage", "storage_offset", "_base", "is_set_to"}
FINGERPRINTS = {"item", "tolist", "sum", "mean", "norm", "tobytes", "numpy", "std", "max", "min", "hash_tensor"}
MEMOS = ("functools.lru_cache", "functools.cache", "functools.cached_property", "cachetools", "joblib.Memory")
HOT = {
    "forward",
    "step",
    "training_step",
    "compute_loss",
    "loss",
    "evaluate",
    "__call__",
    "get_batch",
    "backward",
    "predict",
    "generate",
}


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        hits += [*_identities(file), *_memos(file), *_dictionaries(file)]
    return hits


def _identities(file: FileChange) -> list[Hit]:
    hits = [
        file.hit("refuse", node, f"{unparse(node)}: an address or version says nothing about the content")
        for node in file.new(ast.Attribute)
        if node.attr in IDENTITIES
    ]
    for node in file.new(ast.Call):
        names = file.called(node) & {"builtins.id", "builtins.hash", "torch.hash_tensor"}
        if names:
            hits.append(file.hit("refuse", node, f"{unparse(node)}: an identity or hash stands in for the content"))
    hits += [
        file.hit("refuse", node, f"{unparse(node)} compares objects by identity")
        for node in file.new(ast.Compare)
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        and not any(isinstance(side, ast.Constant) for side in [node.left, *node.comparators])
    ]
    return hits


def _memos(file: FileChange) -> list[Hit]:
    """Memo decorators on functions that do the job's work, or that take more than sizes."""
    assert file.after is not None
    hits = []
    for node in file.new(*Function):
        memo = next(
            (d for d in node.decorator_list if any(below(n, MEMOS) for n in file.after.names.resolve(_bare(d)))), None
        )
        if memo is None:
            continue
        works = any(isinstance(n, ast.Call) and called_name(n) in {"backward", "step", "item"} for n in ast.walk(node))
        if node.name in HOT or works or any(word in node.name for word in ("evaluat", "valid", "loss")):
            hits.append(file.hit("refuse", node, f"remembers the results of {node.name}, which does the job's work"))
        else:
            hits.append(
                file.hit(
                    "review", node, f"remembers the results of {node.name}; its arguments must be sizes or constants"
                )
            )
    hits += [
        file.hit("refuse", node, f"{unparse(node)} remembers the results of a function")
        for node in file.new(ast.Call)
        if any(below(name, MEMOS) for name in file.called(node)) and not _decorates(file, node)
    ]
    return hits


def _dictionaries(file: FileChange) -> list[Hit]:
    """Dictionaries looked up by something computed from the data."""
    assert file.after is not None
    hits = []
    for function in file.after.functions.values():
        keys = _derived(function)
        for node in own_nodes(function):
            looked_up = node.slice if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.Call) and called_name(node) in ("get", "setdefault", "pop") and node.args:
                looked_up = node.args[0]
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                looked_up = node.left
            if looked_up is None or not _from_data(looked_up, keys) or not _is_new(file, function):
                continue
            hits.append(file.hit("refuse", node, f"{unparse(node)}: a lookup by a fingerprint of the data"))
    return hits


def _derived(function: ast.AST) -> set[str]:
    """Local names bound to a fingerprint of tensors."""
    names: set[str] = set()
    for _ in range(3):
        for node in own_nodes(function):
            if isinstance(node, ast.Assign) and _from_data(node.value, names):
                names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.NamedExpr) and _from_data(node.value, names):
                names.add(node.target.id)
    return names


def _from_data(node: ast.AST, names: set[str]) -> bool:
    """Whether the expression is a number or bytes taken from a tensor's content (not an index tensor)."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Tuple):
        return any(_from_data(part, names) for part in node.elts)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "tolist", "tobytes"):
            return True
        inner = node.func.id if isinstance(node.func, ast.Name) else ""
        if inner in ("float", "int", "tuple", "str", "bytes", "round", "repr", "frozenset"):
            return any(_from_data(arg, names) or _reduces(arg) for arg in node.args)
    if isinstance(node, ast.JoinedStr):
        return any(_from_data(v.value, names) for v in node.values if isinstance(v, ast.FormattedValue))
    return False


def _reduces(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and called_name(n) in FINGERPRINTS for n in ast.walk(node))


def _is_new(file: FileChange, function: ast.AST) -> bool:
    lines = range(function.lineno, (function.end_lineno or 0) + 1)  # type: ignore[attr-defined]
    return any(line in file.added for line in lines)


def _bare(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _decorates(file: FileChange, node: ast.AST) -> bool:
    assert file.after is not None
    parent = file.after.parents.get(node)
    return isinstance(parent, (*Function, ast.ClassDef)) and node in parent.decorator_list
