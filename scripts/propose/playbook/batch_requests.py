"""Requests that are answered one at a time go to the model in groups."""

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
    is_true,
    keyword,
    loads,
    module_blocks,
    number,
    positional,
    replaced,
    texts,
    walk,
    with_keyword,
)

FINDINGS = ["batch_too_small", "launch_bound"]
TITLE = "Answer requests in batches"
HYPOTHESIS = "The weights are read once for each request; a batch reads them once for all of its members."
RISK = "Memory grows with the batch; logits agree to rounding, so a tie between tokens could fall the other way."
CLASSES = ["python"]
UNTESTED = ["requests of very different lengths, whose padding can cost more than the batch gains"]
SIZE = 8


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file with a loop that tokenises and generates for one prompt."""
    why = "no loop that calls generate() for one request at a time"
    for file in files(tree, finding, spec, ".generate("):
        every = list(module_blocks(file.module))
        for function, _ in file.functions:
            every += list(blocks(function))
        for block in every:
            for statement in block:
                if isinstance(statement, cst.For) and isinstance(statement.target, cst.Name):
                    try:
                        loop = _batched(file, statement, tree, spec)
                    except Refusal as refusal:
                        why = f"{file.path}: {refusal}"
                        continue
                    if loop is not None:
                        return {file.path: replaced(file.module, {statement: loop}).code}
    raise Refusal(why)


def _batched(file: File, loop: cst.For, tree: Path, spec: dict[str, Any]) -> cst.For | None:
    body: Sequence[Any] = loop.body.body
    item = loop.target.value
    if len(body) < 3 or loop.orelse is not None or not isinstance(loop.iter, cst.Name):
        return None
    tokenised, generated = assigned(body[0]), assigned(body[1])
    if not tokenised or not generated:
        return None
    tokens, answer = _tokenizer_call(tokenised[1], item), _generate_call(generated[1], tokenised[0])
    if tokens is None or answer is None:
        return None
    _greedy(file, answer, body[2:])
    group, rest = f"{loop.iter.value}[start : start + {SIZE}]", [_row(s, generated[0]) for s in body[2:]]
    left = sum(_unindexed(s, generated[0]) for s in rest)
    if left:
        raise Refusal(f"{generated[0]!r} is used as a whole, not by row")
    if any(loads(s, item) and isinstance(s, cst.With) for s in rest):
        raise Refusal("the loop opens something for each request")
    call_ = replaced(tokens, {positional(tokens)[0]: cst.Name("group")})
    if keyword(call_, "padding") is None:
        call_ = with_keyword(call_, "padding", "True")
    own = any(re.search(r"def __call__\(self, \w+, padding", text) for _, text in texts(tree, spec))
    if "padding_side" not in file.text and not own:
        call_ = with_keyword(call_, "padding_side", '"left"')
    made_tokens = replaced(body[0], {tokens: call_}).with_changes(leading_lines=[])
    grouped = cst.parse_statement(f"group = {group}\n").with_changes(leading_lines=body[0].leading_lines)
    inner = cst.For(
        target=cst.Tuple(
            [
                cst.Element(cst.Name("row"), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))),
                cst.Element(loop.target),
            ],
            lpar=[],
            rpar=[],
        ),
        iter=cst.parse_expression("enumerate(group)"),
        body=cst.IndentedBlock(rest),
    )
    return loop.with_changes(
        target=cst.Name("start"),
        iter=cst.parse_expression(f"range(0, len({loop.iter.value}), {SIZE})"),
        body=loop.body.with_changes(body=[grouped, made_tokens, body[1], inner]),
    )


def _tokenizer_call(value: cst.BaseExpression, item: str) -> cst.Call | None:
    for node in walk(value):
        if isinstance(node, cst.Call) and re.search("tok", dotted(node.func) or "") and positional(node):
            first = positional(node)[0]
            if code(first) in (item, f"[{item}]") and not (dotted(node.func) or "").endswith((".encode", ".decode")):
                return node
    return None


def _generate_call(value: cst.BaseExpression, tokens: str) -> cst.Call | None:
    for node in walk(value):
        called = node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else ""
        if called == "generate" and loads(node, tokens) and value is node:
            return node
    return None


def _greedy(file: File, answer: cst.Call, rest: Sequence[Any]) -> None:
    """Only greedy answers are independent of the batch, and only where ended rows are cut or never end."""
    sampling = keyword(answer, "do_sample")
    if sampling is not None and is_true(sampling.value):
        raise Refusal("answers are sampled: batching would draw other random numbers")
    if keyword(answer, "streamer") or keyword(answer, "stopping_criteria"):
        raise Refusal("generate() has a streamer or a stopping criterion for one request")
    text = "".join(code(s) for s in rest)
    if "eos_token_id=None" not in file.text and "skip_special_tokens=True" not in text:
        raise Refusal(
            "rows that end early would keep their padding: the answers are not decoded with skip_special_tokens"
        )


def _row(statement: Any, answer: str) -> Any:
    """`answer[0]`, `answer.sequences[0, ...]` and `[x[0] for x in answer.logits]` with `row` for 0."""
    over = {answer}
    for node in walk(statement):
        if isinstance(node, (cst.CompFor, cst.For)) and loads(node.iter, answer) and isinstance(node.target, cst.Name):
            over.add(node.target.value)
    changes: dict[cst.CSTNode, Any] = {}
    for node in walk(statement):
        if isinstance(node, cst.Subscript) and (dotted(node.value) or "").partition(".")[0] in over:
            first = node.slice[0].slice
            if isinstance(first, cst.Index) and number(first.value) == 0:
                changes[first.value] = cst.Name("row")
    return replaced(statement, changes)


def _unindexed(statement: Any, answer: str) -> int:
    """Reads of the answer that neither take one row nor iterate over steps whose rows are taken."""
    good = 0
    for node in walk(statement):
        if (
            isinstance(node, cst.Subscript)
            and (dotted(node.value) or "").partition(".")[0] == answer
            and "row" in code(node.slice[0])
        ) or (
            isinstance(node, cst.CompFor)
            and (dotted(node.iter) or "").partition(".")[0] == answer
            and isinstance(node.target, cst.Name)
        ):
            good += 1
    return loads(statement, answer) - good
