"""The noise document: envelopes, thresholds, verdicts per tag, and what cannot be derived."""

from __future__ import annotations

import json
import shutil

import pytest
from parity_generate import scalar, tensor, training, write_run

from parity.__main__ import main
from parity.compare import compare
from parity.derive import derive
from parity.envelope import Estimate, Rising, components
from parity.records import BadInput


def runs(tmp_path, make, count=4, **header):
    return [write_run(tmp_path / f"run{i}", make(i), **header) for i in range(count)]


def tag_of(document, name):
    return document["ranks"]["0"][name]


class TestVerdicts:
    def test_bit_identical_repeats_are_vacuous_and_the_call_to_type_is_given(self, tmp_path):
        document = derive(runs(tmp_path, lambda i: training(1), 3))
        assert document["verdict"] == "vacuous"
        assert document["call"].startswith("parity run --perturb ulp")
        assert document["distinct"] == 1

    def test_perturbed_runs_that_do_not_move_say_that_nothing_was_nudged(self, tmp_path):
        document = derive(runs(tmp_path, lambda i: training(1), 3, perturb="ulp"))
        assert document["verdict"] == "vacuous"
        assert "nothing was nudged" in document["reason"]

    def test_a_vacuous_document_judges_by_dtype_and_says_so(self, tmp_path):
        folders = runs(tmp_path, lambda i: training(1), 3)
        cand = write_run(tmp_path / "cand", training(1, change=lambda tag, step, value: value * (1 + 1e-6)))
        report = compare(folders[0], cand, derive(folders))
        assert report["answer"] == "equivalent"
        assert "vacuous" in report["judged_by"]["text"]

    def test_identical_repeats_count_once(self, tmp_path):
        document = derive(runs(tmp_path, lambda i: training(max(0, i - 2)), 6))
        assert (document["distinct"], len(document["runs"])) == (4, 6)
        assert [run["same_as"] for run in document["runs"][:3]] == [None, "run0", "run0"]

    def test_two_distinct_runs_are_too_thin(self, tmp_path):
        assert derive(runs(tmp_path, lambda i: training(i // 2), 4))["verdict"] == "thin"

    def test_verdicts_per_tag_with_the_call_to_type(self, tmp_path):
        def rows(i):
            return [
                scalar("same", 0, 1.0),
                scalar("moves", 0, 1.0 + 1e-7 * i),
                scalar("exact", 0, 5, rtol=0.0, atol=0.0),
                scalar("slack", 0, 2.0, rtol=0.1),
                scalar("fits", 0, 1.0 + 1e-7 * i, rtol=1e-6),
                scalar("wide", 0, 1.0 + 1e-7 * i, rtol=0.1),
                scalar("tight", 0, 1.0 + 1e-3 * i, rtol=1e-6),
                scalar("name", 0, f"run {i}"),
                scalar("type", 0, 1 if i else 1.0),
                *([scalar("sometimes", 0, 1.0)] if i else []),
            ]

        document = derive(runs(tmp_path, rows))
        expected = {
            "same": "identical",
            "moves": "ok",
            "exact": "identical",
            "slack": "slack",
            "fits": "ok",
            "wide": "vacuous",
            "tight": "flaky",
            "name": "unstable",
            "type": "unstable",
            "sometimes": "unstable",
        }
        assert {name: entry["verdict"] for name, entry in document["ranks"]["0"].items()} == expected
        assert "rtol=" in tag_of(document, "tight")["call"]
        assert "--exclude 'name'" in tag_of(document, "name")["call"]
        assert document["verdict"] == "unstable"

    def test_the_call_for_a_flaky_tag_is_wide_enough_when_typed(self, tmp_path):
        def rows(i, rtol):
            return [scalar("tight", 0, 1.0 + 1e-3 * i, rtol=rtol), scalar("loss", 0, 1.0 + 1e-7 * i)]

        entry = tag_of(derive(runs(tmp_path / "a", lambda i: rows(i, 1e-6))), "tight")
        typed = float(entry["call"].split("rtol=")[1].rstrip(")"))
        assert tag_of(derive(runs(tmp_path / "b", lambda i: rows(i, typed))), "tight")["verdict"] == "ok"


class TestEnvelope:
    def test_it_rises_and_follows_the_spread(self, tmp_path):
        document = derive(runs(tmp_path, lambda i: training(i, steps=120, growth=1.1), 5))
        points = tag_of(document, "loss")["envelope"]["value"]
        values = [value for _, value in points]
        assert values == sorted(values)
        assert values[0] < 3e-7
        assert values[-1] > 1e-3
        assert len(points) < 400

    def test_early_steps_do_not_inherit_the_chaos_of_later_ones(self):
        estimate = Estimate(3)
        for step in range(20):
            spread = 1e-7 if step < 8 else 1e-2
            estimate.add(step, [components({"kind": "float", "value": 1 + spread * k})[0] for k in (-1, 0, 1)])
        estimate.finish()
        assert estimate.envelope.at(0) == pytest.approx(1e-7)
        assert estimate.envelope.at(3) == pytest.approx(1e-7)
        assert estimate.envelope.at(19) > 5e-3

    def test_spread_is_the_standard_deviation_of_the_runs(self):
        estimate = Estimate(3)
        for step in range(30):
            estimate.add(step, [components({"kind": "float", "value": value})[0] for value in (9.0, 10.0, 11.0)])
        estimate.finish()
        assert estimate.envelope.at(15) == pytest.approx(0.1)

    def test_a_growing_envelope_allows_other_rounding_and_a_constant_one_does_not(self):
        growing = Rising([[step, 1e-7 * 1.2**step] for step in range(100)], 99)
        assert growing.allowed(50) == pytest.approx(10 * growing.at(50))
        saturated = Rising([[0, 1e-7], [10, 1e-2]], 100)
        assert saturated.allowed(5) == pytest.approx(1e-6)
        assert saturated.allowed(50) == pytest.approx(1e-2)
        constant = Rising([[0, 4e-3]], 100)
        assert constant.allowed(50) == pytest.approx(4e-3)

    def test_a_number_that_crosses_zero_is_judged_by_its_neighbours(self, tmp_path):
        def rows(i):
            return [scalar("x", step, (step - 20) / 10 + 1e-6 * ((i * 7 + step * 3) % 5)) for step in range(40)]

        document = derive(runs(tmp_path, rows, 5))
        cand = write_run(tmp_path / "cand", rows(9))
        assert compare(tmp_path / "run0", cand, document)["answer"] == "equivalent"

    def test_tensors_have_envelopes_of_moments_and_sketch(self, tmp_path):
        import torch

        def rows(i):
            generator = torch.Generator().manual_seed(i)
            x = torch.randn(5000, generator=torch.Generator().manual_seed(99))
            return [tensor("h", s, x * (1 + 1e-3 * torch.randn(5000, generator=generator))) for s in range(6)]

        document = derive(runs(tmp_path, rows, 4))
        envelope = tag_of(document, "h")["envelope"]
        assert set(envelope) == {"sum", "l2", "abs_mean", "min", "max", "sketch"}
        assert envelope["sketch"][-1][1] == pytest.approx(1e-3, rel=0.3)


class TestRefusals:
    def test_fewer_than_three_runs(self, tmp_path):
        for count in (1, 2):
            with pytest.raises(BadInput, match="3 or more"):
                derive(runs(tmp_path / str(count), training, count))

    def test_the_same_run_twice_and_a_copy(self, tmp_path):
        folders = runs(tmp_path, training, 3)
        with pytest.raises(BadInput, match="same run"):
            derive([folders[0], folders[1], folders[1]])
        copy = shutil.copytree(folders[0], tmp_path / "copy")
        with pytest.raises(BadInput, match="same run"):
            derive([*folders, copy])

    def test_another_machine_seed_or_set_of_ranks(self, tmp_path):
        folders = runs(tmp_path, training, 3)
        with pytest.raises(BadInput, match="gpus"):
            derive([*folders, write_run(tmp_path / "gpu", training(7), gpus=["NVIDIA H200"])])
        with pytest.raises(BadInput, match="seed"):
            derive([*folders, write_run(tmp_path / "seed", training(7), seed=1)])
        two = write_run(tmp_path / "two", training(7), world_size=2)
        write_run(two, training(8), rank=1, world_size=2)
        with pytest.raises(BadInput, match="ranks"):
            derive([*folders, two])

    def test_another_number_of_threads_is_a_perturbation(self, tmp_path):
        folders = runs(tmp_path, training, 3, backend={"threads": 1})
        more = write_run(tmp_path / "threads", training(7), backend={"threads": 2})
        assert derive([*folders, more])["verdict"] == "ok"

    def test_runs_without_records(self, tmp_path):
        with pytest.raises(BadInput, match="no records"):
            derive(runs(tmp_path, lambda i: [], 3))


class TestCommand:
    def test_exit_codes_and_output(self, tmp_path, capsys):
        good = [str(path) for path in runs(tmp_path / "a", training)]
        assert main(["derive", *good, "-o", str(tmp_path / "noise.json")]) == 0
        assert "written" in capsys.readouterr().out
        assert main(["compare", good[0], good[1], "--noise", str(tmp_path / "noise.json")]) == 0
        capsys.readouterr()
        same = [str(path) for path in runs(tmp_path / "b", lambda i: training(1), 3)]
        assert main(["derive", *same]) == 2
        assert "-> parity run --perturb ulp" in capsys.readouterr().out
        assert main(["derive", good[0]]) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1

    def test_the_document_is_strict_json(self, tmp_path):
        target = tmp_path / "noise.json"
        main(["derive", *[str(path) for path in runs(tmp_path, training)], "-o", str(target)])
        assert json.loads(target.read_text())["schema"] == "parity/noise@1"
        assert list(tmp_path.glob(".*.part")) == []

    @pytest.mark.parametrize("lost", ["threshold", "ranks", "verdict", "last_step"])
    def test_a_damaged_document_cannot_be_used(self, tmp_path, lost):
        folders = runs(tmp_path, training)
        document = derive(folders)
        document.pop(lost, None)
        document.get("ranks", {"0": {"loss": {}}})["0"]["loss"].pop(lost, None)
        report = compare(folders[0], folders[1], document)
        assert report["answer"] == "cannot"
        assert "derive" in report["reason"]

    def test_a_document_of_another_kind_is_refused(self, tmp_path, capsys):
        (tmp_path / "noise.json").write_text('{"schema": "other"}')
        base = str(write_run(tmp_path / "base", training(1)))
        cand = str(write_run(tmp_path / "cand", training(1)))
        assert main(["compare", base, cand, "--noise", str(tmp_path / "noise.json")]) == 3
        assert "parity/noise@1" in capsys.readouterr().err


class TestUnprobed:
    """A workload that probes nothing on the way, as there everything may change; its outputs are judged elsewhere."""

    def empty(self, folder, sequences=24):
        return write_run(folder, [], ledger={"generated_sequences": sequences})

    def test_no_record_is_a_mistake_unless_it_was_asked_for(self, tmp_path):
        folders = [self.empty(tmp_path / f"run{i}") for i in range(3)]
        with pytest.raises(BadInput, match="nothing was probed"):
            derive(folders)
        document = derive(folders, unprobed=True)
        assert document["unprobed"] is True
        assert document["verdict"] == "vacuous"

    def test_probed_runs_stay_probed(self, tmp_path):
        folders = [write_run(tmp_path / f"run{i}", training(i), ledger={"generated_sequences": 24}) for i in range(4)]
        document = derive(folders, unprobed=True)
        assert document["unprobed"] is False
        assert document["verdict"] == "ok"
        cand = self.empty(tmp_path / "cand")
        assert compare(folders[0], cand, document)["answer"] == "different"  # it lacks every record

    def test_invariants_decide_and_a_new_record_is_a_difference(self, tmp_path):
        folders = [self.empty(tmp_path / f"run{i}") for i in range(3)]
        document = derive(folders, unprobed=True)
        report = compare(folders[0], self.empty(tmp_path / "same"), document)
        assert report["answer"] == "equivalent"
        assert "nothing is probed" in report["reason"]
        fewer = compare(folders[0], self.empty(tmp_path / "fewer", sequences=12), document)
        assert fewer["answer"] == "different"
        more = compare(
            folders[0], write_run(tmp_path / "more", training(1), ledger={"generated_sequences": 24}), document
        )
        assert more["answer"] == "different"
        without = compare(folders[0], self.empty(tmp_path / "other"), None)
        assert without["answer"] == "cannot"  # no document says that nothing is to be probed
