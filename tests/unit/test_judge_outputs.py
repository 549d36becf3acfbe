"""Declared outputs: equal within what unmodified runs differ, and nothing of them executed."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from scripts.judge import outputs


@pytest.fixture
def folders(tmp_path):
    """`write(run, name, bytes or text)` into the out folder of a run; returns the folder."""

    def write(run, name, content):
        folder = tmp_path / run
        folder.mkdir(exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
        return folder

    return write


def compared(folders, name, base, others, candidate, *, how="values", held_out=False):
    """The single answer for one file."""
    one = folders("base", name, base)
    spread = [one, *(folders(f"other{i}", name, other) for i, other in enumerate(others))]
    two = folders("candidate", name, candidate)
    found = outputs.compare([name], one, spread, two, how, held_out=held_out)
    return next((answer, found[answer][0]["why"]) for answer in found if found[answer])


def result(loss, **more):
    return json.dumps({"loss": loss, "seconds": 12.5, **more})


def test_numbers_within_ten_times_the_own_spread_agree_and_beyond_differ(folders):
    base, others = result(2.0), [result(2.0002)]
    assert compared(folders, "r.json", base, others, result(2.0005))[0] == "same"
    answer, why = compared(folders, "r.json", base, others, result(2.01))
    assert answer == "differing" and "loss: apart by" in why
    assert compared(folders, "r.json", base, [base], result(2.00001))[0] == "same"  # float32 rounding
    assert compared(folders, "r.json", base, [base], result(2.001))[0] == "differing"


def test_a_held_out_seed_is_allowed_ten_times_as_much_since_its_spread_is_another(folders):
    base, others = result(2.0), [result(2.0002)]
    assert compared(folders, "r.json", base, others, result(2.01), held_out=True)[0] == "same"
    assert compared(folders, "r.json", base, others, result(2.03), held_out=True)[0] == "differing"


def test_one_element_may_leave_where_the_whole_array_may_not(folders):
    weights = np.linspace(-1, 1, 1000)

    def saved(values):
        file = io.BytesIO()
        np.save(file, values)
        return file.getvalue()

    one, all_of_them = weights.copy(), weights * (1 + 2e-4)
    one[500] += 2e-4
    for others in ([saved(weights)], [saved(weights * (1 + 1e-5))]):
        assert compared(folders, "w.npy", saved(weights), others, saved(all_of_them))[0] == "differing"
    spread = [saved(weights * (1 + 1e-5))]
    assert compared(folders, "w.npy", saved(weights), spread, saved(one))[0] == "same"
    one[500] = 1.0
    answer, _ = compared(folders, "w.npy", saved(weights), spread, saved(one))
    assert answer == "differing"


def test_clocks_may_differ_and_keys_may_not(folders):
    base = result(2.0)
    assert compared(folders, "r.json", base, [base], result(2.0).replace("12.5", "3.1"))[0] == "same"
    assert compared(folders, "r.json", base, [base], result(2.0, extra=1))[0] == "differing"
    assert compared(folders, "r.json", base, [base], json.dumps({"seconds": 1}))[0] == "differing"


def test_integers_and_words_are_exact(folders):
    base = result(2.0, tokens=[1, 2, 3], text="abc")
    assert compared(folders, "r.json", base, [base], result(2.0, tokens=[1, 2, 4], text="abc"))[0] == "differing"
    assert compared(folders, "r.json", base, [base], result(2.0, tokens=[1, 2, 3], text="abd"))[0] == "differing"
    moving = [result(2.0, tokens=[1, 2, 3], text="run 2")]
    assert compared(folders, "r.json", base, moving, result(2.0, tokens=[1, 2, 3], text="run 9"))[0] == "same"


def test_nan_that_the_baseline_lacks_and_missing_rows_differ(folders):
    base = "step,loss\n1,2.0\n2,1.5\n"
    assert compared(folders, "log.csv", base, [base], "step,loss\n1,2.0\n2,nan\n")[0] == "differing"
    assert compared(folders, "log.csv", base, [base], "step,loss\n1,2.0\n")[0] == "differing"
    assert compared(folders, "log.csv", base, [base], "step,loss\n1,2.000001\n2,1.5\n")[0] == "same"


def test_missing_file_bytes_and_unknown_formats(folders):
    one = folders("base", "a.bin2", "x")
    folders("candidate", "other", "x")
    assert outputs.compare(["a.bin2"], one, [one], one.parent / "candidate", "exists")["differing"]
    assert compared(folders, "a.png", "x", ["x"], "y")[0] == "undecided"
    answer, why = compared(folders, "a.png", "x", ["z"], "y")
    assert answer == "undecided" and "not read" in why
    assert compared(folders, "a.json", result(2.0), [], result(2.0000001), how="bytes")[0] == "differing"
    assert compared(folders, "a.json", result(2.0), [], "{torn")[0] == "differing"


def test_torch_checkpoint_is_read_without_torch_and_equals_what_torch_reads(folders, tmp_path):
    torch = pytest.importorskip("torch", reason="SKIPPED LOUDLY: needs torch to write a checkpoint")
    state = {
        "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "step": torch.tensor(7),
        "nested": [{"exp_avg": torch.ones(2, dtype=torch.float64)}],
    }
    torch.save(state, tmp_path / "model.pt")
    found = outputs.read(tmp_path / "model.pt")
    np.testing.assert_array_equal(found["weight"], state["weight"].numpy())
    np.testing.assert_array_equal(found["half"], [1.5, -2.0])
    assert found["step"] == 7
    np.testing.assert_array_equal(found["nested.0.exp_avg"], [1, 1])
    base = (tmp_path / "model.pt").read_bytes()
    state["weight"] = state["weight"].clone()
    state["weight"][0, 1] += 0.1
    torch.save(state, tmp_path / "other.pt")
    assert compared(folders, "model.pt", base, [base], (tmp_path / "other.pt").read_bytes())[0] == "differing"


def test_pickle_with_a_payload_runs_nothing(folders, tmp_path):
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return (__import__("os").mkdir, (str(marker),))

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({"weight": Payload()}))
    outputs.read(tmp_path / "evil.pt")
    assert not marker.exists()


def test_tensor_outside_its_storage_is_damage(tmp_path):
    with pytest.raises(ValueError, match="outside"):
        outputs._tensor(np.zeros(4, dtype="<f4"), 0, (5,), (1,))
