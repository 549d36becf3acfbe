"""The structure of a job as one of its steps shows it: `modules.json`.

The module tree (classes, where they and their forwards are written, where they are called from, parameters, shapes,
calls, forward and backward time), the loss, the optimizers, the loader, compiled regions, and each copy to or from
the device and each call that makes the host wait, with its place in the source. Watches steps 0 and 1 and keeps the
later one, which is warm. Times are host times on CPU and CUDA-event times on a GPU; hooks make them a little larger
than they are without. A module instance that is used twice, or re-enters from a checkpoint, is one row with its calls
summed.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from parity import recorder
from parity.hooks import batches
from parity.hooks.windows import Window

SCHEMA = "parity/modules@1"
LAST_STEP = 1
WAITING = ("item", "tolist", "cpu", "cuda", "to", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Structure(Window):
    """Collects while it watches, describes at the end."""

    needs_modules = True

    def __init__(self, session: Any) -> None:
        self.session = session
        self.torch = session.torch
        self.watching = False
        self.kept: Optional[Dict[str, Any]] = None
        self.known: Dict[
            int, Tuple[Any, Dict[str, Any]]
        ] = {}  # what a module is, found once so that step 1 is not slowed
        self.loader: Optional[Dict[str, Any]] = None
        self.places = Places(session.options.tree)
        self.originals: List[Tuple[Any, str, Any]] = []

    def begins(self, step: int) -> None:
        if step > LAST_STEP:
            return
        self.rows: Dict[int, Dict[str, Any]] = {}
        self.order: List[Any] = []  # (weak reference, row)
        self.open: List[Tuple[Any, Any]] = []
        self.spans: List[Tuple[Dict[str, Any], str, Any, Any]] = []
        self.transfers: Dict[Any, Dict[str, Any]] = {}
        self.loss: Optional[Dict[str, Any]] = None
        self.step = step
        self.watching = True
        if not self.originals:
            self._watch_transfers()

    def ends(self, step: int) -> None:
        if self.watching and (self.rows or self.loss):
            self.kept = self._describe()
        if step >= LAST_STEP:
            self._stop()

    def close(self) -> None:
        if self.watching and self.kept is None and (self.rows or self.loss):
            self.kept = self._describe()
        self._stop()
        if self.kept is None:
            self.session.ledger.unseen.add("structure")
            return
        if recorder._recorder.claim():
            self._write()

    # calls

    def module_begins(self, module: Any, args: Any) -> None:
        if not self.watching:
            return
        row = self.rows.get(id(module))
        if row is None:
            row = self._row(module)
        self.open.append((module, self._now()))

    def module_ended(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not self.watching or not self.open:
            return
        while self.open:
            began, start = self.open.pop()
            if began is module:
                break
        else:
            return
        row = self.rows[id(module)]
        self.spans.append((row, "forward_ms", start, self._now()))
        row["calls"] += 1
        if self.session._inside_backward():
            row["recomputed"] += 1
        if row["inputs"] is None:
            row["inputs"] = _shapes(self.torch, list(args) + list((kwargs or {}).values()))
            row["outputs"] = _shapes(self.torch, [output])
        self._watch_backward(row, args, kwargs, output)

    def backward_begins(self, tensors: List[Any]) -> None:
        if not self.watching or not tensors:
            return
        node = getattr(tensors[0], "grad_fn", None)
        self.loss = {"function": type(node).__name__ if node is not None else None, "backward": self.places.caller()}

    def loaded(self, iterator: Any, data: Any) -> None:
        if not self.watching and self.loader is not None:
            return
        get = lambda name: getattr(iterator, name, None)  # noqa: E731
        dataset, sampler, collate = get("_dataset"), get("_index_sampler"), get("_collate_fn")
        self.loader = {
            "class": type(iterator).__name__,
            "dataset": type(dataset).__name__,
            "dataset_source": self.places.of(type(dataset)),
            "sampler": type(getattr(sampler, "sampler", sampler)).__name__,
            "batch_size": getattr(sampler, "batch_size", None),
            "workers": get("_num_workers"),
            "pin_memory": get("_pin_memory"),
            "prefetch_factor": get("_prefetch_factor"),
            "persistent_workers": get("_persistent_workers"),
            "drop_last": get("_drop_last"),
            "collate": getattr(collate, "__qualname__", type(collate).__name__),
            "batch": _shapes(self.torch, [data]),
            "call_site": self.places.caller(),
        }

    # collecting

    def _row(self, module: Any) -> Dict[str, Any]:
        known = self.known.get(id(module))
        if known is None or known[0]() is not module:
            known = self.known[id(module)] = (weakref.ref(module), self._static(module))
        row = dict(
            known[1],
            parent=self.rows[id(self.open[-1][0])]["id"] if self.open else None,
            id=len(self.order),
            training=bool(module.training),
            inputs=None,
            outputs=None,
            calls=0,
            recomputed=0,
            forward_ms=0.0,
            backward_ms=None,
        )
        self.rows[id(module)] = row
        self.order.append((known[0], row))
        return row

    def _static(self, module: Any) -> Dict[str, Any]:
        own = list(module.parameters(recurse=False))
        everything = list(module.parameters())
        kind = type(module)
        return {
            "class": kind.__qualname__,
            "module": kind.__module__,
            "source": self.places.of(kind),
            "forward": self.places.of(getattr(kind, "forward", None)),
            "call_site": self.places.caller(),
            "own_parameters": sum(p.numel() for p in own),
            "parameters": sum(p.numel() for p in everything),
            "trainable": sum(p.numel() for p in everything if p.requires_grad),
            "dtypes": sorted({str(p.dtype).replace("torch.", "") for p in own}),
            "devices": sorted({str(p.device) for p in own}),
            "compiled": kind.__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None,
        }

    def _watch_backward(self, row: Dict[str, Any], args: Any, kwargs: Any, output: Any) -> None:
        """Backward time: from the first gradient of an output to the last gradient of an input. Tensor hooks change no
        value.
        """
        torch = self.torch
        outs = [t for _, t in batches.leaves(torch, output) if t.requires_grad and t.grad_fn is not None]
        ins = [
            t for _, t in batches.leaves(torch, [list(args), kwargs or {}]) if t.requires_grad and t.grad_fn is not None
        ]
        if not outs or not ins or self.session._inside_backward():
            return
        began: List[Any] = []

        def first(_: Any) -> None:
            if self.watching and not began:
                began.append(self._now())

        def last(_: Any) -> None:
            if self.watching and began:
                self.spans.append((row, "backward_ms", began[0], self._now()))

        outs[0].register_hook(first)
        ins[0].register_hook(last)

    def _now(self) -> Any:
        cuda = self.torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def _watch_transfers(self) -> None:
        tensor = self.torch.Tensor
        for name in WAITING:
            self._wrap(tensor, name, self._transfer)
        self._wrap(self.torch.cuda, "synchronize", self._transfer)

    def _wrap(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        had = owner.__dict__.get(name)
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if recorder._compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if sys._getframe(1).f_code.co_filename.startswith(OURS):  # ours, not the job's
                return result
            try:
                note(name, args, result)
            except Exception as error:
                recorder._recorder.fail("hook.structure", None, "%s: %s" % (type(error).__name__, error))
            return result

        setattr(owner, name, wrapper)
        self.originals.append((owner, name, had))

    def _transfer(self, name: str, args: Any, result: Any) -> None:
        if not self.watching:
            return
        source = args[0] if args and isinstance(args[0], self.torch.Tensor) else None
        if isinstance(result, self.torch.Tensor) and source is not None:
            if result is source or (result.device == source.device and name != "nonzero"):
                return
            direction = "%s->%s" % (source.device.type, result.device.type)
            pinned = (
                bool(source.device.type == "cpu" and source.is_pinned()) if self.torch.cuda.is_initialized() else None
            )
            size = result.numel() * result.element_size()
        else:
            direction, pinned = "host waits", None
            size = source.element_size() if source is not None else 0
        place = self.places.caller()
        if place is None:
            return
        key = (name, direction, place["path"], place["line"])
        row = self.transfers.setdefault(
            key,
            {
                "call": name,
                "direction": direction,
                "call_site": place,
                "device": source.device.type if source is not None else None,
                "pinned": pinned,
                "bytes": 0,
                "calls": 0,
            },
        )
        row["calls"] += 1
        row["bytes"] += size

    def _stop(self) -> None:
        self.watching = False
        for owner, name, had in self.originals:
            if had is None:
                delattr(owner, name)
            else:
                setattr(owner, name, had)
        self.originals = []

    # the description

    def _describe(self) -> Dict[str, Any]:
        return {
            "step": self.step,
            "order": self.order,
            "spans": self.spans,
            "transfers": list(self.transfers.values()),
            "loss": self.loss,
        }

    def _write(self) -> None:
        import json

        kept = self.kept or {}
        if self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        for row, field, start, end in kept["spans"]:
            spent = start.elapsed_time(end) if hasattr(start, "elapsed_time") else (end - start) * 1e3
            row[field] = (row[field] or 0.0) + spent
        names = self._names(kept["order"])
        modules = [dict({"name": name}, **row) for name, (_, row) in zip(names, kept["order"])]
        document = {
            "schema": SCHEMA,
            "step": kept["step"],
            "timing": "cuda events" if self.torch.cuda.is_initialized() else "host",
            "modules": modules,
            "loss": kept["loss"],
            "optimizers": self._optimizers(),
            "loader": self.loader,
            "transfers": kept["transfers"],
            "compile": self._compile(modules),
        }
        with open(recorder._recorder.output("modules.json"), "w", encoding="utf-8") as file:
            json.dump(recorder._strict(document), file, indent=1)
            file.write("\n")

    @staticmethod
    def _names(order: List[Any]) -> List[str]:
        """Qualified names under the roots: `root`, `root.layers.0`, a second root `root1`."""
        names: Dict[int, str] = {}
        roots = 0
        for reference, row in order:
            module = reference()
            if row["parent"] is None and module is not None and id(module) not in names:
                prefix = "root" if roots == 0 else "root%d" % roots
                roots += 1
                for name, inner in module.named_modules():
                    names.setdefault(id(inner), prefix + ("." + name if name else ""))
        return [names.get(id(reference()), "?") if reference() is not None else "?" for reference, _ in order]

    def _optimizers(self) -> List[Dict[str, Any]]:
        ledger = self.session.ledger
        rows = []
        for entry, site in zip(ledger.optimizers, ledger.step_sites):
            rows.append(dict(entry, call_site=site))
        return rows

    @staticmethod
    def _compile(modules: List[Dict[str, Any]]) -> Dict[str, Any]:
        dynamo = sys.modules.get("torch._dynamo.utils")
        counters = getattr(dynamo, "counters", {}) if dynamo is not None else {}
        return {
            "modules": [row["name"] for row in modules if row["compiled"]],
            "graphs": int(counters.get("stats", {}).get("unique_graphs", 0)) if counters else 0,
            "graph_breaks": {str(reason)[:200]: int(n) for reason, n in dict(counters.get("graph_break", {})).items()}
            if counters
            else {},
        }


class Places:
    """Where things are written: paths relative to the source tree, else to the import path."""

    def __init__(self, tree: Optional[str]) -> None:
        self.tree = os.path.realpath(tree) if tree else os.getcwd()
        skipped = {OURS, os.path.dirname(importlib.import_module("torch").__file__ or "")}
        skipped |= {sysconfig.get_path("stdlib") or OURS}
        self.skipped = tuple(sorted(path + os.sep for path in skipped))

    def of(self, thing: Any) -> Optional[Dict[str, Any]]:
        """File and line of a class or function."""
        try:
            thing = inspect.unwrap(thing)
            path = inspect.getsourcefile(thing)
            code = getattr(thing, "__code__", None)
            line = code.co_firstlineno if code is not None else inspect.getsourcelines(thing)[1]
        except (TypeError, OSError):
            return None
        return dict(self.relative(path), line=line) if path else None

    def caller(self) -> Optional[Dict[str, Any]]:
        """The nearest frame outside torch, parity and the standard library; one inside the tree, if there is any."""
        frame: Any = sys._getframe(1)
        outside = None
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(self.tree + os.sep) and not path.startswith(self.skipped):
                return dict(self.relative(path), line=frame.f_lineno)
            if outside is None and not path.startswith(self.skipped) and not path.startswith("<"):
                outside = dict(self.relative(path), line=frame.f_lineno)
            frame = frame.f_back
        return outside

    def relative(self, path: str) -> Dict[str, Any]:
        real = os.path.realpath(path)
        if real.startswith(self.tree + os.sep):
            return {"path": os.path.relpath(real, self.tree).replace(os.sep, "/"), "in_tree": True}
        for entry in sorted(filter(None, sys.path), key=len, reverse=True):
            base = os.path.realpath(entry)
            if real.startswith(base + os.sep):
                return {"path": os.path.relpath(real, base).replace(os.sep, "/"), "in_tree": False}
        return {"path": os.path.basename(real), "in_tree": False}


def _shapes(torch: Any, values: Any) -> List[Dict[str, Any]]:
    found = list(batches.leaves(torch, values))[:16]
    return [
        {"shape": list(t.shape), "dtype": str(t.dtype).replace("torch.", ""), "device": str(t.device)} for _, t in found
    ]
