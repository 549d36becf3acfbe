"""Refuse a patch before anything of it runs: shape, scope, classes, and the rules of `scripts/judge/rules/`.

    python -m scripts.judge.guard --spec W/spec.json --source W/source.json [--stack STACK.json | --base-tree HASH] \
        --patch patch.diff -o guard.json

Status `pass`, `refused` or `nothing` (an empty patch); never an error for what the patch holds. What cannot be read,
and a rule that crashes, refuses. A pass stores the patched tree and names its hash.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from scripts.common import tree
from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json
from scripts.common.globs import matches, protected
from scripts.judge.change import Change, FileChange, Function, Hit, Module, constant_text
from scripts.judge.classify import CLASSES, DATA_FILES, NATIVE_FILES, classify
from scripts.judge.patchfile import REGULAR, FilePatch, PatchError, apply_text, parse
from scripts.judge.rules import rules

MAX_LINES = 400
MAX_BYTES = 400_000


def guard(patch: bytes, base: Path, spec: Mapping[str, Any], changes: int = 1) -> dict[str, Any]:
    """The content of `guard.json` for a patch against the tree in the folder `base`; `tree` is filled by `main`.

    changes: how many accepted changes the patch is composed of. The limits of size are for one change, and each of
    these kept to them when it was proposed, so that together they may have as many times that.

    Cost: a copy of the tree, one parse of each changed file, and each rule once over the changed files; 0.1-0.3 s for a
    small job.
    """
    constraints = dict(spec.get("constraints") or {})
    report = _Report()
    if not patch.strip():
        return report.result("nothing")
    files = report.attempt("canonical", lambda: _read(patch, MAX_BYTES * changes))
    if files is None:
        return report.result()
    report.count(files)
    report.add("modes", _modes(files))
    report.add("paths", _paths(files))
    report.add("protected", _protected(files, spec))
    report.add("editable", _editable(files, spec))
    report.add("file_type", _types(files))
    report.add("size", _size(files, constraints, changes))
    if report.refused:
        return report.result()
    change = report.attempt("applies", lambda: _change(files, patch, base, spec))
    if change is None:
        return report.result()
    report.attempt("parses", lambda: _parse(change))
    if report.refused:
        return report.result()
    report.attempt("inert", lambda: report.add("inert", _inert(change)))
    report.attempt("classes", lambda: report.classify(change))
    for rule in rules():
        report.attempt(rule.NAME, lambda rule=rule: report.add(rule.NAME, rule.check(change)))  # type: ignore[misc]
    report.attempt("watched", lambda: report.watch(change))
    return report.result()


class _Report:
    """Hits as they come, and the counts of the patch."""

    def __init__(self) -> None:
        self.hits: list[dict[str, Any]] = []
        self.classes: list[str] = []
        self.files: list[str] = []
        self.added = self.removed = 0
        self.changed_lines: dict[str, list[int]] = {}

    @property
    def refused(self) -> bool:
        return any(hit["action"] == "refuse" for hit in self.hits)

    def add(self, rule: str, hits: Iterable[Hit]) -> None:
        for hit in dict.fromkeys(hits):
            self.hits.append(
                {"rule": rule, "action": hit.action, "path": hit.path, "line": hit.line, "reason": hit.reason}
            )

    def attempt(self, rule: str, work: Any) -> Any:
        """The work's result, or None and a refusal where it raises: unknown is never a pass."""
        try:
            return work()
        except (PatchError, InputError, SyntaxError) as error:
            self.add(rule, [Hit("refuse", None, getattr(error, "lineno", None), str(error))])
        except Exception as error:
            self.add(
                rule,
                [
                    Hit(
                        "refuse",
                        None,
                        None,
                        f"the rule {rule} crashed ({type(error).__name__}: {error}); unknown is refused",
                    )
                ],
            )
        return None

    def count(self, files: list[FilePatch]) -> None:
        self.files = sorted(file.path for file in files)
        self.added = sum(len(file.added) for file in files)
        self.removed = sum(len(file.removed) for file in files)

    def classify(self, change: Change) -> None:
        self.classes = classify(change)
        allowed = list(change.constraints.get("classes") or CLASSES)
        others = [name for name in self.classes if name not in allowed]
        if others:
            text = f"the patch is of class {', '.join(others)}; the contract allows {', '.join(allowed)}"
            self.add("classes", [Hit("refuse", None, None, text)])

    def watch(self, change: Change) -> None:
        self.changed_lines = {file.path: lines for file in change.python if (lines := watched_lines(file))}

    def result(self, status: str | None = None) -> dict[str, Any]:
        order = {"refuse": 0, "review": 1, "side_effect": 2}
        return {
            "status": status or ("refused" if self.refused else "pass"),
            "tree": None,
            "classes": self.classes,
            "hits": sorted(self.hits, key=lambda hit: order[hit["action"]]),
            "files": self.files,
            "lines_added": self.added,
            "lines_removed": self.removed,
            "changed_lines": self.changed_lines,
        }


