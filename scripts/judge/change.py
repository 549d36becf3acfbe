"""What a patch changes, as rules see it: both sides of each Python file, what is new, and what names really mean.

Rules ask three questions. *What does the new code refer to?* (`references`: names are followed through imports,
aliases, default arguments, `getattr` with a constant, `sys.modules[...]`, and modules reached through other modules.)
*What is new?* (a node on an added line whose text did not stand in the old file as often: moved or re-indented code
is not new.) *What is gone or done less often?* (`sites`: calls with the conditions around them, to compare before and
after.)

The analysis ignores flow and scope where that errs on the safe side: a name that may mean `os.system` does. It is a
tripwire; the launcher, which owns the process, is the wall. Cost: linear in the changed files, about 20 ms per 1,000
lines.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scripts.judge.patchfile import FilePatch

Action = str  # refuse, review or side_effect; the schema of guard.json holds the writer to it
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Block = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
BUILTINS = frozenset(dir(builtins))
# Modules of the standard library that other modules carry as attributes (`torch.utils.data.os`, `dataclasses.sys`).
CARRIED = {"os", "sys", "subprocess", "socket", "ctypes", "threading", "builtins", "importlib",
           "inspect", "gc", "atexit", "multiprocessing", "posix", "time", "shutil", "pickle", "marshal"}  # fmt: skip
SAME_MODULE = {"posix": "os", "nt": "os", "_io": "io", "_thread": "threading", "_socket": "socket",
               "_ctypes": "ctypes", "posixpath": "os.path", "__builtins__": "builtins",
               "_pickle": "pickle"}  # fmt: skip


@dataclass(frozen=True)
class Hit:
    """What a rule found: `refuse` ends the candidate, `review` is for a reader, `side_effect` goes into the report."""

    action: Action
    path: str | None
    line: int | None
    reason: str


@dataclass(frozen=True)
class Site:
    """A place in the code, with the function around it and the conditions and loops on the way, outermost first."""

    node: Any
    function: str
    guards: tuple[str, ...]


class Module:
    """One version of one Python file. Raises SyntaxError, or ValueError for a null byte."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.tree = ast.parse(text)
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.names = Names(self)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, outermost first; rules ask many times."""
        return list(ast.walk(self.tree))

    @cached_property
    def dumps(self) -> Counter[str]:
        """How often each expression and each statement header stands in the file, by its text."""
        return Counter(key(node) for node in self.nodes if isinstance(node, (ast.expr, ast.stmt, ast.keyword)))

    @cached_property
    def functions(self) -> dict[str, Any]:
        """Functions by qualified name; of two with one name the last, as Python does it."""
        return {self.qualname(node): node for node in self.nodes if isinstance(node, Function)}

    def qualname(self, node: ast.AST) -> str:
        """Dotted path of the definitions around a node, its own included; "" at module level."""
        parts = [n.name for n in [node, *self.above(node)] if isinstance(n, (*Function, ast.ClassDef))]
        return ".".join(reversed(parts))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def enclosing(self, node: ast.AST) -> str:
        """Qualified name of the function around a node, "" at module level."""
        function = next((n for n in self.above(node) if isinstance(n, Function)), None)
        return self.qualname(function) if function is not None else ""

    def guards(self, node: ast.AST) -> tuple[str, ...]:
        """Conditions and loops around a node within its function, as text, outermost first."""
        found, child = [], node
        for parent in self.above(node):
            if isinstance(parent, (*Function, ast.Lambda, ast.ClassDef)):
                break
            text = _guard(parent, child)
            if text:
                found.append(text)
            child = parent
        return tuple(reversed(found))

    def sites(self, wanted: Callable[[ast.Call], bool]) -> list[Site]:
        """Calls that `wanted` accepts, with their function and guards."""
        calls = (n for n in self.nodes if isinstance(n, ast.Call) and wanted(n))
        return [Site(n, self.enclosing(n), self.guards(n)) for n in calls]

    @cached_property
    def referenced(self) -> Counter[str]:
        """How often each bare or attribute name is read anywhere in the file."""
        loads = Counter(n.id for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        loads.update(n.attr for n in self.nodes if isinstance(n, ast.Attribute))
        return loads


class Names:
    """What the names of a module may stand for, as dotted origins (`t` -> `time.perf_counter`)."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.origins: dict[str, set[str]] = {}
        self.locals: dict[ast.AST, set[str]] = {}
        self.returns: dict[str, list[ast.AST]] = {}
        for function in (n for n in module.nodes if isinstance(n, Function)):
            values = [
                n.value for n in own_nodes(function) if isinstance(n, (ast.Return, ast.Yield)) and n.value is not None
            ]
            self.returns.setdefault(function.name, []).extend(values)
        self._bind_imports()
        pairs = list(self._assignments())
        for _ in range(4):  # chains of aliases: a = b = c
            before = sum(map(len, self.origins.values()))
            for target, value in pairs:
                found = self.resolve(value)
                if found:
                    self.origins.setdefault(target, set()).update(found)
            if sum(map(len, self.origins.values())) == before:
                break

    def resolve(self, node: ast.AST | None) -> frozenset[str]:
        """Dotted origins that an expression may stand for; empty where nothing is known."""
        return frozenset(canonical(name) for name in self._resolve(node, 0))

    def _bind_imports(self) -> None:
        for node in self.module.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.origins.setdefault(name, set()).add(alias.name if alias.asname else name)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                for alias in node.names:
                    self.origins.setdefault(alias.asname or alias.name, set()).add(f"{base}.{alias.name}")

    def _assignments(self) -> Iterator[tuple[str, ast.AST]]:
        """Pairs of a bound name (or dotted target) and an expression that it may be bound to."""
        for node in self.module.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from _pairs(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                yield from _pairs(node.target, node.value)
            elif isinstance(node, (ast.For, ast.comprehension)):
                for value in _elements(node.iter):
                    yield from _pairs(node.target, value)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                yield from _pairs(node.optional_vars, node.context_expr)
            elif isinstance(node, (*Function, ast.Lambda)):
                places = [*node.args.posonlyargs, *node.args.args]
                for arg, default in zip(reversed(places), reversed(node.args.defaults)):
                    yield arg.arg, default
                yield from ((a.arg, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d is not None)

    def _resolve(self, node: ast.AST | None, depth: int) -> set[str]:
        if node is None or depth > 12:
            return set()
        again = depth + 1
        if isinstance(node, ast.Name):
            found = set(self.origins.get(node.id, ()))
            if node.id in BUILTINS and not self._local(node):
                found.add(f"builtins.{node.id}")
            return found
        if isinstance(node, ast.Attribute):
            found = {f"{base}.{node.attr}" for base in self._resolve(node.value, again)}
            return found | set(self.origins.get(dotted(node) or "", ()))
        if isinstance(node, ast.Call):
            return self._resolve_call(node, again)
        if isinstance(node, ast.Subscript):
            return self._resolve_subscript(node, again)
        if isinstance(node, ast.IfExp):
            return self._resolve(node.body, again) | self._resolve(node.orelse, again)
        if isinstance(node, ast.BoolOp):
            return set().union(*(self._resolve(value, again) for value in node.values))
        if isinstance(node, ast.NamedExpr):
            return self._resolve(node.value, again)
        return set()

    def _resolve_call(self, node: ast.Call, depth: int) -> set[str]:
        called = {canonical(name) for name in self._resolve(node.func, depth)}
        if isinstance(node.func, ast.Lambda):
            return self._resolve(node.func.body, depth)
        handed: set[str] = set()
        for value in self.returns.get(called_name(node), []):  # what a function of this file hands out
            handed |= self._resolve(value, depth)
        if handed:
            return handed | {f"{name}()" for name in called}
        text = constant_text(node.args[0]) if node.args else None
        if called & {"builtins.getattr", "builtins.vars", "inspect.getattr_static"} and node.args:
            attribute = constant_text(node.args[1]) if len(node.args) > 1 else None
            bases = self._resolve(node.args[0], depth)
            if "builtins.vars" in called:
                return {f"{base}.__dict__" for base in bases}
            return {f"{base}.{attribute}" for base in bases} if attribute else set()
        if called & {"builtins.__import__", "importlib.import_module", "importlib.__import__"} and text:
            return {text.partition(".")[0] if "builtins.__import__" in called else text}
        if (
            called & {"functools.partial", "functools.wraps", "builtins.staticmethod", "builtins.property"}
            and node.args
        ):
            return self._resolve(node.args[0], depth)
        if called & {"operator.attrgetter", "operator.methodcaller"} and text:
            return {f"operator.attrgetter().{text}"}
        return {f"{name}()" for name in called}

    def _resolve_subscript(self, node: ast.Subscript, depth: int) -> set[str]:
        text = constant_text(node.slice)
        bases = {canonical(name) for name in self._resolve(node.value, depth)}
        if text and "sys.modules" in bases:
            return {text}
        if text:
            inside = {f"{base.removesuffix('.__dict__')}.{text}" for base in bases if base.endswith(".__dict__")}
            spaces = {"builtins.globals()", "builtins.locals()", "builtins.vars()"}
            return inside | (self._resolve(ast.Name(text, ast.Load()), depth) if bases & spaces else set())
        if isinstance(node.value, (ast.Tuple, ast.List, ast.Dict)):
            return set().union(*(self._resolve(value, depth) for value in _elements(node.value)))
        return set()

    def _local(self, node: ast.AST) -> bool:
        """Whether a function around the node binds the name (module level does not hide a builtin here)."""
        name = getattr(node, "id", "")
        scopes = (scope for scope in self.module.above(node) if isinstance(scope, (*Function, ast.Lambda)))
        return any(name in self._bound(scope) for scope in scopes)

    def _bound(self, scope: ast.AST) -> set[str]:
        if scope not in self.locals:
            own = list(own_nodes(scope))
            loops = {t for n in own if isinstance(n, ast.comprehension) for t in ast.walk(n.target)}
            bound = {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)}  # type: ignore[attr-defined]
            bound |= {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in loops}
            self.locals[scope] = bound
        return self.locals[scope]


@dataclass
class FileChange:
    """One changed file. `before` and `after` are None where the file does not exist or is no Python."""

    path: str
    patch: FilePatch
    before_text: str | None
    after_text: str | None
    before: Module | None = None
    after: Module | None = None

    @cached_property
    def added(self) -> frozenset[int]:
        return frozenset(self.patch.added)

    def new(self, *types: type) -> Iterator[Any]:
        """Nodes of these types that are new: on an added line (blocks: their header), and oftener than before."""
        return (node for node in self._new if isinstance(node, types))

    @cached_property
    def _new(self) -> list[ast.AST]:
        if self.after is None:
            return []
        old = self.before.dumps if self.before else Counter()
        touched = (n for n in self.after.nodes if isinstance(n, (ast.expr, ast.stmt, ast.keyword)) and self._touched(n))
        return [node for node in touched if self.after.dumps[text := key(node)] > old[text]]

    def references(self) -> list[tuple[str, ast.AST]]:
        """(dotted origin, node) of everything new that the file refers to: imports and whole attribute chains."""
        if not hasattr(self, "_references"):
            self._references = list(self._find_references())
        return self._references

    def hit(self, action: Action, node: ast.AST, reason: str) -> Hit:
        """A hit at the added line that the node touches first."""
        return Hit(action, self.path, self.line(node), reason)

    def called(self, call: ast.Call) -> frozenset[str]:
        """What a call of the new version may call."""
        assert self.after is not None
        return self.after.names.resolve(call.func)

    def line(self, node: ast.AST) -> int:
        """The added line that a node touches first; its first line where it touches none."""
        start = getattr(node, "lineno", 1)
        end = getattr(node, "end_lineno", None) or start
        return next((n for n in range(start, end + 1) if n in self.added), start)

    def _touched(self, node: Any) -> bool:
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if isinstance(node, (*Function, ast.ClassDef)):
            start = min([start, *(d.lineno for d in node.decorator_list)])
        body = getattr(node, "body", None)
        if isinstance(node, (*Block, *Function, ast.ClassDef)) and body:
            end = max(start, body[0].lineno - 1)
        return any(start <= n <= end for n in self.added)

    def _find_references(self) -> Iterator[tuple[str, ast.AST]]:
        if self.after is None:
            return
        old_imports = set(imports(self.before)) if self.before else set()
        for module, node in imports_with_nodes(self.after):
            if self._touched(node) and module not in old_imports:
                yield canonical(module), node
        for node in self.new(ast.Name, ast.Attribute, ast.Call, ast.Subscript):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                continue
            parent = self.after.parents.get(node)
            if isinstance(parent, ast.Attribute) and isinstance(node, (ast.Name, ast.Attribute)):
                continue  # the whole chain is reported, once
            for name in sorted(self.after.names.resolve(node)):
                if not name.endswith("()"):
                    yield name, node


@dataclass
class Change:
    """A patch against a tree, with the contract's constraints; `tree` has the text of every Python file after it."""

    files: list[FileChange]
    constraints: Mapping[str, Any] = field(default_factory=dict)
    tree: Mapping[str, str] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()
    declared: Mapping[str, Any] = field(default_factory=dict)
    """`knobs` and `knobs_file` of the specification, where it has them."""

    @property
    def python(self) -> list[FileChange]:
        """Changed Python files that exist after the patch."""
        return [file for file in self.files if file.after is not None]

    @property
    def both(self) -> list[FileChange]:
        """Changed Python files on both sides."""
        return [file for file in self.files if file.after is not None and file.before is not None]

    def allows(self, name: str) -> bool:
        """Whether the contract gives a named permission (`constraints.allow`)."""
        return name in (self.constraints.get("allow") or ())

    def forbids(self, name: str) -> bool:
        """Whether the contract forbids a named side effect (`constraints.forbid`)."""
        return name in (self.constraints.get("forbid") or ())

    def refer(self, *prefixes: str) -> Iterator[tuple[FileChange, str, ast.AST]]:
        """New references whose origin is one of the dotted prefixes or lies below it."""
        for file in self.python:
            for name, node in file.references():
                if below(name, prefixes):
                    yield file, name, node

    def refuse_references(self, reason: str, *prefixes: str, action: Action = "refuse") -> list[Hit]:
        """One hit for each new reference below the prefixes; `reason` may hold `{name}`."""
        return [Hit(action, f.path, f.line(n), reason.format(name=name)) for f, name, n in self.refer(*prefixes)]


def below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == p or name.startswith((p + ".", p + "(")) for p in prefixes)


