"""One verdict for each way in which a candidate can end, and never a ratio where none was earned."""

import copy
import json
import re

import pytest

from scripts.common.files import read_json, write_json
from scripts.judge.verdict import decide, main

SPEC = {"name": "toy", "parity": {"seed": 0}, "constraints": {"memory_growth": 1.5}}
GUARD = {"status": "pass", "tree": "t1", "classes": ["python"], "hits": [], "changed_lines": {"a.py": [1]}}
PARITY = {
    "answer": "equivalent",
    "reason": None,
    "invariants": {"equal": True, "differing": []},
    "seeds": [
        {"seed": 0, "held_out": False, "answer": "equivalent"},
        {"seed": 1, "held_out": True, "answer": "equivalent"},
    ],
    "executed": {"wanted": 1, "hit": 1},
    "outputs": {"compared": 1, "differing": [], "undecided": []},
    "runs": {"protected_unchanged": True, "tree_verified": True, "steps": [20], "final_loss": {"0": 2.5, "1": 2.6}},
    "side_effects": [],
    "warnings": [],
}
ESTIMATE = {"ratio": 1.3, "low": 1.2, "high": 1.4, "confidence": 0.97, "pairs": 6, "p_value": 0.03, "method": "x"}
BOTH = {"baseline": 1.0, "candidate": 1.0}
ARM = {
    "status": "ok",
    "reason": None,
    "answer": "faster",
    "estimate": ESTIMATE,
    "looks": [],
    "observed": {"steps": [20], "final_loss": [2.5], "outputs_hash": ["x"]},
    "memory": {"host": {**BOTH, "ratio": 1.1}, "device": {**BOTH, "ratio": None}},
    "cold": BOTH,
    "wall_s": BOTH,
    "cpu_s": BOTH,
    "decomposition": {},
    "median_step_s": BOTH,
    "horizon": None,
    "breakeven": None,
    "bimodal": {},
}
BASE = {"steps": [20], "final_loss": [2.5, 2.5001], "outputs_hash": ["x"]}
AA = {"estimate": {**ESTIMATE, "ratio": 1.0, "low": 0.98, "high": 1.02}}
REFUSAL = {"action": "refuse", "path": "a.py", "line": 3, "reason": "no"}


def changed(document, path, value):
    """A deep copy with the field at a dotted path replaced."""
    document = copy.deepcopy(document)
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place[key]
    place[last] = value
    return document


def verdict(guard=GUARD, parity=PARITY, arm=ARM, not_raced="it was not raced", aa=AA):
    return decide(SPEC, guard, parity, arm, not_raced=not_raced, base=BASE, aa=aa)


