"""Unedited jobs under `parity run`: every kind of training loop that the recorder claims to see.

Each job prints its last loss exactly (as hexadecimal): equal output means that recording changed nothing, to the bit.
"""

import functools
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parity.run import environment

JOBS = Path(__file__).parent / "jobs"
ALL = {"batch", "loss", "grad_norm", "param_norm", "update_norm"}


class Run:
    """What a recorded job left."""

    def __init__(self, done, out):
        self.code, self.stdout, self.stderr, self.out = done.returncode, done.stdout, done.stderr, out
        self.ledger = json.loads((out / "ledger.json").read_text())
        self.invariants, self.context = self.ledger["invariants"], self.ledger["context"]

    def records(self, tag=None, rank=0):
        lines = (self.out / f"rank{rank}.jsonl").read_text().splitlines()[1:]
        found = [json.loads(line) for line in lines]
        return [row for row in found if tag is None or row["tag"] == tag]

    def tags(self):
        return {row["tag"].split(".")[0] for row in self.records()}

    def steps(self):
        return [json.loads(line) for line in (self.out / "steps.jsonl").read_text().splitlines()[1:]]

    def values(self, tag):
        return [row["value"] for row in self.records(tag)]


def launch(command, variables):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PARITY")}
    environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **variables)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def command(job):
    name, *arguments = job.split()
    return [sys.executable, str(JOBS / f"{name}.py"), *arguments]


@functools.cache
def plain(job):
    """What the job prints without us."""
    done = launch(command(job), {})
    assert done.returncode == 0, done.stderr
    return done.stdout


_shared = {}


def recorded(job, out, prefix=None, **options):
    """The job under our hooks. The plain recording of a job is made once and shared by the tests that only read it."""
    key = (job, *sorted(options.items())) if prefix is None and "cover" not in options else None
    if key in _shared:
        return _shared[key]
    done = launch(prefix or command(job), environment(out, tree=JOBS, **options))
    assert (out / "ledger.json").exists(), done.stderr
    run = Run(done, out)
    if key is not None:
        _shared[key] = run
    return run


MATRIX = {
    # job: (optimizer steps, backward calls, batches, samples, evaluated samples, tags)
    "plain": (12, 12, 12, 96, 10, ALL | {"grad_norm_clipped", "output"}),
    "accumulate": (3, 12, 12, 48, 0, ALL),
    "accumulate fork": (3, 12, 12, 48, 0, ALL),
    "accumulate spawn": (3, 12, 12, 48, 0, ALL),
    "amp": (6, 6, 6, 192, 0, ALL | {"grad_norm_clipped"}),
    "compiled": (5, 5, 5, 20, 0, ALL),
    "gan": (5, 10, 25, 400, 0, ALL),
    "lbfgs": (4, 12, 12, 384, 0, ALL),
    "fused 12": (4, 4, 4, 24, 0, ALL),
    "fused 12 --fused": (4, 4, 4, 24, 0, ALL),
    "fused 12 --checkpoint": (4, 4, 4, 24, 0, ALL),
    "fused 12 --checkpoint --early-stop": (4, 4, 4, 24, 0, ALL),
}


@pytest.mark.parametrize("job", MATRIX)
def test_a_training_job_is_seen_whole_and_not_changed(job, tmp_path):
    steps, backwards, calls, samples, evaluated, tags = MATRIX[job]
    run = recorded(job, tmp_path / "o")
    assert run.code == 0, run.stderr
    assert run.stdout == plain(job)
    found = run.invariants
    assert (found["optimizer_steps"], found["backward_calls"], found["batches"]) == (steps, backwards, calls)
    assert (found["samples"], found["evaluation_samples"]) == (samples, evaluated)
    assert run.tags() == tags and run.ledger["errors"] == 0
    assert len(run.steps()) == steps and len(run.values("loss")) == backwards
    assert len(run.values("grad_norm")) == steps
    assert (
        f"{JOBS.name}" not in json.dumps(run.ledger["source_files"])
        and f"{job.split()[0]}.py" in run.ledger["source_files"]
    )
    marks = [(row["begin_ns"], row["end_ns"]) for row in run.steps()]
    assert all(begin < end for begin, end in marks) and all(a[1] <= b[0] for a, b in zip(marks, marks[1:]))


