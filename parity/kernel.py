"""The moments and the sketch of `parity.summary` in one pass over the tensor, as a CUDA kernel that NVRTC compiles at
first use.

Reading a tensor nine times costs more than it should beside a fast step. Each thread walks one stretch of one bucket
with a stride and leaves nine partial sums in float64; torch adds them up in a fixed order, so that the result is
deterministic. Where the kernel cannot be had (torch before 2.9, ROCm, another dtype, no NVRTC), `launch` answers None
and the summary is computed with torch's own operations; both agree to rounding in float64.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional

LEAST = 1 << 16  # elements; below, launches cost more than passes
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}

SOURCE = r"""
extern "C" __global__ void parity_summary(const void* data, const signed char* columns, const signed char* rows,
                                          double* out, int n, int width, int per_bucket, int threads, int type) {
  int id = blockIdx.x * blockDim.x + threadIdx.x;
  int all = 64 * threads;
  if (id >= all) return;
  const double infinity = INFINITE;
  int bucket = id / threads, lane = id % threads;
  long long first = (long long)bucket * per_bucket * width;
  long long end = first + (long long)per_bucket * width;
  if (end > n) end = n;
  double sum = 0, squares = 0, absolute = 0, low = infinity, high = -infinity;
  double nan = 0, above = 0, below = 0, sketch = 0;
  int row = bucket * per_bucket + lane / width, column = lane % width;
  for (long long i = first + lane; i < end; i += threads) {
    float x;
    if (type == 0) x = ((const float*)data)[i];
    else {
      unsigned short half = ((const unsigned short*)data)[i];
      union { unsigned int bits; float value; } wide;
      wide.bits = (unsigned int)half << 16;
      if (type == 1) x = wide.value;
      else CONVERT_HALF(x, half);
    }
    double v = x;
    sum += v;
    squares += v * v;
    absolute += v < 0 ? -v : v;
    if (v < low) low = v;
    if (v > high) high = v;
    if (v != v) nan += 1;
    else if (v == infinity) above += 1;
    else if (v == -infinity) below += 1;
    sketch += columns[column] * rows[row] > 0 ? v : -v;
    column += threads;
    while (column >= width) { column -= width; row += 1; }
  }
  double found[9] = {sum, squares, absolute, low, high, nan, above, below, sketch};
  for (int k = 0; k < 9; k++) out[k * all + id] = found[k];
}
"""
CUDA = r"""
#define INFINITE __longlong_as_double(0x7ff0000000000000LL)
#define CONVERT_HALF(x, half) asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half))
"""

_compiled: Dict[int, Any] = {}  # device -> kernel, None where it cannot be had


def usable(torch: Any, flat: Any) -> bool:
    """Whether `launch` can work on this flat tensor."""
    return (
        flat.is_cuda
        and str(flat.dtype)[6:] in TYPES
        and LEAST <= flat.numel() < 2**31 - 2**22
        and _kernel(torch, flat.device) is not None
    )


def launch(  # noqa: PLR0917 - one caller
    torch: Any, flat: Any, columns: Any, rows: Any, width: int, per_bucket: int
) -> Optional[List[Any]]:
    """[the eight moments, the 64 buckets] as float64 on the device; signs are int8. None where the launch fails."""
    threads = threads_for(flat.numel())
    out = torch.empty(9 * 64 * threads, dtype=torch.float64, device=flat.device)
    arguments = [flat, columns, rows, out, flat.numel(), width, per_bucket, threads, TYPES[str(flat.dtype)[6:]]]
    try:
        with torch.cuda.device(flat.device):
            _kernel(torch, flat.device)(grid=(64 * threads // 256, 1, 1), block=(256, 1, 1), args=arguments)
    except Exception as error:
        _unavailable(flat.device, error)
        return None
    return finish(torch, out.view(9, 64, threads))


def finish(torch: Any, partial: Any) -> List[Any]:
    """Add up the threads' partial results: shape (9, 64, threads)."""
    buckets = partial.sum(2)
    total = buckets.sum(1)
    poison = torch.where(total[5] > 0, float("nan"), 0.0)
    low, high = partial[3].amin() + poison, partial[4].amax() + poison
    head = torch.stack([total[0], total[1].sqrt(), total[2], low, high, total[5], total[6], total[7]])
    return [head, buckets[8]]


def threads_for(n: int) -> int:
    """Threads a bucket: enough to fill the device, not more than there is work for."""
    return 2048 if n >= 1 << 22 else 256


def _kernel(torch: Any, device: Any) -> Any:
    index = device.index or 0
    if index not in _compiled:
        _compiled[index] = None
        build = getattr(torch.cuda, "_compile_kernel", None)
        if build is not None and torch.version.hip is None:
            try:
                with torch.cuda.device(device):
                    _compiled[index] = build(CUDA + SOURCE, "parity_summary")
            except Exception as error:
                _unavailable(device, error)
    return _compiled[index]


def _unavailable(device: Any, error: Exception) -> None:
    _compiled[device.index or 0] = None
    print(
        "parity: summaries use torch's operations (%s: %s)" % (type(error).__name__, str(error)[:200]), file=sys.stderr
    )
