"""Places of structure.json resolve in the source: of jobs that really ran, and the check itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.diagnose import anchors, structure
from tests.unit.diagnose_job import LOOP, STEP, job

sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))

import planted

ROOT = Path(__file__).resolve().parents[2]


def test_every_place_of_a_structure_resolves(tmp_path: Path) -> None:
    a_job = job(tmp_path, LOOP, STEP)
    count, wrong = anchors.unresolved(a_job.structure, tmp_path)
    assert count == 3  # the function, its backward() and its step()
    assert wrong == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"path": "gone.py", "line": 1}, "gone.py:1: no such file"),
        ({"path": "job.py", "line": 99}, "job.py:99: the file has 4 lines"),
        ({"path": "job.py", "line": 2, "code": "for y in xs:"}, "job.py:2: reads 'for x in xs:', not 'for y in xs:'"),
    ],
)
def test_a_place_that_does_not_resolve_is_named(tmp_path: Path, place: dict[str, object], why: str) -> None:
    (tmp_path / "job.py").write_text(LOOP, encoding="utf-8")
    good = {"path": "job.py", "line": 1, "code": "train"}
    assert anchors.unresolved({"findings": [{"anchors": [good, place]}]}, tmp_path) == (2, [why])


def test_the_program_fails_where_a_place_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.py").write_text(LOOP, encoding="utf-8")
    document = tmp_path / "structure.json"
    document.write_text(json.dumps({"sites": [{"path": "job.py", "line": 9}]}), encoding="utf-8")
    assert anchors.main([str(document), "--source", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 1 places resolve"


def _demo(folder: Path) -> tuple[Path, list[str]]:
    shutil.copytree(ROOT / "workloads" / "minigpt", folder / "tree")
    return folder / "tree", [str(folder / "tree" / "train.py"), "--steps", "6", "--out", str(folder / "out")]


def _hugging_face(folder: Path) -> tuple[Path, list[str]]:
    pytest.importorskip("transformers", reason="the Hugging Face model needs transformers")
    (folder / "tree").mkdir()
    (folder / "tree" / "job.py").write_text(planted.read("padding_waste").fault, encoding="utf-8")
    return folder / "tree", [str(folder / "tree" / "job.py"), "6"]


def _ultralytics(folder: Path) -> tuple[Path, list[str]]:
    place = os.environ.get("WHOLEJOB_ULTRALYTICS_RUN")
    if place is None:
        pytest.skip(
            "WHOLEJOB_ULTRALYTICS_RUN names no folder with tree/ (ultralytics' source) and run/ (its profiled run)"
        )
    shutil.copytree(Path(place) / "run", folder / "profiled")
    return Path(place) / "tree", []


@pytest.mark.pipeline
@pytest.mark.parametrize("make", [_demo, _hugging_face, _ultralytics])
def test_places_of_real_jobs_resolve(tmp_path: Path, make: object) -> None:
    tree, command = make(tmp_path)  # type: ignore[operator]
    run = tmp_path / "profiled"
    if command:
        (tmp_path / "out").mkdir()
        record = [sys.executable, str(ROOT / "tests" / "planted" / "record.py"), "--out", str(run), "--window", "2:4"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run([*record, "--", *command], check=True, env=variables, stdout=subprocess.DEVNULL)
        planted.program("scripts.trace.parse", str(run / "trace.json.gz"), "-o", str(run))
        planted.program("scripts.trace.summarise", str(run), "-o", str(run / "views"))
    structure.main(["--run", str(run), "--source", str(tree), "-o", str(tmp_path / "structure.json")])
    document = json.loads((tmp_path / "structure.json").read_text(encoding="utf-8"))
    count, wrong = anchors.unresolved(document, tree)
    assert wrong == []
    assert count >= 10
    assert document["unverified"]["anchors_dropped"] == 0
