"""What is kept of a tensor: about 140 numbers that tell two tensors apart, computed where the tensor lies.

The algorithm, exactly (producer and comparer agree on this text). `x` is the tensor flattened in logical order
(strides do not matter), `n` its number of elements; accumulation is float64 (float32 on devices without it).

- `sum`, `l2`, `abs_mean`, `min`, `max`: over all elements as they are; one NaN makes all of them NaN. Null when `n`
  is 0.
- `nonfinite`: exact counts of NaN, +inf, -inf.
- `seed`: `shake_128(f"{tag}\\n{'x'.join(shape)}\\n{part}")`, one byte an element, for the parts `columns`, `rows`,
  `samples`. Equal tag and shape give equal signs and positions in every run.
- `sketch`: 64 signed sums over contiguous stretches of equal length. The elements are laid out in rows of `w`
  elements (the last row may be short), `m = ceil(n / w)` rows, `k` rows a bucket: bucket `r // k` sums the signed
  elements of its rows; buckets without rows are 0. Element (r, c) has the sign `s_c * t_r`, where a sign is +1 for an
  odd byte of `columns` (c) or `rows` (r) and -1 for an even one. Up to 64 * 4093 elements `k` is 1 and `w` is
  `ceil(n / 64)`. Above, `k` is the least number from `ceil(n / (64 * 4093))` on with which the last bucket holds at
  least half as many elements as the others, `w` being the least prime from `ceil(n / (64 * k))` on that does not
  divide n: rows of a tensor do not line up with the signs, so that a swap, shift or permutation moves the sums. For
  independent errors of standard deviation e, every bucket moves by about e * sqrt(n / 64).
- `samples`: the elements at 64 sorted positions, each an 8-byte big-endian number of `samples` modulo n (all n
  elements, in order, when n <= 64).
- `hash` (integer and bool tensors): 16 hexadecimal digits of `sum_i mix(x_i ^ (i * 0x9E3779B97F4A7C15)) mod 2**64`,
  `mix` being the finaliser of splitmix64 (Steele, Lea, Flood 2014); depends on order, not on the integer type.

Cost: no synchronisation. On CUDA one pass (`parity.kernel`) for float32, bfloat16 and float16; elsewhere about twelve
passes and one temporary of the tensor's size (at most 16.8 M elements).
"""

from __future__ import annotations

import math
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from parity import kernel

VERSION = 2  # of these algorithms and of the hash of batches; in the header, since two versions cannot be compared
BUCKETS = 64
SAMPLES = 64
WIDTH = 4093
CHUNK_ROWS = 4096
CACHED = 1 << 15  # elements that are hashed at a time on a CPU, so that they stay in its cache
HEAD = 8  # sum, l2, abs sum, min, max, nan, +inf, -inf

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64

_plans: Dict[Any, Any] = {}
_layouts: Dict[int, Tuple[int, int, int]] = {}


class Refused(ValueError):
    """A value that cannot be summarised; the message says why."""


def summarize(value: Any, tag: str) -> Dict[str, Any]:
    """Summary of a torch tensor or numpy array, now (waits for the device). Raises Refused. For tools and tests, not
    for jobs.
    """
    torch = sys.modules.get("torch")
    if torch is not None and not isinstance(value, torch.Tensor):
        value = torch.from_numpy(value)
    if torch is None:
        return _numpy_summary(value, tag)
    vector, meta = compute(torch, value, tag)
    return resolve(meta, vector.tolist())


