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
LOADER_OPTIONS = ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "shuffle")
SDPA_SWITCHES = {
    "enable_cudnn_sdp",
    "enable_flash_sdp",
    "enable_mem_efficient_sdp",
    "enable_math_sdp",
    "sdpa_kernel",
}
SWITCHES = {
    "use_deterministic_algorithms",
    "set_detect_anomaly",
    "detect_anomaly",
    "set_float32_matmul_precision",
    "set_default_dtype",
    "set_num_threads",
}
RANK_TEST = re.compile(
    r"\b(local_|global_)?rank\b\s*(==|!=|<|>)|is_(global_zero|main_process|local_main_process)\b", re.I
)
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
    """A place of one kind. `loops` counts the loops around it inside its function, `guard` is a `step % n` test
    around it."""

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
        if RANK_TEST.search(ast.unparse(node.test)):
            self.add("rank_guard", node, "if")
        self.visit(node.test)
        self.guards += [ast.unparse(node.test)] if modulo else []
        for child in node.body:
            self.visit(child)
        self.guards = self.guards[:-1] if modulo else self.guards
        for child in node.orelse:
            self.visit(child)

    def visit_Try(self, node: ast.Try) -> None:
        caught = {self.dotted(t) for h in node.handlers for t in _exceptions(h.type)}
        if caught & {"ImportError", "ModuleNotFoundError", "Exception", ""}:
            for statement in node.body:
                names = [a.name for a in statement.names] if isinstance(statement, ast.Import) else []
                names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
                for name in names:
                    self.add("optional_import", statement, "import", package=name.partition(".")[0])
        self.generic_visit(node)

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
        call = _Call(node, self.dotted(node.func))
        if self.functions:
            self.functions[-1].calls.append(call.bare)
        for recognise in (_host_sites, _data_sites, _model_sites, _training_sites, _setting_sites):
            for kind, detail in recognise(call):
                self.add(kind, node, call.bare, **detail)
        for value in call.values:
            self.size_site(value)
        in_method = bool(self.functions) and self.functions[-1].name != "__init__"
        if in_method and call.bare in {"tril", "triu"} and call.name.startswith("torch."):
            self.add("mask_rebuilt", node, call.bare)
        if call.bare == "eval" and call.method and not node.args:
            self.add("eval_mode", node, "eval", of=call.owner, no_grad=bool(self.gradless))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            name = self.dotted(target)
            if name.startswith(("torch.backends.", "torch.set_", "os.environ")) or name.endswith(
                (".allow_tf32", "cudnn.benchmark")
            ):
                self.add("setting", node, name, name=name.removeprefix("torch.backends."), value=_plain(node.value))
        self.size_site(node.value)
        self.generic_visit(node)

    def size_site(self, node: ast.expr) -> None:
        """A number that would be an awkward size of a tensor: no multiple of 8, which tensor cores take."""
        todo = [node]
        while todo:
            value = todo.pop()
            if isinstance(value, ast.IfExp):
                todo += [value.body, value.orelse]
            elif isinstance(value, ast.Tuple):
                todo += value.elts
            elif isinstance(value, ast.Constant) and type(value.value) is int and value.value > 64 and value.value % 8:
                self.add("odd_size", value, "", value=value.value)

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
        multiplies = any(isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Mult) for n in body)
        blends = multiplies or bool(calls & {"lerp_", "copy_", "mul_", "add_"})
        if blends and (pairs or (parameters and "ema" in _text(node).lower())):
            self.add("ema_loop", node, "for", over=over)
        elif parameters and calls & {"item", "norm", "mean", "std", "tolist", "numpy", "histc", "abs", "cpu"}:
            self.add("parameter_statistics", node, "for", over=over, calls=sorted(calls & (REDUCTIONS | CAST_TO_HOST)))
        elif parameters:
            self.add("parameter_loop", node, "for", over=over, calls=sorted(calls))
        if "cat" in calls and calls & {"argmax", "multinomial"}:  # picks a token and appends it
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
                    self.add("synchronisation", node, "bool", call="bool", of=_text(node), read=_read(node))

    def function_sites(self, node: ast.FunctionDef | ast.AsyncFunctionDef, gradless: bool) -> None:
        self.attention_site(node)
        self.evaluation_site(node, gradless)

    def attention_site(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Two matrix products with a softmax between them, in program order, in one function."""
        products: list[ast.expr] = []
        softmax: list[ast.expr] = []
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
            before = [p for p in products if _precedes(p, middle)]
            after = [p for p in products if p not in before]
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
        """A function that evaluates: switches the model to eval(), or is named so and loops; is it free of
        gradients?"""
        own = list(_own_nodes(node))
        evals = [
            n
            for n in own
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "eval" and not n.args
        ]
        trains = any(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "backward" for n in own
        )
        repeats = any(isinstance(n, ast.For | ast.While) for n in own)
        named = bool(EVALUATION_NAME.search(node.name))
        # a constructor or a loader that ends in `.eval()` evaluates nothing
        if trains or not ((evals and repeats) or (named and (evals or repeats))):
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


class _Call:
    """A call as the recognisers see it: its resolved dotted name, its last part, the text before it, literal
    keywords."""

    def __init__(self, node: ast.Call, name: str) -> None:
        self.node, self.name, self.bare = node, name, name.rpartition(".")[2]
        self.method = isinstance(node.func, ast.Attribute)
        self.owner = _text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        self.keywords = {k.arg: k.value for k in node.keywords if k.arg}
        self.plain = {key: _plain(value) for key, value in self.keywords.items()}
        self.values = [*node.args, *self.keywords.values()]

    def first(self) -> str | None:
        """The text of the first positional argument."""
        return _text(self.node.args[0]) if self.node.args else None


def _read(expression: ast.expr) -> list[str]:
    """What is computed for the sake of a value that the host reads: names of the calls, and `""` for each operator."""
    made = []
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            made.append(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, (ast.BinOp, ast.Compare)) or (
            isinstance(node, ast.UnaryOp) and isinstance(_plain(node), str)
        ):
            made.append("")
    return sorted(made)


Sites = Iterator[tuple[str, dict[str, Any]]]


def _host_sites(call: _Call) -> Sites:
    """Waits for the device, moves between host and device, collectives."""
    node = call.node
    if (call.method and call.bare in CAST_TO_HOST and not node.args) or call.name in SYNCHRONISERS:
        made = _read(node.func.value) if isinstance(node.func, ast.Attribute) and call.bare in CAST_TO_HOST else []
        yield "synchronisation", {"call": call.bare, "of": call.owner or call.name, "read": made}
    if call.name in {"float", "int", "bool"} and node.args and _looks_like_tensor(node.args[0]):
        yield "synchronisation", {"call": call.name, "of": call.first(), "read": _read(node.args[0])}
    if call.bare in {"to", "cuda"} and call.method:
        detail = {"call": call.bare, "of": call.owner, "to": call.first()}
        yield "transfer", {**detail, "non_blocking": call.plain.get("non_blocking")}
    if call.bare == "cpu" and call.method and not node.args:
        yield "transfer", {"call": "cpu", "of": call.owner, "to": "cpu", "non_blocking": call.plain.get("non_blocking")}
    if call.bare in COLLECTIVES and "dist" in call.name:
        yield "collective", {"call": call.bare}
    if call.name in {"torch.cuda.empty_cache", "gc.collect"}:
        yield "housekeeping", {"call": call.name}


def _data_sites(call: _Call) -> Sites:
    """Loading, decoding, encoding, padding, tensors made from host values."""
    if call.bare == "unsqueeze" and call.first() == "0":
        yield "batch_of_one", {"of": call.owner}
    if call.bare in {"DataLoader", "build_dataloader", "InfiniteDataLoader"}:
        yield "dataloader", {key: call.plain.get(key) for key in LOADER_OPTIONS}
    if call.plain.get("padding") == "max_length" or call.plain.get("pad_to_max_length") is True:
        yield "padding", {"to": call.plain.get("max_length"), "how": "tokenizer"}
    if call.name in READERS and not (call.name == "open" and _writes(call.node, call.plain)):
        yield "reading", {"call": call.name}
    if (
        (call.method and call.bare in {"encode", "encode_plus", "batch_encode_plus", "tokenize"})
        or call.bare == "tokenizer"
        or (call.bare == "tok" and call.node.args)
    ):
        yield "encoding", {"call": call.bare}
    if call.name.startswith("torch.") and call.bare in {
        "tensor",
        "as_tensor",
        "from_numpy",
        "LongTensor",
        "FloatTensor",
    }:
        device = call.keywords.get("device")
        yield "tensor_from_host", {"call": call.bare, "device": _text(device) if device is not None else None}


def _model_sites(call: _Call) -> Sites:
    """Attention, generation, compilation, precision and memory format."""
    if call.bare == "generate":
        yield "generate", {key: call.plain.get(key) for key in ("use_cache", "max_new_tokens")}
    elif call.plain.get("use_cache") is False:
        yield "cache_off", {}
    if call.bare == "scaled_dot_product_attention":
        mask = call.keywords.get("attn_mask") or (call.node.args[3] if len(call.node.args) > 3 else None)
        yield "sdpa", {"mask": mask is not None and _plain(mask) is not None, "causal": call.plain.get("is_causal")}
    if call.bare in SDPA_SWITCHES:
        yield "sdpa_backend", {"call": call.bare}
    if call.name == "torch.compile" or (call.bare == "compile" and call.name.startswith(("self.", "model.", "net."))):
        yield "compile", {"options": call.plain}
    if call.bare == "autocast":
        yield "autocast", {"options": call.plain}
    if (call.bare == "checkpoint" and "utils.checkpoint" in call.name) or call.bare == "gradient_checkpointing_enable":
        yield "recompute", {"call": call.bare}
    if call.bare == "double" and call.method and not call.node.args:
        yield "float64", {"call": "double"}
    wide = any("torch.float64" in _text(v) or "torch.double" in _text(v) for v in call.values)
    if wide and (call.name.startswith("torch.") or call.bare == "to"):
        yield "float64", {"call": call.bare}
    if any("channels_last" in _text(v) for v in call.values):
        yield "channels_last", {}


def _training_sites(call: _Call) -> Sites:
    """Optimizers, gradients, logging and checkpoints."""
    if call.bare in OPTIMIZERS and (call.name.startswith(("torch.optim", "optim.")) or "lr" in call.keywords):
        yield "optimizer", {"class": call.bare, "fused": call.plain.get("fused"), "foreach": call.plain.get("foreach")}
    if call.bare == "zero_grad" and call.plain.get("set_to_none") is False:
        yield "zero_grad", {"set_to_none": False}
    if call.bare == "zero_" and call.owner.endswith(".grad"):
        yield "zero_grad", {"set_to_none": False}
    if call.bare in {"backward", "step"} and call.method:
        yield call.bare, {"of": call.owner}
    if call.bare == "clip_grad_norm_":
        yield "clip_grad_norm", {}
    saves = {"save_pretrained", "save_checkpoint", "save_model"}
    if call.name in {"torch.save", "torch.distributed.checkpoint.save"} or call.bare in saves:
        yield "checkpoint", {"call": call.bare}
    logs = call.method and call.bare in LOGGERS and LOGGER_OWNERS.search(call.owner)
    if call.name in {"print", "json.dump"} or logs:
        yield "logging", {"call": call.bare}


def _setting_sites(call: _Call) -> Sites:
    """Process-wide switches."""
    if call.bare in SWITCHES:
        yield "setting", {"name": call.bare, "value": _plain(call.node.args[0]) if call.node.args else None}


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions nested in it, in source order of statements."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += list(ast.iter_child_nodes(node))


def _precedes(product: ast.expr, middle: ast.expr) -> bool:
    """Whether a product is computed before a call: inside its arguments, or written before it and not around it."""
    if any(node is product for node in ast.walk(middle)):
        return True
    around = any(node is middle for node in ast.walk(product))
    return not around and (product.lineno, product.col_offset) < (middle.lineno, middle.col_offset)


def _exceptions(kind: ast.expr | None) -> list[ast.expr]:
    """What an except clause names; a bare one is the empty name."""
    if kind is None:
        return [ast.Name("")]
    return list(kind.elts) if isinstance(kind, ast.Tuple) else [kind]


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
