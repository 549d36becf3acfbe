"""Declared settings reach the job: as variables, as options, and as the file that it reads; nothing undeclared does."""

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from scripts.common import knobs, tree
from scripts.common.errors import InputError
from scripts.common.launch import Job, launch

JOB = """
    import json, os, pathlib, sys
    settings = json.loads(pathlib.Path("knobs.json").read_text())
    seen = {"argv": sys.argv[2:], "variables": {n: os.environ.get(n) for n in ("A_THREADS", "A_LIMIT")}, "file": settings}
    pathlib.Path(sys.argv[1], "seen.json").write_text(json.dumps(seen))
"""
KNOBS = [
    {"name": "A_THREADS", "kind": "env", "values": ["1", "2"]},
    {"name": "A_LIMIT", "kind": "env", "values": [None, 8]},
    {"name": "--workers", "kind": "flag", "values": [0, 2]},
    {"name": "--fused", "kind": "flag", "values": [False, True]},
    {"name": "--dtype", "kind": "flag", "values": [None, "bf16"]},
    {"name": "chunk", "values": [16, 32]},
]
BASE: dict[str, Any] = {
    "A_THREADS": "1",
    "A_LIMIT": None,
    "--workers": 0,
    "--fused": False,
    "--dtype": None,
    "chunk": 16,
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")

    def make(values: dict[str, Any]) -> Job:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "job.py").write_text(textwrap.dedent(JOB))
        (folder / "knobs.json").write_text(json.dumps(values))
        spec = {
            "name": "toy",
            "launch": {"command": ["python", "job.py", "{out}"], "timeout_s": 20},
            "source": {"editable": ["*.py", "knobs.json"], "protected": []},
            "environment": {"variables": {"A_LIMIT": "5"}},
            "measure": {"steps": 3},
            "knobs": KNOBS,
            "knobs_file": "knobs.json",
        }
        return Job(spec=spec, env={"python": sys.executable}, tree=tree.store(folder), seed=0)

    return make


def seen(job: Job, place: Path) -> dict[str, Any]:
    told = launch(job, place)
    assert told["status"] == "ok", told["reason"]
    return dict(json.loads((place / "out" / "seen.json").read_text()))


def test_the_launcher_applies_variables_and_options_and_leaves_parameters_to_the_job(job: Any, tmp_path: Path) -> None:
    first = seen(job(BASE), tmp_path / "first")
    assert first["variables"] == {"A_THREADS": "1", "A_LIMIT": None}  # null: not set, whatever else would set it
    assert first["argv"] == ["--workers", "0"] and first["file"] == BASE
    other = {"A_THREADS": "2", "A_LIMIT": 8, "--workers": 2, "--fused": True, "--dtype": "bf16", "chunk": 32}
    second = seen(job(other), tmp_path / "second")
    assert second["variables"] == {"A_THREADS": "2", "A_LIMIT": "8"}
    assert second["argv"] == ["--workers", "2", "--fused", "--dtype", "bf16"] and second["file"]["chunk"] == 32


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({**BASE, "A_THREADS": "3"}, 'A_THREADS: is "3"; the workload declares "1", "2"'),
        ({**BASE, "--fused": 1}, "--fused: is 1; the workload declares false, true"),
        ({k: v for k, v in BASE.items() if k != "chunk"}, "chunk: is declared as a knob and has no value"),
        ([1], "should be an object"),
    ],
)
def test_a_value_that_is_not_declared_is_not_launched(job: Any, tmp_path: Path, values: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        launch(job(values), tmp_path / "run")


def test_without_knobs_nothing_is_read(job: Any, tmp_path: Path) -> None:
    plain = job(BASE)
    spec = {key: value for key, value in plain.spec.items() if not key.startswith("knobs")}
    assert seen(dataclasses.replace(plain, spec=spec), tmp_path / "run")["argv"] == []


def test_values_are_equal_as_json() -> None:
    assert knobs.same([1, {"a": 2}], [1, {"a": 2}]) and knobs.same(None, None)
    assert not knobs.same(1, True) and not knobs.same(1, 1.0) and not knobs.same("1", 1)
