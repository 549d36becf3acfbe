"""The summary of a tensor: its algorithm as the docstring states it, on every dtype, and what it can tell apart."""

import ctypes
import hashlib
import itertools
import math
import shutil
import struct
import subprocess
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity import kernel, summary

FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64", "bool"]


def by_the_docstring(values, tag, shape):
    """The stated algorithm in plain Python: no torch, no numpy."""

    def drawn(part, count):
        text = f"{tag}\n{'x'.join(map(str, shape))}\n{part}"
        return hashlib.shake_128(text.encode()).digest(count)

    n = len(values)
    per_bucket = math.ceil(n / (64 * 4093))
    width = math.ceil(n / 64)
    while per_bucket > 1:
        primes = (w for w in itertools.count(math.ceil(n / (64 * per_bucket))) if all(w % f for f in range(2, w)))
        width = next(w for w in primes if n % w)
        if n - 63 * width * per_bucket >= width * per_bucket / 2:
            break
        per_bucket += 1
    rows = math.ceil(n / width)
    column, row = (
        [1 if byte % 2 else -1 for byte in drawn(part, count)] for part, count in (("columns", width), ("rows", rows))
    )
    sketch = [0.0] * 64
    for index, value in enumerate(values):
        r, c = divmod(index, width)
        sketch[r // per_bucket] += value * column[c] * row[r]
    if n <= 64:
        where = list(range(n))
    else:
        where = sorted(number % n for number in struct.unpack(">64Q", drawn("samples", 512)))
    return {
        "sum": math.fsum(values),
        "l2": math.sqrt(math.fsum(v * v for v in values)),
        "abs_mean": math.fsum(map(abs, values)) / n,
        "min": min(values),
        "max": max(values),
        "sketch": sketch,
        "samples": [values[i] for i in where],
    }


def hash_by_the_docstring(values):
    mask, total = 2**64 - 1, 0
    for index, value in enumerate(values):
        z = (value & mask) ^ (index * 0x9E3779B97F4A7C15 & mask)
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        total = (total + (z ^ (z >> 31))) & mask
    return f"{total:016x}"


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4093 * 64 - 1, 4093 * 64, 4093 * 64 + 1, 4093 * 200 + 7])
def test_every_number_is_what_the_docstring_says(n):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    got, wanted = summary.summarize(x, "loss"), by_the_docstring(x.tolist(), "loss", [n])
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-9 * max(1.0, math.sqrt(n))), key


