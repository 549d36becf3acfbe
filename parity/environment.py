"""What surrounds a run, for the header of its records: versions, devices, backend flags. Starts no device."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict


def header(recorder: Any) -> Dict[str, Any]:
    """Fields of the header line. Unknown is None; nothing in it depends on the working directory."""
    import binascii

    from parity.summary import VERSION

    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    environ = os.environ
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    return {
        "run_id": binascii.hexlify(os.urandom(16)).decode(),
        "summary": VERSION,
        "rank": recorder.rank,
        "world_size": _world_size(),
        "argv": [os.path.basename(program), *getattr(sys, "argv", [""])[1:]],
        "program": os.path.basename(program),
        "started_ns": recorder.started_ns,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "torch": None if torch is None else str(torch.__version__),
        "numpy": getattr(numpy, "__version__", None),
        "mode": environ.get("PARITY_MODE"),
        "probes": environ.get("PARITY_PROBES"),
        "seed": _integer(environ.get("PARITY_SEED")),
        "perturb": environ.get("PARITY_PERTURB"),
        "perturb_seed": _integer(environ.get("PARITY_PERTURB_SEED")),
        "tree": environ.get("PARITY_TREE_HASH"),
        **device(torch),
        "backend": flags(torch),
    }


def device(torch: Any) -> Dict[str, Any]:
    """CUDA, cuDNN, driver and GPU names; GPU names only where the job has started CUDA."""
    found: Dict[str, Any] = {"cuda": None, "cudnn": None, "driver": None, "gpus": []}
    if torch is None:
        return found
    found["cuda"] = _try(lambda: torch.version.cuda)
    if _try(torch.cuda.is_initialized):
        found["cudnn"] = _try(torch.backends.cudnn.version)
        found["driver"] = _try(getattr(torch._C, "_cuda_getDriverVersion", None))
        found["gpus"] = _try(lambda: [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]) or []
    return found


def flags(torch: Any) -> Dict[str, Any]:
    """Numerics and determinism switches as they are now."""
    if torch is None:
        return {}
    cuda = torch.backends.cuda
    cudnn = torch.backends.cudnn
    read = {
        "default_dtype": lambda: str(torch.get_default_dtype()).replace("torch.", ""),
        "matmul_precision": torch.get_float32_matmul_precision,
        "matmul_tf32": lambda: bool(cuda.matmul.allow_tf32),
        "cudnn_tf32": lambda: bool(cudnn.allow_tf32),
        "bf16_reduced_reduction": lambda: bool(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_reduction": lambda: bool(cuda.matmul.allow_fp16_reduced_precision_reduction),
        "cudnn_enabled": lambda: bool(cudnn.enabled),
        "cudnn_benchmark": lambda: bool(cudnn.benchmark),
        "cudnn_deterministic": lambda: bool(cudnn.deterministic),
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "flash_sdp": lambda: bool(cuda.flash_sdp_enabled()),
        "mem_efficient_sdp": lambda: bool(cuda.mem_efficient_sdp_enabled()),
        "math_sdp": lambda: bool(cuda.math_sdp_enabled()),
        "cudnn_sdp": lambda: bool(cuda.cudnn_sdp_enabled()),
        "threads": torch.get_num_threads,
    }
    return {name: _try(call) for name, call in read.items()}


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
    except Exception:
        pass
    return _integer(os.environ.get("WORLD_SIZE")) or 1


def _integer(text: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def _try(call: Any) -> Any:
    try:
        return call()
    except Exception:
        return None