def canonical(name: str) -> str:
    """One name for one thing: `posix.system` and `torch.utils.data.os.system` are `os.system`."""
    parts = name.split(".")
    for at in range(len(parts) - 1, 0, -1):
        # An attribute of some result may share a module's name; the pool of concurrent.futures is no module of ours.
        of_a_result = any(part.endswith(")") for part in parts[:at])
        known = parts[at].lstrip("_") in CARRIED and parts[0] not in ("", "concurrent", parts[at])
        if known and not of_a_result:
            parts = [parts[at].lstrip("_"), *parts[at + 1 :]]
            break
    parts[0] = SAME_MODULE.get(parts[0], parts[0])
    if parts[:2] == ["io", "open"]:
        parts[:2] = ["builtins", "open"]
    return ".".join(parts)


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` of a chain of names, None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def called_name(call: ast.Call) -> str:
    """The last name of what is called: `step` of `optimizer.step()`; "" where there is none."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def constant_text(node: ast.AST | None) -> str | None:
    """The string that a plain constant is; None for anything built."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def imports(module: Module) -> Iterator[str]:
    """Dotted names that a module imports."""
    return (name for name, _ in imports_with_nodes(module))


def imports_with_nodes(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """(dotted name, statement) for each import; relative ones start with dots, `*` stays `*`."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def key(node: ast.AST) -> str:
    """Text of an expression or simple statement, or of the header of a compound one; places do not count."""
    if isinstance(node, (ast.If, ast.While)):
        return f"{type(node).__name__} {ast.dump(node.test)}"
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return f"For {ast.dump(node.target)} {ast.dump(node.iter)}"
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return "With " + " ".join(ast.dump(item) for item in node.items)
    if isinstance(node, ast.Try):
        return "Try " + " ".join(ast.dump(h) for h in node.handlers)
    if isinstance(node, Function):
        decorators = " ".join(ast.dump(d) for d in node.decorator_list)
        return f"Function {node.name} {ast.dump(node.args)} {decorators}"
    if isinstance(node, ast.ClassDef):
        return f"Class {node.name} {' '.join(ast.dump(n) for n in [*node.bases, *node.keywords, *node.decorator_list])}"
    return ast.dump(node)


def unparse(node: ast.AST, limit: int = 60) -> str:
    """Source text of a node on one line, shortened."""
    text = re.sub(r"\s+", " ", ast.unparse(node))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def statements(function: Any) -> list[ast.stmt]:
    """The body of a function without its docstring."""
    body = list(function.body)
    if body and isinstance(body[0], ast.Expr) and constant_text(body[0].value) is not None:
        body = body[1:]
    return body


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function's body without those of functions and classes inside it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*Function, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def parameters(function: Any) -> list[str]:
    """Names of a function's arguments without `self` and `cls`."""
    a = function.args
    names = [arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]]
    return [name for name in names if name not in ("self", "cls")]


def less_often(site: Site, before: Iterable[Site]) -> str | None:
    """How a call happens under more conditions, or in fewer loops, than every call of `before`; None where it does not.

    A loop in another's place says nothing here: how often it turns is for the run to say.
    """
    before = list(before)
    if not before or any(one.guards == site.guards for one in before):
        return None
    known = {guard for one in before for guard in one.guards}
    conditions = [g for g in site.guards if not g.startswith("for ") and g not in known]
    if conditions:
        return f"now only {conditions[-1]!r}"
    loops, new = _loops(site), [g for g in _loops(site) if g not in known]
    fewest = min(len(_loops(one)) for one in before)
    if len(loops) < fewest:
        lost = [g for g in _loops(before[0]) if g not in site.guards]
        return f"no longer in {lost[-1]!r}" if lost else None
    counted = [g for g in new if re.search(r"\d|%|^for \(|^for \[|^for range", g)]
    if len(loops) > fewest and counted:
        return f"now in {counted[-1]!r}"
    return None


def _loops(site: Site) -> list[str]:
    return [guard for guard in site.guards if guard.startswith(("for ", "while "))]


def _guard(parent: ast.AST, child: ast.AST) -> str | None:
    if isinstance(parent, (ast.If, ast.While, ast.IfExp)):
        if child is parent.test:
            return None
        body = parent.body if isinstance(parent.body, list) else [parent.body]
        word = "while" if isinstance(parent, ast.While) else "if"
        return f"{word} {'' if child in body else 'not '}{ast.unparse(parent.test)}"
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return None if child is parent.iter else f"for {ast.unparse(parent.iter)}"
    if isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)) and not isinstance(
        child, ast.comprehension
    ):
        conditions = [ast.unparse(test) for one in parent.generators for test in one.ifs]
        loops = ", ".join(ast.unparse(one.iter) for one in parent.generators)
        return f"if {' and '.join(conditions)}" if conditions else f"for {loops}"
    if isinstance(parent, ast.BoolOp) and parent.values[0] is not child:
        return f"if {ast.unparse(parent.values[0])}"
    if isinstance(parent, ast.ExceptHandler):
        return "except"
    if isinstance(parent, ast.Try) and child in parent.orelse:
        return "else"
    if isinstance(parent, ast.match_case):
        return f"case {ast.unparse(parent.pattern)}"
    if isinstance(parent, ast.comprehension) and child in parent.ifs:
        return f"if {ast.unparse(child)}"
    return None


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for one, other in zip(target.elts, value.elts):
                yield from _pairs(one, other)
        return
    name = dotted(target)
    if name:
        yield name, value


def _elements(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return list(node.elts)
    return list(node.values) if isinstance(node, ast.Dict) else []
