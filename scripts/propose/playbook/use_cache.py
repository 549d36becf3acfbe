"""Keys and values of earlier tokens are kept while generating, in `generate` and in hand-written decode loops."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    blocks,
    code,
    dotted,
    files,
    is_false,
    keyword,
    loads,
    module_blocks,
    positional,
    replaced,
    walk,
    with_keyword,
    without_keyword,
)

FINDINGS = ["kv_cache_missed"]
TITLE = "Keep keys and values while generating"
HYPOTHESIS = (
    "Each new token computes all earlier tokens again; with their keys and values kept, only the new one is computed."
)
RISK = "The cache takes memory in proportion to batch, length and layers; logits agree to rounding."
CLASSES = ["config", "python"]
UNTESTED: list[str] = []


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that switches the cache off or decodes without one."""
    why = "no use_cache=False and no decode loop that feeds the whole sequence again"
    for file in files(tree, finding, spec, "use_cache", "generate", "cat("):
        if re.search(r"\.backward\(|gradient_checkpointing", file.text):
            why = f"{file.path}: trains as well; the cache would only cost memory there"
            continue
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Call):
                option = keyword(node, "use_cache")
                if option is not None and is_false(option.value):
                    changes[node] = lambda updated: without_keyword(updated, "use_cache")
            elif (
                isinstance(node, cst.Assign)
                and (dotted(node.targets[0].target) or "").endswith(".use_cache")
                and is_false(node.value)
            ):
                changes[node] = lambda updated: updated.with_changes(value=cst.Name("True"))
        if not changes and "transformers" in file.text:
            every = list(module_blocks(file.module))
            for function, _ in file.functions:
                every += list(blocks(function))
            for block in every:
                for statement in block:
                    if isinstance(statement, (cst.For, cst.While)):
                        try:
                            changes |= _loop(file, statement)
                        except Refusal as refusal:
                            why = f"{file.path}: {refusal}"
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal(why)


def _loop(file: File, loop: cst.For | cst.While) -> dict[cst.CSTNode, Any]:
    """A decode loop: the model on `ids`, its last logits, `ids = torch.cat([ids, new], dim=1)`."""
    body: Sequence[Any] = loop.body.body
    grown = [(line, found) for line in body if (found := _grows(file, line))]
    for line, (ids, new) in grown:
        for number, statement in enumerate(body):
            made = [
                n
                for n in walk(statement)
                if isinstance(n, cst.Call) and _fed(n) == ids and "past_key_values" not in code(n)
            ]
            if len(made) != 1 or not assigned(statement):
                continue
            model = made[0]
            if {a.keyword.value for a in model.args if a.keyword} - {
                "input_ids",
                "attention_mask",
                "use_cache",
                "return_dict",
            }:
                raise Refusal("the model gets more than token ids and a mask")
            reading = sum(loads(s, ids) for s in body)
            if reading != 2:
                raise Refusal(f"{ids!r} is used for something else in the loop")
            return _cached(body, loop, number, model, line=line, ids=ids, new=new)
    return {}


def _grows(file: File, line: Any) -> tuple[str, str] | None:
    """`(ids, new)` of `ids = torch.cat([ids, new], dim=1)`."""
    pair = assigned(line)
    if (
        not pair
        or not isinstance(pair[1], cst.Call)
        or file.qualified(pair[1].func) not in ("torch.cat", "torch.concat")
    ):
        return None
    arguments = positional(pair[1])
    parts = (
        [e.value for e in arguments[0].elements]
        if arguments and isinstance(arguments[0], (cst.List, cst.Tuple))
        else []
    )
    dim = keyword(pair[1], "dim")
    axis = code(dim.value) if dim else code(arguments[1]) if len(arguments) > 1 else "0"
    if len(parts) != 2 or dotted(parts[0]) != pair[0] or axis not in ("1", "-1"):
        return None
    return pair[0], code(parts[1])


def _fed(node: cst.Call) -> str | None:
    named = keyword(node, "input_ids")
    first = named.value if named else positional(node)[0] if positional(node) else None
    callee = (dotted(node.func) or "").rsplit(".", 1)[-1]
    return dotted(first) if re.search("model|lm|net", callee) else None


def _cached(
    body: Sequence[Any], loop: cst.For | cst.While, number: int, model: cst.Call, *, line: Any, ids: str, new: str
) -> dict[cst.CSTNode, Any]:
    statement = body[number]
    name, value = assigned(statement)
    readers = [s for s in body if loads(s, name)] if value is model else [statement]
    for reader in readers:
        for part in walk(reader):
            if isinstance(part, cst.Attribute) and part.attr.value == "logits" and "logits[:, -1" not in code(reader):
                raise Refusal("logits of earlier positions are used")
    fed = {a.value: cst.Name("step_ids") for a in model.args if dotted(a.value) == ids}
    called = replaced(model, fed)
    called = with_keyword(with_keyword(called, "past_key_values", "past_key_values"), "use_cache", "True")
    output = name if value is model else "model_output"
    lines: list[Any] = [
        cst.parse_statement(f"{output} = {code(called)}\n").with_changes(leading_lines=statement.leading_lines),
        cst.parse_statement(f"past_key_values = {output}.past_key_values\n"),
    ]
    if value is not model:
        lines.append(replaced(statement, {model: cst.Name(output)}).with_changes(leading_lines=[]))
    start = cst.parse_statement(f"past_key_values, step_ids = None, {ids}\n").with_changes(
        leading_lines=loop.leading_lines
    )
    step = cst.parse_statement(f"step_ids = {new}\n")
    return {
        statement: cst.FlattenSentinel(lines),
        line: lambda updated: cst.FlattenSentinel([updated, step]),
        loop: lambda updated: cst.FlattenSentinel([start, updated.with_changes(leading_lines=[])]),
    }
