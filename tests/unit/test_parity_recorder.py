"""The recorder: what it writes, what it refuses, and that the job never notices it."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import parity
from parity import recorder

ROOT = Path(__file__).resolve().parents[2]
OTHERS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A fresh recorder, switched on, that writes to a folder of its own."""
    folder = tmp_path / "records"
    monkeypatch.setenv("PARITY_OUT", str(folder))
    monkeypatch.setattr(recorder, "_recorder", recorder.Recorder())
    monkeypatch.setattr(recorder, "_compiling", recorder._not_compiling)
    parity.set_enabled(True)
    yield folder
    parity.set_enabled(False)


def rows(folder, rank=0):
    parity.flush()
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()[1:]]


def run(code, out, interpreter=sys.executable, **environ):
    """A Python program with parity on its path and recording on."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PARITY": "1",
        "PARITY_OUT": str(out),
        "OMP_NUM_THREADS": "1",
        **environ,
    }
    return subprocess.run(
        [str(interpreter), "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_off_writes_nothing_and_calls_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_OUT", str(tmp_path / "records"))
    parity.record("a", object())
    parity.record_lazy("a", lambda: pytest.fail("called while off"))
    parity.step(3)
    parity.flush()
    assert not parity.enabled() and not (tmp_path / "records").exists()


def test_scalars_keep_their_kind(out):
    values = [
        True,
        3,
        2.5,
        "text",
        torch.tensor(1.5),
        torch.tensor(7),
        torch.tensor(True),
        np.float32(0.5),
        np.int8(4),
        np.bool_(False),
    ]
    parity.record("v", values)
    got = [(row["kind"], row["value"]) for row in rows(out)]
    assert got == [
        ("bool", True), ("int", 3), ("float", 2.5), ("str", "text"), ("float", 1.5), ("int", 7), ("bool", True),
        ("float", 0.5), ("int", 4), ("bool", False),
    ]  # fmt: skip
    assert [row["tag"] for row in rows(out)] == [f"v.{i}" for i in range(10)]


def test_nested_values_flatten_in_program_order(out):
    parity.record("m", {"loss": {"a": 1.0, "b": [2, torch.ones(2)]}, "n": 3})
    assert [row["tag"] for row in rows(out)] == ["m.loss.a", "m.loss.b.0", "m.loss.b.1", "m.n"]


def test_the_header_describes_the_run_and_not_the_folder(out):
    parity.record("a", 1)
    parity.flush()
    text = (out / "rank0.jsonl").read_text().splitlines()[0]
    header = json.loads(text)
    assert header["schema"] == "parity/records@1"
    assert header["torch"] == str(torch.__version__) and header["rank"] == 0 and header["world_size"] == 1
    assert {"run_id", "argv", "program", "started_ns", "backend", "gpus", "seed", "cudnn", "driver"} <= set(header)
    assert header["backend"]["default_dtype"] == "float32" and "matmul_tf32" in header["backend"]
    assert str(Path.cwd()) not in text and str(out) not in text


def test_steps_occurrences_tolerances_and_notes(out):
    parity.set_default_tolerance(rtol=0.1)
    parity.step(4)
    parity.record("a", 1.0)
    parity.record("a", 2.0, rtol=0.5, atol=1.0, note="why")
    parity.record("a", 3.0, step=9)
    first, second, third = rows(out)
    assert (first["step"], first["occurrence"], first["rtol"]) == (4, 0, 0.1) and "atol" not in first
    assert (second["step"], second["occurrence"], second["rtol"], second["atol"], second["note"]) == (
        4,
        1,
        0.5,
        1.0,
        "why",
    )
    assert (third["step"], third["occurrence"]) == (9, 0)


def test_non_finite_scalars_are_text(out):
    parity.record("v", [float("nan"), float("inf"), -float("inf"), torch.tensor(float("nan"))])
    assert [row["value"] for row in rows(out)] == ["nan", "inf", "-inf", "nan"]


def test_a_step_that_is_recorded_twice_is_an_error_record(out):
    for number in (0, 1, 0):
        parity.step(number)
        parity.record("loss", 1.0)
    last = rows(out)[-1]
    assert last["kind"] == "error" and "duplicate" in last["error"] and last["tag"] == "loss"


class Hostile:
    @property
    def shape(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("tag", "value", "says"),
    [
        ("a", object(), "cannot record a object"),
        ("a", Hostile(), "cannot record"),
        ("two words", 1, "without spaces"),
        ("", 1, "without spaces"),
        (None, 1, "without spaces"),
        ("a", torch.zeros(2, dtype=torch.complex64), "view_as_real"),
        ("a", np.array(["x"]), "not recorded"),
        ("a", torch.zeros(2).to_sparse(), "to_dense"),
    ],
)
def test_failures_become_records_and_are_counted(out, tag, value, says):
    parity.record(tag, value)
    (row,) = rows(out)
    assert row["kind"] == "error" and says in row["error"]
    assert recorder._recorder.errors == 1


def test_one_bad_leaf_does_not_cost_its_siblings(out):
    parity.record("m", {"good": 1, "bad": object(), "also": 2})
    assert [(row["tag"], row["kind"]) for row in rows(out)] == [
        ("m.good", "int"),
        ("m.bad", "error"),
        ("m.also", "int"),
    ]


def test_a_lazy_value_is_computed_and_its_failure_contained(out):
    parity.record_lazy("a", lambda: 5, note="n")
    parity.record_lazy("b", lambda: 1 / 0)
    good, bad = rows(out)
    assert good["value"] == 5 and good["note"] == "n"
    assert bad["kind"] == "error" and "ZeroDivisionError" in bad["error"]


def test_an_unwritable_folder_does_not_reach_the_job(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARITY_OUT", str(tmp_path / "file" / "records"))
    monkeypatch.setattr(recorder, "_recorder", recorder.Recorder())
    parity.set_enabled(True)
    try:
        parity.record("a", 1)
        parity.flush()
    finally:
        parity.set_enabled(False)
    assert recorder._recorder.errors


def test_a_later_change_in_place_does_not_alter_the_record(out):
    x = torch.ones(100)
    scalar = torch.tensor(1.0)
    parity.record("x", x)
    parity.record("s", scalar)
    x.zero_()
    scalar.zero_()
    first, second = rows(out)
    assert first["sum"] == 100.0 and second["value"] == 1.0


def test_no_graph_stays_alive(out):
    x = torch.randn(10, requires_grad=True)
    y = (x * 2).sum()
    parity.record("scalar", y)
    parity.record("tensor", x * 3)
    leaf = weakref.ref(x)
    del x, y
    assert leaf() is None


def test_random_streams_do_not_move(out):
    torch.manual_seed(0)
    np.random.seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    parity.record("x", torch.arange(5000.0))
    parity.flush()
    assert torch.equal(before, torch.get_rng_state()) and (np.random.get_state()[1] == numpy_before).all()


def test_inside_a_compiled_region_nothing_is_recorded_and_nothing_changes(out):
    recorder._bind()

    def double(x):
        parity.record("inside", x)
        parity.record_lazy("inside", lambda: x)
        return x * 2

    compiled = torch.compile(double, backend="eager", fullgraph=True)  # fullgraph: a graph break would raise
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    parity.record("outside", 1)
    assert [row["tag"] for row in rows(out)] == ["outside"]


def test_vmap_is_refused_in_words(out):
    torch.vmap(lambda x: (parity.record("x", x), x)[1])(torch.ones(3, 2))
    assert "vmap" in rows(out)[0]["error"]


def test_threads_share_one_file(out):
    def work(name):
        for number in range(200):
            parity.record(name, number, step=number)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = rows(out)
    assert len(got) == 800 and recorder._recorder.errors == 0
    assert [row["value"] for row in got if row["tag"] == "t2"] == list(range(200))


def test_reset_forgets_steps(out):
    parity.record("a", 1, step=5)
    parity.flush()
    parity.reset()
    parity.record("a", 1, step=0)
    assert [row["kind"] for row in rows(out)] == ["int", "int"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_records_nothing_and_leaves_the_parents_queue_alone(tmp_path):
    code = (
        "import os, parity, multiprocessing as m\n"
        "parity.record('a', 1)\n"
        "def child():\n    parity.record('child', 2); parity.flush()\n"
        "p = m.get_context('fork').Process(target=child); p.start(); p.join()\n"
        "assert p.exitcode == 0\n"
        "parity.record('a', 3)\n"
    )
    done = run(code, tmp_path / "r")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "r/rank0.jsonl").read_text().splitlines()]
    assert [line.get("value") for line in lines] == [None, 1, 3]


def spawned():
    parity.record("child", 1)
    parity.flush()


def test_a_spawned_child_records_nothing(out, monkeypatch):
    monkeypatch.setenv("PARITY", "1")
    process = multiprocessing.get_context("spawn").Process(target=spawned)
    process.start()
    process.join(60)
    assert process.exitcode == 0 and not (out / "rank0.jsonl").exists()


def test_a_second_process_does_not_touch_the_first_ones_records(tmp_path):
    run("import parity; parity.record('a', 1)", tmp_path / "r")
    before = (tmp_path / "r/rank0.jsonl").read_bytes()
    again = run("import parity; parity.record('a', 2)", tmp_path / "r")
    assert again.returncode == 0 and "exists already" in again.stderr
    assert (tmp_path / "r/rank0.jsonl").read_bytes() == before


def test_a_killed_process_loses_only_what_was_not_written(tmp_path):
    code = (
        "import parity, os, signal\n"
        "for i in range(100):\n    parity.record('a', i, step=i)\n"
        "parity.flush()\n"
        "parity.record('lost', 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run(code, tmp_path / "r").returncode == -9
    lines = [json.loads(line) for line in (tmp_path / "r/rank0.jsonl").read_text().splitlines()]
    assert [line["value"] for line in lines[1:]] == list(range(100))


def test_an_exception_of_the_job_still_writes_everything(tmp_path):
    done = run("import parity; parity.record('a', 1); raise SystemExit(7)", tmp_path / "r")
    assert done.returncode == 7 and '"value": 1' in (tmp_path / "r/rank0.jsonl").read_text()


def test_ranks_write_their_own_files(tmp_path):
    for rank in ("0", "1"):
        run(f"import parity; parity.record('a', {rank})", tmp_path / "r", RANK=rank, WORLD_SIZE="2")
    headers = [json.loads((tmp_path / f"r/rank{rank}.jsonl").read_text().splitlines()[0]) for rank in (0, 1)]
    assert [(h["rank"], h["world_size"]) for h in headers] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "interpreter", [p for p in OTHERS if not p.parts[-3].startswith(("3.6", "3.7", "3.8"))], ids=lambda p: p.parts[-3]
)
def test_other_pythons_record_without_torch_and_numpy(interpreter, tmp_path):
    done = run(
        "import parity; parity.record('m', {'a': 1, 'b': [True, 'x', 2.5]}); assert parity.enabled()",
        tmp_path / "r",
        interpreter,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "r/rank0.jsonl").read_text().splitlines()]
    assert [line["value"] for line in lines[1:]] == [1, True, "x", 2.5] and lines[0]["torch"] is None


def test_importing_pulls_in_nothing_heavy():
    heavy = {"torch", "numpy", "json", "hashlib", "argparse", "subprocess", "typing"}
    code = f"import sys, parity; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