def _read(patch: bytes, most: int) -> list[FilePatch]:
    try:
        text = patch.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(f"byte {error.start} is no UTF-8; a patch of text files is right") from None
    if len(patch) > most:
        raise PatchError(f"{len(patch)} bytes; at most {most} are read")
    return parse(text)


def _modes(files: list[FilePatch]) -> list[Hit]:
    hits = []
    for file in files:
        if file.binary:
            hits.append(Hit("refuse", file.path, None, "binary content"))
        for mode in {file.old_mode, file.new_mode} - {None, REGULAR}:
            kind = {"120000": "a symbolic link", "160000": "a submodule", "100755": "an executable file"}.get(
                str(mode), "an odd mode"
            )
            if mode == "100755" and file.old_mode == file.new_mode:
                continue  # it was executable and stays so
            hits.append(Hit("refuse", file.path, None, f"{kind} (mode {mode}); only text of regular files may change"))
        if file.status == "modified" and not file.hunks and not file.binary and file.old_mode == file.new_mode:
            hits.append(Hit("refuse", file.path, None, "a section that changes nothing"))
    return hits


def _paths(files: list[FilePatch]) -> list[Hit]:
    hits = []
    for file in files:
        parts = file.path.split("/")
        odd = [c for c in file.path if unicodedata.category(c)[0] == "C" or c in '\\":*?<>|' or not c.isascii()]
        if file.path.startswith(("/", "~")) or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            hits.append(Hit("refuse", file.path, None, "a path outside the tree, or no plain relative path"))
        elif odd or file.path != file.path.strip() or any(p.endswith((".", " ")) for p in parts):
            hits.append(Hit("refuse", file.path, None, "a path with unusual characters"))
    return hits


def _protected(files: list[FilePatch], spec: Mapping[str, Any]) -> list[Hit]:
    patterns = list((spec.get("source") or {}).get("protected") or [])
    found = [(file.path, protected(file.path, patterns)) for file in files]
    return [Hit("refuse", path, None, f"protected by {pattern!r}") for path, pattern in found if pattern]


def _editable(files: list[FilePatch], spec: Mapping[str, Any]) -> list[Hit]:
    patterns = list((spec.get("source") or {}).get("editable") or [])
    return [
        Hit("refuse", file.path, None, f"not among the editable files ({', '.join(patterns) or 'none'})")
        for file in files
        if not matches(file.path, patterns)
    ]


def _types(files: list[FilePatch]) -> list[Hit]:
    """Only kinds of files that the rules can read: a shell script may hold any pattern."""
    return [
        Hit(
            "refuse",
            file.path,
            None,
            "a kind of file that the guard cannot read; Python, data and kernel sources may change",
        )
        for file in files
        if not file.path.endswith((".py", ".pyi", ".md", *DATA_FILES, *NATIVE_FILES))
    ]


def _size(files: list[FilePatch], constraints: Mapping[str, Any], changes: int) -> list[Hit]:
    limit = int(constraints.get("max_lines") or MAX_LINES) * changes
    lines = sum(len(file.added) + len(file.removed) for file in files)
    if lines <= limit:
        return []
    text = f"{lines} changed lines; the contract allows {limit}" + (f" for {changes} changes" if changes > 1 else "")
    return [Hit("refuse", None, None, text)]


def _change(files: list[FilePatch], patch: bytes, base: Path, spec: Mapping[str, Any]) -> Change:
    """Both sides of every file, where git and our own reading agree on the result."""
    with tempfile.TemporaryDirectory(prefix="wholejob-guard-") as folder:
        place = Path(folder) / "patch.diff"
        place.write_bytes(patch)
        work = tree.copy(base, Path(folder) / "tree")
        tree.apply(place, work)
        old, new = tree.manifest(base), tree.manifest(work)
        differing = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        if differing != {file.path for file in files}:
            odd = sorted(differing ^ {file.path for file in files})
            raise PatchError(f"git changes other files than the patch names: {', '.join(odd)}")
        changes = []
        for file in files:
            before, after = _text(base, file.path), _text(work, file.path)
            if apply_text(file, before) != after:
                raise PatchError(f"{file.path}: git reads the patch in another way than the guard does")
            changes.append(FileChange(file.path, file, before, after))
        sources = {
            path: _text(work, path) or "" for path in new if path.endswith(".py") and new[path]["mode"] != "120000"
        }
    declared = {name: spec[name] for name in ("knobs", "knobs_file") if spec.get(name)}
    return Change(changes, dict(spec.get("constraints") or {}), sources, frozenset(new), declared)


