"""Which classes of change a patch uses: `config`, `backend`, `python`, `kernel`.

config: only values change (constants, settings in data files). backend: another implementation that a library offers is
chosen (compile, fused optimizers, SDPA, memory formats, flags). kernel: code for a device or another compiler.
python: the rest. A patch of several kinds has several classes, and a contract must allow each of them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from scripts.judge.change import Block, Change, FileChange, Function, below, key

CLASSES = ("config", "backend", "python", "kernel")
DATA_FILES = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".env")
NATIVE_FILES = (".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".hip", ".ptx", ".metal", ".pyx")
KERNEL = ("triton", "numba", "torch.utils.cpp_extension", "cupy", "torch.library",
          "torch.autograd.Function", "pycuda", "helion", "cutlass", "tilelang",
          "torch.cuda._compile_kernel", "torch.mps.compile_shader")  # fmt: skip
BACKEND = ("torch.compile", "torch.backends", "torch.set_float32_matmul_precision", "torch.autocast",
           "torch.amp", "torch.cuda.amp", "torch.channels_last", "torch.channels_last_3d",
           "torch.nn.functional.scaled_dot_product_attention", "torch.nn.attention", "torch.jit",
           "torch._dynamo.config", "torch._inductor.config", "torch.cuda.CUDAGraph",
           "torch.cuda.graph", "torch.cuda.make_graphed_callables", "torch.inference_mode",
           "torch.no_grad", "torch.set_default_dtype", "torch.compiler",
           "torch.use_deterministic_algorithms")  # fmt: skip
BACKEND_KEYWORDS = {"fused", "foreach", "capturable", "set_to_none", "pin_memory", "non_blocking",
                    "num_workers", "persistent_workers", "prefetch_factor", "memory_format",
                    "attn_implementation", "mode", "dynamic", "fullgraph", "is_causal", "cache_enabled"}  # fmt: skip


def classify(change: Change) -> list[str]:
    """Classes of a patch, in the order of `CLASSES`. Unknown file types are `kernel` where native, else `python`."""
    found: set[str] = set()
    for file in change.files:
        suffix = PurePosixPath(file.path).suffix
        if suffix in DATA_FILES:
            found.add("config")
        elif suffix in NATIVE_FILES:
            found.add("kernel")
        elif file.after is None or file.before is None:
            found |= {"kernel"} if file.after and _kernel(file) else {"python"}
        else:
            found |= _python(file)
    return [name for name in CLASSES if name in found]


def _python(file: FileChange) -> set[str]:
    assert file.before is not None and file.after is not None
    if _skeletons(file.before.tree) == _skeletons(file.after.tree):
        return {"config"} if ast.dump(file.before.tree) != ast.dump(file.after.tree) else set()
    found = {"kernel"} if _kernel(file) else set()
    plain = Counter(_skeleton(s, strip=True) for s in _units(file.before.tree))
    for statement in _new(file):
        if _skeleton(statement, strip=True) in plain or _chooses(file, statement):
            found.add("backend")  # an old statement with other backend words, or a statement that is nothing else
        elif any(below(n, KERNEL) for node in ast.walk(statement) for n in file.after.names.resolve(node)):
            found.add("kernel")
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            found.add("python")
    return found or {"python"}


def _kernel(file: FileChange) -> bool:
    return any(below(name, KERNEL) for name, _ in file.references())


def _new(file: FileChange) -> list[ast.stmt]:
    assert file.before is not None and file.after is not None
    old = Counter(key(s) for s in _units(file.before.tree))
    return [s for s in _units(file.after.tree) if not _take(old, key(s))]


def _take(counter: Counter[str], text: str) -> bool:
    counter[text] -= 1
    return counter[text] >= 0


def _chooses(file: FileChange, statement: ast.stmt) -> bool:
    """Whether a statement only picks an implementation: its calls and references to libraries are backend words."""
    assert file.after is not None
    if isinstance(statement, (*Function, ast.ClassDef)):
        return any(below(n, BACKEND) for d in statement.decorator_list for n in file.after.names.resolve(d))
    nodes = (
        list(ast.walk(statement))
        if not isinstance(statement, Block)
        else [n for i in getattr(statement, "items", []) for n in ast.walk(i)]
    )
    names = {
        n
        for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call))
        for n in file.after.names.resolve(node)
    }
    words = {k.arg for node in nodes if isinstance(node, ast.Call) for k in node.keywords}
    return any(below(n, BACKEND) for n in names) or bool(words & (BACKEND_KEYWORDS - {"mode", "dynamic"}))


def _units(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements, compound ones by their header only (see `change.key`)."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _skeletons(tree: ast.AST) -> list[str]:
    return [_skeleton(s) for s in _units(tree)]


class _Blank(ast.NodeTransformer):
    """Constants become one constant; with `strip`, they stay and backend keywords go."""

    def __init__(self, strip: bool) -> None:
        self.strip = strip

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(0) if not self.strip and isinstance(node.value, (int, float, str, bool)) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return (
            ast.Constant(0) if not self.strip and isinstance(node.operand, ast.Constant) else self.generic_visit(node)
        )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self.strip:
            node.keywords = [k for k in node.keywords if k.arg not in BACKEND_KEYWORDS]
        return node


def _skeleton(statement: ast.stmt, strip: bool = False) -> str:
    if isinstance(statement, (*Block, *Function, ast.ClassDef)):
        header = ast.parse(key_source(statement)).body[0]
        return ast.dump(_Blank(strip).visit(header))
    return ast.dump(_Blank(strip).visit(ast.parse(ast.unparse(statement)).body[0]))


def key_source(statement: ast.stmt) -> str:
    """A compound statement with an empty body, as text."""
    kept = {name: getattr(statement, name) for name in statement._fields}
    for name in ("body", "orelse", "finalbody"):
        if name in kept:
            kept[name] = [ast.Pass()] if name == "body" else []
    if "handlers" in kept:
        kept["handlers"] = [ast.ExceptHandler(h.type, h.name, [ast.Pass()]) for h in kept["handlers"]] or [
            ast.ExceptHandler(None, None, [ast.Pass()])
        ]
    if isinstance(statement, ast.Match):
        kept["cases"] = [ast.match_case(c.pattern, c.guard, [ast.Pass()]) for c in kept["cases"]]
    return ast.unparse(ast.fix_missing_locations(type(statement)(**kept)))