@given(st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_each_element_is_in_exactly_one_bucket(n):
    width, rows, per_bucket = summary.layout(n)
    assert (rows - 1) * width < n <= rows * width
    assert (rows - 1) // per_bucket < summary.BUCKETS
    sketch = summary.summarize(torch.ones(n, dtype=torch.float64) * 2.0, "t")["sketch"]
    assert len(sketch) == summary.BUCKETS
    assert sum(abs(part) for part in sketch) <= 2.0 * n + 1e-9


@pytest.mark.parametrize(
    "shape",
    [
        (8, 8),
        (64, 64),
        (256, 1024),
        (512, 512),
        (1024, 1024),
        (4096, 4096),
        (50257, 768),
        (128, 2053),
        (16, 3, 640, 640),
    ],
)
def test_the_buckets_are_filled_evenly(shape):
    n = math.prod(shape)
    width, rows, per_bucket = summary.layout(n)
    assert width <= summary.WIDTH and (rows - 1) * width < n <= rows * width
    sizes = [min(n, (b + 1) * per_bucket * width) - min(n, b * per_bucket * width) for b in range(64)]
    assert sum(sizes) == n and min(sizes) >= max(sizes) / 2 and sorted(sizes)[1] == max(sizes)
    if per_bucket > 1:  # the tensor's own rows do not start at the same sign
        assert all(shape[-1] % width and width % part for part in shape[-1:])


@pytest.mark.parametrize("n", [2**k for k in range(6, 35)])
def test_powers_of_two_use_all_buckets(n):
    width, _, per_bucket = summary.layout(n)
    assert width * per_bucket * 63 < n <= width * per_bucket * 64


def test_numpy_without_torch_gives_the_same_numbers():
    for array in (
        np.random.default_rng(0).normal(size=(37, 41)),
        np.arange(-500, 500, dtype=np.int32).reshape(10, 100),
    ):
        ours, theirs = summary._numpy_summary(array, "a"), summary.summarize(torch.from_numpy(array), "a")
        assert ours.pop("dtype") == theirs.pop("dtype")
        assert ours.get("hash") == theirs.get("hash")
        for key in ("sum", "l2", "abs_mean", "min", "max", "sketch", "samples"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("name", FLOATS)
def test_floating_dtypes(name):
    x = torch.linspace(-3, 3, 300).to(getattr(torch, name))
    got = summary.summarize(x, "x")
    assert got["dtype"] == name and got["shape"] == [300]
    wanted = by_the_docstring(x.to(torch.float64).tolist(), "x", [300])
    assert got["sketch"] == pytest.approx(wanted["sketch"], rel=1e-6, abs=1e-5)
    assert got["l2"] == pytest.approx(wanted["l2"], rel=1e-6)
    assert "hash" not in got


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_dtypes_have_an_exact_hash_that_does_not_depend_on_the_type(name):
    values = torch.tensor([[1, 0, 1], [1, 1, 0]])
    got = summary.summarize(values.to(getattr(torch, name)), "ids")
    assert got["hash"] == hash_by_the_docstring([1, 0, 1, 1, 1, 0])
    assert got["sum"] == 4


def test_large_and_negative_integers_hash_exactly():
    values = [2**62, -(2**62), 2**62 + 1, -1, 0]
    assert summary.summarize(torch.tensor(values), "ids")["hash"] == hash_by_the_docstring(values)
    other = [2**62, -(2**62), 2**62 + 2, -1, 0]  # the same float64
    assert summary.summarize(torch.tensor(other), "ids")["hash"] != hash_by_the_docstring(values)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.zeros(3, dtype=torch.complex64), "view_as_real"),
        (lambda: torch.zeros(3, 3).to_sparse(), "sparse_coo tensors"),
        (lambda: torch.zeros(3, 3).to_sparse_csr(), "sparse_csr tensors"),
        (lambda: torch.zeros(3, device="meta"), "no values"),
        (lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), "int_repr"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_says_what_to_do(make, says):
    with pytest.raises(summary.Refused, match=says):
        summary.summarize(make(), "x")


def test_non_finite_values_are_counted_and_poison_the_moments():
    got = summary.summarize(torch.tensor([1.0, math.nan, math.inf, math.inf, -math.inf]), "x")
    assert got["nonfinite"] == {"nan": 1, "posinf": 2, "neginf": 1}
    assert math.isnan(got["sum"]) and math.isnan(got["min"])


def test_an_empty_tensor_has_no_statistics():
    got = summary.summarize(torch.zeros(0, 5), "x")
    assert got["numel"] == 0 and got["sum"] is None and got["min"] is None


def faults():
    def swapped(x):
        x[[3, 4]] = x[[4, 3]]

    def shifted(x):
        x[:] = torch.roll(x.flatten(), 1).view_as(x)

    def flipped(x):
        x[7] *= -1

    def permuted(x):
        x[:] = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]

    return [swapped, shifted, flipped, permuted]


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("width", [64, 100, 1024, 4093, 4096])
def test_the_sketch_sees_what_the_norm_cannot(fault, width):
    x = torch.randn(256, width, generator=torch.Generator().manual_seed(0))
    before = summary.summarize(x, "act")
    fault(x)
    after = summary.summarize(x, "act")
    assert after["l2"] == pytest.approx(before["l2"], rel=1e-9)
    moved = max(abs(a - b) for a, b in zip(before["sketch"], after["sketch"]))
    assert moved > 1e-3 * before["l2"]


def test_strides_do_not_matter():
    x = torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    assert summary.summarize(x, "x") == summary.summarize(x.to(memory_format=torch.channels_last), "x")
    assert summary.summarize(x.transpose(0, 1), "x") != summary.summarize(x, "x")


def test_another_tag_has_other_signs_and_the_same_tag_the_same():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert summary.summarize(x, "a")["sketch"] == summary.summarize(x, "a")["sketch"]
    assert summary.summarize(x, "a")["sketch"] != summary.summarize(x, "b")["sketch"]


