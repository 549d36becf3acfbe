"""Samples and their order stay: no sorting, filtering, sub-sampling or other sampler, unless the contract says so."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, called_name, unparse

NAME = "data_order"
WHY = "J3, J4: another order or fewer samples may be cheaper, and trains another model"

SAMPLERS = ("torch.utils.data.Subset", "torch.utils.data.sampler",
            "torch.utils.data.SubsetRandomSampler", "torch.utils.data.random_split",
            "torch.utils.data.SequentialSampler", "torch.utils.data.RandomSampler",
            "torch.utils.data.WeightedRandomSampler", "torch.utils.data.BatchSampler",
            "torch.utils.data.DistributedSampler", "random.sample", "random.shuffle", "random.choices",
            "random.choice", "numpy.random.permutation", "numpy.random.choice", "numpy.random.shuffle",
            "torch.randperm")  # fmt: skip
DRAWS = {
    "randint",
    "randperm",
    "rand",
    "randn",
    "multinomial",
    "shuffle",
    "sample",
    "choice",
    "permutation",
    "integers",
    "bernoulli",
}
KEYWORDS = {"shuffle", "sampler", "batch_sampler", "drop_last", "persistent_workers_order"}


def check(change: Change) -> list[Hit]:
    if change.allows("data_order") or change.constraints.get("data_order") in ("free", "any"):
        return []
    hits = change.refuse_references("{name} chooses or orders samples; the contract fixes the data order", *SAMPLERS)
    for file in change.python:
        for node in file.new(ast.Call):
            name = called_name(node)
            if name in ("sorted", "sort", "argsort", "filter", "islice", "reversed", "unique") and not _of_small(node):
                hits.append(
                    file.hit("review", node, f"{unparse(node)} may order or drop samples; the ledger's hash decides")
                )
        for keyword in file.new(ast.keyword):
            if keyword.arg in KEYWORDS and not (keyword.arg == "shuffle" and _same_shuffle(change, keyword)):
                hits.append(file.hit("refuse", keyword.value, f"{unparse(keyword)} chooses or orders samples"))
    return hits + _draws(change)


def _draws(change: Change) -> list[Hit]:
    """Random draws removed or with other arguments."""
    texts = {}
    for side in ("before", "after"):
        modules = [m for f in change.files if (m := getattr(f, side))]
        texts[side] = [
            unparse(n, 200) for m in modules for n in m.nodes if isinstance(n, ast.Call) and called_name(n) in DRAWS
        ]
    hits = []
    if len(texts["after"]) < len(texts["before"]):
        path = next((f.path for f in change.files if f.before), None)
        hits.append(
            Hit("refuse", path, None, f"{len(texts['before'])} random draws in the code, {len(texts['after'])} left")
        )
    if len(texts["after"]) > len(texts["before"]):
        path = next((f.path for f in change.files if f.after), None)
        hits.append(
            Hit("review", path, None, f"{len(texts['before'])} random draws in the code, {len(texts['after'])} now")
        )
    return hits


def _same_shuffle(change: Change, keyword: ast.keyword) -> bool:
    old = [
        n
        for f in change.both
        if f.before
        for n in ast.walk(f.before.tree)
        if isinstance(n, ast.keyword) and n.arg == "shuffle"
    ]
    return any(unparse(n.value) == unparse(keyword.value) for n in old)


def _of_small(node: ast.Call) -> bool:
    """`sorted(set(...))` of a vocabulary and the like."""
    return (
        bool(node.args) and isinstance(node.args[0], ast.Call) and called_name(node.args[0]) in ("set", "keys", "items")
    )