def compute(torch: Any, tensor: Any, tag: str) -> Tuple[Any, Dict[str, Any]]:
    """Start the summary on the tensor's device: (float64 vector that `resolve` reads, description).

    Never waits for the device and never keeps the autograd graph. Raises Refused for what has no meaning here.
    """
    tensor = plain(torch, tensor)
    device = tensor.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        kind = "float" if tensor.dtype.is_floating_point else "int"
        meta = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).replace("torch.", ""),
            "device": device.type,
            "numel": tensor.numel(),
            "_kind": kind,
        }
        if tensor.numel() == 0:
            return torch.zeros(0, dtype=torch.float64), meta
        flat = tensor.detach().reshape(-1)
        wide = torch.float32 if device.type == "mps" else torch.float64
        pieces = _moments_and_sketch(torch, flat, tag, meta["shape"], wide)
        if kind == "int":
            whole = content_hash(torch, flat)
            pieces += [(whole & 0xFFFFFFFF).to(wide).reshape(1), ((whole >> 32) & 0xFFFFFFFF).to(wide).reshape(1)]
        return torch.cat(pieces), meta


def resolve(meta: Dict[str, Any], numbers: Sequence[float]) -> Dict[str, Any]:
    """The record's fields from the numbers of `compute`'s vector."""
    n = meta["numel"]
    fields: Dict[str, Any] = {key: meta[key] for key in ("shape", "dtype", "device", "numel")}
    if n == 0:
        empty = {"nan": 0, "posinf": 0, "neginf": 0}
        fields.update(nonfinite=empty, sum=None, l2=None, abs_mean=None, min=None, max=None, sketch=[], samples=[])
        if meta["_kind"] == "int":
            fields["hash"] = "0" * 16
        return fields
    total, l2, absolute, low, high, nan, posinf, neginf = numbers[:HEAD]
    taken = min(n, SAMPLES)
    end = HEAD + BUCKETS + taken
    fields.update(
        nonfinite={"nan": int(nan), "posinf": int(posinf), "neginf": int(neginf)},
        sum=total,
        l2=l2,
        abs_mean=absolute / n,
        min=low,
        max=high,
        sketch=list(numbers[HEAD : HEAD + BUCKETS]),
        samples=list(numbers[HEAD + BUCKETS : end]),
    )
    if meta["_kind"] == "int":
        fields["hash"] = "%08x%08x" % (int(numbers[end + 1]), int(numbers[end]))
    return fields


def plain(torch: Any, tensor: Any) -> Any:
    """The dense, real, strided tensor inside; Refused for the others."""
    local = getattr(tensor, "_local_tensor", None)  # DTensor: this rank's shard, without a collective
    if local is not None:
        tensor = local
    if tensor.layout is not torch.strided:
        raise Refused(
            f"{str(tensor.layout).replace('torch.', '')} tensors are not recorded; record .values() or .to_dense()"
        )
    if tensor.is_complex():
        raise Refused("complex tensors are not recorded; record torch.view_as_real(x)")
    if tensor.is_quantized:
        raise Refused("quantized tensors are not recorded; record x.int_repr() or x.dequantize()")
    if tensor.device.type == "meta" or hasattr(tensor, "fake_mode"):
        raise Refused("a meta or fake tensor has no values")
    if getattr(tensor, "is_nested", False):
        raise Refused("nested tensors are not recorded; record .values()")
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    if wrapped is not None and wrapped(tensor):
        raise Refused("inside vmap or grad transforms a tensor has no values")
    return tensor


def mix(z: Any) -> Any:
    """The finaliser of splitmix64 on an int64 tensor (arithmetic wraps at 2**64)."""
    return mix_(z.clone())


def mix_(z: Any) -> Any:
    """The same in place: one temporary instead of eleven."""
    t = (z >> 30).bitwise_and_(0x3FFFFFFFF)
    t = z.bitwise_xor_(t).mul_(_MIX1).__rshift__(27).bitwise_and_(0x1FFFFFFFFF)
    t = z.bitwise_xor_(t).mul_(_MIX2).__rshift__(31).bitwise_and_(0x1FFFFFFFF)
    return z.bitwise_xor_(t)


