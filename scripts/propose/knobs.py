"""The proposer `knobs`: a search over the settings that a workload declares, no model. The honest control for every
model.

A candidate is an edit of the workload's `knobs_file`, a JSON object `{name: value}` in its tree, so that a setting is
judged like any other patch; the launcher makes variables and options of it (`scripts/common/knobs.py`). Random search
without repetition; with optuna installed and five measured points, its TPE sampler.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

from scripts.common import knobs as declared
from scripts.common.files import canonical_json, sha256_bytes
from scripts.propose.proposal import Answer, Attempt, Task

TPE_FROM = 5
"""Measured points from which a model of them is better than chance."""

LARGEST_GRID = 100_000

Point = dict[str, Any]


def propose(task: Task) -> Answer:
    """The next untried point of the search. Raises InputError for a declaration that the knobs file does not fit."""
    knobs = task.spec.get("knobs") or []
    path = task.spec.get("knobs_file")
    if not knobs or not path:
        return Answer(reason="the workload declares no knobs (fields `knobs` and `knobs_file`)")
    text, base = declared.read(task.tree, task.spec)
    space = {knob["name"]: list(knob["values"]) for knob in knobs}
    tried = [point for attempt in task.history if (point := _point(attempt)) is not None]
    point, how = _next(task, space, {name: base[name] for name in space}, tried)
    if point is None:
        return Answer(reason=f"all {how} points of the search were tried")
    changed = {name: value for name, value in point.items() if value != base[name]}
    written = json.dumps({**base, **point}, indent=_indent(text), ensure_ascii=False) + "\n"
    kinds = sorted({knob.get("kind", "parameter") for knob in knobs if knob["name"] in changed})
    return Answer(
        status="patch",
        edits={path: written},
        fix=canonical_json(point).decode(),
        title="Set " + ", ".join(f"{name}={value}" for name, value in changed.items()),
        hypothesis=f"None: a point of a search over {len(space)} declared settings ({how}).",
        risk="Settings of the environment may suit this machine only.",
        classes=["config"],
        untested=["other machines"],
        transcript=[
            {"event": "point", "how": how, "point": point, "changed": changed, "kinds": kinds, "tried": len(tried)}
        ],
    )


def _next(task: Task, space: dict[str, list[Any]], base: Point, tried: list[Point]) -> tuple[Point | None, str]:
    """The candidate's point and how it was found; None and the number of points where none is left."""
    done = {canonical_json(point) for point in [base, *tried]}
    size = math.prod(len(values) for values in space.values())
    if size <= LARGEST_GRID and len(done) >= size + (
        canonical_json(base) not in {canonical_json(p) for p in _grid(space)}
    ):
        return None, str(size)
    chosen: list[tuple[Point, str]] = []
    for number in range(task.candidate + 1):
        point, how = _suggested(task, space, number, done), "TPE"
        if point is None or canonical_json(point) in done:
            point, how = _random(task, space, number, done), "random search"
        if point is None:
            return None, str(size)
        done.add(canonical_json(point))
        chosen.append((point, how))
    return chosen[-1]


def _random(task: Task, space: dict[str, list[Any]], number: int, done: set[bytes]) -> Point | None:
    seed = sha256_bytes(canonical_json([task.spec.get("workload"), sorted(space), task.round, number]))
    generator = random.Random(seed)
    for _ in range(1000):
        point = {name: generator.choice(values) for name, values in space.items()}
        if canonical_json(point) not in done:
            return point
    return next((point for point in _grid(space) if canonical_json(point) not in done), None)


def _grid(space: dict[str, list[Any]]) -> Iterator[Point]:
    for values in itertools.islice(itertools.product(*space.values()), LARGEST_GRID):
        yield dict(zip(space, values, strict=True))


def _suggested(task: Task, space: dict[str, list[Any]], number: int, done: set[bytes]) -> Point | None:
    """A point of optuna's TPE sampler (Bergstra et al. 2011) after enough measured ones; None without."""
    measured = [(a, p) for a in task.history if (p := _point(a)) is not None and a.ratio is not None]
    if len(measured) < TPE_FROM:
        return None
    try:
        import optuna
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Categories are indices: optuna takes no lists or objects as choices.
    distributions: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(list(range(len(v)))) for name, v in space.items()
    }
    seed = int(sha256_bytes(canonical_json([task.spec.get("workload"), task.round, number]))[:8], 16)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=TPE_FROM)
    )
    for attempt, point in measured:
        if all(point.get(name) in values for name, values in space.items()):
            indices = {name: space[name].index(point[name]) for name in space}
            assert attempt.ratio is not None
            study.add_trial(
                optuna.trial.create_trial(params=indices, distributions=distributions, value=math.log(attempt.ratio))
            )
    for _ in range(20):
        trial = study.ask(distributions)
        point = {name: space[name][index] for name, index in trial.params.items()}
        if canonical_json(point) not in done:
            return point
    return None


def _point(attempt: Attempt) -> Point | None:
    try:
        point = json.loads(attempt.proposal.get("fix") or "")
    except ValueError:
        return None
    return point if isinstance(point, dict) else None


def _indent(text: str) -> int | None:
    found = re.search(r"\n( +)\S", text)
    return len(found.group(1)) if found else None
