"""Code as inputs: the closure of a module's imports within this repository."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.common.imports import code


def test_closure_holds_direct_and_indirect_imports():
    files = code("source.source")
    assert {"scripts/source/source.py", "scripts/common/tree.py", "scripts/common/errors.py"} <= set(files)
    assert not any(name.startswith("scripts/judge/rules") for name in files)


def test_a_package_found_by_listing_brings_its_parts():
    assert any(name.startswith("scripts/judge/rules/") for name in code("judge.guard"))
    assert any(name.startswith("scripts/diagnose/detectors/") for name in code("diagnose.findings"))
    assert any(name.startswith("scripts/propose/playbook/") for name in code("propose.propose"))


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
