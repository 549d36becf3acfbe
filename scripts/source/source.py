"""Materialise a workload's source: a read-only tree in the store, named by the hash of its content.

A local folder is copied; a git revision is cloned; a published package is unpacked from its wheel. An `overlay` folder is
laid over it and `launch.prepare` runs once inside (generating data), so that nothing of this happens in a measured run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from scripts.common import tree
from scripts.common.errors import InputError, run
from scripts.common.files import ROOT, read_json, sha256_bytes, write_json
from scripts.common.globs import matches
from scripts.source.environment import interpreter


def identity(spec: dict[str, Any]) -> str:
    """What the tree is made from: the content of local folders, the name of published ones.

    Called when the Snakefile is parsed; costs one read of the workload's own folder.
    """
    source = spec["source"]
    parts = [tree.tree_hash(ROOT / source[key]) for key in ("path", "overlay") if key in source]
    if "git" in source:
        parts.append(f"{source['git']['url']}@{source['git']['rev']}")
    if "pypi" in source:
        parts.append(source["pypi"])
    return sha256_bytes("\n".join(parts).encode())


def materialise(spec: dict[str, Any], env: dict[str, Any]) -> dict[str, Any]:
    """Build the tree, store it, and describe it: `{"tree": hash, "origin": ..., "files": manifest}`."""
    source = spec["source"]
    with tempfile.TemporaryDirectory(prefix="wholejob-source-") as folder:
        work = Path(folder) / "tree"
        if "path" in source:
            tree.copy(ROOT / source["path"], work)
            origin = {"path": source["path"]}
        elif "git" in source:
            origin = _clone(source["git"], work)
        else:
            origin = _unpack(source["pypi"], work, interpreter(env))
        if "overlay" in source:
            shutil.copytree(
                ROOT / source["overlay"],
                work,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda _, names: [name for name in names if name in tree.SKIPPED],
            )
        if spec["launch"]["prepare"]:
            _prepare(spec, work, interpreter(env))
        hashed = tree.store(work)
        files = tree.manifest(work)
    _check_globs(source, files, spec["name"])
    return {"tree": hashed, "origin": origin, "files": files}


def _clone(git: dict[str, str], work: Path) -> dict[str, str]:
    for arguments in (
        ["clone", "--quiet", "--no-checkout", git["url"], str(work)],
        ["-C", str(work), "checkout", "--quiet", "--detach", git["rev"]],
    ):
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
        if done.returncode:
            line = (done.stderr.strip().splitlines() or ["failed"])[-1]
            raise InputError(f"source.git: {git['url']}@{git['rev']}: {line}")
    commit = subprocess.run(["git", "-C", str(work), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    # The history could hold the very change that is to be found.
    tree.remove(work / ".git")
    return {"git": git["url"], "commit": commit.stdout.strip()}


def _unpack(requirement: str, work: Path, python: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="wholejob-wheel-") as folder:
        done = subprocess.run(
            [
                python,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                folder,
                requirement,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            line = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise InputError(f"source.pypi: {requirement}: {line}")
        wheel = wheels[0]
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)
        for installed in work.glob("*.dist-info"):
            # Versions stay readable; RECORD would not fit the patched files.
            for path in installed.iterdir():
                if path.name not in ("METADATA", "entry_points.txt"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return {"pypi": requirement, "wheel": wheel.name}


def _prepare(spec: dict[str, Any], work: Path, python: str) -> None:
    values = {"tree": str(work), "python": python, **spec["parameters"]}
    command = [word.format(**values) for word in spec["launch"]["prepare"]]
    if command[0] == "python":
        command[0] = python
    variables = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=work,
        env={**variables, "PYTHONDONTWRITEBYTECODE": "1", **spec["environment"]["variables"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"launch.prepare: {' '.join(command[1:])}: exit code {done.returncode}: {line}")


def _check_globs(source: dict[str, Any], files: dict[str, Any], name: str) -> None:
    if not any(matches(path, source["editable"]) for path in files):
        raise InputError(f"workloads/{name}.yaml: source.editable: {source['editable']} matches no file of the tree")


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `source`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    spec = read_json(args.spec, "spec")
    write_json(args.output, "wholejob/source@1", materialise(spec, read_json(args.env, "env")))
    return 0


if __name__ == "__main__":
    run(main)
