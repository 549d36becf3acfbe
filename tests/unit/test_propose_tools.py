"""The agent's quick check runs the patched demo job for real, the way every rule runs a job."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common import tree as trees
from scripts.common.schema import load_yaml
from scripts.propose.llm.tools import Toolbox
from scripts.propose.local_llm import task_on
from scripts.source import spec as specs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.pipeline
def test_the_quick_check_says_how_the_patched_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "STORE", tmp_path / "trees")
    resolved = specs.resolve("minigpt", None, specs.validated_config(load_yaml(ROOT / "config" / "config.yaml")))
    environment = {"schema": "wholejob/spec@1", **specs.part(resolved, "environment")}
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    command = ["-m", "scripts.source.environment", "--spec", str(tmp_path / "environment.json")]
    subprocess.run([sys.executable, *command, "-o", str(tmp_path / "env.json")], check=True, cwd=ROOT)
    (tmp_path / "trace").mkdir()
    task = task_on(ROOT / "workloads" / "minigpt", "agent", {})
    box = Toolbox(dataclasses.replace(task, spec=specs.part(resolved, "propose"), trace=tmp_path / "trace"))

    def check(path: str, search: str, replace: str) -> str:
        return box.call("quick_check", {"edits": [{"path": path, "search": search, "replace": replace}], "files": []})

    assert check("train.py", "weight_decay=0.1)", "weight_decay=0.1, fused=True)") == "ok: 2 steps ran"
    crashed = check("train.py", "weight_decay=0.1)", "weight_decay=0.1, fast=True)")
    assert crashed.startswith("crashed: ") and "unexpected keyword argument 'fast'" in crashed
    assert check("make_text.py", "import random", "import os, random") == "error: make_text.py: not editable"
    assert [p.name for p in (tmp_path / "trees").iterdir()] == [task.base_tree]  # tried trees do not pile up