def _text(folder: Path, name: str) -> str | None:
    path = folder / name
    if path.is_symlink() or any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(folder)):
        raise PatchError(f"{name}: is, or lies behind, a symbolic link")
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        if name.endswith(".py"):
            raise PatchError(f"{name}: is no UTF-8") from None
        return None


def _parse(change: Change) -> None:
    for file in change.files:
        if not file.path.endswith((".py", ".pyi")):
            continue
        for side in ("before", "after"):
            text = getattr(file, f"{side}_text")
            if text is None:
                continue
            try:
                setattr(file, side, Module(file.path, text))
                compile(text, file.path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                if side == "after":
                    raise PatchError(
                        f"{file.path}:{getattr(error, 'lineno', None) or 1}: does not parse after the patch: {error}"
                    ) from None
                raise PatchError(f"{file.path}: does not parse before the patch; the guard cannot compare") from None


def _inert(change: Change) -> list[Hit]:
    """A patch whose files mean what they meant: comments, blank lines, docstrings, quotes, other files' comments."""
    for file in change.files:
        if file.before is not None and file.after is not None:
            if _meaning(file.before.tree) != _meaning(file.after.tree):
                return []
        elif file.after is not None:
            if _meaning(file.after.tree) != _meaning(ast.Module([], [])):
                return []
        elif _words(file.before_text) != _words(file.after_text):
            return []
    return [
        Hit(
            "refuse",
            change.files[0].path,
            None,
            "changes only comments, docstrings or layout: there is nothing to measure",
        )
    ]


def _meaning(root: ast.AST) -> str:
    """The tree without docstrings, annotations of locals, and `pass`."""
    root = ast.parse(ast.unparse(root))
    for node in ast.walk(root):
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, (ast.Module, ast.ClassDef, *Function)):
            node.body = [
                s
                for s in body
                if not (isinstance(s, ast.Expr) and constant_text(s.value) is not None) and not isinstance(s, ast.Pass)
            ]  # type: ignore[attr-defined]
        if isinstance(node, Function):
            node.returns = None
    return ast.dump(root)


def _words(text: str | None) -> list[str]:
    return [line.partition("#")[0].strip() for line in (text or "").split("\n") if line.partition("#")[0].strip()]


def watched_lines(file: FileChange) -> list[int]:
    """Lines of the new file that must run to show that the patch does: changed ones with code, and the one after a cut.

    Definitions, imports and decorators run when the module is loaded and show nothing; they count only where the
    patch has nothing else in this file.
    """
    assert file.after is not None
    runs = _code_lines(compile(file.after.text, file.path, "exec", dont_inherit=True))
    headers = set()
    for node in ast.walk(file.after.tree):
        if isinstance(node, (*Function, ast.ClassDef)):
            headers |= set(range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.body[0].lineno))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            headers |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, (ast.If, ast.While, ast.Try)) and not file.added.isdisjoint(_body_lines(node)):
            headers |= set(range(node.lineno, node.body[0].lineno))
    cuts = {next((n for n in range(cut, cut + 4) if n in runs), 0) for cut in file.patch.cuts} - {0}
    changed = (set(file.added) & runs) | cuts
    return sorted(changed - headers) or sorted(changed)


def _body_lines(node: ast.If | ast.While | ast.Try) -> range:
    return range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)


def _code_lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _code_lines(constant)
    return lines


def _changes(attribution: str | None) -> int:
    if attribution is None:
        return 1
    return max(1, sum(change["kept"] for change in read_json(attribution, "attribution")["changes"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.judge.guard", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--spec", required=True, help="the workload's resolved spec.json")
    parser.add_argument("--source", required=True, help="source.json, which names the pristine tree")
    parser.add_argument("--stack", help="stack.json of the earlier rounds; its tree is the base")
    parser.add_argument("--base-tree", help="hash of the base tree in the store")
    parser.add_argument("--patch", required=True, help="the candidate's canonical git diff")
    parser.add_argument(
        "--attribution", help="attribution.json, where the patch is composed of the changes that it kept"
    )
    parser.add_argument("-o", "--output", required=True, help="guard.json to write")
    args = parser.parse_args(argv)
    if args.stack and args.base_tree:
        raise InputError("--stack and --base-tree both name a base; give one of them")
    spec = read_json(args.spec, "spec")
    source = read_json(args.source, "source")
    identity = args.base_tree or (read_json(args.stack, "stack")["tree"] if args.stack else source["tree"])
    patch = Path(args.patch)
    if not patch.is_file():
        raise InputError(f"{patch}: no such file; --patch names the candidate's patch.diff")
    result = guard(patch.read_bytes(), tree.stored(identity), spec, _changes(args.attribution))
    if result["status"] == "pass":
        result["tree"] = tree.patched(identity, patch)
    write_json(args.output, "wholejob/guard@1", result)
    return 0


if __name__ == "__main__":
    run(main)
