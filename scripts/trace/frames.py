"""What the names of host events say: python frames, the job's own source, phases of a training step, step marks."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache

NO_PHASE, DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
PHASES = ("", "data", "forward", "backward", "optimizer", "other")

# torch.profiler's own mark, parity's, and marks of the common trainers; the number follows the sign.
STEP_MARKS = re.compile(
    r"(?:ProfilerStep|parity[.:/]?step|wholejob[.:/]?step|(?:train(?:ing)?[_ .]?)?step)\s*[#:= _]\s*(\d+)$",
    re.IGNORECASE,
)

_FRAME = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
_SITE = re.compile(r".*(?:site|dist)-packages/")
_PREFIX = re.compile(r".*/lib/python3[^/]*/")
_RECORDER = re.compile(r".*/parity/(hooks/\w+|recorder|run)\.py$")  # where parity is a folder, not a package
# The profiler cuts every sys.path entry from a file name, so that a library's frames begin with its package.
LIBRARIES = {
    "torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "PIL", "cv2", "transformers", "accelerate",
    "datasets",
    "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "triton", "tqdm", "einops", "tokenizers",
    "safetensors", "timm", "sklearn",
    "matplotlib", "huggingface_hub", "fsspec", "sympy", "networkx", "parity", "flash_attn", "apex", "deepspeed",
    "xformers",
    "bitsandbytes", "peft", "wandb", "tensorboard", "tensorboardX", "pyarrow", "polars", "psutil", "requests",
    "urllib3", "yaml",
    "typing_extensions", "six", "decorator", "_distutils_hack", "setuptools", "IPython", "ipykernel", "jupyter_client",
    "tornado", "zmq",
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """A python frame.

    File, line of its `def` (the current line where it was running when the profiler began), function.
    """

    path: str
    line: int | None
    function: str
    own: bool
    builtin: bool


@cache
def parse_frame(name: str) -> Frame | None:
    """The frame that an event's name denotes, None where it is none."""
    if name.startswith("<built-in") or name.startswith("<method"):
        return Frame("", None, name, own=False, builtin=True)
    found = _FRAME.fullmatch(name)
    if not found:
        return None
    path, line, function = found[1], int(found[2]), found[3]
    return Frame(path, line, function, own=is_own(path), builtin=False)


@cache
def is_own(path: str) -> bool:
    """Whether a file belongs to the job: not the standard library, not an installed package, not generated."""
    if not path or path.startswith("<") or _SITE.match(path) or _PREFIX.match(path) or _RECORDER.match(path):
        return False
    top = path.lstrip("./").split("/", 1)[0]
    stem = top.removesuffix(".py")
    if path.startswith("/"):
        return True
    return stem not in LIBRARIES and stem not in sys.stdlib_module_names


def is_module(name: str) -> bool:
    """Whether a python event is the call of an nn.Module (`nn.Module: Linear_3`)."""
    return name.startswith("nn.Module: ")


_ENGINE = re.compile(r"autograd::engine::evaluate_function|(struct )?torch::autograd::\w+$|\w+Backward\d*$")


@cache
def is_engine(name: str) -> bool:
    """Whether an operator's event is a node that the autograd engine runs."""
    return bool(_ENGINE.match(name))


def phase_of_annotation(name: str) -> int:
    """Phase that an annotation opens, NO_PHASE for none."""
    low = name.lower()
    if low.startswith("enumerate(dataloader)") or re.search(
        r"\b(data(_?load\w*)?|load_batch|fetch|next_batch|get_batch)\b|dataloader|train_dataloader_next", low
    ):
        return DATA
    if low.startswith("optimizer.") or re.search(r"\boptim(izer)?(_?step)?\b", low):
        return OPTIMIZER
    if re.search(r"backward\b|\bbwd\b", low):
        return BACKWARD
    if re.search(r"forward\b|\bfwd\b", low):
        return FORWARD
    return NO_PHASE


# What jobs without a DataLoader call the function that makes a batch (nanoGPT and its many children).
_BATCH = re.compile(r"(get|next|load|fetch|make|sample)_?batch(es)?|collate\w*", re.IGNORECASE)


def phase_of_frame(name: str, frame: Frame | None) -> int:
    """Phase that a python frame opens: what torch's own entry points mean, and of the job's names those of a batch."""
    if is_module(name):
        return FORWARD
    if frame is None:
        return NO_PHASE
    if frame.own:
        return DATA if _BATCH.fullmatch(frame.function) else NO_PHASE
    path, function = frame.path, frame.function
    if path.endswith("torch/utils/data/dataloader.py") and function in ("__next__", "__iter__"):
        return DATA
    if path.endswith(("torch/_tensor.py", "torch/autograd/__init__.py")) and function in ("backward", "grad"):
        return BACKWARD
    if "torch/optim/" in path and function in ("step", "zero_grad", "wrapper", "_use_grad"):
        return OPTIMIZER
    if path.endswith("torch/nn/utils/clip_grad.py"):
        return OPTIMIZER
    return NO_PHASE
