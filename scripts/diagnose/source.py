"""What the job's source says, read with `ast` alone: functions, classes and sites that may cost time.

A site is a place in the source of a kind that the detectors ask for (`KINDS`). It says nothing about cost: the
timeline of the profiled run does. Sites are found in every function of the tree; structure.py keeps those that ran.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SKIPPED_FOLDERS = {"tests", "test", "docs", "examples", ".git", "__pycache__"}
MAX_BYTES = 1_000_000

READERS = {
    "PIL.Image.open",
    "cv2.imread",
    "cv2.imdecode",
    "imageio.imread",
    "imageio.v2.imread",
    "imageio.v3.imread",
    "torchaudio.load",
    "soundfile.read",
    "librosa.load",
    "numpy.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "pandas.read_csv",
    "json.load",
    "json.loads",
    "pickle.load",
    "pickle.loads",
    "torchvision.io.read_image",
    "open",
    "torch.load",
}
CAST_TO_HOST = {"item", "cpu", "numpy", "tolist", "nonzero"}
SYNCHRONISERS = {"torch.cuda.synchronize", "torch.xpu.synchronize", "torch.mps.synchronize"}
REDUCTIONS = {"norm", "mean", "sum", "std", "var", "max", "min", "abs", "pow", "square", "any", "all"}
LOGGERS = {
    "print",
    "info",
    "debug",
    "warning",
    "log",
    "log_metrics",
    "add_scalar",
    "add_histogram",
    "add_scalars",
    "write",
    "writerow",
}
LOGGER_OWNERS = re.compile(r"(log|wandb|writer|tensorboard|tb|mlflow|run|csv|file|out|history|sys)", re.IGNORECASE)
EVALUATION_NAME = re.compile(
    r"(^|_)(eval|evaluate|evaluation|validate|validation|valid|val|estimate_loss|test)(_|$)", re.IGNORECASE
)
GRAD_FREE = {"torch.no_grad", "torch.inference_mode", "no_grad", "inference_mode", "smart_inference_mode"}
OPTIMIZERS = {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop"}
COLLECTIVES = {
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "all_to_all",
    "all_gather_into_tensor",
}


@dataclass
class Function:
    """One `def`: `first_line` counts decorators, as code objects do; `name` is the bare name that profilers print."""

    path: str
    line: int
    first_line: int
    end_line: int
    name: str
    qualname: str
    calls: list[str] = field(default_factory=list)  # bare names of what it calls


@dataclass
class Site:
    """A place of one kind. `loops` counts the loops around it inside its function, `guard` is a `step % n` test around it."""

    kind: str
    path: str
    line: int
    end_line: int
    code: str
    function: str
    function_line: int
    callee: str
    loops: int
    guard: str | None
    detail: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for structure.json."""
        return asdict(self)


