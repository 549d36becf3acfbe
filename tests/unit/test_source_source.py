"""Materialising sources and environments."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.common import tree
from scripts.common.errors import InputError
from scripts.source import environment, source

ENV = {"python": sys.executable}


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "STORE", tmp_path / "store")
    monkeypatch.setattr(source, "ROOT", tmp_path)


def make_spec(origin, **launch):
    return {
        "name": "mine",
        "source": {"editable": ["*.py"], "protected": [], **origin},
        "parameters": {"count": 3},
        "launch": {"prepare": [], **launch},
        "environment": {"variables": {}},
    }


def folder(path, **files):
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name.replace("_py", ".py")).write_text(text)
    return path


def test_local_folder_with_overlay_and_generated_data(tmp_path):
    folder(
        tmp_path / "job",
        train_py="print(1)\n",
        make_py="import sys\nopen('data.txt', 'w').write('x' * int(sys.argv[1]))\n",
    )
    folder(tmp_path / "over", train_py="print(2)\n")
    spec = make_spec({"path": "job", "overlay": "over"}, prepare=["python", "make.py", "{count}"])
    made = source.materialise(spec, ENV)
    place = tree.stored(made["tree"])
    assert (place / "train.py").read_text() == "print(2)\n"
    assert (place / "data.txt").read_text() == "xxx"
    assert made == source.materialise(spec, ENV)
    assert list(made["files"]) == ["data.txt", "make.py", "train.py"]


def test_identity_follows_the_content_of_the_folder(tmp_path):
    job = folder(tmp_path / "job", train_py="print(1)\n")
    spec = make_spec({"path": "job"})
    before = source.identity(spec)
    (job / "train.py").touch()
    assert source.identity(spec) == before
    (job / "train.py").write_text("print(2)\n")
    assert source.identity(spec) != before


def test_git_revision_comes_without_its_history(tmp_path):
    repository = folder(tmp_path / "repository", train_py="print(1)\n")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    (repository / "train.py").write_text("print('faster')\n")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    made = source.materialise(make_spec({"git": {"url": str(repository), "rev": "v1"}}), ENV)
    assert (tree.stored(made["tree"]) / "train.py").read_text() == "print(1)\n"
    assert list(made["files"]) == ["train.py"]
    assert len(made["origin"]["commit"]) == 40
    with pytest.raises(InputError, match=r"source\.git: .*@nosuch: .*nosuch"):
        source.materialise(make_spec({"git": {"url": str(repository), "rev": "nosuch"}}), ENV)


def test_failed_preparation_is_one_line(tmp_path):
    folder(tmp_path / "job", make_py="raise SystemExit('no disk')\n")
    with pytest.raises(InputError, match=r"launch\.prepare: make\.py: exit code 1: no disk"):
        source.materialise(make_spec({"path": "job"}, prepare=["python", "make.py"]), ENV)


def test_editable_globs_that_match_nothing_are_refused(tmp_path):
    folder(tmp_path / "job", train_py="")
    spec = make_spec({"path": "job"})
    spec["source"]["editable"] = ["src/*.py"]
    with pytest.raises(InputError, match=r"source\.editable: \['src/\*\.py'\] matches no file"):
        source.materialise(spec, ENV)


def test_current_environment_is_recorded_with_its_lock():
    env = environment.build({"environment": {"kind": "current", "variables": {"A": "1"}}})
    assert any(line.startswith("pytest==") for line in env["lock"])
    assert env["variables"] == {"A": "1"}
    subprocess.run([environment.interpreter(env), "-c", ""], check=True)


def test_vanished_interpreter_is_one_line():
    with pytest.raises(InputError, match=r"env\.json: python: gone/python is gone"):
        environment.interpreter({"python": "gone/python"})


def test_venv_inherits_packages_and_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / "requirements.txt").write_text("# nothing more\n")
    asked = {"kind": "venv", "requirements": "requirements.txt", "inherit": True, "no_deps": True, "variables": {}}
    spec = {"name": "mine", "environment": asked}
    env = environment.build(spec)
    python = tmp_path / env["python"]
    done = subprocess.run(
        [python, "-c", "import yaml, sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().startswith(str(tmp_path))
    stamp = python.parent.stat().st_mtime_ns
    assert environment.build(spec)["python"] == env["python"]
    assert python.parent.stat().st_mtime_ns == stamp
    (tmp_path / "requirements.txt").write_text("no-such-package-of-anyone==0.0.1\n")
    with pytest.raises(InputError, match="environment: install failed: ERROR: No matching distribution"):
        environment.build(spec)
