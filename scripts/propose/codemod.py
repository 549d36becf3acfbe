"""What the playbook's transformations share: files that may be edited, names resolved through imports, replacement by
identity.

Everything works on libcst trees, so that comments and formatting of untouched code survive byte for byte.
"""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.common import globs
from scripts.common import tree as trees

SKIPPED_FOLDERS = {"test", "tests", "docs"}
LARGEST_BYTES = 400_000
SMALL = 40
"""Up to so many Python files a tree is a job of its own; above, a package of which the job runs a part."""


class Refusal(Exception):
    """A fix does not apply; the message is the missing precondition, in one line."""


@dataclass(eq=False)
class File:
    """One editable Python file of a tree: its path in the tree, its text, its syntax and what its names mean."""

    path: str
    text: str
    module: cst.Module
    names: dict[str, str] = field(default_factory=dict)

    @cached_property
    def functions(self) -> list[tuple[cst.FunctionDef, tuple[cst.CSTNode, ...]]]:
        """Every function of the file with the classes and functions around it, found once."""
        return list(functions(self.module))

    def qualified(self, node: cst.CSTNode | None) -> str | None:
        """`torch.nn.functional.softmax` for `F.softmax`, through the imports; None for what is no dotted name."""
        name = dotted(node)
        if name is None:
            return None
        first, dot, rest = name.partition(".")
        return self.names.get(first, first) + dot + rest

    def spelled(self, qualified: str) -> str | None:
        """How this file can write a qualified name with the imports that it has: `F.softmax`, or None."""
        best = None
        for local, meaning in self.names.items():
            if qualified == meaning or qualified.startswith(meaning + "."):
                written = local + qualified[len(meaning) :]
                if best is None or len(written) < len(best):
                    best = written
        return best

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node of this file's tree begins."""
        if not hasattr(self, "_positions"):
            wrapper = cst.MetadataWrapper(self.module, unsafe_skip_copy=True)
            from libcst.metadata import PositionProvider

            self._positions = wrapper.resolve(PositionProvider)
        return self._positions[node].start.line


def files(tree: Path, finding: Mapping[str, Any], spec: Mapping[str, Any], *words: str) -> Iterator[File]:
    """Editable Python files that hold one of `words`, the finding's anchored files first, parsed.

    A job of a few files is searched whole. In a package only the files that the finding points at and the scripts at
    the top are: a change anywhere else might never run. Cost: one walk; only files with a word in them are parsed
    (about 1 MB/s), each once a process.
    """
    anchored = list(dict.fromkeys(anchor.get("path") or "" for anchor in finding.get("anchors") or []))
    every = dict(texts(tree, spec))
    if len(every) > SMALL:
        every = {path: text for path, text in every.items() if path in anchored or "/" not in path}
    for path in sorted(every, key=lambda path: (anchored.index(path) if path in anchored else len(anchored), path)):
        if words and not any(word in every[path] for word in words):
            continue
        file = _parsed(path, every[path])
        if file is not None:
            yield file


def texts(tree: Path, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """`(path, text)` of every editable Python file that is no test and of a reasonable size."""
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if name not in trees.SKIPPED | SKIPPED_FOLDERS)
        for name in sorted(names):
            place = Path(folder) / name
            path = place.relative_to(tree).as_posix()
            if not name.endswith(".py") or not editable(path, spec) or place.is_symlink():
                continue
            if place.stat().st_size <= LARGEST_BYTES:
                with contextlib.suppress(UnicodeDecodeError):
                    yield path, place.read_bytes().decode("utf-8")


@lru_cache(maxsize=512)
def _parsed(path: str, text: str) -> File | None:
    try:
        module = cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError):
        return None
    return File(path, text, module, imports(module))


def editable(path: str, spec: Mapping[str, Any]) -> bool:
    """Whether the workload lets a patch touch the file: inside `source.editable`, outside what is protected."""
    source = spec.get("source") or {}
    return (
        globs.matches(path, source.get("editable") or ["**"])
        and globs.protected(path, source.get("protected") or []) is None
    )


