"""Statistics of timed pairs: exact, distribution-free, with planned looks. Plain numpy; nothing here needs scipy.

The estimate is Hodges-Lehmann's of the log ratios, its interval inverts the exact signed-rank test. Looks spend the
error probability by a bound that holds exactly: the probability of a union of events is at most their sum less the
probability that neighbours happen together (Hunter 1976, Worsley 1982), and that of two looks together is counted, not
simulated. The interval at a look is that of its own spent level, so its coverage holds whatever rule stops the race
(repeated confidence intervals, Jennison & Turnbull 1989).
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

LOOKS = (6, 10, 16, 24)
FIRST_SHARE = 0.65  # of the error probability may go to the first look: six agreeing pairs (p = 1/32) decide at 0.05
BIMODAL = 5 / 9  # Sarle's coefficient of a uniform distribution


@dataclass(frozen=True)
class Estimate:
    """A ratio of times with its interval; `low` and `high` are None where too few pairs say nothing at that level."""

    ratio: float
    low: float | None
    high: float | None
    confidence: float | None
    pairs: int
    p_value: float

    def document(self) -> dict[str, Any]:
        """As `race.json` carries it."""
        method = "Hodges-Lehmann of log ratios, exact signed-rank interval"
        return {**self.__dict__, "method": method}


def estimate(log_ratios: Sequence[float] | np.ndarray, cutoff: int) -> Estimate:
    """Ratio and interval of paired log ratios; the interval excludes 1 exactly where the rank sum is at most `cutoff`.

    `cutoff` comes from `cutoff_at` or `boundaries`; -1 means that no interval exists. O(n^2) for n pairs.
    """
    differences = np.asarray(log_ratios, dtype=float)
    n = len(differences)
    averages = walsh(differences)
    total = len(averages)
    low = high = confidence = None
    if cutoff >= 0:
        low, high = math.exp(averages[cutoff]), math.exp(averages[total - 1 - cutoff])
        confidence = 1 - tail(n, cutoff)
    return Estimate(math.exp(float(np.median(averages))), low, high, confidence, n, p_value(differences))


def walsh(values: np.ndarray) -> np.ndarray:
    """All averages of two of the values, each with itself included, sorted; n (n + 1) / 2 of them."""
    first, second = np.triu_indices(len(values))
    return np.sort((values[first] + values[second]) / 2)


def p_value(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of the signed-rank test, exact also with ties (counted over the ranks there are); zeros left out."""
    values = np.asarray(differences, dtype=float)
    values = values[values != 0]
    if not len(values):
        return 1.0
    magnitudes = np.abs(values)
    # Twice the mid-ranks: whole numbers, so that ties can be counted exactly.
    doubled = np.array([int(np.sum(magnitudes < m) * 2 + np.sum(magnitudes == m) + 1) for m in magnitudes])
    counts = _sums(tuple(sorted(doubled.tolist())))
    positive = int(doubled[values > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    return min(1.0, 2 * float(counts[: smaller + 1].sum()) / 2.0 ** len(values))


@cache
def _sums(weights: tuple[int, ...]) -> np.ndarray:
    """How many subsets of the weights have each sum, from 0 up."""
    counts = np.zeros(sum(weights) + 1)
    counts[0] = 1
    for weight in weights:
        counts[weight:] += counts[:-weight].copy()
    return counts


@cache
def tail(n: int, cutoff: int) -> float:
    """Two-sided probability that n untied pairs without a difference have a rank sum of at most `cutoff`."""
    if cutoff < 0:
        return 0.0
    return min(1.0, 2 * float(_sums(tuple(range(1, n + 1)))[: cutoff + 1].sum()) / 2.0**n)


def cutoff_at(n: int, level: float) -> int:
    """Largest rank sum whose two-sided probability is at most `level`; -1 where n agreeing pairs are too few."""
    cutoff = -1
    while tail(n, cutoff + 1) <= level:
        cutoff += 1
    return cutoff


def planned_looks(alpha: float, pairs: int, tests: int = 1) -> tuple[int, ...]:
    """Numbers of pairs at which a race looks at its data, at most `pairs`, for `tests` candidates at once.

    The first is the smallest at which agreeing pairs can decide after the correction for several candidates.
    """
    sharpest = alpha / tests * FIRST_SHARE
    first = max(LOOKS[0], math.ceil(1 - math.log2(sharpest)))
    looks = [first, *(look for look in LOOKS if look > first)]
    kept = [look for look in looks if look < pairs]
    return (*kept, pairs)


def affordable(alpha: float, pairs: int) -> int:
    """How many candidates at once `pairs` agreeing pairs can decide; 0 where they cannot decide even one."""
    return int(alpha * 2.0 ** (pairs - 1))


@cache
def boundaries(looks: tuple[int, ...], alpha: float) -> tuple[int, ...]:
    """The rank-sum cutoff of each look, so that all looks together err with a probability of at most `alpha`.

    Costs about 10 ms a look.
    """
    shares = [1.0] if len(looks) == 1 else list(np.linspace(FIRST_SHARE, 1.0, len(looks)))
    cutoffs: list[int] = []
    spent = 0.0
    for number, (look, share) in enumerate(zip(looks, shares, strict=True)):
        cutoff = cutoff_at(look, alpha)
        while cutoff >= 0:
            both = together(looks[number - 1], cutoffs[-1], look, cutoff) if cutoffs else 0.0
            if spent + tail(look, cutoff) - both <= alpha * share + 1e-12:
                spent += tail(look, cutoff) - both
                break
            cutoff -= 1
        cutoffs.append(cutoff)
    return tuple(cutoffs)


@cache
def together(first: int, first_cutoff: int, second: int, second_cutoff: int) -> float:
    """Probability that a look at `first` pairs and a later one at `second` both reject, without any difference.

    Counted over every sign and every order of the magnitudes, which are exchangeable: rank by rank of the later look, a
    pair belongs to the first ones or not, and counts for the positive sum or not.
    """
    if first_cutoff < 0 or second_cutoff < 0:
        return 0.0
    later_sum = second * (second + 1) // 2
    # ways[a][w1][w2]: a of the first pairs placed, positive rank sums so far; w1 beyond its cutoff is of no interest.
    ways = np.zeros((first + 1, first_cutoff + 1, later_sum + 1))
    ways[0, 0, 0] = 1
    for rank in range(1, second + 1):
        after = np.zeros_like(ways)
        for placed in range(min(rank - 1, first) + 1):
            now = ways[placed]
            if rank - 1 - placed <= second - first - 1:  # one of the later pairs has this rank
                after[placed] += now
                after[placed, :, rank:] += now[:, :-rank]
            if placed < first:
                own = placed + 1
                after[own] += now
                if own <= first_cutoff:
                    after[own, own:, rank:] += now[:-own, :-rank]
        ways = after
    end = ways[first].sum(axis=0)
    low, high = end[: second_cutoff + 1].sum(), end[later_sum - second_cutoff :].sum()
    return float(2 * (low + high) / (2.0**second * math.comb(second, first)))


def verdict_of(found: Estimate, min_effect: float) -> str:
    """`no_difference` (the interval within 1 +- min_effect), `faster`, `slower` (it excludes 1), or `inconclusive`."""
    if found.low is None or found.high is None:
        return "inconclusive"
    if min_effect > 0 and found.low >= 1 / (1 + min_effect) and found.high <= 1 + min_effect:
        return "no_difference"
    if found.low > 1:
        return "faster"
    return "slower" if found.high < 1 else "inconclusive"


def prospect(log_ratios: Sequence[float], plan: tuple[int, ...], alpha: float, min_effect: float) -> float:
    """Chance that the last look of `plan` decides a race, judged from the pairs so far; 0 to 1.

    Predictive power (Spiegelhalter, Freedman & Blackburn 1986) under a normal approximation: the estimate at the end
    scatters around today's, and the interval there has the width of that look's own level. Stopping where it is low
    never adds a false answer, as the looks spend `alpha` whether they are taken or not.
    """
    normal = plain.NormalDist()
    values = np.asarray(log_ratios, dtype=float)
    n, end = len(values), plan[-1]
    middle = float(np.median(walsh(values)))
    spread = max(float(np.median(np.abs(values - middle))) / 0.6745, 1e-6) * math.sqrt(math.pi / 3)
    level = tail(end, boundaries(plan, alpha)[-1])
    half = normal.inv_cdf(1 - level / 2) * spread / math.sqrt(end) if level > 0 else math.inf
    moves = spread * math.sqrt(max(1 / n - 1 / end, 1e-12))
    faster, slower = 1 - normal.cdf((half - middle) / moves), normal.cdf((-half - middle) / moves)
    room = math.log1p(min_effect) - half
    same = normal.cdf((room - middle) / moves) - normal.cdf((-room - middle) / moves) if room > 0 else 0.0
    return min(1.0, faster + slower + same)


def look(
    log_ratios: dict[str, Sequence[float]], plan: tuple[int, ...], number: int, alpha: float, min_effect: float,
    *, tests: int, rejected: int,
) -> dict[str, tuple[str, Estimate]]:  # fmt: skip
    """Answers at look `number` for the candidates still raced, Holm over all `tests` finalists of the round.

    `rejected` counts the candidates whose difference an earlier look has established. Each answer's interval is that of
    the level at which the candidate was tested, so the two never disagree.
    """
    answers: dict[str, tuple[str, Estimate]] = {}
    waiting = sorted(log_ratios, key=lambda name: p_value(log_ratios[name]))
    for name in waiting:
        cutoff = boundaries(plan, alpha / max(1, tests - rejected))[number]
        found = estimate(log_ratios[name], cutoff)
        answer = verdict_of(found, min_effect)
        answers[name] = (answer, found)
        rejected += answer in ("faster", "slower")
    return answers


def bimodal(values: Sequence[float]) -> bool | None:
    """Whether the values look like two modes (Sarle's coefficient above that of a uniform); None below 8 values."""
    n = len(values)
    spread = plain.pstdev(values) if n >= 8 else 0.0
    if n < 8 or spread == 0:
        return None if n < 8 else False
    centred = (np.asarray(values, dtype=float) - plain.fmean(values)) / spread
    skew, kurtosis = float(np.mean(centred**3)), float(np.mean(centred**4)) - 3
    skew *= math.sqrt(n * (n - 1)) / (n - 2)
    kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * kurtosis + 6)
    return bool((skew**2 + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))) > BIMODAL)


