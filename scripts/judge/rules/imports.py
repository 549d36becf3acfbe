"""New imports come from a short list; what nobody has looked at is refused."""

from __future__ import annotations

import sys

from scripts.judge.change import Change, Hit, imports, imports_with_nodes

NAME = "imports"
WHY = "K28, K34, J42: an unknown module may hold any other pattern; unknown is never a pass"

HARMLESS = {"__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses",
            "enum", "functools", "heapq", "itertools", "math", "numbers", "operator", "queue",
            "random", "re", "statistics", "string", "struct", "types", "typing", "typing_extensions",
            "warnings", "weakref", "cmath", "fractions", "decimal", "textwrap", "inspect"}  # fmt: skip
FAST = {"torch", "numpy", "scipy", "pandas", "pyarrow", "numba", "triton", "einops", "opt_einsum",
        "xformers", "flash_attn", "apex", "liger_kernel", "cut_cross_entropy", "transformer_engine",
        "torchvision", "torchaudio", "torchao", "transformers", "accelerate", "safetensors", "kornia",
        "nvidia", "cupy", "jax", "fla", "causal_conv1d", "mamba_ssm", "flashinfer", "vllm",
        "sgl_kernel", "tokenizers", "polars", "cv2", "PIL", "albumentations", "librosa", "soundfile",
        "bitsandbytes", "cuequivariance"}  # fmt: skip
# Refused, or allowed by the contract, by the rules that know why.
KNOWN_ELSEWHERE = {"os", "sys", "time", "threading", "asyncio", "multiprocessing", "concurrent",
                   "subprocess", "socket", "signal", "atexit", "ctypes", "gc", "importlib", "builtins",
                   "traceback", "pickle", "marshal", "mmap", "platform", "tempfile", "shutil", "glob",
                   "pathlib", "json", "csv", "io", "logging", "hashlib", "joblib", "diskcache",
                   "codecs", "base64", "resource"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    known = {name.partition(".")[0] for file in change.both if file.before for name in imports(file.before)}
    own = {path.split("/")[0].removesuffix(".py") for path in change.paths} | {
        path.rsplit("/", 1)[-1].removesuffix(".py") for path in change.paths
    }
    hits = []
    for file in change.python:
        assert file.after is not None
        before = set(imports(file.before)) if file.before else set()
        for name, node in imports_with_nodes(file.after):
            top = name.lstrip(".").partition(".")[0]
            if name in before:
                continue
            line = file.line(node)
            if name.endswith(".*"):
                hits.append(
                    Hit("refuse", file.path, line, f"star import from {name[:-2]}: what it brings cannot be read here")
                )
            elif name.startswith(".") or top in HARMLESS | FAST | KNOWN_ELSEWHERE | known | own:
                continue
            elif top in sys.stdlib_module_names:
                hits.append(Hit("refuse", file.path, line, f"imports {top}, which a faster job does not need"))
            else:
                hits.append(
                    Hit(
                        "refuse",
                        file.path,
                        line,
                        f"imports {top}, which the job did not use and the guard does not know",
                    )
                )
    return hits
