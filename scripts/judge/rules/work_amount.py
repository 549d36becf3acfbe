"""Sizes, rates and intervals are the contract's: steps, batches, layers, learning rates, evaluation intervals stay."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from scripts.judge.change import Change, Function, Hit, Module, constant_text, unparse

NAME = "work_amount"
WHY = "J1, J2, J3, J5, J9, J28: less work is faster and is not the same job"

SETTINGS = re.compile(
    r"(?i)(^|_|-)(steps?|epochs?|iters?|iterations|batch(_?size)?|block(_?size)?|seq(_?len)?|length|layers?|n_layer|heads?|n_head|embd"
    r"|hidden|width|depth|vocab|dropout|drop|lr|learning_rate|betas?|weight_decay|eps|momentum|warmup|accum\w*|eval\w*|val\w*|log\w*|save\w*|ckpt\w*"
    r"|checkpoint\w*|interval|every|freq\w*|patience|subset|fraction|split|samples?|max_\w+|num_\w+|min_\w+|clip\w*|temperature|top_k|top_p|tokens?"
    r"|resolution|imgsz|img_size|drop_last|shuffle|size|dim|channels|kernel_size|stride|padding|bias|amsgrad|maximize|nesterov"
    r"|label_smoothing|ignore_index|reduction|retain_graph|scale|gamma|beams?|bits|rank|alpha)(_|-|$)"
)
NOT_WORK = {"num_workers", "max_split_size_mb", "num_warps", "num_stages", "max_autotune", "log_file",
            "split_size", "block_m", "block_n", "block_k", "num_threads", "eval_mode", "is_causal",
            "dim", "scale", "size", "dropout_p", "drop_rate_mask", "max_norm_device"}  # fmt: skip

PARSED = {"args", "config", "cfg", "opt", "opts", "hparams"}


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.both:
        assert file.before is not None and file.after is not None
        before, after = Counter(_settings(file.before)), Counter(_settings(file.after))
        labels = {label for label, _ in before}
        gone = Counter(label for label, _ in (before - after).elements())
        for (label, value), count in sorted((after - before).items()):
            if label.rpartition(":")[2] in NOT_WORK or label not in labels or not gone[label]:
                continue
            gone[label] -= count
            old = next(v for (name, v) in before - after if name == label)
            line = next(
                (
                    n
                    for n, text in sorted(file.patch.added.items())
                    if label.rpartition(":")[2].replace("_", "") in re.sub(r"[_-]", "", text)
                ),
                None,
            )
            hits.append(Hit("refuse", file.path, line, f"{label.rpartition(':')[2]} was {old} and is {value}"))
        gone_options = sorted(label for label in labels - {name for name, _ in after} if label.startswith("option:"))
        hits += [Hit("refuse", file.path, None, f"the option {label[7:]} is gone") for label in gone_options]
        hits += _fewer_blocks(file)
    for file in change.files:
        if file.path == change.declared.get("knobs_file"):
            continue  # the contract itself opens the settings that it declares; the rule `knobs` holds it to them
        if file.after is None and file.path.endswith((".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")):
            hits += [
                Hit("refuse", file.path, number, f"a setting of the work in a configuration file: {text.strip()[:60]}")
                for number, text in sorted(file.patch.added.items())
                if SETTINGS.search(re.split(r"[:=]", text)[0].strip(" \"'"))
                and re.split(r"[:=]", text)[0].strip(" \"'") not in NOT_WORK
            ]
    return hits


def _settings(module: Module) -> Iterator[tuple[str, str]]:
    """(kind:name, value as text) of everything named like a setting."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            option = constant_text(node.args[0]) if node.args else None
            if option and option.startswith("--"):
                default = next((k.value for k in node.keywords if k.arg == "default"), None)
                yield (
                    f"option:{option.lstrip('-').replace('-', '_')}",
                    unparse(default) if default is not None else "none",
                )
            else:
                named = [k for k in node.keywords if k.arg and SETTINGS.search(k.arg) and not _strategy(k)]
                yield from ((f"argument:{k.arg}", unparse(k.value)) for k in named)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and _simple(node.value):
            name = (
                node.targets[0].attr
                if isinstance(node.targets[0], ast.Attribute)
                else getattr(node.targets[0], "id", "")
            )
            if SETTINGS.search(name):
                yield f"name:{name}", unparse(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and SETTINGS.search(unparse(node.target)):
            yield f"name:{unparse(node.target)}", unparse(node.value)
        elif isinstance(node, ast.Dict):
            pairs = ((constant_text(k), v) for k, v in zip(node.keys, node.values))
            yield from ((f"key:{k}", unparse(v)) for k, v in pairs if k and SETTINGS.search(k) and _simple(v))
        elif isinstance(node, Function):
            places = [*node.args.posonlyargs, *node.args.args]
            defaults = [
                *zip(reversed(places), reversed(node.args.defaults)),
                *zip(node.args.kwonlyargs, node.args.kw_defaults),
            ]
            yield from (
                (f"default:{a.arg}", unparse(d))
                for a, d in defaults
                if d is not None and SETTINGS.search(a.arg) and _simple(d)
            )


def _strategy(keyword: ast.keyword) -> bool:
    """`padding="longest"` says how rows of a batch are filled up, not how much work there is."""
    return keyword.arg == "padding" and not isinstance(getattr(keyword.value, "value", None), int)


def _simple(node: ast.expr) -> bool:
    """A number, or arithmetic on settings and lengths; not the result of a computation on tensors."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    plain = all(
        isinstance(n.func, ast.Name) and n.func.id in ("int", "float", "round", "len", "min", "max", "abs")
        for n in calls
    )
    return plain and not any(isinstance(n, ast.Subscript) for n in ast.walk(node))


def _fewer_blocks(file) -> list[Hit]:  # type: ignore[no-untyped-def]
    """New assignments to parsed options (`args.steps = ...`), and options changed where they are used."""
    hits = []
    stored = [n for n in file.new(ast.Attribute) if isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)]
    hits += [file.hit("refuse", n, f"overwrites the setting {unparse(n)}") for n in stored if n.value.id in PARSED]
    for node in file.new(ast.BinOp):
        operand = next(
            (
                unparse(side)
                for side in (node.left, node.right)
                if unparse(side).startswith(("args.", "cfg.", "config."))
            ),
            None,
        )
        if operand and isinstance(node.op, (ast.FloorDiv, ast.Div, ast.Mult, ast.Sub, ast.RShift, ast.Mod, ast.BitAnd)):
            new = not any(unparse(n) == unparse(node) for n in file.before.nodes if isinstance(n, ast.BinOp))
            if new and not _even_split(node):
                hits.append(file.hit("refuse", node, f"{unparse(node)} changes a setting where it is used"))
    for node in file.new(ast.Call):
        options = [unparse(a) for a in node.args if unparse(a).startswith(("args.", "cfg."))]
        if options and getattr(node.func, "id", "") in ("min", "max", "int", "round"):
            hits.append(file.hit("refuse", node, f"{unparse(node)} bounds a setting where it is used"))
    return hits


def _even_split(node: ast.BinOp) -> bool:
    """Shapes of one tensor: a product or quotient of two settings."""
    return all(unparse(side).startswith(("args.", "cfg.", "config.", "self.")) for side in (node.left, node.right))
