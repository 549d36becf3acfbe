"""Code as inputs: the closure of a module's imports within this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common import imports
from scripts.common.imports import code


def test_closure_holds_direct_and_indirect_imports():
    files = code("source.source")
    assert {"scripts/source/source.py", "scripts/common/tree.py", "scripts/common/errors.py"} <= set(files)
    assert not any(name.startswith("scripts/judge/rules") for name in files)


def test_a_package_found_by_listing_brings_its_parts():
    assert any(name.startswith("scripts/judge/rules/") for name in code("judge.guard"))
    assert any(name.startswith("scripts/diagnose/detectors/") for name in code("diagnose.findings"))
    assert any(name.startswith("scripts/propose/playbook/") for name in code("propose.propose"))


def test_stamp_changes_with_the_files_that_are_named_beside_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(imports, "STAMPS", tmp_path)
    template = tmp_path / "a.j2"
    template.write_text("one")
    first = Path(imports.stamp("source.source", [str(template)])).read_text()
    assert "scripts/common/tree.py" in first and str(template) in first
    template.write_text("two")
    imports._hash.cache_clear()
    assert Path(imports.stamp("source.source", [str(template)])).read_text() != first


@pytest.mark.parametrize("damage", [None, "{", "[1]"])
def test_remembered_imports_give_the_same_closure_and_damage_is_no_harm(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(imports, "STAMPS", tmp_path)
    imports.stamp("judge.guard")
    if damage:
        (tmp_path / imports.MEMORY).write_text(damage)
    expected = code("judge.guard")
    for cached in (imports._memory, imports._direct, imports._closure):
        cached.cache_clear()
    assert code("judge.guard") == expected


def test_unknown_module_is_an_error():
    with pytest.raises(ValueError, match="no module"):
        code("source.nosuch")


def test_what_the_snakefile_imports_is_light():
    program = (
        "import sys; import scripts.source.spec, scripts.source.source, scripts.source.environment;"
        "import scripts.common.device, scripts.common.imports;"
        "print(sorted({'torch', 'litellm', 'numba', 'pandas', 'pyarrow', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
