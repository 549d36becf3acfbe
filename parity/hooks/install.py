"""Arms the hooks: seeds, a post-import hook on torch (and numpy, for its seed), coverage, and the files written at
exit.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Dict

PROCESS_START_NS = time.monotonic_ns()
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arm() -> None:
    """Called once at interpreter start, in every Python process of the job."""
    from parity.hooks import options

    chosen = options.read()
    after: Dict[str, Callable[[Any], None]] = {}
    if chosen.seed is not None:
        seed = chosen.seed + int(os.environ.get("RANK", "0") or 0)
        import random

        random.seed(seed)
        after["numpy"] = lambda numpy: numpy.random.seed(seed % 2**32)
        after["torch"] = lambda torch: _torch(torch, chosen, seed)
    else:
        after["torch"] = lambda torch: _torch(torch, chosen, None)
    if chosen.cover:
        from parity.hooks import coverage

        coverage.start(chosen)
        after["torch._dynamo.symbolic_convert"] = coverage.watch_dynamo
    sys.meta_path.insert(0, AfterImport(after))


def _torch(torch: Any, chosen: Any, seed: Any) -> None:
    from parity import recorder
    from parity.hooks import session

    if seed is not None:
        torch.manual_seed(seed)
    if chosen.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    recorder._bind()
    session.install(torch, chosen, PROCESS_START_NS)
    hide_from_dynamo(torch)


def hide_from_dynamo(torch: Any) -> None:
    """Mark our functions as code that dynamo leaves alone.

    Under `module.compile()` dynamo looks at every frame below `Module._call_impl`, hooks included, and would compile
    them into nothing (in a trace they return at once). Costs no import of dynamo.
    """
    skip = getattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "skip_code", None)
    if skip is None:
        return
    seen = set()
    for name, module in list(sys.modules.items()):
        if name != "parity" and not name.startswith("parity."):
            continue
        for thing in list(vars(module).values()):
            members = vars(thing).values() if isinstance(thing, type) else [thing]
            todo = [getattr(getattr(member, "__func__", member), "__code__", None) for member in members]
            while todo:
                code = todo.pop()
                if code is not None and code not in seen and code.co_filename.startswith(FOLDER):
                    seen.add(code)
                    skip(code)
                    todo += [constant for constant in code.co_consts if hasattr(constant, "co_code")]


class AfterImport:
    """A meta-path finder that lets the real ones find the named modules and calls back when each has been executed."""

    def __init__(self, calls: Dict[str, Callable[[Any], None]]) -> None:
        self.calls = calls

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        call = self.calls.pop(name, None)
        if call is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:
                _call_after(spec.loader, call)
                return spec
        return None


def _call_after(loader: Any, call: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        try:
            call(module)
        except Exception as error:  # the job goes on, unrecorded, and stderr says so
            print("parity: not recording: %s: %s" % (type(error).__name__, error), file=sys.stderr)

    loader.exec_module = exec_module
