"""The recorder and its files are not the job's business."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, Hit, unparse

NAME = "forged_records"
WHY = "J16, J17, J18, J24, J43: step marks, ledgers and hooks that the patch writes prove nothing"

MODULES = ("parity", "sitecustomize", "usercustomize", "wholejob", "scripts")
HOOKS = ("torch.optim.optimizer.register_optimizer_step_pre_hook",
         "torch.optim.optimizer.register_optimizer_step_post_hook",
         "torch.nn.modules.module.register_module_forward_hook",
         "torch.nn.modules.module.register_module_forward_pre_hook",
         "torch.nn.modules.module.register_module_full_backward_hook",
         "torch.nn.modules.module._global_forward_hooks",
         "torch.nn.modules.module._global_forward_pre_hooks",
         "torch.optim.optimizer._global_optimizer_post_hooks",
         "torch.optim.optimizer._global_optimizer_pre_hooks",
         "torch.utils.data.dataloader._BaseDataLoaderIter")  # fmt: skip
NAMES = re.compile(
    r"(?i)(\bparity\b|steps\.jsonl|ledger\.json|coverage\.json|modules\.json|rank\d*\.jsonl|run\.json|wholejob"
    r"|_global_(forward|backward|optimizer)\w*hooks|PARITY_\w*|\.snakemake|verdict\.json|race\.parquet)"
)


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} is the recorder's or the judge's", *MODULES)
    hits += change.refuse_references("{name} is how the recorder listens", *HOOKS)
    for file in change.python:
        for node in file.new(ast.Constant, ast.Name, ast.Attribute):
            word = (
                node.value if isinstance(node, ast.Constant) else node.id if isinstance(node, ast.Name) else node.attr
            )
            if (
                isinstance(word, str)
                and NAMES.search(word)
                and not (file.after and isinstance(file.after.parents.get(node), ast.Expr))
            ):
                hits.append(file.hit("refuse", node, f"{unparse(node)} names something of the recorder or the judge"))
    return hits
