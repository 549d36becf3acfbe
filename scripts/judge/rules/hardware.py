"""The same machine for both arms: no other device, no more devices, no other priority."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, called_name, constant_text, unparse

NAME = "hardware"
WHY = "J20, J21, J23: more hardware is a purchase and not an optimisation"

DEVICES = ("torch.cuda.is_available", "torch.cuda.device_count", "torch.mps", "torch.xpu",
           "torch.accelerator", "torch.device", "torch.cuda.get_device_name",
           "torch.cuda.get_device_properties", "torch.cuda.get_device_capability")  # fmt: skip
PRIORITY = (
    "os.sched_setparam",
    "os.setpriority",
    "os.sched_setaffinity",
    "torch.nn.DataParallel",
    "torch.cuda.set_per_process_memory_fraction",
)


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} asks for, or changes, the device", *DEVICES, action="review")
    hits += change.refuse_references("{name} takes more of the machine", *PRIORITY)
    for file in change.python:
        for node in file.new(ast.Call):
            if called_name(node) in ("to", "cuda", "device") and isinstance(node.func, ast.Attribute):
                target = constant_text(node.args[0]) if node.args else None
                before = file.before.text if file.before else ""
                if (
                    called_name(node) == "cuda" or (target or "").startswith(("cuda", "mps", "xpu", "cpu"))
                ) and "cuda" not in before:
                    hits.append(file.hit("refuse", node, f"{unparse(node)} moves the work to another device"))
    return hits