def test_a_tensor_in_several_pieces_gives_the_same_summary(monkeypatch):
    x = torch.randn(4093 * 9 + 5, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(4093 * 9 + 5)
    monkeypatch.setattr(summary, "WIDTH", 409)
    monkeypatch.setattr(summary, "_layouts", {})
    whole, whole_ids = summary.summarize(x, "x"), summary.summarize(ids, "i")
    monkeypatch.setattr(summary, "CHUNK_ROWS", 7)
    parts, parts_ids = summary.summarize(x, "x"), summary.summarize(ids, "i")
    assert parts_ids["hash"] == whole_ids["hash"]
    for key in ("sum", "l2", "abs_mean", "min", "max", "sketch", "samples"):
        assert parts[key] == pytest.approx(whole[key], rel=1e-9, abs=1e-9)


def test_neither_graph_nor_random_state_nor_value_is_touched():
    x = torch.randn(50, requires_grad=True)
    y = (x * 2).exp()
    state, version, kept = torch.get_rng_state(), y._version, y.detach().clone()
    vector, _ = summary.compute(torch, y, "y")
    assert not vector.requires_grad
    assert torch.equal(torch.get_rng_state(), state) and y._version == version and torch.equal(y, kept)
    leaf = weakref.ref(x)  # the graph would hold it
    del x, y
    assert leaf() is None


def test_autocast_and_inference_mode_do_not_change_the_numbers():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    plain = summary.summarize(x, "x")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert summary.summarize(x, "x") == plain
    with torch.inference_mode():
        assert summary.summarize(x.clone(), "x") == plain


HARNESS = """
#include <cstdint>
#define __global__
#define CONVERT_HALF(x, half) x = 0
#define INFINITE (1e308 * 10.0)
struct Place { int x; };
static Place blockIdx, blockDim, threadIdx;
%s
extern "C" void run(const void* d, const signed char* c, const signed char* r, double* out, int n, int w, int p,
                    int t, int type) {
  blockDim.x = 256;
  for (blockIdx.x = 0; blockIdx.x < 64 * t / 256; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < 256; threadIdx.x++) parity_summary(d, c, r, out, n, w, p, t, type);
}
"""


@pytest.fixture(scope="module")
def kernel_on_cpu(tmp_path_factory):
    """The CUDA source, compiled as C++ with the grid as two loops."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: the CUDA source cannot be run on the CPU")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "k.cpp").write_text(HARNESS % kernel.SOURCE)
    subprocess.run(
        ["g++", "-O1", "-w", "-shared", "-fPIC", "-o", str(folder / "k.so"), str(folder / "k.cpp")], check=True
    )
    return ctypes.CDLL(str(folder / "k.so")).run


@pytest.mark.parametrize("n", [70_000, 4093 * 64, 4093 * 64 + 1, 4093 * 130 + 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cuda_kernel_computes_the_same_summary(kernel_on_cpu, n, dtype):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    width, rows, per_bucket = summary.layout(n)
    signs = [
        torch.frombuffer(bytearray(summary.seed_bytes("t", [n], part, count)), dtype=torch.int8) & 1
        for part, count in (("columns", width), ("rows", rows))
    ]
    columns, row_signs = (part * 2 - 1 for part in signs)
    threads = kernel.threads_for(n)
    out = torch.empty(9 * 64 * threads, dtype=torch.float64)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, columns, row_signs, out)]
    kernel_on_cpu(*pointers, n, width, per_bucket, threads, kernel.TYPES[str(dtype)[6:]])
    head, sketch = kernel.finish(torch, out.view(9, 64, threads))
    wanted = summary.summarize(x, "t")
    assert sketch.tolist() == pytest.approx(wanted["sketch"], rel=1e-9, abs=1e-9)
    got = dict(zip(("sum", "l2", "abs_mean", "min", "max"), head.tolist()))
    got["abs_mean"] /= n
    for key, value in got.items():
        assert value == pytest.approx(wanted[key], rel=1e-9), key


def test_the_cuda_kernel_counts_non_finite_values(kernel_on_cpu):
    x = torch.ones(70_000)
    x[[5, 600, 69_999]] = torch.tensor([math.nan, math.inf, -math.inf])
    width, rows, per_bucket = summary.layout(70_000)
    ones = torch.ones(max(width, rows), dtype=torch.int8)
    out = torch.empty(9 * 64 * 256, dtype=torch.float64)
    kernel_on_cpu(*[ctypes.c_void_p(t.data_ptr()) for t in (x, ones, ones, out)], 70_000, width, per_bucket, 256, 0)
    head, _ = kernel.finish(torch, out.view(9, 64, 256))
    assert head[5:].tolist() == [1, 1, 1] and math.isnan(head[3]) and math.isnan(head[4])
