"""Files that a data set decodes again in every epoch are decoded once and kept."""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    blocks,
    code,
    files,
    functions,
    reads,
    replaced,
    texts,
    walk,
)

FINDINGS = ["loader_bound", "work_in_step"]
TITLE = "Decode each file once"
HYPOTHESIS = "Reading and decoding the same files again takes longer than training on them."
RISK = "All decoded items stay in host memory; loader workers keep a copy each."
CLASSES = ["python"]
UNTESTED = ["data sets that do not fit into memory when decoded"]

DECODERS = re.compile(r"Image\.open\(.*\.convert\(|np\.(array|asarray)\(Image\.open|cv2\.imread\(|imageio\.\w*read\("
                      r"|np\.load\(|torch\.load\(|torchaudio\.load\(|sf\.read\(|soundfile\.read\("
                      r"|librosa\.load\(|read_image\(|decode_jpeg\(")  # fmt: skip


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Keep what the first data set's `__getitem__` decodes in a dictionary by index."""
    if (spec.get("constraints") or {}).get("memory_growth", 1.5) <= 1.0:
        raise Refusal("constraints.memory_growth allows no more memory")
    for path, text in texts(tree, spec):
        if re.search(r"num_workers\s*=\s*[1-9]", text) and not re.search(r"persistent_workers\s*=\s*True", text):
            raise Refusal(f"{path}: loader workers are started anew for each epoch and would forget what they decoded")
    why = "no data set that decodes a file by its index in __getitem__"
    for file in files(tree, finding, spec, "__getitem__"):
        for function, around in file.functions:
            if function.name.value != "__getitem__" or not around or not isinstance(around[-1], cst.ClassDef):
                continue
            try:
                module = _kept(file, function, around[-1])
            except Refusal as refusal:
                why = f"{file.path}: {refusal}"
                continue
            if module is not None:
                return {file.path: module.code}
    raise Refusal(why)


def _kept(file: File, function: cst.FunctionDef, class_: cst.ClassDef) -> cst.Module | None:
    maker = next((f for f, around in functions(class_) if f.name.value == "__init__" and not around), None)
    parameters = [p.name.value for p in function.params.params]
    if len(parameters) != 2:
        return None
    index = parameters[1]
    if "_decoded" in code(class_):
        return None
    for block in blocks(function):
        for at, statement in enumerate(block):
            pair = assigned(statement)
            if not pair or not DECODERS.search(code(pair[1])):
                continue
            local = {name for earlier in block[:at] if (made := assigned(earlier)) for name in [made[0]]}
            read = set(reads(pair[1])) - set(file.names) - {"self", index}
            if not read <= local:
                raise Refusal("what is decoded depends on more than the index")
            for earlier in block[:at]:
                made = assigned(earlier)
                if made and made[0] in read and not set(reads(made[1])) <= {"self", index, *file.names}:
                    raise Refusal("what is decoded depends on more than the index")
            if re.search(r"random|np\.random", code(pair[1])):
                raise Refusal("the decoding is random")
            if re.search(rf"\b{pair[0]}(\[[^\]]*\]\s*[-+*/]?=(?!=)|\s*[-+*/]=|\.\w+_\(|\.sort\()", code(function)):
                raise Refusal(f"{pair[0]!r} is changed in place after it was decoded")
            if maker is None or not isinstance(maker.body, cst.IndentedBlock):
                raise Refusal("the class has no __init__")
            new = cst.parse_module(
                f"if {index} not in self._decoded:\n    self._decoded[{index}] = {code(pair[1])}\n"
                f"{pair[0]} = self._decoded[{index}]\n"
            ).body
            head = new[0].with_changes(leading_lines=statement.leading_lines)
            empty = cst.parse_statement("self._decoded = {}\n")
            changes: dict[cst.CSTNode, Any] = {
                statement: cst.FlattenSentinel([head, *new[1:]]),
                maker.body: lambda updated, empty=empty: updated.with_changes(body=[*updated.body, empty]),
            }
            if any(isinstance(node, cst.Return) for node in walk(maker)):
                raise Refusal("__init__ returns early")
            return replaced(file.module, changes)
    return None
