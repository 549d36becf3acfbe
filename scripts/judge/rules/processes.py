"""New processes escape the clock, the limits and the recorder."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, unparse

NAME = "processes"
WHY = "K2, J12, J21, J34: a child that finishes later, or that nobody counts"

NEVER = ("os.fork", "os.forkpty", "os.system", "os.popen", "os.execv", "os.execve", "os.execvp",
         "os.execvpe", "os.execl", "os.execle", "os.execlp", "os.execlpe", "os.spawnv", "os.spawnve",
         "os.spawnl", "os.spawnlp", "os.spawnvp", "os.posix_spawn", "os.posix_spawnp", "os.setsid",
         "os.setpgid", "os.setpgrp", "os.daemon", "os.kill", "os.killpg", "os.nice",
         "os.register_at_fork", "os.startfile", "subprocess", "_posixsubprocess", "pty", "pexpect",
         "sh", "plumbum", "daemon", "commands", "popen2", "pip", "ensurepip", "venv", "os.wait",
         "os.waitpid", "webbrowser", "antigravity", "torch.utils.cpp_extension._run_ninja_build")  # fmt: skip
WITH_LEAVE = ("multiprocessing", "concurrent.futures.ProcessPoolExecutor",
              "concurrent.futures.process", "joblib", "ray", "dask", "loky", "torch.distributed",
              "torch.nn.DataParallel", "torch.nn.parallel", "mpi4py", "billiard", "pathos")  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} starts or steers processes", *NEVER)
    leave = "side_effect" if change.allows("processes") else "refuse"
    hits += change.refuse_references(
        "{name} starts processes; the contract must allow `processes`", *WITH_LEAVE, action=leave
    )
    for file in change.python:
        for node in file.new(ast.keyword):
            if node.arg == "num_workers" and not (isinstance(node.value, ast.Constant) and node.value.value == 0):
                text = f"loader workers ({unparse(node)}) are processes; their CPU time counts with the job's"
                hits.append(file.hit("side_effect", node, text))
    return hits