@pytest.mark.parametrize("job", ["plain", "accumulate fork", "compiled", "gan"])
def test_a_timed_run_marks_the_same_steps_and_keeps_the_last_loss(job, tmp_path):
    run = recorded(job, tmp_path / "o", mode="timed")
    assert run.stdout == plain(job)
    assert len(run.steps()) == MATRIX[job][0]
    (final,) = run.records()
    assert final["tag"] == "loss" and final["note"] == "final"
    if job != "accumulate fork":
        assert float(final["value"]) == abs(float.fromhex(run.stdout.split()[-1 - (job == "compiled")])) * (
            -1 if final["value"] < 0 else 1
        )


def test_the_recorded_losses_are_the_jobs_own(tmp_path):
    run = recorded("plain", tmp_path / "o")
    assert run.values("loss")[-1].hex() == run.stdout.split()[-1]
    assert max(run.values("grad_norm_clipped")) <= 0.1 < max(run.values("grad_norm"))


def test_workers_see_the_same_batches_as_no_workers(tmp_path):
    none, workers = recorded("accumulate", tmp_path / "a"), recorded("accumulate spawn", tmp_path / "b")
    assert none.invariants == workers.invariants and none.values("loss") == workers.values("loss")


def test_amp_records_unscaled_losses_and_gradients(tmp_path):
    run = recorded("amp", tmp_path / "o")
    assert max(run.values("loss")) < 1  # the scaler's scale is 1024
    assert max(run.values("grad_norm")) < 10 and max(run.values("grad_norm_clipped")) < 0.0101
    assert run.context["autocast"] == [] or run.context["autocast"] == ["cpu:bfloat16"]


def test_two_optimizers_have_tags_of_their_own(tmp_path):
    run = recorded("gan", tmp_path / "o")
    assert len(run.values("grad_norm")) == len(run.values("grad_norm.1")) == 5
    assert run.context["optimizer_calls"] == 10


def test_honest_changes_of_speed_keep_the_invariants(tmp_path):
    base = recorded("fused 12", tmp_path / "base").invariants
    for name, job in {
        "fused": "fused 12 --fused",
        "pad": "fused 12 --longest",
        "checkpoint": "fused 12 --checkpoint",
    }.items():
        assert recorded(job, tmp_path / name).invariants == base, name
    assert base["tokens"] > 0 and base["sample_hash"]


def test_a_compiled_model_is_not_retraced_and_records_nothing_inside(tmp_path):
    run = recorded("compiled", tmp_path / "o", structure=True)
    assert run.stdout == plain("compiled")  # the last line is the number of graphs
    assert "hidden" not in run.tags()
    modules = json.loads((run.out / "modules.json").read_text())
    assert modules["compile"]["modules"] and modules["compile"]["graphs"] == 1


@pytest.mark.parametrize("how", ["torchrun", "spawn"])
def test_ranks_of_ddp_write_their_own_records(how, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    if how == "torchrun":
        prefix = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            port,
            str(JOBS / "ddp.py"),
        ]
    else:
        prefix = [*command("ddp spawn"), port]
    run = recorded("ddp", tmp_path / "o", prefix=prefix)
    assert run.code == 0, run.stderr
    first, second = run.records(rank=0), run.records(rank=1)
    norms = [[row["value"] for row in rows if row["tag"] == "grad_norm"] for rows in (first, second)]
    losses = [[row["value"] for row in rows if row["tag"] == "loss"] for rows in (first, second)]
    assert norms[0] == norms[1] and len(norms[0]) == 5 and losses[0] != losses[1]
    names = {path.name for path in run.out.iterdir()}
    assert names == {
        f"{stem}{rank}.{end}" for stem, end in (("ledger", "json"), ("steps", "jsonl")) for rank in ("", ".rank1")
    } | {
        "rank0.jsonl",
        "rank1.jsonl",
    }


