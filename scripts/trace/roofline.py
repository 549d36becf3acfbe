"""Work of an operator call from its input shapes, and what the device could do at best.

FLOPs count a multiply-add as two. Bytes are the least traffic: every input read once, every output written once.
Operators whose arguments do not tell (lists of tensors, custom kernels) are unknown, not zero.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from scripts.trace.opclasses import bare_op, classify


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a device: bytes/s of its memory, dense FLOP/s by type; `source` names the data sheet."""

    name: str
    bytes_per_s: float
    half: float
    tf32: float
    single: float
    double: float
    eight: float | None
    source: str


# Dense figures (no structured sparsity) of the SXM/OAM boards unless the name says otherwise.
_DEVICES = (
    (r"H200", Peaks("H200", 4.8e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, 1978.9e12,
                    "NVIDIA H200 Tensor Core GPU data sheet (SXM)")),
    (r"GH200", Peaks("GH200", 4.0e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, 1978.9e12,
                     "NVIDIA GH200 data sheet (96 GB HBM3)")),
    (r"H100.*PCIe", Peaks("H100 PCIe", 2.0e12, 756e12, 378e12, 51.2e12, 51.2e12, 1513e12,
                          "NVIDIA H100 Tensor Core GPU data sheet (PCIe)")),
    (r"H100.*NVL", Peaks("H100 NVL", 3.9e12, 835e12, 417.5e12, 60e12, 60e12, 1671e12, "NVIDIA H100 NVL data sheet")),
    (r"H100", Peaks("H100 SXM", 3.35e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, 1978.9e12,
                    "NVIDIA H100 Tensor Core GPU data sheet (SXM)")),
    (r"A100.*40GB", Peaks("A100 40 GB", 1.555e12, 312e12, 156e12, 19.5e12, 19.5e12, None,
                          "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"A100.*PCIe.*80GB", Peaks("A100 80 GB PCIe", 1.935e12, 312e12, 156e12, 19.5e12, 19.5e12, None,
                                "NVIDIA A100 80GB data sheet")),
    (r"A100.*80GB", Peaks("A100 80 GB SXM", 2.039e12, 312e12, 156e12, 19.5e12, 19.5e12, None,
                          "NVIDIA A100 80GB data sheet")),
    (r"A100", Peaks("A100", 1.555e12, 312e12, 156e12, 19.5e12, 19.5e12, None,
                    "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"V100", Peaks("V100 SXM2", 0.9e12, 125e12, 15.7e12, 15.7e12, 7.8e12, None,
                    "NVIDIA V100 Tensor Core GPU data sheet")),
    (r"B200", Peaks("B200", 8.0e12, 2250e12, 1125e12, 75e12, 37e12, 4500e12,
                    "NVIDIA Blackwell architecture brief (HGX B200)")),
    (r"MI300X", Peaks("MI300X", 5.3e12, 1307.4e12, 653.7e12, 163.4e12, 163.4e12, 2614.9e12,
                      "AMD Instinct MI300X data sheet")),
)  # fmt: skip

_SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "short": 2,
    "short int": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """FLOPs and least bytes of one call of an operator, and the type that it computes in; None where unknown."""

    flops: float | None
    bytes: float | None
    dtype: str | None


UNKNOWN = Work(None, None, None)


def peaks(device: str | None) -> Peaks | None:
    """Peaks of a device by its name, None where the table lacks it."""
    for pattern, found in _DEVICES:
        if device and re.search(pattern, device):
            return found
    return None


def best_seconds(
    work_flops: float | None, work_bytes: float | None, dtype: str | None, kernel: str, device: Peaks
) -> tuple[float, str] | None:
    """The least time that the device needs for that work, and which limit sets it (`compute` or `memory`)."""
    by_memory = work_bytes / device.bytes_per_s if work_bytes else 0.0
    by_compute = work_flops / _rate(dtype, kernel, device) if work_flops else 0.0
    if not by_memory and not by_compute:
        return None
    return (by_compute, "compute") if by_compute > by_memory else (by_memory, "memory")


def _rate(dtype: str | None, kernel: str, device: Peaks) -> float:
    if dtype in ("c10::Half", "c10::BFloat16"):
        return device.half
    if dtype and dtype.startswith("c10::Float8") and device.eight:
        return device.eight
    if dtype == "double":
        return device.double
    # Whether fp32 work may use TF32 is a flag of the job; only the kernel's name shows it.
    return device.tf32 if re.search(r"tf32|s1688|s16816", kernel) else device.single


@cache
def work(op: str, dims_json: str | None, types_json: str | None, concrete_json: str | None) -> Work:
    """Work of one call of `op` from the profiler's `Input Dims`, `Input type` and `Concrete Inputs` (JSON)."""
    try:
        dims = json.loads(dims_json) if dims_json else None
        types = json.loads(types_json) if types_json else None
        concrete = json.loads(concrete_json) if concrete_json else []
    except ValueError:
        return UNKNOWN
    if not isinstance(dims, list) or not isinstance(types, list):
        return UNKNOWN
    try:
        return _work(bare_op(op), op, dims, types, concrete if isinstance(concrete, list) else [])
    except (IndexError, TypeError, ValueError, ZeroDivisionError):  # arguments of another version of the operator
        return UNKNOWN