def imports(module: cst.Module) -> dict[str, str]:
    """Local name -> qualified name, for every import of the file, nested ones included."""
    names: dict[str, str] = {}
    for node in walk(module):
        if isinstance(node, cst.Import):
            for alias in node.names:
                full = dotted(alias.name) or ""
                if alias.asname:
                    names[dotted(alias.asname.name) or ""] = full
                else:
                    names[full.split(".")[0]] = full.split(".")[0]
        elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar) and node.module:
            base = "." * len(node.relative) + (dotted(node.module) or "")
            for alias in node.names:
                local = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
                names[local or ""] = f"{base}.{dotted(alias.name)}"
    return names


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` of a chain of names, else None."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    return None


def code(node: cst.CSTNode) -> str:
    """The source text of a node, without the parentheses around the whole of it."""
    return cst.Module(body=[]).code_for_node(bare(node))


def bare(node: Any) -> Any:
    """The expression without parentheses around it."""
    return node.with_changes(lpar=[], rpar=[]) if getattr(node, "lpar", None) else node


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, in source order."""
    yield node
    for child in node.children:
        yield from walk(child)


def loads(node: cst.CSTNode, name: str) -> int:
    """How often the variable is read in a node; attribute names, keywords, targets and parameters do not count."""
    return sum(1 for read in reads(node) if read == name)


def reads(node: cst.CSTNode) -> Iterator[str]:
    """Names of the variables that a node reads, with repetition."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        yield from reads(node.value)
    elif isinstance(node, cst.AssignTarget):
        if not isinstance(node.target, cst.Name):
            yield from _target_reads(node.target)
    elif isinstance(node, cst.AnnAssign):
        if node.value:
            yield from reads(node.value)
    elif isinstance(node, (cst.For, cst.CompFor)):
        yield from _target_reads(node.target)
        for child in node.children:
            if child is not node.target:
                yield from reads(child)
    elif isinstance(node, cst.Param):
        if node.default:
            yield from reads(node.default)
    elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        for child in node.children:
            if child is not node.name:
                yield from reads(child)
    elif isinstance(node, (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal)):
        return
    else:
        for child in node.children:
            yield from reads(child)


def _target_reads(target: cst.BaseExpression) -> Iterator[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _target_reads(element.value)
    elif isinstance(target, (cst.Attribute, cst.Subscript)):
        yield from reads(target)


def writes(node: cst.CSTNode) -> set[str]:
    """Names that a statement binds: assignments, loops, `with ... as`, imports, definitions, walrus."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr, cst.For)):
            found |= target_names(part.target)
        elif isinstance(part, cst.AsName):
            found |= target_names(part.name)
        elif isinstance(part, (cst.FunctionDef, cst.ClassDef)):
            found.add(part.name.value)
    return found


def target_names(target: cst.CSTNode) -> set[str]:
    """Plain names in an assignment target."""
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, (cst.Tuple, cst.List)):
        return set().union(*(target_names(element.value) for element in target.elements)) if target.elements else set()
    return set()


def assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """`(name, value)` of a line that is exactly one assignment to one name, augmented ones unfolded; else None."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        return small.targets[0].target.value, small.value
    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name) and small.value:
        return small.target.value, small.value
    if isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
        operator = _UNFOLDED.get(type(small.operator))
        if operator:
            return small.target.value, cst.BinaryOperation(left=small.target, operator=operator(), right=small.value)
    return None


_UNFOLDED: dict[type, type] = {
    cst.AddAssign: cst.Add,
    cst.SubtractAssign: cst.Subtract,
    cst.MultiplyAssign: cst.Multiply,
    cst.DivideAssign: cst.Divide,
}


def call(statement: cst.CSTNode) -> cst.Call | None:
    """The call of a line that is exactly one expression statement with a call."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            return small.value
    return None


def keyword(node: cst.Call, name: str) -> cst.Arg | None:
    """The call's keyword argument of that name."""
    for argument in node.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument
    return None


def positional(node: cst.Call) -> list[cst.BaseExpression]:
    """The call's positional arguments, unstarred."""
    return [argument.value for argument in node.args if argument.keyword is None and not argument.star]


def with_keyword(node: cst.Call, name: str, value: str) -> cst.Call:
    """The call with `name=value` set, in the formatting that its argument list has; comments stay with their
    arguments.
    """
    expression = cst.parse_expression(value)
    arguments = list(node.args)
    for index, argument in enumerate(arguments):
        if argument.keyword is not None and argument.keyword.value == name:
            arguments[index] = argument.with_changes(value=expression)
            return node.with_changes(args=arguments)
    new = cst.Arg(keyword=cst.Name(name), value=expression, equal=_EQUAL)
    if not arguments:
        return node.with_changes(args=[new])
    if arguments[-1].star == "**":
        arguments.insert(-1, new.with_changes(comma=_COMMA))
        return node.with_changes(args=arguments)
    last = arguments[-1]
    trailing = isinstance(last.comma, cst.Comma)
    between = arguments[-2].comma.whitespace_after if len(arguments) > 1 else node.whitespace_before_args
    comment = last.comma.whitespace_after if trailing else last.whitespace_after_arg
    arguments[-1] = last.with_changes(
        comma=cst.Comma(whitespace_after=_broken(between, comment)), whitespace_after_arg=cst.SimpleWhitespace("")
    )
    end = _without_comment(comment)
    new = (
        new.with_changes(comma=cst.Comma(whitespace_after=end))
        if trailing
        else new.with_changes(whitespace_after_arg=end)
    )
    return node.with_changes(args=[*arguments, new])


def _broken(between: Any, comment: Any) -> Any:
    """White space as between two arguments, with the comment that stood behind the last one."""
    if not isinstance(between, cst.ParenthesizedWhitespace):
        return cst.SimpleWhitespace(" ")
    first = comment.first_line if isinstance(comment, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
    return between.with_changes(first_line=first, empty_lines=[])


def _without_comment(space: Any) -> Any:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=cst.TrailingWhitespace(newline=space.first_line.newline), empty_lines=[])


def without_keyword(node: cst.Call, name: str) -> cst.Call:
    """The call without that keyword argument; a line break behind it stays where it was."""
    kept: list[cst.Arg] = []
    for index, argument in enumerate(node.args):
        if argument.keyword is None or argument.keyword.value != name:
            kept.append(argument)
        elif kept:
            last = index == len(node.args) - 1
            if last or _breaks(argument.comma):
                kept[-1] = kept[-1].with_changes(
                    comma=argument.comma, whitespace_after_arg=argument.whitespace_after_arg
                )
    return node.with_changes(args=kept)


def _breaks(comma: Any) -> bool:
    return isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace)


_EQUAL = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

Change = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel | Callable[[Any], Any]


class _Replacing(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, Change]) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        change = self.changes.get(original_node)
        if change is None:
            return updated_node
        if isinstance(change, (cst.CSTNode, cst.RemovalSentinel, cst.FlattenSentinel)):
            return change
        return change(updated_node)


def replaced(node: Any, changes: Mapping[cst.CSTNode, Change]) -> Any:
    """The tree with nodes (found by identity) replaced; a function as change gets the node with its inner changes
    made.
    """
    return node.visit(_Replacing(changes))


def functions(node: cst.CSTNode) -> Iterator[tuple[cst.FunctionDef, tuple[cst.CSTNode, ...]]]:
    """Every function with the classes and functions around it, outermost first."""
    yield from _functions(node, ())


def _functions(node: cst.CSTNode, around: tuple[cst.CSTNode, ...]) -> Iterator[Any]:
    for child in node.children:
        if isinstance(child, cst.FunctionDef):
            yield child, around
            yield from _functions(child, (*around, child))
        elif isinstance(child, cst.ClassDef):
            yield from _functions(child, (*around, child))
        else:
            yield from _functions(child, around)


def blocks(node: cst.CSTNode) -> Iterator[Sequence[cst.BaseStatement]]:
    """Statement lists below a node, without those of functions and classes defined inside it."""
    for child in node.children:
        if isinstance(child, (cst.FunctionDef, cst.ClassDef)):
            continue
        if isinstance(child, cst.IndentedBlock):
            yield child.body
        yield from blocks(child)


def module_blocks(module: cst.Module) -> Iterator[Sequence[cst.BaseStatement]]:
    """The module's own statement lists: top level and what is nested in its loops and conditions."""
    yield module.body
    for statement in module.body:
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            yield from blocks(statement)


def attribute_values(class_: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """Values that a class's methods give to `self.<name>`, by assignment or `register_buffer`."""
    found: list[cst.BaseExpression] = []
    for node in walk(class_):
        if isinstance(node, cst.Assign):
            found += [node.value for target in node.targets if dotted(target.target) == f"self.{name}"]
        elif isinstance(node, cst.AnnAssign) and dotted(node.target) == f"self.{name}" and node.value:
            found.append(node.value)
        elif isinstance(node, cst.Call) and dotted(node.func) == "self.register_buffer":
            arguments = positional(node)
            if len(arguments) > 1 and string(arguments[0]) == name:
                found.append(arguments[1])
    return found


def string(node: cst.CSTNode | None) -> str | None:
    """The value of a plain string literal."""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def number(node: cst.CSTNode | None) -> float | None:
    """The value of a number literal, with its sign."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return float(node.evaluated_value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = number(node.expression)
        return None if value is None else -value
    return None


def is_true(node: cst.CSTNode | None) -> bool:
    """Whether the node is the literal True."""
    return isinstance(node, cst.Name) and node.value == "True"


def is_false(node: cst.CSTNode | None) -> bool:
    """Whether the node is the literal False."""
    return isinstance(node, cst.Name) and node.value == "False"


def with_import(module: cst.Module, statement: str) -> cst.Module:
    """The module with `import x` (or `from a import b`) after its other imports of that kind; nothing where it is
    there.
    """
    parsed = cst.parse_statement(statement + "\n")
    body = list(module.body)
    at = 0
    for index, node in enumerate(body):
        if not isinstance(node, cst.SimpleStatementLine):
            if at:
                break
            continue
        if module.code_for_node(node).strip().split("#")[0].strip() == statement:
            return module
        small = node.body[0]
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            future = isinstance(small, cst.ImportFrom) and dotted(small.module) == "__future__"
            plain = isinstance(small, cst.Import) and statement.startswith("import ")
            # Sorted among plain imports at the top; else behind the last import of the first block.
            if plain and not future and (dotted(small.names[0].name) or "") > statement.split()[1]:
                parsed = parsed.with_changes(leading_lines=node.leading_lines)
                body[index] = node.with_changes(leading_lines=[])
                body.insert(index, parsed)
                return module.with_changes(body=body)
            at = index + 1
        elif (
            isinstance(small, cst.Expr)
            and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
            and not at
        ):
            at = index + 1
        elif at:
            break
    body.insert(at, parsed)
    return module.with_changes(body=body)


def entry(tree: Path, finding: Mapping[str, Any], spec: Mapping[str, Any]) -> File:
    """The script that the job starts: the launch command's Python file, else the only one with a `__main__` block.

    Raises Refusal where it cannot be told or may not be edited.
    """
    command = [str(word) for word in (spec.get("launch") or {}).get("command") or []]
    scripts = list(files(tree, finding, spec, "import"))
    for word in command:
        for file in scripts:
            if word.endswith(".py") and word.removeprefix("{tree}/") == file.path:
                return file
    named = [file for file in scripts if '__name__ == "__main__"' in file.text or "__name__ == '__main__'" in file.text]
    if len(named) != 1:
        raise Refusal("the script that the job starts is not known or not editable")
    return named[0]


def with_setting(module: cst.Module, statement: str) -> cst.Module:
    """The module with one more line below its imports, a blank line before it."""
    body = list(module.body)
    at = 0
    for index, node in enumerate(body):
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            at = index + 1
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            break
    line = cst.parse_statement(statement + "\n").with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    body.insert(at, line)
    return module.with_changes(body=body)