@dataclass
class Source:
    """The tree as read: `texts` {path: lines}, functions, classes {(path, line): name}, sites."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    classes: dict[tuple[str, int], str] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def line(self, path: str, number: int) -> str | None:
        """The text of a line, stripped; None where the tree has no such line."""
        lines = self.texts.get(path, [])
        return lines[number - 1].strip() if 0 < number <= len(lines) else None


def read(tree: str | Path) -> Source:
    """Parse every Python file of `tree` in path order. Cost: about 1 s for 300 files (ultralytics)."""
    tree, source = Path(tree), Source()
    for path in sorted(tree.rglob("*.py")):
        relative = path.relative_to(tree)
        if SKIPPED_FOLDERS & set(relative.parts[:-1]) or path.stat().st_size > MAX_BYTES:
            continue
        name = relative.as_posix()
        try:
            text = path.read_text(encoding="utf-8")
            module = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            source.unreadable.append(name)
            continue
        source.texts[name] = text.splitlines()
        _Reader(name, source).visit(module)
    source.sites.sort(key=lambda site: (site.path, site.line, site.kind, site.callee))
    return source


def excerpt(text: list[str], line: int, around: int = 3) -> str:
    """Numbered lines around `line`, the line itself marked with `>`."""
    first, last = max(1, line - around), min(len(text), line + around)
    return "\n".join(f"{'>' if n == line else ' '} {n:4d}  {text[n - 1]}" for n in range(first, last + 1))


class _Reader(ast.NodeVisitor):
    """One pass over a file with the enclosing functions, loops, guards and `with` blocks at hand."""

    def __init__(self, path: str, source: Source) -> None:
        self.path, self.source = path, source
        self.imports: dict[str, str] = {}
        self.names: list[str] = []
        self.functions: list[Function] = []
        self.loops: list[ast.AST] = []
        self.guards: list[str] = []
        self.gradless = 0

    # scopes

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}" if node.module else alias.name

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.source.classes[self.path, node.lineno] = node.name
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self.names.append(node.name)
        function = Function(
            self.path, node.lineno, first, node.end_lineno or node.lineno, node.name, ".".join(self.names)
        )
        self.source.functions.append(function)
        outer = self.loops, self.guards, self.gradless
        gradless = any(self.dotted(d.func if isinstance(d, ast.Call) else d) in GRAD_FREE for d in node.decorator_list)
        self.loops, self.guards, self.gradless = [], [], int(gradless)
        self.functions.append(function)
        self.function_sites(node, gradless)
        for child in node.body:
            self.visit(child)
        self.functions.pop()
        self.loops, self.guards, self.gradless = outer
        self.names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.loops.append(node)
        self.loop_sites(node)
        for child in [*node.body, *node.orelse]:
            self.visit(child)
        self.loops.pop()

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.loops.append(node)
        self.generic_visit(node)
        self.loops.pop()

    def visit_comprehension_scope(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.comprehension_sites(node)
        self.loops.append(node)
        self.generic_visit(node)
        self.loops.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_comprehension_scope

    def visit_If(self, node: ast.If) -> None:
        modulo = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(node.test))
        self.branch_sites(node.test)
        self.visit(node.test)
        self.guards += [ast.unparse(node.test)] if modulo else []
        for child in node.body:
            self.visit(child)
        self.guards = self.guards[:-1] if modulo else self.guards
        for child in node.orelse:
            self.visit(child)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        gradless = any(
            isinstance(i.context_expr, ast.Call) and self.dotted(i.context_expr.func) in GRAD_FREE for i in node.items
        )
        self.gradless += gradless
        self.generic_visit(node)
        self.gradless -= gradless

    visit_AsyncWith = visit_With

    # sites

    def add(self, kind: str, node: ast.AST, callee: str, **detail: Any) -> None:
        function = self.functions[-1] if self.functions else None
        lineno, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
        lines = self.source.texts[self.path]
        self.source.sites.append(
            Site(
                kind,
                self.path,
                lineno,
                end or lineno,
                lines[lineno - 1].strip() if lineno <= len(lines) else "",
                function.qualname if function else "<module>",
                function.first_line if function else 1,
                callee,
                len(self.loops),
                self.guards[-1] if self.guards else None,
                detail,
            )
        )

    def visit_Call(self, node: ast.Call) -> None:
        name = self.dotted(node.func)
        bare = name.rpartition(".")[2]
        if self.functions:
            self.functions[-1].calls.append(bare)
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        for kind, detail in self.call_kinds(node, name, bare, keywords):
            self.add(kind, node, bare, **detail)
        self.generic_visit(node)

    def call_kinds(
        self, node: ast.Call, name: str, bare: str, keywords: dict[str, ast.expr]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        method = isinstance(node.func, ast.Attribute)
        plain = {key: _plain(value) for key, value in keywords.items()}
        if (method and bare in CAST_TO_HOST and not node.args) or name in SYNCHRONISERS:
            yield "synchronisation", {"call": bare, "of": _text(node.func.value) if method else name}
        if name in {"float", "int", "bool"} and node.args and _looks_like_tensor(node.args[0]):
            yield "synchronisation", {"call": name, "of": _text(node.args[0])}
        if bare in {"DataLoader", "build_dataloader", "InfiniteDataLoader"}:
            yield (
                "dataloader",
                {
                    key: plain.get(key)
                    for key in (
                        "batch_size",
                        "num_workers",
                        "pin_memory",
                        "persistent_workers",
                        "prefetch_factor",
                        "shuffle",
                    )
                },
            )
        if bare in OPTIMIZERS and (name.startswith(("torch.optim", "optim.")) or "lr" in keywords):
            yield "optimizer", {"class": bare, "fused": plain.get("fused"), "foreach": plain.get("foreach")}
        if bare == "zero_grad" and plain.get("set_to_none") is False:
            yield "zero_grad", {"set_to_none": False}
        if bare == "zero_" and method and isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "grad":
            yield "zero_grad", {"set_to_none": False}
        if (
            bare in {"tril", "triu"}
            and name.startswith("torch.")
            and self.functions
            and self.functions[-1].name != "__init__"
        ):
            yield "mask_rebuilt", {}
        if bare == "generate":
            yield (
                "generate",
                {"use_cache": plain.get("use_cache"), "batched": None, "max_new_tokens": plain.get("max_new_tokens")},
            )
        if plain.get("use_cache") is False and bare != "generate":
            yield "cache_off", {}
        if plain.get("padding") == "max_length" or plain.get("pad_to_max_length") is True:
            yield "padding", {"to": plain.get("max_length"), "how": "tokenizer"}
        if name in READERS and not (name == "open" and _writes(node, plain)):
            yield "reading", {"call": name}
        if (bare in {"encode", "encode_plus", "batch_encode_plus", "tokenize"} and method) or bare == "tokenizer" or (bare in {"tok"} and node.args):
            yield "encoding", {"call": bare}
        if name in {"torch.save", "torch.distributed.checkpoint.save"} or bare in {
            "save_pretrained",
            "save_checkpoint",
            "save_model",
        }:
            yield "checkpoint", {"call": bare}
        if (
            name == "print"
            or (method and bare in LOGGERS and LOGGER_OWNERS.search(_text(node.func.value)))
            or name == "json.dump"
        ):
            yield "logging", {"call": bare}
        if bare == "double" and method and not node.args:
            yield "float64", {"call": "double"}
        if name == "torch.set_default_dtype" and node.args and "float64" in _text(node.args[0]):
            yield "float64", {"call": "set_default_dtype"}
        if any(
            "torch.float64" in _text(v) or "torch.double" in _text(v) for v in [*node.args, *keywords.values()]
        ) and (name.startswith("torch.") or bare == "to"):
            yield "float64", {"call": bare}
        if bare in {"to", "cuda"} and method:
            yield (
                "transfer",
                {
                    "call": bare,
                    "of": _text(node.func.value),
                    "to": _text(node.args[0]) if node.args else None,
                    "non_blocking": plain.get("non_blocking"),
                },
            )
        if bare == "cpu" and method and not node.args:
            yield (
                "transfer",
                {"call": "cpu", "of": _text(node.func.value), "to": "cpu", "non_blocking": plain.get("non_blocking")},
            )
        if bare == "scaled_dot_product_attention":
            mask = keywords.get("attn_mask") or (node.args[3] if len(node.args) > 3 else None)
            yield "sdpa", {"mask": mask is not None and _plain(mask) is not None, "causal": plain.get("is_causal")}
        if bare in {
            "enable_cudnn_sdp",
            "enable_flash_sdp",
            "enable_mem_efficient_sdp",
            "enable_math_sdp",
            "sdpa_kernel",
        }:
            yield "sdpa_backend", {"call": bare}
        if bare in {
            "use_deterministic_algorithms",
            "set_detect_anomaly",
            "set_float32_matmul_precision",
            "detect_anomaly",
        }:
            yield "setting", {"name": bare, "value": _plain(node.args[0]) if node.args else None}
        if name == "torch.compile" or (bare == "compile" and method and name.startswith(("self.", "model.", "net."))):
            yield "compile", {"options": plain}
        if bare == "autocast":
            yield "autocast", {"options": plain}
        if bare in {"empty_cache", "collect"} and name in {"torch.cuda.empty_cache", "gc.collect"}:
            yield "housekeeping", {"call": name}
        if bare in {"backward", "step"} and method:
            yield bare, {"of": _text(node.func.value)}
        if bare in {"clip_grad_norm_", "pin_memory", "set_num_threads"}:
            yield bare.strip("_"), {}
        if bare in COLLECTIVES and (name.startswith(("torch.distributed", "dist.")) or "dist" in name):
            yield "collective", {"call": bare}
        if bare == "eval" and method and not node.args:
            yield "eval_mode", {"of": _text(node.func.value), "no_grad": bool(self.gradless)}
        if "channels_last" in " ".join(_text(v) for v in [*node.args, *keywords.values()]):
            yield "channels_last", {}
        if bare in {"tensor", "as_tensor", "from_numpy", "LongTensor", "FloatTensor"} and name.startswith("torch."):
            yield (
                "tensor_from_host",
                {"call": bare, "device": _text(keywords["device"]) if "device" in keywords else None},
            )

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            name = self.dotted(target)
            if name.startswith(("torch.backends.", "torch.set_", "os.environ")) or name.endswith(
                (".allow_tf32", "cudnn.benchmark")
            ):
                self.add("setting", node, name, name=name.removeprefix("torch.backends."), value=_plain(node.value))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # [PAD] * (MAX - len(ids)): padding to a constant length by hand
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and isinstance(node.right, ast.BinOp):
            right = node.right
            if isinstance(right.op, ast.Sub) and "len(" in _text(right.right):
                longest = "longest" in _text(right.left) or "max(" in _text(right.left)
                if not longest and not self.longest_of_batch(right.left):
                    self.add("padding", node, "list", to=_text(right.left), how="by hand")
        self.generic_visit(node)

    def longest_of_batch(self, node: ast.expr) -> bool:
        """Whether the length padded to was computed by `max(...)` in this file (longest of the batch, no constant)."""
        text = _text(node)
        return any(re.match(rf"\s*{re.escape(text)}\s*=\s*max\(", line) for line in self.source.texts[self.path])

    def loop_sites(self, node: ast.For | ast.AsyncFor) -> None:
        over = _text(node.iter)
        body = [n for child in node.body for n in ast.walk(child)]
        calls = {n.func.attr for n in body if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
        parameters = re.search(r"(parameters\(|named_parameters\(|state_dict\(|\.modules\(|named_modules\()", over)
        pairs = over.startswith("zip(") and "param" in over
        if (
            (parameters or pairs)
            and calls & {"lerp_", "copy_", "mul_", "add_"}
            and (pairs or "ema" in _text(node).lower())
        ):
            self.add("ema_loop", node, "for", over=over)
        elif parameters and calls & {"item", "norm", "mean", "std", "tolist", "numpy", "histc", "abs", "cpu"}:
            self.add("parameter_statistics", node, "for", over=over, calls=sorted(calls & (REDUCTIONS | CAST_TO_HOST)))
        elif parameters:
            self.add("parameter_loop", node, "for", over=over, calls=sorted(calls))
        if (
            isinstance(node.iter, ast.Call)
            and len(node.body)
            and "cat" in calls
            and any(
                isinstance(n, ast.Call) and _text(n.func).rpartition(".")[2] in {"argmax", "multinomial", "topk", "cat"}
                for n in body
            )
            and any(
                isinstance(n, ast.Call) and _text(n.func).rpartition(".")[2] in {"argmax", "multinomial"} for n in body
            )
        ):
            cached = "past_key_values" in _text(node) or "cache" in _text(node)
            self.add("decode_loop", node, "for", over=over, cached=cached)

    def comprehension_sites(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        element = node.value if isinstance(node, ast.DictComp) else node.elt
        lookup = isinstance(element, ast.Subscript) or (
            isinstance(element, ast.Call)
            and isinstance(element.func, ast.Attribute)
            and element.func.attr in {"get", "index"}
        )
        if lookup and len(node.generators) == 1 and self.functions:
            target = _text(node.generators[0].target)
            if re.search(rf"\b{re.escape(target)}\b", _text(element)):
                self.add("encoding", node, "<comprehension>", call="lookup", over=_text(node.generators[0].iter))

    def branch_sites(self, test: ast.expr) -> None:
        for node in ast.walk(test):
            if isinstance(node, ast.Call):
                name = self.dotted(node.func)
                if name in {
                    "torch.isnan",
                    "torch.isinf",
                    "torch.isfinite",
                    "torch.any",
                    "torch.all",
                    "torch.equal",
                    "torch.allclose",
                }:
                    self.add("synchronisation", node, "bool", call="bool", of=_text(node))

    def function_sites(self, node: ast.FunctionDef | ast.AsyncFunctionDef, gradless: bool) -> None:
        self.attention_site(node)
        self.evaluation_site(node, gradless)

    def attention_site(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Two matrix products with a softmax between them, in program order, in one function."""
        products, softmax = [], []
        for inner in _own_nodes(node):
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult):
                products.append(inner)
            elif isinstance(inner, ast.Call):
                bare = _text(inner.func).rpartition(".")[2]
                if bare in {"matmul", "bmm", "einsum", "baddbmm"}:
                    products.append(inner)
                elif bare == "softmax":
                    softmax.append(inner)
        for middle in softmax:
            before = [
                p
                for p in products
                if (p.lineno <= middle.lineno and p not in ast.walk(middle)) or p in list(ast.walk(middle))
            ]
            after = [p for p in products if p.lineno >= middle.lineno and p not in before]
            if before and after:
                first, last = max(before, key=lambda n: n.lineno), min(after, key=lambda n: n.lineno)
                text = "\n".join(self.source.texts[self.path][first.lineno - 1 : (last.end_lineno or last.lineno)])
                causal = bool(re.search(r"tril|triu|causal|masked_fill|-inf|bias", text))
                self.add(
                    "attention_handwritten",
                    first,
                    "matmul",
                    softmax_line=middle.lineno,
                    product_line=last.lineno,
                    end_line=last.end_lineno or last.lineno,
                    causal=causal,
                )
                self.source.sites[-1].function = ".".join(self.names)
                return

    def evaluation_site(self, node: ast.FunctionDef | ast.AsyncFunctionDef, gradless: bool) -> None:
        """A function that evaluates: switches the model to eval(), or is named so and loops; is it free of gradients?"""
        own = list(_own_nodes(node))
        evals = [
            n
            for n in own
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "eval" and not n.args
        ]
        trains = any(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "backward" for n in own
        )
        named = bool(EVALUATION_NAME.search(node.name)) and any(isinstance(n, ast.For | ast.While) for n in own)
        if trains or not (evals or named):
            return
        withs = [i.context_expr for n in own if isinstance(n, ast.With) for i in n.items]
        inside = any(isinstance(w, ast.Call) and self.dotted(w.func) in GRAD_FREE for w in withs)
        switched = any(isinstance(n, ast.Call) and self.dotted(n.func) == "torch.set_grad_enabled" for n in own)
        loops = [n for n in own if isinstance(n, ast.For)]
        where = loops[0] if loops else (evals[0] if evals else node)
        self.add(
            "evaluation",
            node,
            node.name,
            no_grad=gradless or inside or switched,
            loop_line=where.lineno,
            eval_call=bool(evals),
        )

    def dotted(self, node: ast.AST) -> str:
        """`torch.nn.functional.softmax` for `F.softmax`; import aliases resolved, unknown bases kept as written."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Subscript):
            node = node.value
            return ".".join([self.dotted(node), *reversed(parts)])
        if isinstance(node, ast.Name):
            parts.append(self.imports.get(node.id, node.id))
        else:
            parts.append("?")
        return ".".join(reversed(parts))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions nested in it, in source order of statements."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += list(ast.iter_child_nodes(node))


def _plain(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return _text(node)
    return value if isinstance(value, str | int | float | bool | None) else _text(node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _writes(node: ast.Call, plain: dict[str, Any]) -> bool:
    mode = plain.get("mode") or (_plain(node.args[1]) if len(node.args) > 1 else "r")
    return any(letter in str(mode) for letter in "wax+")


def _looks_like_tensor(node: ast.expr) -> bool:
    """`float(loss)`, `float(x.norm())`: a bare loss-like name or a reduction's result; not `int(sys.argv[1])`."""
    if isinstance(node, ast.Name):
        return bool(re.search(r"loss|grad_norm|acc|metric|logits|score", node.id))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REDUCTIONS
