"""Lower precision is sometimes right and never silent: it is marked for review; quantised models are refused."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, unparse

NAME = "precision"
WHY = "K18, K19, J8, J9: a cheaper number format, or another model, is another computation"

LOWER = ("torch.autocast", "torch.amp", "torch.cuda.amp", "torch.cpu.amp", "torch.half",
         "torch.float16", "torch.bfloat16", "torch.backends.cuda.matmul.allow_tf32",
         "torch.backends.cudnn.allow_tf32", "torch.set_float32_matmul_precision",
         "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
         "torch.set_default_dtype", "numpy.float16",
         "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction", "torch.float32",
         "torch.float")  # fmt: skip
QUANTISED = ("torch.ao.quantization", "torch.quantization", "torch.quantize_per_tensor",
             "torch.quantize_per_channel", "torch.qint8", "torch.float8_e4m3fn", "torch.float8_e5m2",
             "torch._int_mm", "torch._scaled_mm", "bitsandbytes", "torchao", "torch.nn.quantized",
             "torch.nn.utils.prune", "torch.fake_quantize_per_tensor_affine",
             "torch.nn.utils.parametrize", "torch.ao.pruning", "torch.int8", "torch.uint8",
             "torch.svd_lowrank", "torch.pca_lowrank")  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} quantises, prunes or approximates the model", *QUANTISED)
    hits += change.refuse_references(
        "{name} changes the number format; parity decides whether the values still agree", *LOWER, action="review"
    )
    for file in change.python:
        for node in file.new(ast.Call):
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in ("half", "bfloat16", "char", "to_sparse")
                and not node.args
            ):
                hits.append(file.hit("review", node, f"{unparse(node)} changes the number format"))
    return hits