CASES = {
    "honest": ({}, "faster", ""),
    "empty": ({"guard": {**GUARD, "status": "nothing", "tree": None}}, "not_measured", "no patch"),
    "refused": (
        {"guard": {**GUARD, "status": "refused", "hits": [{**REFUSAL, "rule": "timers"}]}},
        "invalid_guard",
        "timers: no",
    ),
    "does not apply": (
        {"guard": {**GUARD, "status": "refused", "hits": [{**REFUSAL, "rule": "applies"}]}},
        "invalid_patch",
        "applies",
    ),
    "status unknown": ({"guard": {**GUARD, "status": "crashed"}}, "invalid_guard", "crashed"),
    "run crashed": (
        {"parity": changed(changed(PARITY, "answer", "failed_run"), "reason", "seed 0: timeout")},
        "failed_run",
        "timeout",
    ),
    "no run": (
        {"parity": changed(changed(PARITY, "answer", "not_run"), "runs", None)},
        "not_measured",
        "no checked run",
    ),
    "protected": ({"parity": changed(PARITY, "runs.protected_unchanged", False)}, "invalid_guard", "protected"),
    "other tree": ({"parity": changed(PARITY, "runs.tree_verified", False)}, "invalid_patch", "other files"),
    "inert": ({"parity": changed(PARITY, "executed.hit", 0)}, "invalid_patch", "no changed line ran"),
    "coverage unknown": ({"parity": changed(PARITY, "executed.hit", None)}, "invalid_patch", "unknown"),
    "counts": (
        {"parity": changed(PARITY, "invariants.differing", [{"name": "optimizer_steps", "base": 20, "cand": 10}])},
        "invalid_invariant",
        "optimizer_steps: 20 in the baseline, 10",
    ),
    "counts unknown": ({"parity": changed(PARITY, "invariants.equal", None)}, "invalid_invariant", "unknown"),
    "other values": ({"parity": changed(PARITY, "answer", "different")}, "invalid_parity", "different"),
    "undecided": ({"parity": changed(PARITY, "answer", "undecided")}, "invalid_parity", "undecided"),
    "screened out": ({"arm": None, "not_raced": "screening: none of 3 pairs"}, "not_measured", "screening"),
    "crashed while timed": ({"arm": {"status": "failed", "reason": "exit code 1"}}, "failed_run", "exit code 1"),
    "fewer steps when timed": ({"arm": changed(ARM, "observed.steps", [10])}, "invalid_invariant", r"\[10\] steps"),
    "other loss when timed": (
        {"arm": changed(ARM, "observed.final_loss", [2.5, 3.0])},
        "invalid_parity",
        "another loss",
    ),
    "no loss when timed": ({"arm": changed(ARM, "observed.final_loss", [])}, "invalid_parity", "another loss"),
    "memory": ({"arm": changed(ARM, "memory.host.ratio", 1.6)}, "invalid_guard", "memory grew 1.60 times"),
    "biased machine": (
        {"aa": {"estimate": {**ESTIMATE, "low": 1.05, "high": 1.25}}},
        "inconclusive",
        "differs from itself",
    ),
    "clear of the bias": ({"aa": {"estimate": {**ESTIMATE, "low": 1.05, "high": 1.15}}}, "faster", ""),
    "slower": (
        {
            "arm": changed(
                changed(ARM, "answer", "slower"), "estimate", {**ESTIMATE, "ratio": 0.8, "low": 0.7, "high": 0.9}
            )
        },
        "slower",
        "",
    ),
    "no difference": ({"arm": changed(ARM, "answer", "no_difference")}, "no_difference", ""),
    "inconclusive": ({"arm": changed(ARM, "answer", "inconclusive")}, "inconclusive", "neither clear nor negligible"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_way_to_end_has_its_verdict_and_only_earned_ratios(case, tmp_path):
    given, expected, reason = CASES[case]
    found = verdict(**given)
    assert found["verdict"] == expected
    assert re.search(reason, found["reason"] or "")
    earned = expected in ("faster", "slower", "no_difference")
    assert all((found[key] is not None) == earned for key in ("ratio", "low", "high", "confidence", "pairs", "race"))
    write_json(tmp_path / "verdict.json", "wholejob/verdict@1", found)  # the schema says the same


def test_gates_after_the_first_failure_are_not_reached():
    gates = verdict(parity=changed(PARITY, "executed.hit", 0))["gates"]
    states = [gate["passed"] for gate in gates]
    assert states == [True, True, True, False, None, None, None, None, None, None]


def test_schema_refuses_a_ratio_beside_another_verdict(tmp_path):
    from scripts.common.errors import InputError

    forged = {**verdict(parity=changed(PARITY, "answer", "different")), "ratio": 2.0}
    with pytest.raises(InputError, match="ratio"):
        write_json(tmp_path / "verdict.json", "wholejob/verdict@1", forged)


def test_final_verdict_without_any_accepted_change(tmp_path):
    empty = changed(changed(changed(PARITY, "answer", "not_run"), "runs", None), "reason", "the guard said nothing")
    files = {
        "spec": SPEC,
        "guard": {**GUARD, "status": "nothing", "tree": None, "files": [], "lines_added": 0, "lines_removed": 0},
        "parity": empty,
        "race": {"alpha": 0.05, "min_effect": 0.02, "plan": [], "machine": None, "arms": {}},
    }
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": f"wholejob/{name}@1", **document}))
    words = [word for name in files for word in (f"--{name}", str(tmp_path / f"{name}.json"))]
    assert main([*words, "--arm", "final", "-o", str(tmp_path / "verdict.json")]) == 0
    found = read_json(tmp_path / "verdict.json", "verdict")
    assert (found["verdict"], found["reason"]) == ("not_measured", "no candidate was accepted")


OTHER = {"compared": 1, "differing": [{"path": "model.pt", "why": "w: apart"}], "undecided": []}
SAME = {"compared": 1, "differing": [], "undecided": []}


def test_timed_runs_that_write_other_outputs_than_the_checked_run_are_invalid():
    assert verdict(arm=changed(ARM, "observed.outputs", SAME))["verdict"] == "faster"
    cheat = verdict(arm=changed(ARM, "observed.outputs", OTHER))
    assert cheat["verdict"] == "invalid_parity" and "another model.pt" in cheat["reason"]
    assert cheat["ratio"] is None


def test_outputs_that_the_baseline_does_not_repeat_decide_nothing():
    arm, base = changed(ARM, "observed.outputs", OTHER), {**BASE, "outputs": OTHER}
    found = decide(SPEC, GUARD, PARITY, arm, not_raced="", base=base, aa=AA)
    assert found["verdict"] == "faster"
    assert "as the baseline's do" in next(g["detail"] for g in found["gates"] if g["name"] == "timed_as_checked")


def test_timed_runs_that_mark_fewer_calls_do_so_in_both_arms():
    fewer = changed(ARM, "observed.steps", [16])
    both = decide(SPEC, GUARD, PARITY, fewer, not_raced="", base={**BASE, "steps": [16]}, aa=AA)
    assert both["verdict"] == "faster"
    alone = decide(SPEC, GUARD, PARITY, fewer, not_raced="", base=BASE, aa=AA)
    assert alone["verdict"] == "invalid_invariant" and "[16] steps" in alone["reason"]
