"""`parity run`: its options and exit codes, and the parts of the hooks that need no whole job."""

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parity import run, summary
from parity.hooks import batches, coverage, options, sources, values
from parity.hooks.install import AfterImport
from parity.hooks.perturb import Nudger

ROOT = Path(__file__).resolve().parents[2]
NEWER = sorted(Path.home().glob(".pyenv/versions/3.1[23]*/bin/python3"))


def job(tmp_path, text):
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


# the environment


def test_the_environment_is_complete_and_read_back(monkeypatch, tmp_path):
    (tmp_path / "lines.json").write_text("{}")
    variables = run.environment(
        tmp_path / "out", mode="checked", probes=["loss", "batch"], steps=(2, 9), seed=5, perturb="ulp", perturb_seed=3,
        profile=(4, 6), stacks=True, structure=True, modules=True, cover=tmp_path / "lines.json", tree=tmp_path,
        outputs=["*.pt"], unit="optimizer", deterministic=True, pythonpath="mine", tree_hash="ab",
    )  # fmt: skip
    assert all(isinstance(value, str) for value in variables.values())
    assert variables["PYTHONPATH"].split(os.pathsep) == [run.SITE, "mine"] and variables["PYTHONHASHSEED"] == "5"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    read = options.read()
    assert read.probes == {"loss", "batch"} and read.steps == (2, 9) and read.seed == 5 and read.profile == (4, 6)
    assert (read.perturb, read.perturb_seed, read.stacks, read.structure, read.modules) == ("ulp", 3, True, True, True)
    assert (read.tree, read.outputs, read.unit, read.deterministic) == (str(tmp_path), ["*.pt"], "optimizer", True)
    assert read.wants("loss", 2) and not read.wants("loss", 9) and not read.wants("output", 3)


def test_only_the_hooks_folder_becomes_importable(tmp_path):
    variables = run.environment(tmp_path)
    assert sorted(p.name for p in Path(variables["PYTHONPATH"]).iterdir() if p.suffix == ".py") == ["sitecustomize.py"]


def test_a_timed_run_has_no_probes(monkeypatch, tmp_path):
    for name, value in run.environment(tmp_path, mode="timed", probes=["loss"]).items():
        monkeypatch.setenv(name, value)
    assert not options.read().probes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "fast"}, "mode is one of"),
        ({"probes": ["los"]}, "unknown: los"),
        ({"perturb": "more"}, "'ulp' or nothing"),
        ({"steps": (5, 5)}, "0 <= A < B"),
        ({"unit": "epoch"}, "unit is one of"),
        ({"cover": "x.json"}, "cover needs tree"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        run.environment(tmp_path, **changes)


@pytest.mark.parametrize(("text", "wanted"), [("2:5", (2, 5)), ("3:", (3, None)), (":4", (0, 4)), (None, None)])
def test_ranges_of_steps(text, wanted):
    assert options.window(text) == wanted


# the command


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise RuntimeError", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("", 0),
    ],
)
def test_the_exit_code_is_the_jobs(tmp_path, capfd, text, code):
    assert run.main(["--out", str(tmp_path / "o"), "--", sys.executable, job(tmp_path, text)]) == code
    assert "nothing was recorded" in capfd.readouterr().err


def test_a_bare_script_gets_this_interpreter(tmp_path, capfd):
    assert run.main(["--out", str(tmp_path / "o"), "--", job(tmp_path, "import sys; print(sys.executable)")]) == 0
    assert capfd.readouterr().out.strip() == sys.executable


def test_a_missing_command_is_127(tmp_path, capfd):
    assert run.main(["--out", str(tmp_path / "o"), "--", "no-such-command-here"]) == 127
    assert "no such command" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no command; type"),
        (["--steps", "5", "--", "x"], "a range of steps is A:B"),
        (["--probes", "los", "--", "x"], "unknown: los"),
        (["--cover", "absent.json", "--", "x"], "no such file"),
        (["--tree", "absent", "--", "x"], "no such folder"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        run.main(["--out", "o", *arguments])
    assert stopped.value.code == 2 and says in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_an_earlier_recording_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "o").mkdir()
    (tmp_path / "o/rank0.jsonl").write_text("{}")
    with pytest.raises(SystemExit) as stopped:
        run.main(["--out", str(tmp_path / "o"), "--", "true"])
    assert stopped.value.code == 2 and "earlier recording" in capsys.readouterr().err


