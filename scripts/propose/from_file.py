"""The proposers `file:PATH` and `git:URL@REV`: somebody's patch, or an upstream commit, judged like any other.

A file is one candidate. A folder or a glob gives one candidate a patch, sorted by name; what was tried is not tried
again. A patch that does not apply is handed on as it is, so that the guard refuses it by name.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from scripts.common.errors import InputError
from scripts.propose.proposal import Answer, Task

CLONE_TIMEOUT_S = 300


def propose(task: Task) -> Answer:
    """The patch as it is. What does not apply is said by the program in one line, with git's reason."""
    kind, _, rest = task.proposer.partition(":")
    tried = {attempt.proposal.get("fix") for attempt in task.history}
    if kind == "file":
        names = [path for path in patches(rest) if path.name not in tried]
        if task.candidate >= len(names):
            return Answer(reason=f"{len(names)} patches of {rest} are left, this is candidate {task.candidate}")
        name = names[task.candidate].name
        text = names[task.candidate].read_bytes().decode("utf-8", errors="surrogateescape")
    else:
        if task.candidate or rest in tried:
            return Answer(reason="a commit is one candidate, once")
        name, text = rest, commit_patch(rest)
    if not text.strip():
        raise InputError(f"{name}: is empty; should be a unified diff")
    answer = Answer(status="patch", patch=text, fix=name, title=subject(text) or name)
    entry = {"event": "patch", "from": name, "bytes": len(text), "applies": True}
    try:
        answer.patch = relative_to_tree(text, task.tree)
    except InputError as error:
        answer.as_given = True
        entry |= {"applies": False, "reason": str(error)}
    answer.transcript = [entry]
    return answer


def patches(pattern: str) -> list[Path]:
    """The patch files that a path, a folder or a glob names, sorted. Raises InputError where there is none."""
    path = Path(pattern)
    if path.is_file():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix in (".diff", ".patch")) if path.is_dir() else []
    if not found and any(c in pattern for c in "*?["):
        found = sorted(p for p in Path().glob(pattern) if p.is_file())
    if not found:
        raise InputError(
            f"proposer file:{pattern}: no such patch; should be a .diff or .patch file, or a folder of them"
        )
    return found


def relative_to_tree(text: str, tree: Path) -> str:
    """The part of a diff that applies to the tree, tried as it is and with leading folders of the repository stripped.

    Raises InputError with git's first line where it applies in no way.
    """
    first = ""
    with tempfile.TemporaryDirectory(prefix="wholejob-patch-") as folder:
        given = Path(folder) / "given.diff"
        given.write_bytes(text.encode("utf-8", errors="surrogateescape"))
        for strip in range(1, 5):
            done = subprocess.run(
                ["git", "apply", "--check", "--whitespace=nowarn", f"-p{strip}", str(given)],
                cwd=tree,
                capture_output=True,
                text=True,
                check=False,
                env=_environment(tree),
            )
            if done.returncode == 0:
                return text if strip == 1 else _stripped(text, strip - 1)
            first = first or (done.stderr.strip().splitlines() or ["git apply failed"])[0].removeprefix("error: ")
    raise InputError(f"does not apply: {first}")


def subject(text: str) -> str | None:
    """The subject line of a mailed patch."""
    for line in text.splitlines()[:20]:
        if line.startswith("Subject: "):
            return line.removeprefix("Subject: ").split("] ", 1)[-1].strip() or None
    return None


def commit_patch(address: str) -> str:
    """The diff of one commit of a repository: `URL@REV`. Raises InputError where git cannot get it."""
    url, at, revision = address.rpartition("@")
    if not at or not url or not revision:
        raise InputError(f"proposer git:{address}: should be git:URL@REV")
    if url.startswith("-") or revision.startswith("-"):
        raise InputError(f"proposer git:{address}: should be git:URL@REV")
    with tempfile.TemporaryDirectory(prefix="wholejob-git-") as folder:
        _git(["clone", "--quiet", "--bare", "--filter=blob:none", "--", url, folder + "/repository"], address)
        return _git(
            [
                "-C",
                folder + "/repository",
                "format-patch",
                "-1",
                "--stdout",
                "--no-renames",
                "--full-index",
                "--binary",
                revision,
            ],
            address,
        )


def _git(arguments: list[str], address: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            check=False,
            timeout=CLONE_TIMEOUT_S,
            env={
                **os.environ,
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "LC_ALL": "C",
            },
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"proposer git:{address}: git took longer than {CLONE_TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise InputError(f"proposer git:{address}: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout.decode("utf-8", errors="surrogateescape")


def _stripped(text: str, folders: int) -> str:
    """The diff with that many leading folders taken from its paths."""
    lines = []
    for line in text.splitlines(keepends=True):
        if line.startswith("diff --git "):
            parts = line.split(" ")
            line = " ".join([*parts[:2], *(_strip(part, folders) for part in parts[2:])])
        elif line.startswith(("--- a/", "+++ b/")):
            line = line[:4] + _strip(line[4:], folders)
        lines.append(line)
    return "".join(lines)


def _strip(path: str, folders: int) -> str:
    side, _, rest = path.partition("/")
    return f"{side}/{'/'.join(rest.split('/')[folders:])}"


def _environment(tree: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }
