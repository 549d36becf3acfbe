"""What an operator costs the host the first time it meets a shape, beside the same operator on that shape again.

A device job's operators only enqueue work, so that an operator's own host time does not depend on the size of its
tensors. On the same shape it is the same work twice: what the first call takes beyond the later ones is preparation (an
execution plan, a tuned or compiled kernel). The control lies in the job itself, which needs no constant for what an
operator should cost: a model's second layer repeats the shapes of its first.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scripts.diagnose.timeline import ANNOTATION, OPERATOR, Timeline

CHANCE = 0.05  # how often calls of equal cost may look like first calls that cost more

# A call of something that has not run for a while is slower whatever its shapes: at most the cache of a core (2 MiB) is
# filled again from main memory at 10 GB/s. Plans, kernels and tuning take milliseconds.
COLD_CALL_NS = 200_000


@dataclass(frozen=True)
class Preparation:
    """An operator that prepares something for each new shape, where the job calls it.

    `top` is the outermost operator around it and `function` an index into the timeline's functions (-1: none known), of
    the forward pass where it is a backward operator. Times are summed over `shapes` new shapes; `excess_ns` is
    corrected for profiling, `recorded_ns` as recorded. `first_ns` and `again_ns` are medians of one call.
    """

    operator: str
    top: str
    function: int
    callee: str
    shapes: int
    excess_ns: float
    recorded_ns: float
    first_ns: float
    again_ns: float


def preparations(timeline: Timeline, waiting: Collection[str]) -> list[Preparation]:
    """Operators whose first call on a new shape costs more than their later calls on it, largest first.

    `waiting` are outermost operators that wait for the device: their time says what they waited for. Shapes of the
    window's first step do not count, since the job may have met them before; nor do shapes that come once.
    Cost: one pass over the operators.
    """
    began = first_step_end(timeline)
    if began is None:
        return []
    tops = _tops(timeline)
    calls: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    for index in (timeline.kind == OPERATOR).nonzero()[0].tolist():
        if timeline.dims[index]:
            calls[timeline.name[index], timeline.dims[index], timeline.types[index]].append(index)
    shapes: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for (name, _, _), events in calls.items():
        events.sort(key=lambda i: int(timeline.start[i]))
        top = timeline.name[tops[events[0]]]
        if len(events) > 1 and int(timeline.start[events[0]]) >= began and top not in waiting:
            shapes[name, top].append(events)
    forward = _forward(timeline)
    found = [
        one for key, groups in shapes.items() if (one := _prepared(timeline, key, groups, tops, forward)) is not None
    ]
    return sorted(found, key=lambda one: (-one.excess_ns, one.operator, one.top))


def first_step_end(timeline: Timeline) -> int | None:
    """Where the window's first step ends, None in a trace without marks of steps."""
    marks = (timeline.kind == ANNOTATION).nonzero()[0].tolist()
    names = Counter(timeline.name[i].partition("#")[0] for i in marks)
    for prefix in ("ProfilerStep", "Optimizer.step"):
        if names.get(prefix):
            return min(int(timeline.end[i]) for i in marks if timeline.name[i].startswith(prefix + "#"))
    return None


def _prepared(
    timeline: Timeline, key: tuple[str, str], groups: list[list[int]], tops: list[int], forward: dict[int, int]
) -> Preparation | None:
    """One operator over its new shapes, or None where its first calls are not the dearer ones.

    Excesses keep their sign in the sum, so that noise cancels. A first call of equal cost is the longest of its shape by
    chance alone, so that a few shapes tell in a deep model and a window of six steps in one of two layers.
    """
    own = timeline.own_ns
    firsts = [float(own[g[0]]) for g in groups]
    again = [statistics.median(float(own[i]) for i in g[1:]) for g in groups]
    dearest = sum(first > max(own[i] for i in g[1:]) for first, g in zip(firsts, groups, strict=True))
    excess = sum(firsts) - sum(again)
    if excess <= COLD_CALL_NS * len(groups) or _by_chance(dearest, groups) > CHANCE:
        return None
    worst = max(groups, key=lambda g: float(own[g[0]]))[0]
    root = tops[worst]
    # the autograd thread has no python frames: the line is that of the forward operator
    origin = forward.get(int(timeline.sequence[root]), worst) if timeline.owner[worst] < 0 else worst
    callee = timeline.name[tops[origin]].removeprefix("aten::")
    return Preparation(
        *key,
        int(timeline.owner[origin]),
        callee,
        len(groups),
        excess,
        excess / timeline.scale,
        statistics.median(firsts),
        statistics.median(again),
    )


def _by_chance(dearest: int, groups: list[list[int]]) -> float:
    """Probability that in at least so many shapes the first of all calls is the longest, were calls of equal cost: one
    in as many as there are calls of the shape (distribution of a sum of unlike coins, one convolution a shape)."""
    chances = np.ones(1)
    for group in groups:
        chances = np.convolve(chances, [1 - 1 / len(group), 1 / len(group)])
    return float(chances[dearest:].sum())


def _tops(timeline: Timeline) -> list[int]:
    """The outermost operator around each event, itself where there is none; parents come before their children."""
    tops: list[int] = []
    for index, above in enumerate(timeline.parent.tolist()):
        outer = tops[above] if above >= 0 else index
        tops.append(outer if above >= 0 and timeline.kind[outer] == OPERATOR else index)
    return tops


def _forward(timeline: Timeline) -> dict[int, int]:
    """Forward operators that the job's own functions called, by autograd's sequence number."""
    found: dict[int, int] = {}
    for index in ((timeline.sequence >= 0) & (timeline.owner >= 0) & (timeline.kind == OPERATOR)).nonzero()[0].tolist():
        found.setdefault(int(timeline.sequence[index]), index)
    return found