def test_the_hidden_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.chained = True")
    variables = run.environment(tmp_path / "o", pythonpath=str(tmp_path))
    code = "import sys; print(chained, 'parity' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_seeds_reach_random_numpy_and_hashes(tmp_path):
    code = "import random, numpy; print(random.random(), numpy.random.rand(), hash('a'))"
    variables = run.environment(tmp_path / "o", seed=3)
    draws = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(draws) == 1


def test_a_hook_that_fails_leaves_the_import_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "fresh_module.py").write_text("value = 5")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = AfterImport({"fresh_module": lambda module: 1 / 0})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import fresh_module  # type: ignore[import-not-found]

    assert fresh_module.value == 5 and "ZeroDivisionError" in capsys.readouterr().err


# samples


def ids(*rows, width=None, fill=0):
    width = width or max(map(len, rows))
    return torch.tensor([list(row) + [fill] * (width - len(row)) for row in rows])


def streamed(*tensors, name="ids"):
    stream = batches.Stream()
    for tensor in tensors:
        stream.add(torch, [(name, tensor)])
    return stream.result()


A, B, C = [5, 6, 7], [8, 9], [4, 4, 6, 2, 9]


@pytest.mark.parametrize("fill", [0, -1, -100, 31])
def test_padding_does_not_change_the_hash_of_samples(fill):
    short, long = ids(A, B, C, fill=fill, width=8), ids(A, B, C, fill=fill, width=20)
    assert streamed(short) == streamed(long)
    assert streamed(short)["tokens"] == 10


def test_padding_on_the_left_is_padding_too():
    assert (
        streamed(ids(A, B, C, width=8))["hash"]
        == streamed(torch.tensor([[0] * 5 + A, [0] * 6 + B, [0] * 3 + C]))["hash"]
    )


def test_grouping_into_batches_does_not_change_the_hash():
    assert streamed(ids(A, B, C)) == streamed(ids(A, B, width=5), ids(C))


@pytest.mark.parametrize(
    "other",
    [
        ids(B, A, C),
        ids(A, B),
        ids(A, B, C, C),
        ids(A, B, [4, 4, 6, 9, 2]),
        ids(A, B, [4, 4, 6, 2, 8]),
        ids(A, B, [3, 4, 4, 6, 2, 9]),
    ],
    ids=["order of samples", "one less", "one more", "order of tokens", "last token", "shifted by one"],
)
def test_any_other_change_of_samples_changes_the_hash(other):
    assert streamed(ids(A, B, C))["hash"] != streamed(other)["hash"]


def test_masks_of_ones_are_content():
    ones, fewer = torch.ones(2, 8, dtype=torch.long), torch.ones(2, 7, dtype=torch.long)
    assert streamed(ones)["hash"] != streamed(fewer)["hash"]


def test_class_labels_are_hashed_whole():
    assert streamed(torch.tensor([3, 0, 0]))["hash"] != streamed(torch.tensor([3, 0, 1]))["hash"]
    assert streamed(torch.tensor([3, 0, 0]))["tokens"] is None


