"""The red team in the test suite: every patch through the guard, a few through real runs. `make redteam` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.common import tree
from scripts.judge.guard import guard
from tests.redteam import run
from tests.redteam.bad import BAD
from tests.redteam.honest import HONEST
from tests.redteam.patches import JOB, Patch, spec

STATIC = [patch for patch in BAD if patch.rules]
LATER = [patch for patch in BAD if not patch.rules]


def names(patches: list[Patch]) -> list[str]:
    return [patch.name for patch in patches]


def test_there_are_enough_patches_and_every_one_has_a_name_of_its_own() -> None:
    assert len(BAD) >= 60 and len(HONEST) >= 20
    assert len({patch.name for patch in [*BAD, *HONEST]}) == len(BAD) + len(HONEST)
    assert all(patch.rules or patch.checks for patch in BAD)
    assert all(patch.checks for patch in BAD if patch.past_guard)


@pytest.mark.parametrize("patch", STATIC, ids=names(STATIC))
def test_a_bad_patch_is_refused_by_a_rule_that_it_names(patch: Patch) -> None:
    result = guard(patch.diff().encode(), JOB, spec(patch))
    refused = {hit["rule"] for hit in result["hits"] if hit["action"] == "refuse"}
    assert result["status"] == "refused" and refused & patch.rules, result["hits"]
    assert not any("crashed" in hit["reason"] for hit in result["hits"])


@pytest.mark.parametrize("patch", LATER, ids=names(LATER))
def test_a_patch_for_the_run_gets_as_far_as_the_run(patch: Patch) -> None:
    """Else its check would be credited with what the guard did."""
    result = guard(patch.diff().encode(), JOB, spec(patch))
    assert result["status"] == "pass", result["hits"]


@pytest.mark.parametrize("patch", HONEST, ids=names(HONEST))
def test_an_honest_patch_passes_the_guard(patch: Patch) -> None:
    result = guard(patch.diff().encode(), JOB, spec(patch))
    assert result["status"] == "pass", [hit for hit in result["hits"] if hit["action"] == "refuse"]


def test_what_needs_a_permission_is_refused_without_it() -> None:
    asking = [patch for patch in HONEST if patch.constraints.get("allow")]
    assert asking
    for patch in asking:
        assert guard(patch.diff().encode(), JOB, spec())["status"] == "refused"


def test_an_edit_that_no_longer_matches_fails_loudly() -> None:
    with pytest.raises(AssertionError, match="stands 0 times"):
        Patch("gone", "J1", "", [("train.py", "no such line", "x")]).diff()


RUNS = ("shorter_sequence_cut", "gelu_tanh", "empty_checkpoint", "step_skipped", "sdpa")


def test_a_handful_of_patches_through_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven runs of the demo job: fewer tokens, other values, an emptied output, and an honest patch."""
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    patches = [patch for patch in [*BAD, *HONEST] if patch.name in RUNS]
    outcomes = {outcome.name: outcome for outcome in run.judge_all(patches, True, tmp_path, lambda text: None)}
    assert all(outcome.expected for outcome in outcomes.values()), outcomes
    assert outcomes["gelu_tanh"].stopped == "outputs" and outcomes["step_skipped"].past_guard == "invariants"
    counts = run.matrix(list(outcomes.values()), True)
    assert (counts["bad_guard"], counts["bad_run"], counts["bad_passed"], counts["honest_passed"]) == (1, 3, 0, 1)
    text = run.table(list(outcomes.values()), counts, True)
    assert "past the guard check `invariants`" in text and "| sdpa |" in text
