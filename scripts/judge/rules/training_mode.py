"""The model trains as it did: same mode, same dropout, the same parameters with gradients."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, FileChange, Function, Hit, below, called_name, unparse

NAME = "training_mode"
WHY = "J6, J27, J45: evaluation mode, no dropout and frozen layers are faster and are another training"

STOCHASTIC = {"Dropout", "dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "DropPath",
              "drop_path", "alpha_dropout", "feature_dropout", "RandomHorizontalFlip",
              "RandomResizedCrop", "RandomCrop", "ColorJitter", "RandAugment", "Mixup",
              "StochasticDepth", "dropout_p", "attn_dropout", "resid_dropout"}  # fmt: skip
NO_GRADIENTS = (
    "torch.no_grad",
    "torch.inference_mode",
    "torch.autograd.no_grad",
    "torch.set_grad_enabled",
    "torch.autograd.grad_mode",
)


def check(change: Change) -> list[Hit]:
    hits = []
    for file in change.python:
        hits += [*_without_gradients(file), *_frozen(file)]
    for file in change.both:
        hits += _modes(file)
    return hits + _dropout(change)


def _without_gradients(file: FileChange) -> list[Hit]:
    """`no_grad` and the like around code that has a backward pass."""
    assert file.after is not None
    hits = []
    for node in file.new(ast.With):
        inside = any(
            below(n, NO_GRADIENTS) for item in node.items for n in file.after.names.resolve(_bare(item.context_expr))
        )
        calls = {called_name(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        if inside and "backward" in calls:
            hits.append(Hit("refuse", file.path, node.lineno, "gradients are switched off around a backward pass"))
        elif inside and not file.after.enclosing(node).lower().rpartition(".")[2].startswith(
            ("eval", "valid", "test", "predict", "generate", "estimate")
        ):
            function = _function(file, node)
            work = {called_name(n) for n in ast.walk(function) if isinstance(n, ast.Call)} if function else set()
            action = (
                "refuse"
                if function is not None and ("forward" in function.name or ("backward" in work and _runs_model(node)))
                else "review"
            )
            hits.append(Hit(action, file.path, node.lineno, "gradients are switched off outside of an evaluation"))
    for node in file.new(*Function):
        decorated = any(below(n, NO_GRADIENTS) for d in node.decorator_list for n in file.after.names.resolve(_bare(d)))
        calls = {called_name(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        if decorated and (
            "backward" in calls or node.name in ("forward", "__call__", "training_step", "compute_loss", "train")
        ):
            hits.append(Hit("refuse", file.path, node.lineno, f"gradients are switched off in {node.name}"))
    for node in file.new(ast.Call):
        names = file.called(node)
        off = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
        if (
            names & {"torch.set_grad_enabled", "torch._C._set_grad_enabled"}
            and off
            and isinstance(file.after.parents.get(node), ast.Expr)
        ):
            hits.append(file.hit("refuse", node, "switches gradients off for everything that follows"))
    return hits


def _runs_model(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and called_name(n) in ("model", "net", "module", "forward", "self")
        for n in ast.walk(node)
    )


def _frozen(file: FileChange) -> list[Hit]:
    """Parameters taken out of training, activations taken out of the graph."""
    assert file.after is not None
    hits = []
    for node in file.new(ast.Call):
        name = called_name(node)
        off = any(
            isinstance(a, ast.Constant) and a.value is False for a in [*node.args, *(k.value for k in node.keywords)]
        )
        if name == "requires_grad_" and off:
            hits.append(file.hit("refuse", node, f"{unparse(node)} freezes parameters"))
        elif name == "detach" and _in_forward(file, node):
            hits.append(file.hit("refuse", node, f"{unparse(node)} cuts the graph inside a forward pass"))
        elif name in (
            "register_hook",
            "register_full_backward_hook",
            "register_backward_hook",
            "register_post_accumulate_grad_hook",
        ):
            hits.append(file.hit("review", node, f"{unparse(node)} changes gradients on the way"))
    for node in file.new(ast.Attribute):
        if node.attr == "requires_grad" and isinstance(node.ctx, ast.Store):
            hits.append(file.hit("refuse", node, f"assigns {unparse(node)}"))
        elif node.attr in ("grad", "data") and isinstance(node.ctx, ast.Store) and not _none(file, node):
            hits.append(file.hit("review", node, f"assigns {unparse(node)}"))
        elif (
            node.attr == "data"
            and isinstance(node.ctx, ast.Load)
            and _in_forward(file, node)
            and isinstance(node.value, ast.Name)
            and node.value.id != "self"
        ):
            hits.append(file.hit("refuse", node, f"{unparse(node)} cuts the graph inside a forward pass"))
    return hits


def _none(file: FileChange, node: ast.AST) -> bool:
    assert file.after is not None
    parent = file.after.parents.get(node)
    return isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Constant) and parent.value.value is None


def _modes(file: FileChange) -> list[Hit]:
    """`.eval()` added, `.train()` removed, `training` assigned."""
    assert file.before is not None and file.after is not None
    count = {side: dict.fromkeys(("train", "eval"), 0) for side in ("before", "after")}
    for side, module in (("before", file.before), ("after", file.after)):
        for node in module.nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("train", "eval")
            ):
                off = (
                    node.func.attr == "train"
                    and node.args
                    and isinstance(node.args[0], ast.Constant)
                    and node.args[0].value is False
                )
                count[side]["eval" if off else node.func.attr] += 1
    hits = []
    if count["after"]["train"] < count["before"]["train"]:
        hits.append(
            Hit(
                "refuse",
                file.path,
                None,
                "a call of .train() is gone: what follows an evaluation stays in evaluation mode",
            )
        )
    if count["after"]["eval"] != count["before"]["eval"]:
        hits.append(
            Hit("refuse", file.path, None, f"{count['before']['eval']} calls of .eval(), {count['after']['eval']} now")
        )
    stored = [n for n in file.new(ast.Attribute) if n.attr == "training" and isinstance(n.ctx, ast.Store)]
    hits += [file.hit("refuse", node, f"assigns {unparse(node)}") for node in stored]
    return hits


def _dropout(change: Change) -> list[Hit]:
    """Fewer random layers used, counted by call; a fused call with `dropout_p=` counts."""
    before = after = 0
    for file in change.files:
        before += len(_random(file.before.text)) if file.before else 0
        after += len(_random(file.after.text)) if file.after else 0
    if after >= before or before == 0:
        return []
    path = next(f.path for f in change.files if f.before and _random(f.before.text))
    return [Hit("refuse", path, None, f"{before} uses of random layers (dropout, augmentation), {after} left")]


def _random(text: str) -> list[str]:
    """Calls that draw: dropout layers and functions, attention with `dropout_p` that is not the constant 0."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = called_name(node)
            inactive = any(
                k.arg in ("p", "dropout_p") and isinstance(k.value, ast.Constant) and not k.value.value
                for k in node.keywords
            )
            constant = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, 0.0)
            if (
                (
                    re.search(r"(?i)drop(out|path)|^Random[A-Z]|^ColorJitter|^RandAug|^StochasticDepth", name)
                    or name == "drop"
                )
                and not inactive
                and not constant
            ) or any(
                k.arg == "dropout_p" and not (isinstance(k.value, ast.Constant) and not k.value.value)
                for k in node.keywords
            ):
                found.append(name)
    return found


def _in_forward(file: FileChange, node: ast.AST) -> bool:
    assert file.after is not None
    return file.after.enclosing(node).rpartition(".")[2] in ("forward", "__call__", "training_step", "compute_loss")


def _function(file: FileChange, node: ast.AST):  # type: ignore[no-untyped-def]
    assert file.after is not None
    return next((n for n in file.after.above(node) if isinstance(n, Function)), None)


def _bare(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node