def by_hand(values, first=0):
    """The hash of one row of 64-bit words, in plain Python."""
    mask, total = 2**64 - 1, 0
    for index, value in enumerate(values, first):
        z = (value & mask) ^ (index * 0x9E3779B97F4A7C15 & mask)
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        total = (total + (z ^ (z >> 31))) & mask
    return total


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 1, 9), (2, 3, 50, 70)])
def test_images_are_hashed_by_their_bytes(shape):
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    width = images[0].numel()
    wanted = []
    for image in images:
        data = bytes(image.flatten().tolist()) + b"\0" * (-width % 8)
        wanted.append(by_hand(struct.unpack(f"<{len(data) // 8}q", data), width))
    total = sum(by_hand([row], index) for index, row in enumerate(wanted)) % 2**64
    assert streamed(images)["hash"] == {"ids": f"{total:016x}"}
    assert streamed(images.flip(0))["hash"] != streamed(images)["hash"] == streamed(images[:1], images[1:])["hash"]
    assert streamed(images.transpose(1, 2).contiguous().transpose(1, 2)) == streamed(images)  # strides do not matter
    shifted = torch.cat([images.flatten()[:1], images.flatten()])[1:].view(shape)  # nor does the place in memory
    assert streamed(shifted) == streamed(images)
    changed = images.clone()
    changed[-1].view(-1)[-1] ^= 1
    assert streamed(changed)["hash"] != streamed(images)["hash"]


def test_wide_integers_are_hashed_by_their_values(monkeypatch):
    labels = torch.randint(-9, 9, (2, 5, 7), generator=torch.Generator().manual_seed(0))
    wanted = sum(by_hand([by_hand(row.flatten().tolist())], index) for index, row in enumerate(labels)) % 2**64
    assert streamed(labels)["hash"] == streamed(labels.to(torch.int32))["hash"] == {"ids": f"{wanted:016x}"}
    monkeypatch.setattr(batches, "CACHED", 16)
    assert streamed(labels)["hash"] == {"ids": f"{wanted:016x}"}


def test_norms_over_many_tensors_are_those_of_one_long_vector():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, 3, generator=generator, requires_grad=True) for n in range(1, 40)]
    whole = torch.cat([t.detach().flatten() for t in tensors])
    assert values.total_norm(torch, tensors).item() == pytest.approx(whole.norm().item(), rel=1e-6)
    mixed = [*tensors, whole.to(torch.bfloat16), whole.double(), whole.to(torch.float8_e5m2), torch.zeros(0)]
    wanted = math.sqrt(sum(t.detach().double().square().sum().item() for t in mixed))
    assert values.total_norm(torch, mixed).item() == pytest.approx(wanted, rel=1e-6)
    assert values.total_norm(torch, [torch.zeros(0)]) is None
    half = [torch.full((4,), 3.0, dtype=torch.bfloat16), torch.full((4,), 0.01, dtype=torch.bfloat16)]
    assert values.total_norm(torch, half).dtype == torch.float32


@pytest.mark.parametrize("more", [[], [torch.arange(4)], [torch.ones(3).to(torch.float8_e4m3fn)]])
def test_updates_are_what_the_parameters_moved_by(more):
    tensors = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.tensor(2.0).double())]
    before = values.copies(torch, [*tensors, *more])
    with torch.no_grad():
        tensors[0].add_(0.5)
    found = values.moved(torch, [*tensors, *more][:3], before)
    assert found[0].abs().tolist() == [0.5] * 4 and found[1].item() == 0.0 and tensors[0].tolist() == [1.5] * 4


def test_floating_inputs_are_counted_and_not_hashed():
    assert streamed(torch.zeros(4, 3)) == {"rows": 4, "hash": None, "tokens": None}


def test_arguments_are_named():
    x, y = torch.zeros(1), torch.ones(1)
    assert [n for n, _ in batches.named(torch, (x,), {})] == [""]
    assert [n for n, _ in batches.named(torch, (x, {"a": [y]}), {"mask": y})] == ["0", "1.a.0", "mask"]


# perturbation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_weight_moves_by_one_unit_in_the_last_place(dtype):
    weight = torch.nn.Parameter(torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype))
    with torch.no_grad():
        weight[:4] = torch.tensor([0.0, float("inf"), float("nan"), torch.finfo(dtype).max])
    before = weight.detach().clone()
    state = torch.get_rng_state()
    Nudger(torch, 1).nudge([weight])
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(weight[:4].nan_to_num(1.0), before[:4].nan_to_num(1.0))
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    moved = weight.detach().view(integer).to(torch.int64) - before.view(integer).to(torch.int64)
    assert set(moved[4:].tolist()) == {-1, 1}


