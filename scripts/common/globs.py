"""Which paths of a tree a patch may touch: gitignore-like patterns, and what no contract can open."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

# Never editable, whatever a workload says: tests, dependencies, packaging, what Python runs by itself, and our own
# names.
ALWAYS_PROTECTED = ("tests/", "test/", "conftest.py", "*.lock", "requirements*.txt",
                    "constraints*.txt", "pyproject.toml", "setup.py", "setup.cfg", "tox.ini",
                    "Pipfile*", "environment*.y*ml", ".git*", ".github/", ".pre-commit-config.yaml",
                    "Dockerfile*", "Makefile", "sitecustomize.py", "usercustomize.py", "*.pth",
                    "*.pyc", "*.so", "*.pyd", "*.dll", "parity/", "Snakefile", "*.smk", "spec.json")  # fmt: skip


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a relative path matches one of the patterns.

    As in gitignore: a pattern without a slash matches a name at any depth, `dir/` everything below, `**` any depth,
    `*` and `?` stay within one name. There is no negation.
    """
    return any(_compiled(pattern).match(path) for pattern in patterns)


def protected(path: str, patterns: Iterable[str]) -> str | None:
    """The pattern that protects `path`, or None."""
    return next((p for p in [*patterns, *ALWAYS_PROTECTED] if matches(path, [p])), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    body = pattern.removeprefix("./")
    below = body.endswith("/")
    body = body.rstrip("/")
    anchored = "/" in body
    body = body.lstrip("/")
    out, at = "", 0
    while at < len(body):
        if body.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif body.startswith("**", at):
            out, at = out + ".*", at + 2
        elif body[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif body[at] == "?":
            out, at = out + "[^/]", at + 1
        elif body[at] == "[" and "]" in body[at + 2 :]:
            end = body.index("]", at + 2)
            out, at = out + "[" + body[at + 1 : end].replace("!", "^", 1) + "]", end + 1
        else:
            out, at = out + re.escape(body[at]), at + 1
    # Below a matched folder everything matches, as git does it.
    return re.compile(("" if anchored else "(?:.*/)?") + out + ("/.*" if below else "(?:/.*)?") + r"\Z", re.DOTALL)