def median_interval(log_ratios: Sequence[float], level: float) -> tuple[float, float] | None:
    """Order-statistic interval of the median ratio, for two-mode data; None where too few pairs reach the level."""
    values, n = sorted(log_ratios), len(log_ratios)
    counts = [math.comb(n, k) / 2.0**n for k in range(n + 1)]
    below = -1
    while 2 * sum(counts[: below + 2]) <= level:
        below += 1
    return None if below < 0 else (math.exp(values[below]), math.exp(values[n - 1 - below]))


def resolvable(log_ratios: Sequence[float], pairs: int, alpha: float, power: float = 0.8) -> float:
    """Smallest gain, as a fraction, that `pairs` pairs find with `power`, from the spread of an A/A session.

    Normal approximation with the signed-rank test's relative efficiency of 3/pi; the spread is a robust one.
    """
    values = np.asarray(log_ratios, dtype=float)
    spread = max(float(np.median(np.abs(values))) / 0.6745, 1e-6)
    normal = plain.NormalDist()
    need = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    return math.exp(need * spread / math.sqrt(pairs * 3 / math.pi)) - 1


def breakeven(
    fixed: Sequence[tuple[float, float]], rate: Sequence[tuple[float, float]], level: float
) -> dict[str, float | None]:
    """Steps from which the candidate is faster: `{"steps", "low", "high"}`; None where no length gets there.

    `fixed` holds seconds beside the steps as (baseline, candidate) of each pair, `rate` seconds a step. The interval is
    every length at which the signed-rank interval of the difference of total times contains 0.
    """
    n = len(fixed)
    cutoff = cutoff_at(n, level)
    gain = np.array([[b - c for b, c in fixed], [b - c for b, c in rate]])

    def averages(steps: float) -> np.ndarray:
        return walsh(gain[0] + steps * gain[1])

    return {
        "steps": _first(lambda steps: float(np.median(averages(steps))) > 0),
        "low": _first(lambda steps: float(averages(steps)[-1 - cutoff]) > 0) if cutoff >= 0 else None,
        "high": _first(lambda steps: float(averages(steps)[cutoff]) > 0) if cutoff >= 0 else None,
    }


def _first(reached: Callable[[float], bool], limit: float = 1e9) -> float | None:
    """Smallest number from 0 to `limit` for which a rising condition holds, to a part in 10^6."""
    if reached(0.0):
        return 0.0
    if not reached(limit):
        return None
    low, high = 0.0, limit
    while high - low > max(1e-6 * high, 1e-3):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