def test_nudges_depend_on_the_seed_alone():
    def nudged(seed):
        weight = torch.nn.Parameter(torch.ones(100))
        Nudger(torch, seed).nudge([weight])
        return weight

    assert torch.equal(nudged(1), nudged(1)) and not torch.equal(nudged(1), nudged(2))


def test_a_weight_is_nudged_once_unless_it_was_loaded_again():
    weight, nudger = torch.nn.Parameter(torch.ones(50)), Nudger(torch, 0)
    nudger.nudge([weight])
    once = weight.detach().clone()
    nudger.nudge([weight])
    assert torch.equal(weight, once)
    with torch.no_grad():
        weight.copy_(torch.ones(50))
    nudger.nudge([weight])
    assert not torch.equal(weight, torch.ones(50))


def test_integers_and_8_bit_floats_stay():
    frozen = torch.nn.Parameter(torch.arange(5), requires_grad=False)
    small = torch.nn.Parameter(torch.ones(5).to(torch.float8_e4m3fn), requires_grad=False)
    nudger = Nudger(torch, 0)
    nudger.nudge([frozen, small])
    assert nudger.elements == 0 and torch.equal(frozen, torch.arange(5))


# executed lines

LINES = '''"""Doc."""
import sys

def used(flag):
    if flag:
        return (1 +
                2)
    return 3

def unused():
    return 4

used(True)
'''


def test_only_lines_with_code_can_be_wanted(tmp_path):
    assert coverage.executable_lines(job(tmp_path, LINES)) >= {2, 4, 5, 6, 8, 10, 11, 13}
    assert not coverage.executable_lines(job(tmp_path, LINES)) & {3, 9, 12}
    assert coverage.executable_lines(str(tmp_path / "absent.py")) == set()


@pytest.mark.parametrize("interpreter", [Path(sys.executable), *NEWER], ids=lambda p: p.parts[-3])
def test_executed_lines_are_seen_in_threads_and_children(tmp_path, interpreter):
    (tmp_path / "part.py").write_text(
        "def in_thread():\n    return 1\n\ndef in_child():\n    return 2\n\ndef never():\n    return 3\n"
    )
    script = job(
        tmp_path,
        "import multiprocessing, threading, part\n"
        "t = threading.Thread(target=part.in_thread); t.start(); t.join()\n"
        "p = multiprocessing.get_context('fork').Process(target=part.in_child); p.start(); p.join()\n"
        "from parity import recorder\nfrom parity.hooks import coverage\n"
        "recorder._recorder.claim(); coverage.write()\n",
    )
    wanted = {"changed_lines": {"part.py": [1, 2, 3, 5, 8]}}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    variables = run.environment(tmp_path / "o", cover=tmp_path / "wanted.json", tree=tmp_path)
    done = subprocess.run(
        [str(interpreter), script], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "o/coverage.json").read_text())
    assert found["files"] == {"part.py": {"wanted": [1, 2, 5, 8], "hit": [1, 2, 5]}}


def test_watching_ends_when_everything_was_hit(tmp_path):
    script = job(tmp_path, "import sys\ndef f():\n    return 1\nf()\nprint(sys.gettrace())\n")
    (tmp_path / "wanted.json").write_text(json.dumps({"job.py": [3]}))
    variables = run.environment(tmp_path / "o", cover=tmp_path / "wanted.json", tree=tmp_path)
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"


# files


def test_source_files_are_those_of_the_tree(monkeypatch):
    found = sources.hashes(str(ROOT / "parity"))
    assert found["summary.py"] == sources.sha256(summary.__file__)
    assert not any(path.startswith("..") for path in found) and sources.hashes(None) == {}


def test_outputs_match_their_globs(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("x.pt", "a/y.pt", "z.txt"):
        (tmp_path / name).write_text("")
    assert sources.matching(str(tmp_path), ["*.pt", "a/*"]) == ["a/y.pt", "x.pt"]
