"""Parity of a candidate from recorded runs: seeds, invariants, precision, outputs, and lines that never ran."""

import copy
import json

import pytest

from parity.derive import derive
from scripts.common.errors import InputError
from scripts.judge.compare import judge

LEDGER = {
    "schema": "parity/ledger@1",
    "invariants": {"optimizer_steps": 12, "samples": 24, "sample_hash": {"0": "ab"}},
    "unseen": [],
    "context": {"backend": {"end": {"matmul_tf32": False}}, "autocast": [], "optimizer_implementation": "AdamW"},
    "source_files": {"job.py": "0"},
    "errors": 0,
}
RUN = {
    "schema": "wholejob/run@1", "kind": "checked", "status": "ok", "reason": None, "perturb": None, "tree": "t",
    "command": ["python"], "environment": {}, "wall_s": 1.0, "records": {}, "steps": 12, "protected_unchanged": True,
    "tree_verified": True, "final_loss": 2.0, "outputs": [{"path": "r.json", "bytes": 1, "sha256": "0"}],
}  # fmt: skip


class Runs:
    """Run folders with made-up records: 12 losses that start at 3 for seed 0 and at 4 for seed 1."""

    def __init__(self, place):
        self.place, self.count = place, 0

    def make(self, name, *, seed=0, nudge=0.0, ledger=LEDGER, coverage=None, loss=2.0, **run):
        self.count += 1
        folder = self.place / name
        records = folder / "records"
        records.mkdir(parents=True)
        (folder / "out").mkdir()
        (folder / "out" / "r.json").write_text(json.dumps({"loss": loss}))
        header = {
            "schema": "parity/records@1", "run_id": f"{self.count:032x}", "rank": 0, "world_size": 1,
            "perturb": "ulp" if nudge else None, "perturb_seed": self.count,
        }  # fmt: skip
        lines = [header]
        for step in range(12):
            value = 3.0 + seed - 0.05 * step + nudge * (step + 1)
            lines.append({"tag": "loss", "step": step, "occurrence": 0, "kind": "float", "value": value})
        (records / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (records / "ledger.json").write_text(json.dumps(ledger))
        if coverage is not None:
            document = {"schema": "parity/coverage@1", "files": {"job.py": {"wanted": [1, 2], "hit": coverage}}}
            (records / "coverage.json").write_text(json.dumps(document))
        perturb = {"kind": "ulp", "seed": self.count} if nudge else None
        (folder / "run.json").write_text(json.dumps({**RUN, "seed": seed, "perturb": perturb, **run}))
        return folder


SPEC = {"parity": {"seed": 0, "allow": [], "tolerances": {}, "outputs": "values"}, "constraints": {"precision": "same"}}


@pytest.fixture
def made(tmp_path):
    """`(runs, judged)`: `judged(candidate folders, **spec changes)` compares them with a baseline of five runs."""
    runs = Runs(tmp_path)
    baseline = [
        runs.make("seed0-repeat0"),
        *(runs.make(f"seed0-ulp{i}", nudge=nudge) for i, nudge in enumerate((1e-7, -2e-7, 1.5e-7))),
        runs.make("seed1-repeat0", seed=1),
    ]
    noise = {"parity": derive([folder / "records" for folder in baseline[:4]])}

    def judged(candidate, wanted=2, spec=SPEC):
        return judge(spec, noise, baseline, candidate, wanted)

    return runs, judged


def ledger(path, value):
    """The ledger with one field replaced."""
    document = copy.deepcopy(LEDGER)
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place[key]
    place[last] = value
    return document


def test_candidate_within_the_noise_is_equivalent_on_both_seeds(made):
    runs, judged = made
    found = judged([runs.make("c0", nudge=1e-7, coverage=[1], perturb=None), runs.make("c1", seed=1, coverage=[1, 2])])
    assert found["answer"] == "equivalent", found["reason"]
    assert [(seed["seed"], seed["held_out"]) for seed in found["seeds"]] == [(0, False), (1, True)]
    assert found["executed"] == {"wanted": 2, "hit": 2}
    assert found["runs"]["steps"] == [12]


def test_candidate_tuned_to_the_visible_seed_fails_on_the_held_out_one(made):
    runs, judged = made
    found = judged([runs.make("c0"), runs.make("c1", seed=1, nudge=1e-3)])
    assert found["answer"] == "different"
    assert found["reason"].startswith("seed 1")
    assert [seed["answer"] for seed in found["seeds"]] == ["equivalent", "different"]


def test_count_that_moves_is_an_invariant(made):
    runs, judged = made
    found = judged([runs.make("c0", ledger=ledger("invariants.optimizer_steps", 6)), runs.make("c1", seed=1)])
    assert found["answer"] == "different"
    assert found["invariants"]["equal"] is False
    assert found["invariants"]["differing"][0]["name"] == "optimizer_steps"


def test_lower_precision_is_an_invariant_unless_the_contract_allows_it(made):
    runs, judged = made
    lowered = ledger("context.backend.end.matmul_tf32", True)
    folders = [runs.make("c0", ledger=lowered), runs.make("c1", seed=1, ledger=lowered)]
    found = judged(folders)
    assert found["invariants"]["differing"][0]["name"] == "backend.end.matmul_tf32"
    allowed = {**SPEC, "constraints": {"precision": "tf32"}}
    assert judged(folders, spec=allowed)["answer"] == "equivalent"


def test_other_implementation_is_a_side_effect_and_no_difference(made):
    runs, judged = made
    fused = ledger("context.optimizer_implementation", "AdamW, fused")
    found = judged([runs.make("c0", ledger=fused), runs.make("c1", seed=1, ledger=fused)])
    assert found["answer"] == "equivalent"
    assert found["side_effects"][0]["name"] == "optimizer_implementation"


def test_free_data_order_allows_another_hash_of_samples_and_fixed_does_not(made):
    runs, judged = made
    sorted_ledger = ledger("invariants.sample_hash", {"0": "cd"})
    folders = [runs.make("c0", ledger=sorted_ledger), runs.make("c1", seed=1, ledger=sorted_ledger)]
    assert judged(folders)["invariants"]["equal"] is False
    free = {**SPEC, "constraints": {"data_order": "free"}}
    assert judged(folders, spec=free)["answer"] == "equivalent"


def test_output_file_that_differs_is_different(made):
    runs, judged = made
    found = judged([runs.make("c0", loss=2.1), runs.make("c1", seed=1)])
    assert found["answer"] == "different"
    assert "output r.json, seed 0: loss" in found["reason"]


def test_lines_that_never_ran_are_counted_as_such(made):
    runs, judged = made
    found = judged([runs.make("c0", coverage=[]), runs.make("c1", seed=1, coverage=[])])
    assert found["executed"] == {"wanted": 2, "hit": 0}
    unknown = judged([runs.make("d0"), runs.make("d1", seed=1)])
    assert unknown["executed"] == {"wanted": 2, "hit": None}


def test_failed_and_missing_runs_are_not_compared(made):
    runs, judged = made
    found = judged([runs.make("c0", status="timeout", reason="did not end"), runs.make("c1", seed=1)])
    assert (found["answer"], found["reason"]) == ("failed_run", "seed 0: timeout: did not end")
    idle = judged([runs.make("d0", status="not_run", reason="the guard said refused")])
    assert idle["answer"] == "not_run"


def test_baseline_renamed_as_candidate_cannot_pass(made, tmp_path):
    runs, judged = made
    candidate = runs.make("c0")
    original = tmp_path / "seed0-repeat0" / "records" / "rank0.jsonl"
    (candidate / "records" / "rank0.jsonl").write_bytes(original.read_bytes())
    found = judged([candidate, runs.make("c1", seed=1)])
    assert found["answer"] == "failed_run" and "copy of" in found["reason"]


def test_declared_tolerance_takes_the_place_of_the_measured_one(made):
    runs, judged = made
    folders = [runs.make("c0", nudge=1e-3, perturb=None), runs.make("c1", seed=1)]
    assert judged(folders)["answer"] == "different"
    declared = {**SPEC, "parity": {**SPEC["parity"], "tolerances": {"loss": {"rtol": 0.01, "atol": 0.0}}}}
    found = judged(folders, spec=declared)
    assert found["answer"] == "equivalent", found["reason"]


def test_unusable_noise_is_no_fault_of_the_candidate(made, tmp_path):
    runs, _ = made
    candidate = [runs.make("c0"), runs.make("c1", seed=1)]
    baseline = [tmp_path / "seed0-repeat0", tmp_path / "seed1-repeat0"]
    with pytest.raises(InputError, match=r"noise\.json: "):
        judge(SPEC, {"parity": {"schema": "parity/noise@1", "verdict": "ok"}}, baseline, candidate, 0)
