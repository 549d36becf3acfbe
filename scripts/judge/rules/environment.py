"""The environment is the launcher's: who reads it may notice the harness, who sets it changes more than the job."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, constant_text

NAME = "environment"
WHY = "K14, K21, J21, J23, J35: the launch recipe must be the same on both arms and unknown to the patch"

SNIFFS = ("os.uname", "os.getpid", "os.getppid", "os.getpgid", "os.getsid", "os.getlogin", "os.getcwd",
          "os.getuid", "os.geteuid", "os.ttyname", "os.isatty", "os.confstr", "os.sysconf",
          "os.getloadavg", "platform", "getpass", "psutil", "resource.getrlimit", "sysconfig", "site",
          "pwd", "builtins.input")  # fmt: skip
THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
           "OMP_WAIT_POLICY", "KMP_AFFINITY", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME",
           "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} asks where the code runs", *SNIFFS)
    hits += change.refuse_references(
        "{name} asks for the machine's size", "os.cpu_count", "os.sched_getaffinity", action="review"
    )
    for file, name, node in change.refer(
        "os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv", "os.getenvb"
    ):
        variable = _variable_set(file, node)
        if variable is None:
            hits.append(file.hit("refuse", node, f"{name}: reads the environment, or sets a name that is not constant"))
        elif variable in THREADS and not change.allows("threads"):
            hits.append(file.hit("refuse", node, f"sets {variable}; the spec owns the number of threads"))
        elif (
            "CACHE" in variable
            or variable.endswith(("_HOME", "_DIR"))
            or variable.startswith(("CUDA_VISIBLE", "PARITY", "WHOLEJOB", "PYTHON", "LD_", "HOME", "TMP", "PATH"))
        ):
            hits.append(file.hit("refuse", node, f"sets {variable}, which the launcher owns"))
        else:
            action = "refuse" if change.forbids("global_flags") else "side_effect"
            hits.append(file.hit(action, node, f"sets the environment variable {variable} for the whole process"))
    return hits


def _variable_set(file: FileChange, node: ast.AST) -> str | None:
    """The variable that `os.environ[X] = ...` or its `setdefault(X, ...)` sets; None for a read or a built name."""
    assert file.after is not None
    parent = file.after.parents.get(node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        return constant_text(parent.slice)
    if (
        isinstance(parent, ast.Call)
        and isinstance(node, ast.Attribute)
        and node.attr in ("setdefault", "putenv")
        and parent.args
    ):
        used = not isinstance(file.after.parents.get(parent), ast.Expr)
        return None if used else constant_text(parent.args[0])
    return None
