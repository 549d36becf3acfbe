"""Source trees: identity by content, read-only copies in a store, patches as canonical git diffs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.common.errors import InputError
from scripts.common.files import canonical_json, sha256_bytes, sha256_file

STORE = Path("results/store/trees")
SKIPPED = {".git", "__pycache__", ".venv", ".snakemake", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def manifest(tree: str | Path) -> dict[str, dict[str, str]]:
    """`{relative path: {"sha256": ..., "mode": "100644" | "100755" | "120000"}}`, sorted by path.

    Directories that hold no source (`.git`, caches) are left out. A symbolic link is hashed by its target.
    """
    tree = Path(tree)
    entries = {}
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(folder) / name
            # A submodule's `.git` is a file.
            if name in SKIPPED or name.endswith((".pyc", ".pyo")):
                continue
            if path.is_symlink():
                entry = {"sha256": sha256_bytes(str(path.readlink()).encode()), "mode": "120000"}
            else:
                executable = path.stat().st_mode & stat.S_IXUSR
                entry = {"sha256": sha256_file(path), "mode": "100755" if executable else "100644"}
            entries[path.relative_to(tree).as_posix()] = entry
    return dict(sorted(entries.items()))


def tree_hash(tree: str | Path) -> str:
    """Identity of a tree: SHA-256 of its canonical manifest. Independent of place, owner and times."""
    return sha256_bytes(canonical_json(manifest(tree)))


def copy(tree: str | Path, destination: str | Path) -> Path:
    """A writable copy without caches and `.git`; `destination` must not exist."""
    destination = Path(destination)
    shutil.copytree(tree, destination, symlinks=True, ignore=lambda _, names: [n for n in names if n in SKIPPED])
    for path in [destination, *destination.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return destination


def store(tree: str | Path) -> str:
    """Put a read-only copy of `tree` under its hash; returns the hash. A second call does nothing."""
    identity = tree_hash(tree)
    place = STORE / identity
    if place.is_dir():
        return identity
    STORE.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".part-", dir=STORE))
    try:
        copied = copy(tree, temporary / "tree")
        for path in sorted(copied.rglob("*"), reverse=True):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        try:
            copied.rename(place)
        except OSError:  # another process stored the same tree meanwhile
            if not place.is_dir():
                raise
    finally:
        remove(temporary)
    return identity


def stored(identity: str) -> Path:
    """The read-only tree of that hash, verified. Raises InputError where it is missing or was changed."""
    place = STORE / identity
    if not place.is_dir():
        raise InputError(f"{place}: the stored tree is gone; delete the source.json that names it and run again")
    if tree_hash(place) != identity:
        raise InputError(f"{place}: the stored tree was changed; delete the folder and the source.json that names it")
    return place


def remove(tree: str | Path) -> None:
    """Delete a tree, read-only folders included; missing is fine."""
    tree = Path(tree)
    if not tree.exists():
        return
    for path in [tree, *tree.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(tree)


def apply(patch: str | Path, tree: str | Path) -> None:
    """Apply a git diff to a writable tree, exactly (no fuzz). An empty patch changes nothing.

    Raises InputError with git's first line where the patch does not apply; then the tree is unchanged.
    """
    patch = Path(patch).resolve()
    if not patch.read_bytes().strip():
        return
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)],
        cwd=tree,
        env={**_git_environment(), "GIT_CEILING_DIRECTORIES": str(Path(tree).resolve().parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["git apply failed"])[0]
        raise InputError(f"{patch.name}: does not apply: {line.removeprefix('error: ')}")


def diff(before: str | Path, after: str | Path) -> str:
    """The canonical git diff between two trees: `a/` and `b/` prefixes, full index, no renames, sorted paths."""
    with tempfile.TemporaryDirectory(prefix="wholejob-diff-") as folder:
        copy(before, Path(folder) / "a")
        copy(after, Path(folder) / "b")
        done = subprocess.run(
            [
                "git",
                "diff",
                "--no-index",
                "--no-renames",
                "--full-index",
                "--binary",
                "--no-color",
                "--no-ext-diff",
                "--src-prefix=",
                "--dst-prefix=",
                "a",
                "b",
            ],
            cwd=folder,
            env=_git_environment(),
            capture_output=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise InputError(f"git diff failed: {done.stderr.decode(errors='replace').strip()}")
        return _both_sides(done.stdout.decode("utf-8", errors="surrogateescape"))


def _both_sides(text: str) -> str:
    """Headers with `a/` and `b/`, as in a repository: `--no-index` writes the existing side twice for an added or a
    deleted file. No line of a hunk or of binary content starts as a header does.
    """
    lines = text.split("\n")
    start = "diff --git "
    for number, line in enumerate(lines):
        names = line.removeprefix(start)
        half = len(names) // 2
        if line.startswith(start) and names[:half] == names[half + 1 :]:
            quote = '"' * names.startswith('"')
            name = names[len(quote) + len("a/") : half]
            lines[number] = f"{start}{quote}a/{name} {quote}b/{name}"
    return "\n".join(lines)


def patched(base: str, patch: str | Path) -> str:
    """Hash of the stored tree `base` with `patch` applied, stored as well."""
    with tempfile.TemporaryDirectory(prefix="wholejob-patch-") as folder:
        work = copy(stored(base), Path(folder) / "tree")
        apply(patch, work)
        return store(work)


def composed(base: str, patches: Sequence[Path]) -> str | None:
    """Hash of the tree with the patches applied in order, or None where they do not apply so."""
    current = base
    with contextlib.suppress(InputError):
        for patch in patches:
            current = patched(current, patch)
        return current
    return None


def _git_environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "LC_ALL": "C",
        "HOME": "/nonexistent",
    }
