"""DataLoader workers that live on, prefetch, and pinned memory where there is a device to copy to."""

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
    code,
    files,
    is_true,
    keyword,
    number,
    positional,
    replaced,
    walk,
    with_keyword,
)

FINDINGS = ["loader_bound", "pageable_copies"]
TITLE = "Load batches in worker processes"
HYPOTHESIS = "The training process waits while it reads, decodes and collates each batch itself."
RISK = "Workers take memory and start-up time; a data set that draws random numbers would draw others."
CLASSES = ["backend"]
UNTESTED = ["platforms that start workers by spawning them"]

RANDOM = re.compile(
    r"\brandom\.|np\.random|numpy\.random|torch\.(rand|randn|randint|randperm|bernoulli|normal)\b|\.random_\(|RandomCrop|Random\w+\(|augment",
    re.I,
)


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits of the first file that builds a DataLoader without workers; all of its loaders over map-style data sets."""
    resources = spec.get("resources") or {}
    cores = int(resources.get("cpus") or 1)
    gpus = int(resources.get("gpus") or 0)
    why = "no DataLoader that loads in the training process"
    found = list(files(tree, finding, spec, "DataLoader"))
    for file in files(tree, finding, spec, "__getitem__"):
        draws = _draws(file)
        if draws:
            raise Refusal(f"{file.path}: {draws} draws random numbers; workers would draw others, in another order")
    for file in found:
        changes: dict[cst.CSTNode, Any] = {}
        for node in walk(file.module):
            if isinstance(node, cst.Call) and (file.qualified(node.func) or "").endswith("utils.data.DataLoader"):
                try:
                    edit = _options(node, cores, gpus)
                except Refusal as refusal:
                    why = f"{file.path}: {refusal}"
                    continue
                if edit:
                    changes[node] = edit
        if changes:
            return {file.path: replaced(file.module, changes).code}
    raise Refusal(why)


def _draws(file: File) -> str | None:
    for function, around in file.functions:
        if function.name.value in ("__getitem__", "__iter__") and RANDOM.search(code(function)):
            owner = around[-1].name.value if around and isinstance(around[-1], cst.ClassDef) else ""
            return f"{owner}.{function.name.value}"
    return None


def _options(node: cst.Call, cores: int, gpus: int) -> Any:
    """A function that sets the loader's options, None where all are set. Raises Refusal where workers cannot be."""
    if any(argument.star for argument in node.args):
        raise Refusal("the loader's options come from a dictionary")
    if len(positional(node)) > 5:
        raise Refusal("the loader's options are given by position")
    if "Iterable" in code(node.args[0].value if node.args else node):
        raise Refusal("an iterable data set would be read once by each worker")
    if any(word in code(node) for word in ("lambda", "generator=")):
        raise Refusal("the loader has a lambda or a generator that workers cannot share")
    workers = keyword(node, "num_workers")
    wanted: dict[str, str] = {}
    if workers is None or number(workers.value) == 0:
        if cores < 2:
            raise Refusal("the job has one core; workers would take it from the training process")
        wanted |= {"num_workers": str(min(8, cores - 1)), "persistent_workers": "True"}
    elif number(workers.value) is not None and keyword(node, "persistent_workers") is None:
        wanted["persistent_workers"] = "True"
    pinned = keyword(node, "pin_memory")
    if gpus and (pinned is None or not is_true(pinned.value)):
        wanted["pin_memory"] = "True"
    if not wanted:
        return None

    def edit(updated: cst.Call) -> cst.Call:
        for name, value in wanted.items():
            updated = with_keyword(updated, name, value)
        return updated

    return edit
