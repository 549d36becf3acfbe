"""Build or record the environment that a workload's job runs in: interpreter, packages, lock.

`current` is the environment that runs the pipeline. `venv` is built once from a requirements file, in the store under the
hash of what it is made from; with `inherit` it sees the pipeline's packages (torch) underneath its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import ROOT, canonical_json, read_json, sha256_bytes, sha256_file, write_json

STORE = Path("results/store/envs")
LIST = (
    "import importlib.metadata as m, json, platform;"
    "print(json.dumps([platform.python_version(), sorted({d.name.lower() + '==' + d.version for d in m.distributions() if d.name})]))"
)


def identity(spec: dict[str, Any]) -> str:
    """What the environment is made from: Python, torch, and the bytes of the requirements file."""
    environment = spec["environment"]
    parts = [platform.python_version(), _version("torch"), environment["kind"]]
    if environment["kind"] == "venv":
        path = ROOT / environment["requirements"]
        if not path.is_file():
            raise InputError(
                f"workloads/{spec['name']}.yaml: environment.requirements: no file {environment['requirements']!r}"
            )
        parts += [sha256_file(path), str(environment["inherit"]), str(environment["no_deps"])]
    return sha256_bytes("\n".join(parts).encode())


def build(spec: dict[str, Any]) -> dict[str, Any]:
    """The content of `env.json`, the virtual environment built where the specification asks for one."""
    environment = spec["environment"]
    python = Path(sys.executable) if environment["kind"] == "current" else _venv(spec)
    version, lock = _packages(python)
    return {
        "kind": environment["kind"],
        "python": _relative(python),
        "python_version": version,
        "lock": lock,
        "lock_sha256": sha256_bytes(canonical_json(lock)),
        "variables": environment["variables"],
    }


def interpreter(env: dict[str, Any]) -> str:
    """Path of the interpreter that `env.json` names, to start processes with."""
    path = Path(env["python"])
    absolute = path if path.is_absolute() else ROOT / path
    if not absolute.exists():
        raise InputError(f"env.json: python: {env['python']} is gone; delete env.json and run again")
    # Not resolved: a virtual environment is known by the place of its link.
    return str(absolute)


def _venv(spec: dict[str, Any]) -> Path:
    from filelock import FileLock

    environment = spec["environment"]
    folder = ROOT / STORE / identity(spec)[:16]
    python = folder / "bin" / "python"
    done = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if done.exists():
            return python
        if folder.exists():
            shutil.rmtree(folder)
        requirements = ROOT / environment["requirements"]
        print(f"building an environment from {environment['requirements']} (once)", file=sys.stderr, flush=True)
        uv = shutil.which("uv")
        _call(
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
            if uv
            else [sys.executable, "-m", "venv", str(folder)],
            "venv",
        )
        if environment["inherit"]:
            _inherit(folder)
        options = ["--no-deps"] if environment["no_deps"] else []
        # uv does not look at packages that a .pth file adds, and would fetch torch again.
        if uv and not environment["inherit"]:
            _call(
                [uv, "pip", "install", "--quiet", "--python", str(python), *options, "-r", str(requirements)], "install"
            )
        else:
            _call(
                [
                    str(python),
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    *options,
                    "-r",
                    str(requirements),
                ],
                "install",
            )
        done.write_text("built\n", encoding="utf-8")
    return python


def _inherit(folder: Path) -> None:
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if sys.prefix == sys.base_prefix or _sees_system_packages():
        places |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "_inherited.pth").write_text("".join(f"{place}\n" for place in sorted(places)), encoding="utf-8")


def _sees_system_packages() -> bool:
    settings = Path(sys.prefix) / "pyvenv.cfg"
    return settings.exists() and "include-system-site-packages = true" in settings.read_text(encoding="utf-8")


def _call(command: list[str], what: str) -> None:
    # The caller's settings of package index and proxies are needed here, and only here; with PYTHONPATH pip would take
    # packages for installed that the job will not see.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        line = next(
            (text for text in reversed(done.stderr.strip().splitlines()) if "error" in text.lower()), "see the log"
        )
        raise InputError(f"environment: {what} failed: {line}")


def _packages(python: Path) -> tuple[str, list[str]]:
    done = subprocess.run([str(python), "-I", "-c", LIST], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"environment: {python} does not start: {done.stderr.strip().splitlines()[-1:]}")
    version, lock = json.loads(done.stdout)
    return version, lock


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `environment`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    write_json(args.output, "wholejob/env@1", build(read_json(args.spec, "spec")))
    return 0


if __name__ == "__main__":
    run(main)