def test_inference_is_recorded_call_by_call_and_batching_keeps_its_invariants(tmp_path):
    single, batched = recorded("inference 2", tmp_path / "a"), recorded("inference 16", tmp_path / "b")
    assert single.stdout and len(single.records("output")) == 8 and len(batched.records("output")) == 1
    assert single.invariants == batched.invariants and single.invariants["samples"] == 16
    assert len(single.steps()) == 8 and single.context["unit"] == "forward"
    timed = recorded("inference 2", tmp_path / "c", mode="timed")
    assert len(timed.steps()) == 8 and not timed.records()


def test_a_perturbed_run_differs_by_rounding_and_a_repeat_by_nothing(tmp_path):
    base, again = (recorded("plain", tmp_path / name, prefix=command("plain"), seed=1) for name in "ab")
    nudged = recorded("plain", tmp_path / "c", seed=1, perturb="ulp", perturb_seed=1)
    other = recorded("plain", tmp_path / "d", seed=1, perturb="ulp", perturb_seed=2)
    assert base.records() == again.records()
    norms = [run.values("param_norm") + run.values("grad_norm") + run.values("loss") for run in (base, nudged, other)]
    assert norms[0] != norms[1] != norms[2]
    assert all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(norms[0], norms[1]))
    assert base.context["rng"] == nudged.context["rng"] and nudged.context["perturbed"]["elements"] == 676
    assert base.invariants == nudged.invariants


def test_the_profile_has_the_steps_asked_for(tmp_path):
    import gzip

    run = recorded("plain", tmp_path / "o", mode="profiled", profile=(2, 4))
    assert run.code == 0 and run.stdout == plain("plain")
    names = {
        event.get("name")
        for event in json.loads(gzip.decompress((run.out / "trace.json.gz").read_bytes()))["traceEvents"]
    }
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= names and "ProfilerStep#4" not in names and "aten::addmm" in names


def test_a_profile_keeps_no_tensor_alive(tmp_path):
    """torch keeps the inputs of operators with lists of numbers while it records those: 20 x 16 MB a step here."""
    run = recorded("keeps", tmp_path / "o", mode="profiled", profile=(1, 5))
    grown = int(run.stdout.split()[-1])
    assert run.code == 0 and (run.out / "trace.json.gz").exists()
    assert grown < 400, f"{grown} MB more at the end of the window"


def test_a_window_that_outlives_the_job_is_closed_before_exit(tmp_path):
    run = recorded("plain", tmp_path / "o", mode="profiled", profile=(10, 1000))
    assert run.code == 0 and (run.out / "trace.json.gz").exists()


@pytest.mark.parametrize("window", [(0, 7), (2, 3), (4, 6)])
def test_a_job_with_its_own_profiler_keeps_its_events(window, tmp_path):
    run = recorded("own_profiler", tmp_path / "o", mode="profiled", profile=window)
    assert run.code == 0 and "events True" in run.stdout
    assert ("profile" in run.ledger["unseen"]) == (window != (4, 6))


def test_the_structure_of_a_step(tmp_path):
    run = recorded("plain", tmp_path / "o", structure=True)
    found = json.loads((run.out / "modules.json").read_text())
    assert [(row["name"], row["class"]) for row in found["modules"]] == [
        ("root", "Sequential"), ("root.0", "Linear"), ("root.1", "ReLU"), ("root.2", "Dropout"), ("root.3", "Linear"),
    ]  # fmt: skip
    lines = (JOBS / "plain.py").read_text().splitlines()
    root = found["modules"][0]
    assert "model(x)" in lines[root["call_site"]["line"] - 1] and root["call_site"]["path"] == "plain.py"
    assert (
        root["parameters"] == 676
        and root["inputs"][0]["shape"] == [8, 16]
        and root["calls"] == 1
        and root["forward_ms"] > 0
    )
    assert found["modules"][4]["backward_ms"] > 0
    assert found["loader"]["dataset"] == "TensorDataset" and found["loader"]["batch_size"] == 8
    assert (
        found["loss"]["function"] == "NllLossBackward0" and "backward()" in lines[found["loss"]["backward"]["line"] - 1]
    )
    assert (
        found["optimizers"][0]["class"] == "AdamW"
        and "step()" in lines[found["optimizers"][0]["call_site"]["line"] - 1]
    )


