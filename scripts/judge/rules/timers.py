"""The clock belongs to the launcher; new code has no reason to ask for the time, and none to wait."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, unparse

NAME = "timers"
WHY = "K4, K31, J1: work that stops when a clock says so, or waits to look slow, is not the declared work"

CLOCKS = ("time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
          "time.monotonic_ns", "time.process_time", "time.process_time_ns", "time.thread_time",
          "time.clock_gettime", "time.clock_gettime_ns", "os.times", "datetime.datetime.now",
          "datetime.datetime.utcnow", "datetime.datetime.today", "timeit", "resource.getrusage",
          "torch.cuda.Event", "torch.utils.benchmark", "time.localtime", "time.gmtime",
          "time.strftime", "time.ctime")  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} makes the job wait", "time.sleep", "threading.Event().wait")
    for file, name, node in change.refer(*CLOCKS, "time.*"):
        assert file.after is not None
        conditions = (ast.If, ast.While, ast.IfExp, ast.Compare, ast.Assert)
        if name == "time.*" or any(isinstance(parent, conditions) for parent in file.after.above(node)):
            hits.append(file.hit("refuse", node, f"a decision depends on {name}"))
        else:
            hits.append(file.hit("review", node, f"reads a clock: {name}"))
    for file in change.python:
        hits += [
            file.hit("refuse", node, f"class {node.name} stands in for a clock: {unparse(base)}")
            for node in file.new(ast.ClassDef)
            for base in node.bases
            if file.after and any(n.endswith(("cuda.Event", "cuda.Stream")) for n in file.after.names.resolve(base))
        ]
    return hits
