"""Each rule of the guard on small pieces of code: what it must refuse, under disguises, and what it must let pass."""
# ruff: noqa: E501 (a case reads best as one line)

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

import pytest

from scripts.judge.change import Change, FileChange, Module, canonical
from scripts.judge.patchfile import parse
from scripts.judge.rules import rules

RULES = {rule.NAME: rule for rule in rules()}

BASE = """\
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        h = self.drop(F.gelu(self.fc(x)))
        for layer in self.layers:
            h = h + layer(h)
        return h


def evaluate(model, batches):
    model.eval()
    total = 0.0
    for x in batches:
        total += model(x).mean().item()
    model.train()
    return total / len(batches)


def train(model, batches, optimizer, log, steps=10):
    for step in range(steps):
        x = batches[step]
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.write(f"{step} {loss.item()}\\n")
        if step % 5 == 0:
            print(evaluate(model, batches))
            torch.save(model.state_dict(), "model.pt")
    return loss


def main(args):
    torch.manual_seed(args.seed)
    data = np.load(args.data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(args.log, "w") as log:
        train(model, list(loader), optimizer, log)
"""
LOOP = "        x = batches[step]\n"
TOP = "class Net(nn.Module):\n"
FORWARD = "        h = self.drop(F.gelu(self.fc(x)))\n"
SEED = "    torch.manual_seed(args.seed)\n"


def change(
    old: str, new: str, constraints: dict[str, Any] | None = None, base: str = BASE, name: str = "job.py"
) -> Change:
    """A change of one file by search and replace, as the guard hands it to rules."""
    assert base.count(old) == 1, f"{old!r} stands {base.count(old)} times"
    after = base.replace(old, new)
    body = "".join(difflib.unified_diff(base.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}"))
    patch = parse(f"diff --git a/{name} b/{name}\nindex 1111111..2222222 100644\n{body}")[0]
    file = FileChange(name, patch, base, after)
    if name.endswith(".py"):
        file.before, file.after = Module(name, base), Module(name, after)
    return Change([file], constraints or {}, {name: after}, frozenset([name]))


def actions(rule: str, old: str, new: str, **more: Any) -> set[str]:
    return {hit.action for hit in RULES[rule].check(change(old, new, **more))}


def refused_by(old: str, new: str, **more: Any) -> set[str]:
    made = change(old, new, **more)
    return {name for name, rule in RULES.items() if any(hit.action == "refuse" for hit in rule.check(made))}


def test_every_rule_names_itself_and_says_why() -> None:
    files = {path.stem for path in Path("scripts/judge/rules").glob("*.py")} - {"__init__"}
    assert set(RULES) == files and len(RULES) >= 35
    assert all(rule.WHY and rule.__doc__ for rule in RULES.values())


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("posix.system", "os.system"),
        ("torch.utils.data.os.fork", "os.fork"),
        ("_thread.start_new_thread", "threading.start_new_thread"),
        ("random._os.environ", "os.environ"),
        ("numpy.random.seed", "numpy.random.seed"),
        ("torch.signal.windows", "torch.signal.windows"),
        ("io.open", "builtins.open"),
    ],
)
def test_one_name_for_one_thing(written: str, means: str) -> None:
    assert canonical(written) == means


@pytest.mark.parametrize(
    "code",
    [
        "f = os.system\nf('x')",
        "f = g = os.system",
        "a, b = os.system, 1\na('x')",
        "def run(cmd, how=os.system):\n    how(cmd)",
        "run = lambda c, *, how=os.system: how(c)",
        "class C:\n    how = os.system",
        "getattr(os, 'system')('x')",
        "vars(os)['system']('x')",
        "os.__dict__['system']('x')",
        "__import__('os').system('x')",
        "import importlib\nimportlib.import_module('os').system('x')",
        "import sys\nsys.modules['os'].system('x')",
        "[os.system][0]('x')",
        "{'a': os.system}['a']('x')",
        "(os if True else None).system('x')",
        "import functools\nfunctools.partial(os.system, 'x')()",
        "import posix\nposix.system('x')",
        "from os import system as s\ns('x')",
        "(o := os).system('x')",
        "for f in (os.system,):\n    f('x')",
        "torch.utils.data.dataloader.os.system('x')",
        "globals()['os'].system('x')",
        "with open('x') as o, __import__('os') as p:\n    p.system('x')",
        "import os as _\n_.system('x')",
        "def m():\n    return os\n\n\nm().system('x')",
        "(lambda: os)().system('x')",
        "class M:\n    def get(self):\n        return torch.utils.data.dataloader.os\n\n\nM().get().system('x')",
    ],
)
def test_a_shell_is_found_under_every_name(code: str) -> None:
    assert "processes" in refused_by(TOP, f"{code}\n\n\n{TOP}"), code