def test_outputs_of_leaf_modules(tmp_path):
    run = recorded("plain", tmp_path / "o", modules=True, steps=(3, 5))
    assert {row["step"] for row in run.records("module/3")} == {3, 4}
    assert {row["tag"] for row in run.records() if row["tag"].startswith("module/")} == {
        f"module/{i}" for i in range(4)
    }
    assert {row["step"] for row in run.records("loss")} == {3, 4}


def test_a_failing_job_fails_the_same_and_keeps_its_records(tmp_path):
    run = recorded("crash", tmp_path / "o")
    assert run.code == 7 and len(run.values("loss")) == 2 and run.invariants["optimizer_steps"] == 2


def test_recomputation_that_stops_early_is_no_forward_and_warns_of_nothing(tmp_path):
    base = recorded("fused 12", tmp_path / "base")
    run = recorded("fused 12 --checkpoint --early-stop", tmp_path / "o", modules=True)
    assert "arn" not in run.stderr, run.stderr
    assert run.context["root_calls"] == base.context["root_calls"] and run.invariants == base.invariants
    assert len(run.records("module/block.0")) == 4  # once a step: not again inside backward


@pytest.mark.parametrize("how", ["exit", "fork", "workers"])
def test_a_job_that_ends_in_os_exit_leaves_all_its_files(how, tmp_path):
    run = recorded("ends " + how, tmp_path / "o")
    assert run.code == 5 and not run.stderr
    assert run.context["ended"] == {"by": "os._exit", "status": 5}
    assert (run.invariants["optimizer_steps"], run.invariants["samples"], len(run.steps())) == (3, 12, 3)
    assert len(run.values("loss")) == len(run.values("update_norm")) == 3 and run.ledger["errors"] == 0
    assert {path.name for path in run.out.iterdir()} == {"rank0.jsonl", "ledger.json", "steps.jsonl"}


def test_os_exit_waits_for_the_last_records_but_not_forever(tmp_path):
    done = launch(command("ends hang"), environment(tmp_path / "o"))
    assert done.returncode == 5 and "did not arrive in 0.5 s" in done.stderr


def test_how_a_job_ended_is_in_its_ledger(tmp_path):
    assert recorded("plain", tmp_path / "a").context["ended"] == {"by": "exit"}
    run = recorded("ends fail", tmp_path / "b")
    assert run.code == 1 and run.context["ended"] == {"by": "exception"}


@pytest.mark.parametrize(("how", "code"), [("term", -15), ("serve", -9)])
def test_a_signal_ends_the_job_as_it_would_and_loses_the_ledger_alone(how, code, tmp_path):
    out = tmp_path / "o"
    done = launch(command("ends " + how), environment(out))
    assert done.returncode == code and {path.name for path in out.iterdir()} == {"rank0.jsonl"}
    rows = [json.loads(line) for line in (out / "rank0.jsonl").read_text().splitlines()[1:]]
    assert [row["step"] for row in rows if row["tag"] == "loss"] == [0, 1, 2]
    assert [row["step"] for row in rows if row["tag"] == "update_norm"] == [0, 1, 2]


def test_replays_of_a_captured_step_are_recorded_like_the_step(tmp_path):
    """A stand-in for CUDA graphs, which need a GPU: tests/gpu/parity_graphs.py has the real ones."""
    eager, graph = recorded("graphs eager", tmp_path / "a"), recorded("graphs capture", tmp_path / "b")
    assert graph.stdout == eager.stdout and not graph.ledger["errors"], graph.stderr
    assert graph.records() == eager.records() and graph.tags() == ALL
    assert graph.invariants == eager.invariants and graph.ledger["unseen"] == eager.ledger["unseen"]
    assert len(graph.steps()) == 6
    clipped = recorded("graphs clip", tmp_path / "c")
    assert "grad_norm" in clipped.ledger["unseen"] and len(clipped.values("grad_norm")) == 3
    assert len(clipped.values("grad_norm_clipped")) == 6 and clipped.invariants["optimizer_steps"] == 6
    timed = recorded("graphs capture", tmp_path / "d", mode="timed")
    assert len(timed.steps()) == 6 and timed.stdout == eager.stdout


