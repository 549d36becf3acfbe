"""Process-wide settings of libraries are honest tools with side effects: they are reported beside the result."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, below, unparse

NAME = "global_flags"
WHY = "K20, J8, J35: a flag changes everything else in the process, a reference included"

FLAGS = ("torch.backends", "torch.set_float32_matmul_precision", "torch.set_default_dtype",
         "torch.set_default_device", "torch.set_default_tensor_type",
         "torch.use_deterministic_algorithms", "torch.set_deterministic_debug_mode",
         "torch.set_flush_denormal", "torch.set_grad_enabled", "torch.autograd.set_grad_enabled",
         "torch._dynamo.config", "torch._inductor.config", "torch._functorch.config",
         "torch.compiler.set_stance", "gc.disable", "gc.freeze", "gc.set_threshold", "gc.collect",
         "gc.enable", "warnings.filterwarnings", "warnings.simplefilter",
         "torch.autograd.set_detect_anomaly", "torch.cuda.set_device",
         "torch.cuda.memory.set_per_process_memory_fraction",
         "torch.multiprocessing.set_sharing_strategy", "sys.setswitchinterval",
         "torch.set_warn_always", "torch.cuda.set_sync_debug_mode", "numpy.seterr",
         "torch._C._set_grad_enabled", "torch._C._jit_set")  # fmt: skip
CONTEXTS = ("torch.backends.cuda.sdp_kernel", "torch.backends.cudnn.flags")


def check(change: Change) -> list[Hit]:
    action = "refuse" if change.forbids("global_flags") else "side_effect"
    hits = []
    for file, name, node in change.refer(*FLAGS):
        if below(name, CONTEXTS) or not _changes(file, node):
            continue
        hits.append(file.hit(action, node, f"sets {name} for the whole process"))
    for file in change.python:
        assert file.after is not None
        hits += [
            file.hit(action, node, f"sets {unparse(node)} for the whole process")
            for node in file.new(ast.Attribute)
            if isinstance(node.ctx, ast.Store)
            and any(below(f"{base}.{node.attr}", FLAGS) for base in file.after.names.resolve(node.value))
        ]
    return hits


def _changes(file: FileChange, node: ast.AST) -> bool:
    """A call, or a function handed on; a flag that is only read changes nothing."""
    assert file.after is not None
    parent = file.after.parents.get(node)
    return isinstance(parent, (ast.Call, ast.Assign, ast.keyword, ast.arguments)) and not isinstance(
        node, (ast.Import, ast.ImportFrom)
    )
