"""Native code runs below every Python rule: no foreign functions or raw memory, compiled sources only as a kernel."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, Hit, below, unparse
from scripts.judge.rules.global_flags import FLAGS

NAME = "native_code"
WHY = "K4, K11, K12, K25: native code can read the checker's memory, the clock and the process"

NEVER = ("ctypes", "cffi", "mmap", "torch._C._cuda_getCurrentRawStream",
         "torch.cuda.caching_allocator_alloc", "torch.ops.load_library", "torch.classes.load_library",
         "numpy.ctypeslib", "torch.cuda.memory.CUDAPluggableAllocator", "torch.cuda.memory_snapshot",
         "torch.cuda.memory._snapshot", "torch.UntypedStorage.from_buffer",
         "torch.UntypedStorage.from_file", "torch.from_file", "pyximport", "cppyy", "weave",
         "llvmlite", "torch._C._construct_storage_from_data_pointer", "torch.cuda.cudart", "cuda",
         "resource", "os.sched_setaffinity", "os.sched_setscheduler", "os.setpriority", "pynvml",
         "torch.cuda.set_per_process_memory_fraction")  # fmt: skip
COMPILES = ("torch.utils.cpp_extension", "cupy.RawKernel", "cupy.RawModule", "pycuda", "torch.cuda._compile_kernel")
# Words of C and C++ that a kernel has no use for.
SYSTEM = re.compile(
    r"\b(system|popen|fork|vfork|execv?p?e?|getenv|setenv|dlopen|dlsym|pthread_\w+|std::thread|std::async|clock_gettime"
    r"|gettimeofday|std::chrono|socket|connect|fopen|ofstream|ifstream|mmap|syscall|ptrace|signal|atexit|usleep|sleep|nanosleep|_exit"
    r"|PyRun_\w+|Py_BytesMain|cudaDeviceSetLimit|cudaCtxResetPersistingL2Cache|cudaStreamSetAttribute|LD_PRELOAD|asm\s+volatile)\b"
)
SETTER = re.compile(r"(^|_)set(_|$|[A-Z])")
SOURCES = (".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".hip", ".metal", ".ptx", ".pyx", ".pxd")


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} reaches native code, raw memory or the machine's settings", *NEVER)
    kernels = "kernel" in (change.constraints.get("classes") or ())
    action = "review" if kernels else "refuse"
    hits += change.refuse_references(
        "{name} compiles native code; the contract must allow the class kernel", *COMPILES, action=action
    )
    for file, name, node in change.refer("torch._C"):
        sets = SETTER.search(name.rpartition(".")[2]) and not below(name, FLAGS)
        what = "sets what torch's public interface guards" if sets else "is private to torch"
        hits.append(file.hit("refuse" if sets else "review", node, f"{name} {what}"))
    for file in change.files:
        if file.path.endswith(SOURCES):
            hits += [
                Hit("refuse", file.path, number, f"native source uses {found[0]}, which no kernel needs")
                for number, text in sorted(file.patch.added.items())
                if (found := SYSTEM.search(text))
            ]
        for node in file.new(ast.Constant):
            if isinstance(node.value, str) and (
                "#include" in node.value or "__global__" in node.value or "PYBIND11" in node.value
            ):
                found = SYSTEM.search(node.value)
                if found:
                    hits.append(file.hit("refuse", node, f"native source in a string uses {found[0]}"))
        for node in file.new(ast.Attribute):
            if node.attr in ("__cuda_array_interface__", "__array_interface__", "_cdata", "__dlpack__"):
                hits.append(file.hit("refuse", node, f"{unparse(node)} hands out raw memory"))
    return hits
