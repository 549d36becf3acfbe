"""Exact statistics of pairs, against enumeration and against what a paper's table says."""

import itertools
import math
import random

import numpy as np
import pytest

from scripts.common import statistics as exact


def enumerated(n):
    """Two-sided probability of each smaller rank sum, over all 2^n signs."""
    sums = [
        sum(rank for rank, sign in zip(range(1, n + 1), signs) if sign) for signs in itertools.product([0, 1], repeat=n)
    ]
    total = n * (n + 1) // 2
    return lambda cutoff: sum(min(s, total - s) <= cutoff for s in sums) / 2**n


@pytest.mark.parametrize("n", [1, 4, 7, 10])
def test_tail_is_what_enumeration_gives(n):
    probability = enumerated(n)
    for cutoff in range(-1, n * (n + 1) // 4):
        assert exact.tail(n, cutoff) == pytest.approx(probability(cutoff), abs=1e-12)


def test_six_agreeing_pairs_decide_and_five_cannot():
    assert exact.tail(6, 0) == 1 / 32
    assert exact.cutoff_at(6, 0.05) == 0
    assert exact.cutoff_at(5, 0.05) == -1
    assert exact.planned_looks(0.05, 24) == (6, 10, 16, 24)
    assert exact.boundaries((6, 10, 16, 24), 0.05)[0] == 0


def test_critical_values_are_those_of_the_published_table():
    # Wilcoxon signed-rank, two-sided 0.05 (Wilcoxon & Wilcox 1964): reject at or below.
    table = {6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13, 16: 29, 20: 52, 24: 81}
    assert {n: exact.cutoff_at(n, 0.05) for n in table} == table


def test_p_value_is_exact_with_ties_and_without_zeros():
    values = [1.0, 1.0, -2.0, 3.0, 0.0, 3.0]
    kept = [v for v in values if v]
    ranks = [1.5, 1.5, 3, 4.5, 4.5]
    observed = sum(r for r, v in zip(ranks, kept) if v > 0)
    smaller = min(observed, sum(ranks) - observed)
    sums = [sum(r for r, s in zip(ranks, signs) if s) for signs in itertools.product([0, 1], repeat=5)]
    assert exact.p_value(values) == pytest.approx(min(1, 2 * sum(s <= smaller for s in sums) / 32))
    assert exact.p_value([0.0, 0.0]) == 1.0


def test_estimate_is_the_median_of_averages_and_its_interval_inverts_the_test():
    values = np.random.default_rng(3).normal(0.05, 0.03, 10)
    cutoff = exact.cutoff_at(10, 0.05)
    found = exact.estimate(values, cutoff)
    averages = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    assert math.log(found.ratio) == pytest.approx(np.median(averages))
    for edge, inward in ((found.low, 1e-9), (found.high, -1e-9)):
        assert exact.p_value(values - math.log(edge) - inward) > 0.05
        assert exact.p_value(values - math.log(edge) + inward) <= 0.05 + 1e-12
    assert exact.estimate(values[:5], exact.cutoff_at(5, 0.05)).low is None


def test_two_looks_together_are_counted_right():
    rng = np.random.default_rng(7)
    data = rng.standard_normal((200_000, 10))

    def smaller(values):
        ranks = np.argsort(np.argsort(np.abs(values), 1), 1) + 1
        positive = (ranks * (values > 0)).sum(1)
        return np.minimum(positive, values.shape[1] * (values.shape[1] + 1) // 2 - positive)

    both = np.mean((smaller(data[:, :6]) <= 1) & (smaller(data) <= 7))
    assert exact.together(6, 1, 10, 7) == pytest.approx(both, abs=3 * math.sqrt(both / 200_000))
    assert exact.together(6, 0, 6 + 1, 28 // 2) == pytest.approx(exact.tail(6, 0))  # every later sum counts


@pytest.mark.parametrize(
    ("alpha", "tests", "pairs"), [(0.05, 1, 24), (0.05, 2, 16), (0.05, 3, 24), (0.1, 1, 10), (0.01, 1, 24)]
)
def test_all_looks_together_stay_within_alpha(alpha, tests, pairs):
    looks = exact.planned_looks(alpha, pairs, tests)
    assert looks[-1] == pairs
    cutoffs = exact.boundaries(looks, alpha / tests)
    assert cutoffs[0] >= 0, "agreeing pairs decide at the first look"
    rng = np.random.default_rng(11)
    values = rng.standard_normal((40_000, pairs))
    rejected = np.zeros(len(values), dtype=bool)
    for look, cutoff in zip(looks, cutoffs):
        ranks = np.argsort(np.argsort(np.abs(values[:, :look]), 1), 1) + 1
        positive = (ranks * (values[:, :look] > 0)).sum(1)
        rejected |= np.minimum(positive, look * (look + 1) // 2 - positive) <= cutoff
    share = rejected.mean()
    assert share <= alpha / tests + 3 * math.sqrt(alpha / len(values))
    assert share >= 0.4 * alpha / tests, "the bound is not wasteful"


def test_holm_tests_the_sharpest_first_and_relaxes_after_a_rejection():
    rng = random.Random(5)
    strong = [0.2 + rng.gauss(0, 0.01) for _ in range(10)]
    # Clear at 0.05 over all looks, not at 0.025.
    weak = [0.05, 0.04, 0.06, 0.03, 0.07, 0.055, 0.045, -0.01, -0.02, 0.035]
    plan = exact.planned_looks(0.05, 10, tests=2)
    assert plan == (7, 10)
    both = exact.look({"strong": strong, "weak": weak}, plan, 1, 0.05, 0.0, tests=2, rejected=0)
    alone = exact.look({"weak": weak}, plan, 1, 0.05, 0.0, tests=2, rejected=0)
    assert both["strong"][0] == "faster"
    assert both["weak"][1].confidence < alone["weak"][1].confidence  # a wider error allowance: a narrower interval
    assert both["weak"][1].low > alone["weak"][1].low


def test_answers_and_intervals_never_disagree():
    rng = np.random.default_rng(2)
    plan = exact.planned_looks(0.05, 10, 1)
    for _ in range(300):
        values = rng.normal(rng.choice([0, 0.02, 0.1, -0.1]), 0.03, 10)
        answer, found = exact.look({"c": values}, plan, 1, 0.05, 0.02, tests=1, rejected=0)["c"]
        assert (answer == "faster") == (found.low > 1 and not (found.high <= 1.02))
        assert (answer == "no_difference") == (found.low >= 1 / 1.02 and found.high <= 1.02)
        assert (answer == "slower") == (found.high < 1 and not (found.low >= 1 / 1.02))


def test_as_many_finalists_as_the_pairs_can_decide():
    assert [exact.affordable(0.05, pairs) for pairs in (5, 6, 7, 10)] == [0, 1, 3, 25]


def test_two_modes_are_seen_and_one_is_not():
    rng = np.random.default_rng(1)
    assert exact.bimodal([*rng.normal(1, 0.01, 12), *rng.normal(1.2, 0.01, 12)]) is True
    assert exact.bimodal(rng.normal(1, 0.01, 24)) is False
    assert exact.bimodal([1.0, 2.0]) is None


def test_breakeven_of_a_change_that_costs_at_the_start():
    # 10 s more to start, 0.1 s less a step: even at 100 steps.
    fixed = [(1.0 + e, 11.0 - e) for e in np.linspace(-0.2, 0.2, 8)]
    rate = [(0.5, 0.4)] * 8
    found = exact.breakeven(fixed, rate, 0.05)
    assert found["steps"] == pytest.approx(100, rel=0.01)
    assert found["low"] < 100 < found["high"]
    never = exact.breakeven(fixed, [(0.4, 0.5)] * 8, 0.05)
    assert never == {"steps": None, "low": None, "high": None}
    assert exact.breakeven([(2.0, 1.0)] * 8, rate, 0.05)["steps"] == 0


def test_median_interval_of_order_statistics():
    values = [math.log(x) for x in (0.9, 1.0, 1.1, 1.2, 1.3, 1.4)]
    assert exact.median_interval(values, 0.05) == pytest.approx((0.9, 1.4))
    assert exact.median_interval(values[:5], 0.05) is None


def test_resolvable_gain_shrinks_with_pairs_and_grows_with_noise():
    rng = np.random.default_rng(4)
    quiet, loud = rng.normal(0, 0.02, 12), rng.normal(0, 0.08, 12)
    assert exact.resolvable(quiet, 24, 0.05) < exact.resolvable(quiet, 6, 0.05) < exact.resolvable(loud, 6, 0.05)


def test_prospect_follows_what_the_remaining_pairs_can_still_decide():
    rng = np.random.default_rng(0)
    plan = exact.planned_looks(0.05, 24)

    def chance(effect, spread):
        return exact.prospect(rng.normal(effect, spread, 10), plan, 0.05, 0.02)

    assert chance(0.1, 0.02) > 0.99  # a clear gain
    assert chance(0.0, 0.005) > 0.9  # clearly negligible
    assert chance(0.0, 0.2) < 0.2  # neither, and never will be
    assert exact.prospect([0.0] * 6, (6,), 0.05, 0.02) <= 1


def test_prospect_is_what_happens():
    """Averaged over effects of every size the chance is the share that the last look decides."""
    rng = np.random.default_rng(1)
    plan = exact.planned_looks(0.05, 24)
    cutoff = exact.boundaries(plan, 0.05)[-1]
    said, came = [], []
    for _ in range(1500):
        logs = rng.normal(rng.uniform(-0.1, 0.1), 0.03, 24)
        said.append(exact.prospect(logs[:10], plan, 0.05, 0.0))
        came.append(exact.verdict_of(exact.estimate(logs, cutoff), 0.0) != "inconclusive")
    assert abs(np.mean(said) - np.mean(came)) < 0.06
