"""Helper threads finish work after the clock stops, and use more of the machine than the baseline does."""

from __future__ import annotations

from scripts.judge.change import Change, Hit

NAME = "threads"
WHY = "K1, K2, J12, J21: work in the background, or on cores that the baseline does not use"

STARTS = ("threading", "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.thread",
          "concurrent.futures", "asyncio", "multiprocessing.pool.ThreadPool", "multiprocessing.dummy",
          "torch.jit.fork", "torch.jit._fork", "torch.futures", "sched", "gevent", "eventlet", "trio",
          "anyio", "greenlet", "curio", "queue.SimpleQueue", "builtins.aiter")  # fmt: skip
SETS = ("torch.set_num_threads", "torch.set_num_interop_threads", "torch.backends.mkl.set_num_threads",
        "numba.set_num_threads", "mkl.set_num_threads", "threadpoolctl",
        "torch.__config__.parallel_info")  # fmt: skip


def check(change: Change) -> list[Hit]:
    action = "side_effect" if change.allows("threads") else "refuse"
    hits = []
    for file, name, node in change.refer(*STARTS):
        if name.startswith("concurrent.futures.process") or name.endswith("ProcessPoolExecutor"):
            continue  # the rule processes has it
        hits.append(file.hit(action, node, f"{name} starts threads; the contract must allow `threads`"))
    return hits + change.refuse_references(
        "{name} changes how many threads the job uses; the contract must allow `threads`", *SETS, action=action
    )