def _work(name: str, op: str, dims: list[Any], types: list[Any], concrete: list[Any]) -> Work:
    tensors = [(shape, _SIZES[kind], kind) for shape, kind in zip(dims, types) if kind in _SIZES and _is_shape(shape)]
    if not tensors or any(kind in ("TensorList", "GenericList") for kind in types):
        return UNKNOWN
    size, dtype = tensors[0][1], tensors[0][2]
    read = sum(prod(shape) * width for shape, width, _ in tensors)
    shapes = [shape for shape, _, _ in tensors]
    if name in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm"):
        return _gemm(name, shapes, size, dtype, read)
    if name in (
        "convolution",
        "cudnn_convolution",
        "_convolution",
        "miopen_convolution",
        "mkldnn_convolution",
        "convolution_backward",
    ):
        return _convolution(name, dims, concrete, size=size, dtype=dtype, read=read)
    if "attention" in name and len(shapes) >= 3:
        return _attention(name, dims, types, size, dtype)
    kind = classify(op, None, "", copy=False, communication=False)
    largest = max(prod(shape) for shape in shapes)
    if name in ("fill", "zero"):
        return Work(None, float(prod(shapes[0]) * size), dtype)
    if name in ("copy", "_to_copy") and len(shapes) >= 2:
        return Work(None, float(read), dtype)
    if name in (
        "index",
        "embedding",
        "gather",
        "index_select",
        "scatter",
        "index_put",
        "_index_put_impl",
        "cat",
        "arange",
        "random",
        "dropout",
    ):
        return UNKNOWN  # traffic depends on values or on arguments that are not recorded
    if kind == "elementwise":
        wrote = _broadcast(shapes) * size
        inplace = op.endswith("_")
        return Work(float(largest), float(read + (prod(shapes[0]) * size if inplace else wrote)), dtype)
    if kind == "reduction":
        return Work(float(largest), float(read), dtype)
    if kind == "norm":
        return Work(None, float(read + largest * size), dtype)
    return UNKNOWN


def _gemm(name: str, shapes: list[list[int]], size: int, dtype: str, read: int) -> Work:
    if name in ("addmm", "baddbmm"):
        left, right = shapes[1], shapes[2]
    elif name == "linear":
        left, right = shapes[0], [shapes[1][1], shapes[1][0]]
    else:
        left, right = shapes[0], shapes[1]
    if left[-1] != right[-2 if len(right) > 1 else 0]:
        return UNKNOWN
    columns = right[-1] if len(right) > 1 else 1
    out = prod(left[:-1]) * columns
    return Work(2.0 * out * left[-1], float(read + out * size), dtype)


def _convolution(name: str, dims: list[Any], concrete: list[Any], *, size: int, dtype: str, read: int) -> Work:
    if name == "convolution_backward":
        out, image, weight = dims[0], dims[1], dims[2]
        # One product for the gradient of the input, one for the weight; the output mask says which are wanted.
        mask = _numbers(concrete[10]) if len(concrete) > 10 else []
        products = sum(mask[:2]) if len(mask) >= 2 else 2
        flops = 2.0 * prod(out) * prod(weight[1:]) * products
        return Work(flops, float(read + prod(image) * size + prod(weight) * size), dtype)
    image, weight = dims[0], dims[1]
    spatial = len(image) - 2
    where = {
        "convolution": (3, 4, 5, 6),
        "_convolution": (3, 4, 5, 6),
        "cudnn_convolution": (3, 2, 4, None),
        "miopen_convolution": (4, 3, 5, None),
    }
    stride_at, pad_at, dilation_at, transposed_at = where.get(name, (3, 4, 5, None))
    if transposed_at is not None and str(concrete[transposed_at]) == "True":
        return UNKNOWN
    stride, pad, dilation = (_spread(_numbers(concrete[i]), spatial) for i in (stride_at, pad_at, dilation_at))
    outer = [
        (image[2 + i] + 2 * pad[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1 for i in range(spatial)
    ]
    out = image[0] * weight[0] * prod(outer)
    return Work(2.0 * out * prod(weight[1:]), float(read + out * size), dtype)


def _attention(name: str, dims: list[Any], types: list[Any], size: int, dtype: str) -> Work:
    """Two products of the scores' size forward, five backward (one is the recomputation).

    The causal half is not deducted.
    """
    tensors = [shape for shape, kind in zip(dims, types) if kind in _SIZES and len(shape) >= 3]
    backward = "backward" in name
    query, key = (tensors[1], tensors[2]) if backward else (tensors[0], tensors[1])
    if len(query) != 4 or len(key) != 4:
        return UNKNOWN
    # _flash_attention_forward takes (batch, length, heads, width), the others (batch, heads, length, width).
    length = 1 if name.startswith("_flash_attention") or name.startswith("_efficient_attention") else 2
    scores = query[0] * (query[1] if length == 2 else query[2]) * query[length] * key[length]
    traffic = sum(prod(shape) for shape in tensors) + prod(query) * (3 if backward else 1)
    return Work(2.0 * scores * query[3] * (5 if backward else 2), float(traffic * size), dtype)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(extent, int) for extent in shape)


def _broadcast(shapes: list[list[int]]) -> int:
    depth = max(len(shape) for shape in shapes)
    padded = [[1] * (depth - len(shape)) + shape for shape in shapes]
    return prod(max(extents) for extents in zip(*padded)) if depth else 1


def _numbers(text: Any) -> list[int]:
    return [
        int(part == "True") if part in ("True", "False") else int(part)
        for part in re.findall(r"-?\d+|True|False", str(text))
    ]


def _spread(values: list[int], count: int) -> list[int]:
    return (values * count)[:count] if len(values) == 1 else values