@pytest.mark.parametrize("how", ["", " wrapper"])
def test_shards_of_fsdp_are_recorded_by_rank(how, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    prefix = [sys.executable, *ranks, *command("fsdp" + how)[1:]]
    run = recorded("fsdp" + how, tmp_path / "o", prefix=prefix)
    assert run.code == 0 and run.ledger["errors"] == 0, run.stderr
    assert run.tags() == ALL and run.invariants["optimizer_steps"] == 4
    first, second = ([row["value"] for row in run.records("param_norm", rank)] for rank in (0, 1))
    assert len(first) == len(second) == 4 and first != second  # each rank's own shard: no collective is issued
    last = set(re.findall(r"-?0x[0-9a-f.]+p[+-]\d+", run.stdout))  # two ranks may write into one line
    assert {row["value"].hex() for rank in (0, 1) for row in run.records("loss", rank)[-1:]} == last


def test_executed_lines_inside_a_compiled_region_count(tmp_path):
    text = (JOBS / "compiled.py").read_text().splitlines()
    body = next(i for i, line in enumerate(text, 1) if "torch.relu" in line)
    missed = next(i for i, line in enumerate(text, 1) if "parity.record" in line)
    (tmp_path / "w.json").write_text(json.dumps({"compiled.py": [body]}))
    run = recorded("compiled", tmp_path / "o", cover=tmp_path / "w.json")
    assert run.code == 0 and text[missed]
    assert json.loads((run.out / "coverage.json").read_text())["files"]["compiled.py"] == {
        "wanted": [body],
        "hit": [body],
    }


@pytest.mark.framework
def test_hf_trainer(tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    run = recorded("hf_trainer", tmp_path / "o")
    assert run.code == 0, run.stderr
    found = run.invariants
    assert (found["optimizer_steps"], found["backward_calls"], found["batches"], found["samples"]) == (6, 12, 12, 24)
    assert found["tokens"] == 24 * 12 and found["evaluation_samples"] == 4 and run.ledger["errors"] == 0
    assert {"loss", "grad_norm", "grad_norm_clipped", "batch.input_ids", "batch.labels"} <= {
        r["tag"] for r in run.records()
    }
    mine = [line for line in plain("hf_trainer").splitlines() if not line.startswith("{")]
    assert [line for line in run.stdout.splitlines() if not line.startswith("{")] == mine


@pytest.mark.framework
def test_lightning_trainer(tmp_path):
    pytest.importorskip("lightning", reason="needs lightning")
    run = recorded("lightning_trainer", tmp_path / "o")
    assert run.code == 0, run.stderr
    assert run.stdout == plain("lightning_trainer")
    found = run.invariants
    assert (found["optimizer_steps"], found["backward_calls"], found["samples"]) == (10, 10, 80)
    assert max(run.values("grad_norm_clipped")) <= 0.1001 and run.ledger["errors"] == 0


@pytest.mark.framework
def test_generation_counts_sequences_and_records_tokens(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    for mode in ("checked", "timed"):
        run = recorded("generate", tmp_path / mode, mode=mode)
        assert run.code == 0 and run.invariants["generated_sequences"] == 6
        assert len(run.steps()) == 3
        outputs = run.records("output")
        assert [row["dtype"] for row in outputs] == (["int64"] * 3 if mode == "checked" else [])
        if mode == "checked":
            assert [int(row["sum"]) for row in outputs] == [int(line) for line in run.stdout.split()]


@pytest.mark.parametrize("mode", ["timed", "checked"])
@pytest.mark.parametrize("how", ["", " inplace"])
def test_a_compiled_model_in_inference_is_traced_once_and_every_call_is_a_step(how, mode, tmp_path):
    run = recorded("compiled_inference" + how, tmp_path / "o", mode=mode)
    assert run.stdout == plain("compiled_inference" + how)  # its last line counts graphs and breaks
    assert len(run.steps()) == 30 and len(run.records("output")) == (30 if mode == "checked" else 0)
