"""Backward passes, optimizer steps, clipping and collectives happen as often as before, under the same conditions."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, Module, Site, called_name, less_often, own_nodes, unparse

NAME = "training_calls"
WHY = "J1, J6, J7, J44: a skipped step, an unclipped gradient or a missing all-reduce is a cheaper, other training"

CALLS = {"backward", "step", "clip_grad_norm_", "clip_grad_value_", "all_reduce", "all_gather",
         "reduce_scatter", "broadcast", "barrier", "unscale_", "update", "scale", "update_parameters",
         "training_step", "zero_grad", "autograd.grad", "no_sync"}  # fmt: skip
MUST_STAY = {"backward", "step", "clip_grad_norm_", "clip_grad_value_", "all_reduce", "all_gather",
             "reduce_scatter", "broadcast", "barrier", "unscale_", "update_parameters", "training_step"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    before, after = _sites(change, "before"), _sites(change, "after")
    hits = []
    for name in sorted({called_name(s.node) for _, s in before}):
        old = [s for _, s in before if called_name(s.node) == name]
        new = [(p, s) for p, s in after if called_name(s.node) == name]
        if len(new) < len(old):
            action = "refuse" if name in MUST_STAY else "review"
            hits.append(
                Hit(
                    action, next(p for p, s in before if s in old), None, f"{len(old)} calls of {name}, {len(new)} left"
                )
            )
        for path, site in new:
            how = less_often(site, [s for s in old if s.function == site.function])
            if how and name in MUST_STAY:
                hits.append(Hit("refuse", path, site.node.lineno, f"{name} is {how}"))
    return hits + _jumps(change) + _scheduled(change)


def _sites(change: Change, side: str) -> list[tuple[str, Site]]:
    found = []
    for file in change.files:
        module: Module | None = getattr(file, side)
        if module:
            found += [
                (file.path, s)
                for s in module.sites(
                    lambda call: called_name(call) in CALLS and isinstance(call.func, (ast.Attribute, ast.Name))
                )
            ]
    return found


def _jumps(change: Change) -> list[Hit]:
    """New `break`, `continue` and `return` in functions that train, evaluate or report."""
    hits = []
    for file in change.both:
        assert file.before is not None and file.after is not None
        for name, function in file.after.functions.items():
            old = file.before.functions.get(name)
            if old is None:
                continue
            work = any(
                isinstance(n, ast.Call) and called_name(n) in CALLS | {"item", "writerow", "print"}
                for n in own_nodes(function)
            )
            for kind in (ast.Break, ast.Continue, ast.Return):
                was = sum(isinstance(n, kind) for n in own_nodes(old))
                jumps = [n for n in own_nodes(function) if isinstance(n, kind)]
                if len(jumps) > was and work:
                    line = next((n.lineno for n in jumps if n.lineno in file.added), jumps[0].lineno)
                    hits.append(Hit("refuse", file.path, line, f"a new `{kind.__name__.lower()}` in {name} skips work"))
    return hits


def _scheduled(change: Change) -> list[Hit]:
    """Loops whose range became shorter: the header around a protected call has another bound."""
    hits = []
    for file in change.both:
        assert file.before is not None and file.after is not None
        old = [n for n in file.before.nodes if isinstance(n, ast.For)]
        texts = {unparse(n.iter, 200) for n in old}
        for node in file.new(ast.For):
            if unparse(node.iter, 200) in texts:
                continue
            calls = {called_name(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
            targets = {
                unparse(n.target)
                for n in old
                if {called_name(c) for c in ast.walk(n) if isinstance(c, ast.Call)} & calls & CALLS
            }
            if calls & MUST_STAY and unparse(node.target) in targets:
                hits.append(
                    Hit("refuse", file.path, node.lineno, f"the training loop now runs over {unparse(node.iter)}")
                )
    return hits
