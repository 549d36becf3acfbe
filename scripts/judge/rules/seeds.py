"""The launcher owns the seeds: no seeding call, generator or random state may change."""

from __future__ import annotations

import ast
from collections import Counter

from scripts.judge.change import Change, Function, Hit, Module, below, called_name, unparse

NAME = "seeds"
WHY = "K14, J29, J45: another seed is another experiment, and a lucky one is not an improvement"

SEEDING = ("torch.manual_seed", "torch.seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
           "torch.random", "torch.set_rng_state", "torch.cuda.set_rng_state", "torch.get_rng_state",
           "torch.initial_seed", "torch.Generator", "numpy.random.seed", "numpy.random.default_rng",
           "numpy.random.RandomState", "numpy.random.set_state", "numpy.random.SeedSequence",
           "random.seed", "random.Random", "random.setstate", "random.SystemRandom", "torch.cuda.seed",
           "secrets", "uuid", "os.urandom", "numpy.random.Generator", "numpy.random.PCG64",
           "torch.mps.manual_seed", "transformers.set_seed", "lightning.seed_everything",
           "accelerate.utils.set_seed")  # fmt: skip
METHODS = {"manual_seed", "seed", "set_state", "set_rng_state", "fork_rng", "manual_seed_all",
           "seed_everything", "set_seed", "jumped", "spawn_key", "initial_seed", "get_state",
           "set_epoch"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    places: dict[str, tuple[str, int]] = {}
    for file in change.files:
        if file.before:
            before.update(text for text, _ in _seeding(file.before))
        if file.after:
            for text, node in _seeding(file.after):
                after[text] += 1
                places.setdefault(text, (file.path, file.line(node)))
    hits = [Hit("refuse", *places[text], f"seeds or draws differently: {text}") for text in sorted(after - before)]
    for text in sorted(before - after):
        path = next((f.path for f in change.files if f.before and text in {t for t, _ in _seeding(f.before)}), None)
        hits.append(Hit("refuse", path, None, f"no longer there: {text}"))
    for file, name, node in change.refer(*SEEDING):
        if (
            isinstance(node, (ast.Name, ast.Attribute))
            and file.after
            and not isinstance(file.after.parents.get(node), ast.Call)
        ):
            hits.append(file.hit("refuse", node, f"{name} under another name"))
    return hits


def _seeding(module: Module) -> list[tuple[str, ast.AST]]:
    """Seeding calls, and assignments to or keywords with a name that says seed, as text."""
    found: list[tuple[str, ast.AST]] = []
    for node in module.nodes:
        if isinstance(node, ast.Call):
            if called_name(node) in METHODS or any(
                below(n.removesuffix("()"), SEEDING) for n in module.names.resolve(node.func)
            ):
                found.append((unparse(node, 120), node))
        elif isinstance(node, ast.Assign):
            if any(
                isinstance(n, (ast.Name, ast.Attribute)) and "seed" in unparse(n).lower()
                for t in node.targets
                for n in ast.walk(t)
            ):
                found.append((unparse(node, 120), node))
        elif isinstance(node, ast.AugAssign) and "seed" in unparse(node.target).lower():
            found.append((unparse(node, 120), node))
        elif (
            isinstance(node, ast.keyword)
            and node.arg
            and ("seed" in node.arg.lower() or node.arg in ("generator", "worker_init_fn"))
        ):
            found.append((f"{node.arg}={unparse(node.value)}", node.value))
        elif isinstance(node, Function):
            defaults = zip(reversed(node.args.args), reversed(node.args.defaults))
            found += [(f"{a.arg}={unparse(d)}", d) for a, d in defaults if "seed" in a.arg.lower()]
    return found