def content_hash(torch: Any, flat: Any) -> Any:
    """Order-dependent 64-bit hash of a flat integer or bool tensor, as an int64 scalar on its device."""
    step = CACHED if flat.device.type == "cpu" else WIDTH * CHUNK_ROWS
    total = None
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].to(torch.int64)
        index = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=flat.device)
        part = mix_(index.mul_(_GOLDEN).bitwise_xor_(piece)).sum()
        total = part if total is None else total + part
    return total


def layout(n: int) -> Tuple[int, int, int]:
    """(row width, rows, rows a bucket) of the sketch of n elements."""
    known = _layouts.get(n)
    if known is not None:
        return known
    per_bucket = -(-n // (BUCKETS * WIDTH))
    width = -(-n // (BUCKETS * per_bucket))
    while per_bucket > 1:
        width = -(-n // (BUCKETS * per_bucket))
        while n % width == 0 or not _is_prime(width):
            width += 1
        bucket = width * per_bucket
        if 2 * (n - (BUCKETS - 1) * bucket) >= bucket:
            break
        per_bucket += 1
    if len(_layouts) >= 4096:  # jobs with ever-new shapes
        _layouts.clear()
    _layouts[n] = (width, -(-n // width), per_bucket)
    return _layouts[n]


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def seed_bytes(tag: str, shape: Sequence[int], part: str, count: int) -> bytes:
    """The pseudo-random bytes behind signs and positions."""
    import hashlib

    return hashlib.shake_128(("%s\n%s\n%s" % (tag, "x".join(map(str, shape)), part)).encode()).digest(count)


def positions(tag: str, shape: Sequence[int], n: int) -> List[int]:
    """The sampled flat positions."""
    if n <= SAMPLES:
        return list(range(n))
    data = seed_bytes(tag, shape, "samples", 8 * SAMPLES)
    return sorted(int.from_bytes(data[8 * i : 8 * i + 8], "big") % n for i in range(SAMPLES))


def _moments_and_sketch(torch: Any, flat: Any, tag: str, shape: List[int], wide: Any) -> List[Any]:
    n = flat.numel()
    width, rows, per_bucket = layout(n)
    if flat.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        work = flat.dtype
    else:
        work = torch.float32 if flat.dtype.is_floating_point else wide
    if flat.is_cuda and kernel.usable(torch, flat):
        columns, row_signs, where = _plan(torch, tag, shape, n, flat.device, torch.int8, torch.int8)
        done = kernel.launch(torch, flat, columns, row_signs, width, per_bucket)
        if done is not None:
            return [*done, flat.index_select(0, where).to(wide)]
    columns, row_signs, where = _plan(torch, tag, shape, n, flat.device, work, wide)
    heads, sums = [], []
    for first in range(0, rows, CHUNK_ROWS):
        piece = flat[first * width : min(n, (first + CHUNK_ROWS) * width)].to(work)
        heads.append(_moments(torch, piece, wide))
        full = piece.numel() // width
        if full:
            sums.append((piece[: full * width].view(full, width) * columns).sum(1, dtype=wide))
        if full * width < piece.numel():
            rest = piece[full * width :]
            sums.append((rest * columns[: rest.numel()]).sum(dtype=wide).reshape(1))
    signed = (torch.cat(sums) if len(sums) > 1 else sums[0]) * row_signs
    padding = per_bucket * BUCKETS - rows
    if padding:
        signed = torch.nn.functional.pad(signed, (0, padding))
    sketch = signed.view(BUCKETS, per_bucket).sum(1)
    samples = (flat if where is None else flat.index_select(0, where)).to(wide)
    return [heads[0] if len(heads) == 1 else _combine(torch, heads), sketch, samples]


def _moments(torch: Any, piece: Any, wide: Any) -> Any:
    low, high = torch.aminmax(piece)
    norm = torch.linalg.vector_norm
    numbers = [
        piece.sum(dtype=wide),
        norm(piece, dtype=wide),
        norm(piece, ord=1, dtype=wide),
        low.to(wide),
        high.to(wide),
    ]
    if piece.dtype.is_floating_point:
        infinity = math.inf
        bad = [
            torch.count_nonzero(mask).to(wide) for mask in (torch.isnan(piece), piece == infinity, piece == -infinity)
        ]
    else:
        bad = [torch.zeros((), dtype=wide, device=piece.device)] * 3
    return torch.stack(numbers + bad)


def _combine(torch: Any, heads: List[Any]) -> Any:
    table = torch.stack(heads)
    return torch.stack(
        [
            table[:, 0].sum(),
            torch.linalg.vector_norm(table[:, 1]),
            table[:, 2].sum(),
            table[:, 3].amin(),
            table[:, 4].amax(),
        ]
        + [table[:, column].sum() for column in (5, 6, 7)]
    )


def _plan(  # noqa: PLR0917 - one caller
    torch: Any, tag: str, shape: List[int], n: int, device: Any, work: Any, wide: Any
) -> Tuple[Any, Any, Optional[Any]]:
    """Signs and positions on the device; made once for a tag and shape, without waiting for the device."""
    key = (tag, tuple(shape), device, work)
    plan = _plans.get(key)
    if plan is not None:
        return plan
    width, rows, _ = layout(n)

    def signs(part: str, count: int, dtype: Any) -> Any:
        odd = torch.frombuffer(bytearray(seed_bytes(tag, shape, part, count)), dtype=torch.uint8) & 1
        return _send(odd.to(dtype) * 2 - 1, device)

    where = None
    if n > SAMPLES:
        where = _send(torch.tensor(positions(tag, shape, n), dtype=torch.int64, device="cpu"), device)
    plan = (signs("columns", width, work), signs("rows", rows, wide), where)
    if len(_plans) >= 512:  # jobs with ever-new shapes
        _plans.clear()
    _plans[key] = plan
    return plan


def _send(tensor: Any, device: Any) -> Any:
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _numpy_summary(array: Any, tag: str) -> Dict[str, Any]:
    """The same numbers with numpy alone, for jobs without torch."""
    np = sys.modules["numpy"]
    if array.dtype.kind not in "fiub":
        raise Refused(f"numpy arrays of {array.dtype} are not recorded")
    kind = "float" if array.dtype.kind == "f" else "int"
    shape = list(array.shape)
    n = int(array.size)
    meta = {"shape": shape, "dtype": str(array.dtype), "device": "cpu", "numel": n, "_kind": kind}
    if n == 0:
        return resolve(meta, [])
    flat = array.reshape(-1)
    x = flat.astype(np.float64)
    width, rows, per_bucket = layout(n)

    def signs(part: str, count: int) -> Any:
        return (np.frombuffer(seed_bytes(tag, shape, part, count), dtype=np.uint8) & 1).astype(np.float64) * 2 - 1

    laid_out = np.zeros(rows * width)
    laid_out[:n] = x
    signed = np.zeros(per_bucket * BUCKETS)
    signed[:rows] = (laid_out.reshape(rows, width) * signs("columns", width)).sum(1) * signs("rows", rows)
    head = [x.sum(), np.sqrt((x * x).sum()), np.abs(x).sum(), x.min(), x.max()]
    bad = [np.isnan(x).sum(), np.isposinf(x).sum(), np.isneginf(x).sum()]
    sketch = signed.reshape(BUCKETS, per_bucket).sum(1)
    numbers = [float(v) for v in [*head, *bad, *sketch, *x[positions(tag, shape, n)]]]
    if kind == "int":
        whole = _numpy_hash(np, flat)
        numbers += [float(whole & 0xFFFFFFFF), float(whole >> 32)]
    return resolve(meta, numbers)


def _numpy_hash(np: Any, flat: Any) -> int:
    with np.errstate(over="ignore"):
        z = flat.astype(np.int64).view(np.uint64) ^ (
            np.arange(flat.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((z ^ (z >> np.uint64(31))).sum(dtype=np.uint64))
