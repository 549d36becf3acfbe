"""Evaluation, checkpoints and logs are part of the job: none goes away, none becomes rarer or emptier.

Moving `.item()` out of the loop or writing the log in one piece is honest, so for logs the question is whether the
values are still written; where the code moved and that cannot be read here, the hit is `review` and the declared
outputs decide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from scripts.judge.change import Change, Hit, Module, Site, below, called_name, dotted, less_often, unparse

NAME = "reporting"
WHY = "J5, J13, J44: a job that does not evaluate, save or log is another job"

EVALUATES = re.compile(r"(?i)^(_?(run_|do_)?(eval|evaluate|evaluation|validate|validation|test_epoch|validation_step"
                       r"|eval_step|estimate_loss)(_\w+)?"
                       r"|\w+_(eval|evaluate|validate|validation))$")  # fmt: skip
SAVES = re.compile(
    r"(?i)^(save\w*|\w*_save|\w*checkpoint\w*|dump|savez\w*|save_file|save_pretrained|to_csv|to_parquet)$"
)
LOGS = re.compile(
    r"(?i)^(print|log|log_\w+|info|warning|add_scalar\w*|add_histogram|writerow|writerows|report\w*|emit"
    r"|record_metric\w*|write|track|writeheader)$"
)

NUMERICAL = {"log_softmax", "log_prob", "log_sigmoid", "log_abs_det_jacobian", "log_normal_", "log_", "log_ndtr"}


def check(change: Change) -> list[Hit]:
    hits = []
    for kind, pattern in (("evaluation", EVALUATES), ("checkpoint", SAVES), ("log", LOGS)):
        before, after = _sites(change, pattern, "before"), _sites(change, pattern, "after")
        hits += _fewer(kind, before, after)
        hits += _rarer(kind, before, after)
    return hits + _thinner(change)


def _sites(change: Change, pattern: re.Pattern[str], side: str) -> list[tuple[str, Site]]:
    found = []
    for file in change.files:
        module: Module | None = getattr(file, side)
        if module:
            found += [(file.path, site) for site in module.sites(_matching(module, pattern))]
    return found


def _matching(module: Module, pattern: re.Pattern[str]) -> Callable[[ast.Call], bool]:
    """Calls by name, without the logarithms and losses of numerical libraries."""

    def wanted(call: ast.Call) -> bool:
        name = called_name(call)
        if not pattern.match(name) or name in NUMERICAL:
            return False
        return name != "log" or not any(
            below(origin, ("math", "torch", "numpy", "jax")) for origin in module.names.resolve(call.func)
        )

    return wanted


def _fewer(kind: str, before: list[tuple[str, Site]], after: list[tuple[str, Site]]) -> list[Hit]:
    names = {called_name(site.node) for _, site in before}
    hits = []
    for name in sorted(names):
        old = [(p, s) for p, s in before if called_name(s.node) == name]
        new = [(p, s) for p, s in after if called_name(s.node) == name]
        if len(new) >= len(old):
            continue
        path = old[0][0]
        text = f"{len(old)} calls of {name} ({kind}), {len(new)} left"
        kept = kind == "log" and len(after) >= 1 and (len(new) >= 1 or len(after) >= len(before))
        hits.append(Hit("review" if kept else "refuse", path, None, text + ("; the outputs decide" if kept else "")))
    return hits


def _rarer(kind: str, before: list[tuple[str, Site]], after: list[tuple[str, Site]]) -> list[Hit]:
    """Sites with a condition that no site of that name had, or that left their loop."""
    hits = []
    for path, site in after:
        name = called_name(site.node)
        how = less_often(site, [s for _, s in before if called_name(s.node) == name and s.function == site.function])
        if how:
            action = "review" if kind == "log" else "refuse"
            hits.append(Hit(action, path, site.node.lineno, f"{name} ({kind}) is {how}"))
    return hits


def _thinner(change: Change) -> list[Hit]:
    """Log rows with fewer or constant columns, and logged names that nothing uses any more."""
    hits = []
    for file in change.both:
        assert file.before is not None and file.after is not None
        old = [s.node for s in file.before.sites(_matching(file.before, LOGS))]
        new = [s.node for s in file.after.sites(_matching(file.after, LOGS))]
        widest = max((len(_columns(n)) - sum(isinstance(c, ast.Constant) for c in _columns(n)) for n in old), default=0)
        if old and new and widest:
            now = max(len(_columns(n)) - sum(isinstance(c, ast.Constant) for c in _columns(n)) for n in new)
            starred = any(not _columns(n) or called_name(n) == "writerows" for n in new)
            if now < widest and not starred:
                hits.append(
                    Hit("refuse", file.path, new[-1].lineno, f"a log row had {widest} computed columns and has {now}")
                )
        used = {n.id for n in file.after.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        logged = {n.id for call in old for arg in call.args for n in ast.walk(arg) if isinstance(n, ast.Name)}
        assigned = {n.id for n in file.before.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        hits += [
            Hit("refuse", file.path, None, f"{name} was logged and nothing reads it any more")
            for name in sorted((logged & assigned) - used)
            if not any(name in unparse(n, 500) for n in new)
        ]
    return hits


def _columns(call: ast.Call) -> list[ast.expr]:
    """Entries of the row that `writerow([...])` writes; the parts of a printed f-string; else the arguments."""
    if call.args and isinstance(call.args[0], (ast.List, ast.Tuple)):
        return list(call.args[0].elts)
    if call.args and isinstance(call.args[0], ast.Dict):
        return [v for v in call.args[0].values if v is not None]
    if call.args and isinstance(call.args[0], ast.JoinedStr):
        return [v for v in call.args[0].values if isinstance(v, ast.FormattedValue)]
    return [] if call.args and dotted(call.args[0]) else list(call.args)