BAD = [
    ("dynamic_code", TOP, "things = {'a': [os]}\nthings['a'][0].system('x')\n\n\n" + TOP),
    ("dynamic_code", TOP, "import functools\n\nfunctools.reduce(getattr, ['a'], torch)\n\n\n" + TOP),
    ("dynamic_code", LOOP, LOOP + "        x.unknown.os.getcwd()\n"),
    ("dynamic_code", LOOP, LOOP + "        helper(os)\n"),
    ("dynamic_code", LOOP, LOOP + "        x.helper._getframe()\n"),
    ("patched_modules", TOP, "time.time = lambda: 0\n\n\n" + TOP),
    ("patched_modules", TOP, "torch.Tensor.item = lambda self: 0.0\n\n\n" + TOP),
    ("patched_modules", TOP, "del torch.nn.functional.gelu\n\n\n" + TOP),
    ("patched_modules", TOP, "F.__dict__['gelu'] = F.relu\n\n\n" + TOP),
    ("patched_modules", TOP, "for F.gelu in [F.relu]:\n    pass\n\n\n" + TOP),
    ("patched_modules", TOP, "with torch.no_grad() as torch.nn.utils.x:\n    pass\n\n\n" + TOP),
    ("patched_modules", TOP, "setattr(nn.Module, 'train', lambda s: s)\n\n\n" + TOP),
    ("patched_modules", TOP, "object.__setattr__(F, 'gelu', F.relu)\n\n\n" + TOP),
    ("patched_modules", TOP, "def len(x):\n    return 1\n\n\n" + TOP),
    ("patched_modules", TOP, "import torch as os\n\n\nF = nn\n\n\n" + TOP),
    ("patched_modules", TOP, "import builtins\n\nbuiltins.print = None\n\n\n" + TOP),
    ("patched_modules", TOP, "import sys\n\nsys.modules['time'] = None\n\n\n" + TOP),
    ("method_override", LOOP, LOOP + "        optimizer.step = lambda: None\n"),
    ("method_override", LOOP, LOOP + "        loss_fn = model\n        loss_fn.forward = nn.Identity()\n"),
    ("method_override", LOOP, LOOP + "        optimizer.__class__ = object\n"),
    ("method_override", LOOP, LOOP + "        evaluate.__code__ = main.__code__\n"),
    ("method_override", LOOP, LOOP + "        model.__setattr__('step', None)\n"),
    ("timers", LOOP, LOOP + "        if time.time() > 0:\n            break\n"),
    ("timers", LOOP, LOOP + "        x = x if time.perf_counter() < 1 else x[:1]\n"),
    ("timers", LOOP, LOOP + "        time.sleep(1)\n"),
    ("timers", TOP, "class E(torch.cuda.Event):\n    pass\n\n\n" + TOP),
    ("frames", LOOP, LOOP + "        import inspect\n        s = inspect.stack()\n"),
    ("frames", LOOP, LOOP + "        f = (lambda: 0).__globals__\n"),
    ("frames", LOOP, LOOP + "        c = getattr(evaluate, '__closure__')\n"),
    ("frames", TOP, "import gc\n\nfound = gc.get_referrers(torch)\n\n\n" + TOP),
    ("environment", LOOP, LOOP + "        if 'X' in os.environ:\n            x = x[:1]\n"),
    ("environment", LOOP, LOOP + "        os.environ['LD_PRELOAD'] = 'x'\n"),
    ("environment", LOOP, LOOP + "        os.environ['OMP_' + 'NUM_THREADS'] = '2'\n"),
    ("environment", LOOP, LOOP + "        os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/var/x'\n"),
    ("environment", LOOP, LOOP + "        v = os.environ.setdefault('A', 'b')\n"),
    ("environment", LOOP, LOOP + "        import platform\n        n = platform.node()\n"),
    ("dynamic_code", LOOP, LOOP + "        eval('1')\n"),
    ("dynamic_code", LOOP, LOOP + "        getattr(model, 'st' + 'ep')()\n"),
    ("dynamic_code", LOOP, LOOP + "        name = 'step'\n        getattr(optimizer, name)()\n"),
    ("dynamic_code", LOOP, LOOP + "        compile('1', 'x', 'exec')\n"),
    ("dynamic_code", LOOP, LOOP + "        import pickle\n        pickle.loads(b'x')\n"),
    ("dynamic_code", LOOP, LOOP + "        globals().get('x')\n"),
    ("dynamic_code", LOOP, LOOP + "        object.__getattribute__(model, 'x')\n"),
    ("dynamic_code", TOP, "def __getattr__(name):\n    return 1\n\n\n" + TOP),
    ("threads", TOP, "import _thread\n\n_thread.start_new_thread(print, ())\n\n\n" + TOP),
    ("threads", TOP, "import asyncio\n\n\n" + TOP),
    ("threads", LOOP, LOOP + "        fut = torch.jit.fork(model, x)\n"),
    ("threads", TOP, "torch.set_num_threads(8)\n\n\n" + TOP),
    ("native_code", TOP, 'getattr(torch._C, "_set_num_threads", print)(8)\n\n\n' + TOP),
    ("native_code", TOP, "torch._C._setAllowTF32CuBLAS(True)\n\n\n" + TOP),
    ("frames", LOOP, LOOP + "        watched = bool(model._forward_pre_hooks)\n"),
    ("frames", LOOP, LOOP + '        watched = hasattr(optimizer.step, "__wrapped__")\n'),
    ("frames", LOOP, LOOP + "        evaluate.__defaults__ = (1,)\n"),
    ("threads", TOP, "import multiprocessing.pool as mp\n\npool = mp.ThreadPool(2)\n\n\n" + TOP),
    ("processes", TOP, "import multiprocessing\n\n\n" + TOP),
    ("processes", TOP, "from concurrent.futures import ProcessPoolExecutor\n\n\n" + TOP),
    ("processes", LOOP, LOOP + "        model = nn.DataParallel(model)\n"),
    ("processes", LOOP, LOOP + "        os.posix_spawn('/bin/true', [], {})\n"),
    ("network", TOP, "import socket\n\n\n" + TOP),
    ("network", TOP, "from http import client\n\n\n" + TOP),
    ("network", LOOP, LOOP + "        torch.hub.load('a/b', 'c')\n"),
    ("native_code", TOP, "import ctypes\n\n\n" + TOP),
    ("native_code", TOP, "import numpy.ctypeslib as c\n\n\n" + TOP),
    ("native_code", LOOP, LOOP + "        p = x.__array_interface__\n"),
    ("exit_hooks", TOP, "import atexit as a\n\na.register(print)\n\n\n" + TOP),
    ("exit_hooks", LOOP, LOOP + "        raise SystemExit\n"),
    ("exit_hooks", LOOP, LOOP + "        os._exit(0)\n"),
    ("exit_hooks", LOOP, LOOP + "        quit()\n"),
    ("exit_hooks", TOP, "import weakref\n\nweakref.finalize(torch, print)\n\n\n" + TOP),
    ("exit_hooks", TOP, "class L:\n    def __del__(self):\n        pass\n\n\n" + TOP),
    ("forged_output", LOOP, LOOP + "        os.write(1, b'x')\n"),
    ("forged_output", LOOP, LOOP + "        print('verdict: faster')\n"),
    ("forged_output", TOP, "import sys\n\nsys.stdout.write('x')\n\n\n" + TOP),
    ("forged_records", TOP, "import parity as p\n\n\n" + TOP),
    ("forged_records", TOP, "from torch.optim.optimizer import register_optimizer_step_post_hook as r\n\n\n" + TOP),
    ("forged_records", LOOP, LOOP + "        where = 'records/steps.jsonl'\n"),
    ("forged_records", LOOP, LOOP + "        torch.nn.modules.module._global_forward_hooks.clear()\n"),
    ("imports", TOP, "import unheard_of\n\n\n" + TOP),
    ("imports", TOP, "from math import *\n\n\n" + TOP),
    ("imports", TOP, "import turtle\n\n\n" + TOP),
    ("fallback", FORWARD, "        try:\n            h = fast(x)\n        except Exception:\n            h = self.drop(F.gelu(self.fc(x)))\n"),
    ("fallback", FORWARD, "        try:\n            h = fast(x)\n        except (RuntimeError, KeyError):\n            h = self.drop(F.gelu(self.fc(x)))\n"),
    ("fallback", FORWARD, "        try:\n            h = self.drop(F.gelu(self.fc(x)))\n        except:\n            return x\n"),
    ("fallback", FORWARD, "        import contextlib as c\n        with c.suppress(RuntimeError):\n            h = 1\n" + FORWARD),
    ("earlier_results", SEED, SEED + "    old = open('model.pt', 'rb').read()\n"),
    ("earlier_results", SEED, SEED + "    old = torch.load('model.pt')\n"),
    ("earlier_results", SEED, SEED + "    old = np.memmap('/tmp/x')\n"),
    ("earlier_results", SEED, SEED + "    r = open\n    old = r('/tmp/x')\n"),
    ("earlier_results", SEED, SEED + "    import pathlib\n    old = pathlib.Path('x').read_text()\n"),
    ("earlier_results", SEED, SEED + "    if os.path.exists('model.pt'):\n        return\n"),
    ("earlier_results", SEED, SEED + "    import shutil\n    shutil.copy('a', 'b')\n"),
    ("earlier_results", SEED, SEED + "    import json\n    old = json.load(open(0))\n"),
    ("disk_cache", SEED, SEED + "    np.save('/tmp/x.npy', 1)\n"),
    ("disk_cache", SEED, SEED + "    open('cache', 'ab').close()\n"),
    ("disk_cache", SEED, SEED + "    import tempfile\n"),
    ("disk_cache", SEED, SEED + "    import pathlib\n    pathlib.Path('x').write_bytes(b'')\n"),
    ("disk_cache", SEED, SEED + "    from joblib import Memory\n"),
    ("output_cache", FORWARD, FORWARD + "        key = x.data_ptr()\n"),
    ("output_cache", FORWARD, FORWARD + "        key = id(x), x._version\n"),
    ("output_cache", FORWARD, FORWARD + "        if self.last is x:\n            h = self.out\n"),
    ("output_cache", FORWARD, FORWARD + "        k = float(x.mean())\n        h = self.memo.get(k, h)\n"),
    ("output_cache", FORWARD, FORWARD + "        h = self.memo.setdefault(x[0, :4].numpy().tobytes(), h)\n"),
    ("output_cache", FORWARD, FORWARD + "        k = f'{x[0].item()}'\n        if k in self.memo:\n            h = self.memo[k]\n"),
    ("output_cache", "    def forward(self, x):\n", "    @__import__('functools').lru_cache\n    def forward(self, x):\n"),
    ("seeds", SEED, "    torch.manual_seed(1)\n"),
    ("seeds", SEED, ""),
    ("seeds", SEED, SEED + "    np.random.seed(0)\n"),
    ("seeds", SEED, SEED + "    s = torch.manual_seed\n    s(3)\n"),
    ("seeds", SEED, "    args.seed += 1\n" + SEED),
    ("seeds", SEED, SEED + "    g = torch.Generator()\n"),
    ("reporting", "            print(evaluate(model, batches))\n", "            print(0)\n"),
    ("reporting", "            print(evaluate(model, batches))\n", "            if step > 3:\n                print(evaluate(model, batches))\n"),
    ("reporting", "            print(evaluate(model, batches))\n", "            step > 3 and print(evaluate(model, batches))\n"),
    ("reporting", "            torch.save(model.state_dict(), \"model.pt\")\n", ""),
    ("reporting", '            torch.save(model.state_dict(), "model.pt")\n    return loss\n', '    torch.save(model.state_dict(), "model.pt")\n    return loss\n'),
    ("training_calls", "        optimizer.step()\n", ""),
    ("training_calls", "        optimizer.step()\n", "        if step % 2:\n            optimizer.step()\n"),
    ("training_calls", "        optimizer.step()\n", "        step % 2 and optimizer.step()\n"),
    ("training_calls", "        optimizer.step()\n", "        optimizer.step() if loss > 0 else None\n"),
    ("training_calls", "        optimizer.step()\n", "        [optimizer.step() for _ in () if loss]\n"),
    ("training_calls", "        optimizer.step()\n", "        for _ in ():\n            optimizer.step()\n"),
    ("training_calls", "        optimizer.step()\n", "        for _ in range(step % 2):\n            optimizer.step()\n"),
    ("training_calls", "            dist.all_reduce(p.grad)\n", "            pass\n"),
    ("training_calls", "            dist.all_reduce(p.grad)\n", "            if p.ndim > 1:\n                dist.all_reduce(p.grad)\n"),
    ("training_calls", LOOP, LOOP + "        if step > 5:\n            continue\n"),
    ("training_calls", "    for step in range(steps):\n", "    for step in range(steps // 2):\n"),
    ("training_calls", "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
    ("work_amount", "steps=10", "steps=5"),
    ("work_amount", "batch_size=8", "batch_size=4"),
    ("work_amount", "lr=1e-3", "lr=2e-3"),
    ("work_amount", "width=64", "width=32"),
    ("work_amount", SEED, SEED + "    args.steps = 2\n"),
    ("work_amount", SEED, SEED + "    n = min(args.steps, 2)\n"),
    ("training_mode", LOOP, LOOP + "        model.eval()\n"),
    ("training_mode", LOOP, LOOP + "        model.train(False)\n"),
    ("training_mode", "    model.train()\n", ""),
    ("training_mode", FORWARD, "        h = F.gelu(self.fc(x))\n"),
    ("training_mode", FORWARD, "        h = self.drop(F.gelu(self.fc(x.detach())))\n"),
    ("training_mode", FORWARD, "        with torch.no_grad():\n            h = self.drop(F.gelu(self.fc(x)))\n"),
    ("training_mode", "def train(", "@torch.no_grad()\ndef train("),
    ("training_mode", LOOP, LOOP + "        model.fc.weight.requires_grad = False\n"),
    ("training_mode", LOOP, LOOP + "        model.fc.requires_grad_(False)\n"),
    ("frozen_parameters", "torch.optim.AdamW(model.parameters(), lr=1e-3)", "torch.optim.SGD(model.parameters(), lr=1e-3)"),
    ("frozen_parameters", "AdamW(model.parameters()", "AdamW([p for p in model.parameters() if p.ndim > 1]"),
    ("frozen_parameters", "AdamW(model.parameters()", "AdamW(model.fc.parameters()"),
    ("data_order", "shuffle=True", "shuffle=False"),
    ("data_order", "batch_size=8", "batch_size=8, drop_last=True"),
    ("data_order", SEED, SEED + "    order = torch.randperm(8)\n"),
    ("unlaunched_kernels", TOP, "import triton\n\n\n@triton.jit\ndef fast(p):\n    return\n\n\n" + TOP),
    ("unlaunched_kernels", TOP, "class Fast(torch.autograd.Function):\n    pass\n\n\n" + TOP),
    ("unlaunched_kernels", FORWARD, FORWARD + "        if False:\n            h = h * 2\n"),
    ("unlaunched_kernels", FORWARD, FORWARD + "        if 1 > 2:\n            h = h * 2\n"),
    ("unlaunched_kernels", TOP, "def a():\n    return b()\n\n\ndef b():\n    return a()\n\n\n" + TOP),
    ("empty_outputs", "        return h\n", "        return torch.empty_like(h)\n"),
    ("empty_outputs", "        return h\n", "        out = torch.empty(h.shape)\n        return out\n"),
    ("empty_outputs", "        return h\n", "        return h.new_empty(h.shape).contiguous()\n"),
    ("empty_outputs", FORWARD, FORWARD + "        h = h + np.empty(3)\n"),
    ("returned_inputs", "    def forward(self, x):\n", "    def forward(self, x):\n        return x\n"),
    ("returned_inputs", "        return h\n", "        return x.clone()\n"),
    ("returned_inputs", "        return h\n", "        return x * 1.0 + 0\n"),
    ("returned_inputs", TOP, "def norm(x):\n    return x.view(-1).contiguous()\n\n\n" + TOP),
    ("returned_inputs", TOP, "norm = lambda x: x\n\n\n" + TOP),
    ("returned_inputs", "        self.fc = nn.Linear(width, width)\n", "        self.fc = nn.Identity()\n"),
    ("constants", "    return total / len(batches)\n", "    return 0.5\n"),
    ("constants", "    return total / len(batches)\n", "    answer = torch.tensor(0.5)\n    return answer\n"),
    ("constants", "        loss = model(x).square().mean()\n", "        loss = torch.zeros((), requires_grad=True)\n"),
    ("constants", TOP, "TABLE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]\n\n\n" + TOP),
    ("constants", TOP, f"TABLE = b'{'x' * 80}'\n\n\n" + TOP),
    ("constants", FORWARD, FORWARD + "        h = h * 0\n"),
    ("constants", "    return total / len(batches)\n", "    total / len(batches)\n"),
    ("input_dispatch", FORWARD, FORWARD + "        if x.shape[0] == 8:\n            return h\n"),
    ("input_dispatch", FORWARD, FORWARD + "        if x.numel() in (64, 128):\n            return h\n"),
    ("input_dispatch", FORWARD, FORWARD + "        if x.abs().max() < 3:\n            return h\n"),
    ("input_dispatch", FORWARD, FORWARD + "        h = h if torch.allclose(x, h) else h * 2\n"),
    ("input_dispatch", LOOP, LOOP + "        if step > 8:\n            x = x[:1]\n"),
    ("input_dispatch", LOOP, LOOP + "        x = batches[0] if step % 3 else x\n"),
    ("lying_objects", TOP, "class T(torch.Tensor):\n    pass\n\n\n" + TOP),
    ("lying_objects", TOP, "class L(float):\n    pass\n\n\n" + TOP),
    ("lying_objects", TOP, "L = type('L', (float,), {})\n\n\n" + TOP),
    ("lying_objects", TOP, "class L:\n    def __float__(self):\n        return 0.1\n\n\n" + TOP),
    ("lying_objects", TOP, "class M(type):\n    pass\n\n\nclass L(metaclass=M):\n    pass\n\n\n" + TOP),
    ("streams", LOOP, LOOP + "        s = torch.cuda.Stream()\n"),
    ("precision", LOOP, LOOP + "        model = torch.ao.quantization.quantize_dynamic(model)\n"),
    ("subset", "in self.layers:", "in self.layers[:2]:"),
    ("hidden_text", LOOP, LOOP + "        y = 1  # \u202e reversed\n"),
    ("hidden_text", LOOP, LOOP + "        \u0440 = x\n        x = \u0440\n"),
    ("hardware", LOOP, LOOP + "        model = model.cuda()\n"),
    ("hardware", LOOP, LOOP + "        x = x.to('cuda:1')\n"),
    ("inputs_modified", "    def forward(self, x):\n", "    def forward(self, x, targets=None):\n        targets.zero_()\n"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "old", "new"), BAD, ids=[f"{i}-{entry[0]}" for i, entry in enumerate(BAD)])
def test_a_rule_refuses(rule: str, old: str, new: str) -> None:
    assert "refuse" in actions(rule, old, new), sorted(refused_by(old, new))


def test_settings_that_the_contract_opens_keep_to_their_declared_values() -> None:
    declared = {"knobs_file": "knobs.json", "knobs": [{"name": "workers", "values": [0, 2]}]}
    before = '{"workers": 0, "steps": 8}\n'
    cases = {'{"workers": 2, "steps": 8}\n': set(), '{"workers": 9, "steps": 8}\n': {"refuse"}}
    cases['{"workers": 0, "steps": 4}\n'] = {"refuse"}
    for after, expected in cases.items():
        made = change(before, after, base=before, name="knobs.json")
        made.declared = declared
        assert {hit.action for hit in RULES["knobs"].check(made)} == expected, after


def test_every_rule_has_a_case_that_it_refuses() -> None:
    elsewhere = {"global_flags", "removed_checks", "shadowed_modules", "knobs"}  # below, or in the red team
    assert {rule for rule, _, _ in BAD} | elsewhere == set(RULES)


HONEST = [
    (LOOP, LOOP + "        x = x.time.inspect\n"),
    (FORWARD, FORWARD + "        h = h + getattr(self, f\"bias_{len(self.layers)}\")\n"),
    (SEED, SEED + "    os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\"\n"),
    ("    data = np.load(args.data)\n", "    data = np.load(args.data)\n    data = data - np.log(2)\n"),
    (FORWARD, "        h = self.drop(F.gelu(F.linear(x, self.fc.weight, self.fc.bias)))\n"),
    ("lr=1e-3)", "lr=1e-3, fused=True)"),
    ("shuffle=True)", "shuffle=True, pin_memory=True)"),
    (SEED, SEED + "    torch.backends.cudnn.benchmark = True\n"),
    ("    model = Net()\n", "    model = torch.compile(Net())\n"),
    ("    model = Net()\n", '    model = Net()\n    model.forward = torch.compile(model.forward, mode="reduce-overhead")\n'),
    ("    model = Net()\n", "    model = Net().to(memory_format=torch.channels_last)\n"),
    ("def evaluate(", "@torch.inference_mode()\ndef evaluate("),
    ("    for x in batches:\n        total += model(x).mean().item()\n", "    with torch.no_grad():\n        for x in batches:\n            total += model(x).mean().item()\n"),
    ("        total += model(x).mean().item()\n", "        total = total + model(x).mean().double()\n"),
    (FORWARD, FORWARD + "        out = torch.empty_like(h)\n        torch.add(h, 0, out=out)\n        h = out\n"),
    (FORWARD, FORWARD + "        out = h.new_empty(h.shape)\n        out.copy_(h)\n        h = out\n"),
    (FORWARD, FORWARD + "        out = torch.empty_like(h)\n        out[:] = h\n        h = out\n"),
    (FORWARD, "        import functools\n\n        @functools.lru_cache\n        def mask(size):\n            return torch.ones(size).tril()\n\n        h = self.drop(F.gelu(self.fc(x))) + mask(x.shape[-1])\n"),
    (FORWARD, "        key = (tuple(x.shape), x.dtype, x.device)\n        if key not in self.buffers:\n            self.buffers[key] = torch.zeros_like(x)\n        self.buffers[key].copy_(x)\n" + FORWARD),
    ("    data = np.load(args.data)\n", '    data = np.load(args.data, mmap_mode="r")\n'),
    (TOP, "import math\nfrom collections import deque\n\n\n" + TOP),
    (LOOP, "        x = batches[step].contiguous()\n"),
    (FORWARD, "        h = F.dropout(F.gelu(self.fc(x)), self.drop.p, self.training)\n"),
    ("        optimizer.zero_grad()\n", "        optimizer.zero_grad(set_to_none=True)\n"),
    (FORWARD, FORWARD + "        if x.device.type == \"cuda\" and h.is_contiguous():\n            h = h.contiguous()\n"),
    ("    for step in range(steps):\n" + LOOP, "    for step, x in enumerate(batches):\n"),
    (LOOP, "        try:\n            x = next(batches)\n        except StopIteration:\n            batches = iter(batches)\n            x = next(batches)\n"),
    (LOOP, LOOP + "        with torch.autocast('cuda', dtype=torch.bfloat16):\n            model(x)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), HONEST, ids=range(len(HONEST)))
def test_no_rule_refuses_honest_code(old: str, new: str) -> None:
    assert refused_by(old, new) == set()


def test_permissions_of_the_contract_open_what_they_name() -> None:
    pool = TOP, "from concurrent.futures import ThreadPoolExecutor\n\npool = ThreadPoolExecutor(1)\n\n\n" + TOP
    assert "threads" in refused_by(*pool)
    assert refused_by(*pool, constraints={"allow": ["threads"]}) == set()
    order = "shuffle=True", "shuffle=False"
    assert "data_order" in refused_by(*order)
    assert "data_order" not in refused_by(*order, constraints={"allow": ["data_order"]})
    cache = SEED, SEED + "    np.save('x.npy', 1)\n"
    assert "disk_cache" in refused_by(*cache)
    assert refused_by(*cache, constraints={"allow": ["disk_cache"]}) == set()


def test_a_global_flag_is_a_side_effect_unless_the_contract_forbids_it() -> None:
    for flag in (
        "torch.backends.cudnn.benchmark = True",
        "torch.set_float32_matmul_precision('high')",
        "b = torch.backends\n    b.cudnn.benchmark = True",
    ):
        edit = SEED, SEED + f"    {flag}\n"
        assert "side_effect" in actions("global_flags", *edit), flag
        assert actions("global_flags", *edit, constraints={"forbid": ["global_flags"]}) == {"refuse"}, flag


def test_loader_workers_are_reported() -> None:
    assert actions("processes", "batch_size=8", "batch_size=8, num_workers=2") == {"side_effect"}


def test_a_removed_finite_check_is_refused_and_another_one_reviewed() -> None:
    base = "def f(x):\n    assert x.ndim == 2\n    assert x.isfinite().all()\n    return x.sum()\n"
    assert actions("removed_checks", "    assert x.isfinite().all()\n", "", base=base) == {"refuse"}
    assert actions("removed_checks", "    assert x.ndim == 2\n", "", base=base) == {"review"}


def test_settings_of_the_work_in_data_files_are_refused_but_not_those_of_the_machine() -> None:
    base = "model:\n  n_layer: 4\nloader:\n  num_workers: 0\n"
    assert actions("work_amount", "n_layer: 4", "n_layer: 2", base=base, name="c.yaml") == {"refuse"}
    assert actions("work_amount", "num_workers: 0", "num_workers: 4", base=base, name="c.yaml") == set()


@pytest.mark.parametrize(
    "call",
    [
        'std::system("x");',
        'getenv("HOME");',
        "cudaCtxResetPersistingL2Cache();",
        "std::thread t(f);",
        "clock_gettime(0, &t);",
    ],
)
def test_native_sources_stay_with_the_kernel(call: str) -> None:
    base = "__global__ void k(float* x) { x[0] = 1; }\n"
    assert actions("native_code", base, base + call + "\n", base=base, name="k.cu") == {"refuse"}
    assert actions("native_code", base, base + "__syncthreads();\n", base=base, name="k.cu") == set()


def test_a_launched_kernel_is_not_a_decoy() -> None:
    kernel = (
        "import triton\n\n\n@triton.jit\ndef fast(p):\n    return\n\n\ndef launch(x):\n    fast[(1,)](x)\n    return x.sum()\n\n\n"
        + TOP
    )
    made = BASE.replace(TOP, kernel)
    assert "unlaunched_kernels" not in refused_by(FORWARD, FORWARD + "        h = h + launch(h)\n", base=made)


def test_moved_code_is_not_new_code() -> None:
    base = "import os\n\n\ndef f():\n    os.system('x')\n    return 1\n"
    assert refused_by(
        "    os.system('x')\n    return 1\n",
        "    with open('x') as _:\n        os.system('x')\n    return 1\n",
        base=base,
    ) <= {"earlier_results"}
    assert "processes" in refused_by("    return 1\n", "    os.system('x')\n    return 1\n", base=base)


def test_a_log_in_one_piece_is_for_review_and_no_refusal() -> None:
    base = "def train(n, log, step):\n    for i in range(n):\n        loss = step(i)\n        log.write(f'{i} {loss.item()}')\n        print(i, loss.item())\n"
    new = "        rows.append((i, loss.detach()))\n    for i, loss in rows:\n        log.write(f'{i} {loss.item()}')\n        print(i, loss.item())\n"
    old = "        log.write(f'{i} {loss.item()}')\n        print(i, loss.item())\n"
    assert actions("reporting", old, new, base=base) <= {"review"}
    assert "refuse" in actions("reporting", old, "        print(i, loss.item())\n", base=base)


def test_names_are_followed_through_scopes_that_only_look_like_them() -> None:
    module = Module("x.py", "def f(exec):\n    return exec\n\n\nexec('1')\n")
    calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call)]
    inner = next(n for n in ast.walk(module.tree) if isinstance(n, ast.Return)).value
    assert module.names.resolve(calls[0].func) == {"builtins.exec"}
    assert module.names.resolve(inner) == frozenset()


def test_padding_to_the_longest_row_is_no_smaller_job() -> None:
    base = "def main(tokenizer, prompts, n):\n    return tokenizer(prompts, padding='max_length', max_length=n)\n"
    assert refused_by("padding='max_length'", "padding='longest'", base=base) == set()
    assert refused_by("padding='max_length'", "padding=True", base=base) <= {"work_amount"}
    assert "work_amount" in refused_by("max_length=n", "max_length=8", base=base)


def test_a_logarithm_is_no_log() -> None:
    base = "import math\n\nimport torch\n\n\ndef f(x):\n    return math.log(2) + torch.log(x).log_softmax(-1)\n"
    assert refused_by("math.log(2) + torch.log(x).log_softmax(-1)", "x.softmax(-1)", base=base) == set()


@pytest.mark.parametrize(
    "line", ["hook: !!python/object/apply:os.system [x]", "optimizer: {_target_: os.system}", "class_path: a.b"]
)
def test_a_data_file_names_no_code(line: str) -> None:
    assert actions("dynamic_code", "a: 1\n", f"a: 1\n{line}\n", base="a: 1\n", name="c.yaml") == {"refuse"}
