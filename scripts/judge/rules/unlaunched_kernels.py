"""A kernel or fast path that is defined must be reached: a decoy explains a gain that comes from somewhere else."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

from scripts.judge.change import Change, FileChange, Function, Hit, below, called_name, constant_text

NAME = "unlaunched_kernels"
WHY = "K30, J26: a kernel that nobody launches, a function that nobody calls, a branch that is never taken"

KERNELS = ("triton.jit", "triton.autotune", "triton.heuristics", "numba.cuda.jit",
           "torch.library.custom_op", "torch.library.triton_op",
           "torch.utils.cpp_extension.load_inline", "torch.utils.cpp_extension.load", "cupy.RawKernel",
           "numba.njit", "numba.jit", "torch.autograd.Function")  # fmt: skip


def check(change: Change) -> list[Hit]:
    live = _live(change)
    hits = []
    for file in change.python:
        for node in file.new(*Function, ast.ClassDef):
            assert file.after is not None
            if isinstance(file.after.parents.get(node), ast.ClassDef) or node.name in live:
                continue
            kernel = _is_kernel(file, node)
            if kernel and not _wholly_new(file, node):
                continue
            text = f"the {'kernel' if kernel else 'definition'} {node.name} is reached from nowhere"
            hits.append(Hit("refuse" if kernel else "review", file.path, node.lineno, text))
        hits += _dead_branches(file)
    return hits + _all_dead(change, live)


def _live(change: Change) -> set[str]:
    """Names that running code refers to: what was there before, module level, and whatever these reach."""
    uses: dict[str, set[str]] = {}
    roots: set[str] = set()
    old = {name.rpartition(".")[2] for f in change.files if f.before for name in f.before.functions}
    parsed = {file.path: file.after.tree for file in change.python if file.after}
    for path, text in change.tree.items():
        if path not in parsed:
            roots |= set(re.findall(r"[A-Za-z_]\w*", text))  # other files as they were: any word in them may be a use
    for tree in parsed.values():
        for node in ast.walk(tree):
            if isinstance(node, (*Function, ast.ClassDef)):
                uses.setdefault(node.name, set()).update(_words(node) - {node.name})
        roots |= _module_level(tree)
    live = roots | (old & set(uses))
    todo = list(live)
    while todo:
        for name in uses.get(todo.pop(), set()) - live:
            live.add(name)
            todo.append(name)
    return live


def _words(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }
    dead = {
        id(n)
        for branch in ast.walk(node)
        if isinstance(branch, ast.If) and _never(branch.test)
        for s in branch.body
        for n in ast.walk(s)
    }
    if not dead:
        return names
    alive = [n for n in ast.walk(node) if id(n) not in dead]
    return {n.id for n in alive if isinstance(n, ast.Name)} | {n.attr for n in alive if isinstance(n, ast.Attribute)}


def _module_level(tree: ast.AST) -> set[str]:
    """Words used outside of function bodies; definitions do not count as uses of themselves."""
    found: set[str] = set()
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, (*Function, ast.ClassDef)):
            for part in node.decorator_list:
                found |= _words(part)
            continue
        found |= _words(node)
    return found


def _is_kernel(file: FileChange, node: ast.AST) -> bool:
    assert file.after is not None
    parts = [*node.decorator_list, *getattr(node, "bases", [])]  # type: ignore[attr-defined]
    return any(
        below(n, KERNELS) for p in parts for n in file.after.names.resolve(p.func if isinstance(p, ast.Call) else p)
    )


def _wholly_new(file: FileChange, node: Any) -> bool:
    return file.before is None or not any(
        isinstance(n, (*Function, ast.ClassDef)) and n.name == node.name
        for n in file.before.nodes  # type: ignore[attr-defined]
    )


def _dead_branches(file: FileChange) -> list[Hit]:
    """New branches on a constant: what stands in them never runs, or what stood there before no longer does."""
    hits = []
    for node in file.new(ast.If, ast.While, ast.IfExp):
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
            continue
        if isinstance(node.test, ast.Constant) or _never(node.test):
            hits.append(file.hit("refuse", node, f"a branch on the constant {ast.unparse(node.test)}"))
    return hits


def _never(test: ast.expr) -> bool:
    """Whether a condition is false by its text: constants, comparisons of constants, and `... and False`."""
    if isinstance(test, ast.Constant):
        return not test.value
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_never(v) for v in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.Constant) and bool(test.operand.value)
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Constant)
        and all(isinstance(c, ast.Constant) for c in test.comparators)
    ):
        values = [test.left.value, *(c.value for c in test.comparators if isinstance(c, ast.Constant))]
        return not all(_holds(op, one, other) for op, one, other in zip(test.ops, values, values[1:]))
    return (
        isinstance(test, ast.Call)
        and called_name(test) in ("bool", "int")
        and all(isinstance(a, ast.Constant) and not a.value for a in test.args)
    )


def _holds(op: ast.cmpop, one: Any, other: Any) -> bool:
    """A comparison of two constants; one that raises never holds."""
    known = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
             ast.Gt: operator.gt,             ast.GtE: operator.ge,
             ast.Is: operator.is_, ast.IsNot: operator.is_not}  # fmt: skip
    compare = known.get(type(op))
    try:
        return compare is not None and bool(compare(one, other))
    except TypeError:
        return False


def _all_dead(change: Change, live: set[str]) -> list[Hit]:
    """A patch that only defines what nothing uses does nothing."""
    touched = []
    for file in change.python:
        assert file.after is not None
        new = {n.lineno: n for n in file.after.nodes if isinstance(n, (*Function, ast.ClassDef)) and n.name not in live}
        spans = [range(n.lineno - len(n.decorator_list), (n.end_lineno or n.lineno) + 1) for n in new.values()]
        spans += [
            range(n.lineno, (n.end_lineno or n.lineno) + 1)
            for n in file.after.nodes
            if isinstance(n, ast.stmt) and _unread(change, file, n)
        ]
        for number, text in file.patch.added.items():
            code = (
                text.strip()
                and not text.strip().startswith(("#", "@", "import ", "from "))
                and constant_text(_expression(text)) is None
            )
            if code:
                touched.append(any(number in span for span in spans))
        touched += [False] * len(file.patch.removed)
    touched += [False for file in change.files if file.after is None]
    if touched and all(touched):
        return [Hit("refuse", change.python[0].path, None, "everything that the patch adds is reached from nowhere")]
    return []


def _unread(change: Change, file: FileChange, node: Any) -> bool:
    """A new field, constant or attribute whose name stands nowhere else in the tree."""
    assert file.after is not None
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.lineno not in file.added:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [
        t.attr if isinstance(t, ast.Attribute) else t.id for t in targets if isinstance(t, (ast.Name, ast.Attribute))
    ]
    calls = node.value is not None and any(isinstance(n, (ast.Call, ast.Await)) for n in ast.walk(node.value))
    if (
        calls
        or len(names) != len(targets)
        or any(below(b, ("torch",)) for t in targets for b in file.after.names.resolve(t))
    ):
        return False
    return all(sum(len(re.findall(rf"\b{name}\b", text)) for text in change.tree.values()) == 1 for name in names)


def _expression(text: str) -> ast.AST | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
