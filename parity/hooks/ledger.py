"""The ledger: what a job did, as counts that an honest change cannot move (`invariants`), and what surrounds them
(`context`).

Invariants: optimizer steps (of the leading optimizer, and all calls), backward calls, training batches, samples and
tokens with the order-dependent hash of `parity.hooks.batches`, evaluated samples, generated sequences, parameters by
dtype, trainable parameters and those that get gradients, classes and hyper-parameters of the optimizers, whether
training calls ran in training mode, declared outputs.

Context, because an honest patch may move it: forward calls (batched evaluation), dtypes and autocast of the inputs,
backend flags at start and end, `foreach`, `fused`, `capturable` and the like, dropout modules (a fused kernel takes
their place), states of the random generators, loader settings, compiled modules, files written, peak memory.

What could not be seen is named in `unseen`, and has no invariant: a comparison must not take it for equal.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import time
import weakref
from typing import Any, Dict, List, Optional, Set

from parity import environment, recorder
from parity.hooks import batches, sources, values

SCHEMA = "parity/ledger@1"
SWITCHES = {"foreach", "fused", "capturable", "differentiable", "maximize_foreach"}


class Ledger:
    """Counts of one process."""

    def __init__(self, torch: Any, options: Any) -> None:
        self.torch = torch
        self.options = options
        self.session: Any = None
        self.unseen: Set[str] = set()
        self.backward_calls = 0
        self.optimizer_calls = 0
        self.trained = batches.Stream()
        self.evaluations = batches.Stream()
        self.without_gradient = batches.Stream()
        self.from_loader = batches.Stream()
        self.roots: Dict[str, int] = {"batch": 0, "evaluation": 0, "no_grad": 0}
        self.training_rows_unchecked = 0
        self.generations = {"calls": 0, "sequences": 0}
        self.optimizers: List[Dict[str, Any]] = []
        self.step_sites: List[Any] = []  # where the job calls each optimizer, with --structure
        self.known: Any = weakref.WeakKeyDictionary()  # module or optimizer -> seen
        self.trained_models: Any = weakref.WeakSet()
        self.models: List[Any] = []  # weak references to root modules
        self.parameters: Optional[Dict[str, Any]] = None
        self.optimized: List[Any] = []  # weak references to the parameters of optimizers
        self.with_gradient: Optional[int] = None
        self.compiled = 0
        self.dropout: Dict[str, Any] = {"modules": 0, "rates": []}
        self.loaders: List[Dict[str, Any]] = []
        self.inputs: Set[str] = set()
        self.autocast: Set[str] = set()
        self.flags_start = environment.flags(torch)
        self.started_ns = time.time_ns()
        self.folder = os.getcwd()

    # what happens

    def active(self) -> bool:
        """Whether this process trained or inferred anything."""
        return bool(
            self.backward_calls or self.optimizer_calls or any(self.roots.values()) or self.generations["calls"]
        )

    def only_launches(self) -> bool:
        """Whether this process is a launcher (torchrun) whose ranks write their own ledgers."""
        return "torch.distributed.run" in sys.modules and "RANK" not in os.environ

    def root_call(self, call: Any) -> None:
        self.roots[call.role] += 1
        if call.module not in self.known:
            self.known[call.module] = True
            self.models.append(weakref.ref(call.module))
            if not self.session.training:
                self.look([module for module in (reference() for reference in self.models) if module is not None], [])
        if call.role == "batch":
            self.trained_models.add(call.module)
            if self.roots["batch"] <= 4:
                self._autocast()

    def look(self, modules: List[Any], parameters: List[Any]) -> None:
        """Describe the model while it is alive: parameters, dropout, compiled parts."""
        seen = {id(p): p for p in parameters}
        inner = {id(m): m for module in modules for m in module.modules()}
        for module in modules:
            seen.update((id(p), p) for p in module.parameters())
        dtypes: Dict[str, int] = {}
        for parameter in seen.values():
            name = str(parameter.dtype).replace("torch.", "")
            dtypes[name] = dtypes.get(name, 0) + parameter.numel()
        self.parameters = {
            "parameters": sum(dtypes.values()),
            "parameter_dtypes": dict(sorted(dtypes.items())),
            "trainable_parameters": _elements([p for p in seen.values() if p.requires_grad]),
        }
        dropouts = [m for m in inner.values() if type(m).__name__.endswith("Dropout")]
        rates = [rate for rate in (getattr(m, "p", None) for m in dropouts) if rate]
        self.dropout = {"modules": len(rates), "rates": sorted(set(map(float, rates)))}
        self.compiled = sum(
            1
            for m in inner.values()
            if type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) is not None
        )

    def batch(self, found: List[Any]) -> List[Any]:
        if self.trained.calls < 4:
            self.inputs |= {str(t.dtype).replace("torch.", "") for _, t in found}
        return self.trained.add(self.torch, found)

    def evaluated(self, role: str, found: List[Any]) -> List[Any]:
        stream = self.evaluations if role == "evaluation" else self.without_gradient
        if not self.session.training:
            return stream.add(self.torch, found)
        stream.calls += 1
        stream.rows += batches.rows(found)
        return []

    def loaded(self, found: List[Any]) -> List[Any]:
        if self.trained.totals:  # what the model is called with shows the samples
            self.from_loader.count(found)
            return []
        return self.from_loader.add(self.torch, found)

    def generated(self, torch: Any, module: Any, result: Any) -> None:
        if self.parameters is None:
            self.look([module], [])
        self.generations["calls"] += 1
        self.generations["sequences"] += batches.rows(list(batches.leaves(torch, result)))

    def optimizer(self, optimizer: Any) -> None:
        """Class and hyper-parameters, as they are at its first step."""
        if optimizer in self.known:
            return
        self.known[optimizer] = True
        groups = []
        for group in optimizer.param_groups:
            plain = {key: _plain(value) for key, value in group.items() if key != "params"}
            groups.append({key: value for key, value in sorted(plain.items()) if value is not None})
        self.step_sites.append(self.session.call_site())
        self.optimizers.append(
            {
                "class": type(optimizer).__name__,
                "groups": groups,
                "elements": _elements(values.parameters_of(optimizer)),
            }
        )

    def stepped(self, optimizer: Any) -> None:
        """An optimizer stepped; at its first step, what it trains is described."""
        self.optimizer_calls += 1
        if self.known.get(optimizer) is True:
            self.known[optimizer] = False
            owned = values.parameters_of(optimizer)
            self.with_gradient = (self.with_gradient or 0) + _elements([p for p in owned if p.grad is not None])
            self.optimized += [weakref.ref(p) for p in owned]
            alive = [p for p in (reference() for reference in self.optimized) if p is not None]
            self.look(list(self.trained_models), alive)

    def loader(self, iterator: Any) -> None:
        loader = getattr(iterator, "_dataset", None)
        entry = {
            "dataset": type(loader).__name__,
            "workers": getattr(iterator, "_num_workers", None),
            "pin_memory": getattr(iterator, "_pin_memory", None),
            "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
            "drop_last": getattr(iterator, "_drop_last", None),
        }
        for known in self.loaders:
            if all(known[key] == value for key, value in entry.items()):
                known["batches"] += 1
                return
        if len(self.loaders) < 32:
            self.loaders.append(dict(entry, batches=1))

    def _autocast(self) -> None:
        torch = self.torch
        try:
            for name in ("cpu", "cuda"):
                if torch.is_autocast_enabled(name):
                    self.autocast.add("%s:%s" % (name, str(torch.get_autocast_dtype(name)).replace("torch.", "")))
        except TypeError:  # before torch 2.4
            if torch.is_autocast_enabled():
                self.autocast.add("cuda:%s" % str(torch.get_autocast_gpu_dtype()).replace("torch.", ""))

    # what is written

    def write(self) -> None:
        """Write `ledger.json`. At exit only: reads what was counted on the devices."""
        import json

        owner = recorder._recorder
        document = {
            "schema": SCHEMA,
            "invariants": self.invariants(),
            "unseen": sorted(self.unseen),
            "context": self.context(),
            "source_files": sources.hashes(self.options.tree),
            "errors": owner.errors,
        }
        path = owner.output("ledger.json")
        temporary = "%s.%d.part" % (path, os.getpid())
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(recorder._strict(document), file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(temporary, path)

    def invariants(self) -> Dict[str, Any]:
        """Only what an honest change of speed cannot move; fills `unseen`."""
        session = self.session
        found: Dict[str, Any] = {}
        if session.training:
            found["optimizer_steps"] = session.step
            found["backward_calls"] = self.backward_calls
            self._note(found, "optimizer_steps", self.optimizer_calls > 0)
            self._note(found, "backward_calls", self.backward_calls > 0)
            found["optimizers"] = self._optimizers()
            found["parameters_with_gradient"] = self.with_gradient
            found["training_mode"] = self._training_mode()
            self._training_data(found)
        elif session.checked:
            self._inference_data(found)
        if self.generations["calls"]:
            found["generated_sequences"] = self.generations["sequences"]
        if self.parameters is None:
            self.unseen.add("parameters")
        found.update(self.parameters or {})
        if self.options.outputs:
            found["outputs"] = sources.matching(self.folder, self.options.outputs)
        wanted = {"loss": session.last_loss is not None} if session.training else {}
        for probe, seen in wanted.items():
            if session.checked and probe in self.options.probes and not seen:
                self.unseen.add(probe)
        return {key: value for key, value in found.items() if value is not None}

    def _note(self, found: Dict[str, Any], key: str, seen: bool) -> None:
        if not seen:
            self.unseen.add(key)
            found[key] = None

    def _training_data(self, found: Dict[str, Any]) -> None:
        found["batches"] = found["samples"] = found["sample_hash"] = found["tokens"] = None
        if not self.session.checked:
            found["batches"] = self.roots["batch"] or None if self.session.module_handles else None
            return
        stream = self.trained if self.trained.calls else self.from_loader
        totals = stream.result()
        if not stream.calls:
            self.unseen |= {"batches", "samples", "sample_hash"}
            return
        found.update(batches=stream.calls, samples=totals["rows"], sample_hash=totals["hash"], tokens=totals["tokens"])
        if (
            totals["hash"] is None and self.from_loader.calls
        ):  # images in, labels beside the model: the loader knows them
            found["sample_hash"] = self.from_loader.result()["hash"]
        if found["sample_hash"] is None:
            self.unseen.add("sample_hash")
        found["evaluation_samples"] = self.evaluations.rows

    def _inference_data(self, found: Dict[str, Any]) -> None:
        """Rows that went in, where one call answers one row; a decoding loop calls once a token, and then rows say
        nothing.
        """
        if self.generations["calls"]:
            return
        totals = [stream.result() for stream in (self.evaluations, self.without_gradient, self.trained) if stream.calls]
        if not totals:
            self.unseen |= {"samples"}
        elif any(total["tokens"] is not None for total in totals):
            self.unseen.add("samples")  # token ids: requests cannot be told from decoding steps
        else:
            found["samples"] = sum(total["rows"] for total in totals)
            found["sample_hash"] = next((total["hash"] for total in totals if total["hash"]), None)

    def _optimizers(self) -> Optional[List[Any]]:
        """Distinct (class, hyper-parameters) over all groups: the same for one optimizer with six groups and six with
        one.
        """
        distinct = []
        for entry in self.optimizers:
            for group in entry["groups"]:
                kept = {key: value for key, value in group.items() if key not in SWITCHES}
                row = {"class": entry["class"], "hyperparameters": kept}
                if row not in distinct:
                    distinct.append(row)
        return sorted(distinct, key=repr) or None

    def _training_mode(self) -> Optional[bool]:
        return bool(self.roots["batch"]) if self.session.checked and self.active() else None

    def context(self) -> Dict[str, Any]:
        """What is reported and not compared exactly."""
        session = self.session
        rank = recorder._recorder
        return {
            "mode": self.options.mode,
            "unit": "optimizer" if session.training else "forward",
            "ended": _ended(rank),
            "steps": len(session.marks.rows),
            "rank": rank.rank,
            "world_size": environment._world_size(),
            "optimizer_calls": self.optimizer_calls,
            "root_calls": dict(self.roots),
            "evaluation_calls": self.evaluations.calls,
            "generate_calls": self.generations["calls"],
            "loaders": self.loaders,
            "loader_samples": self.from_loader.rows,
            "input_dtypes": sorted(self.inputs),
            "autocast": sorted(self.autocast),
            "backend": {"start": self.flags_start, "end": environment.flags(self.torch)},
            "optimizer_implementation": self._implementation(),
            "learning_rates_end": self._rates(),
            "dropout": self.dropout,
            "compiled_modules": self.compiled,
            "rng": sources.generator_states(self.torch),
            "perturbed": {"tensors": session.nudger.tensors, "elements": session.nudger.elements}
            if session.nudger
            else None,
            "files_written": sources.written(self.folder, self.started_ns) if session.checked else None,
            "peak_device_bytes": self._peak(),
            "training_hooks_on_root": not session.module_handles,
            "versions": dict(
                environment.device(self.torch), torch=str(self.torch.__version__), python=sys.version.split()[0]
            ),
        }

    def _implementation(self) -> List[Any]:
        rows = []
        for entry in self.optimizers:
            switches = [{k: v for k, v in group.items() if k in SWITCHES} for group in entry["groups"]]
            rows.append(
                {
                    "class": entry["class"],
                    "groups": len(entry["groups"]),
                    "elements": entry["elements"],
                    "switches": switches[:1],
                }
            )
        return rows

    def _rates(self) -> List[Any]:
        rates: List[Any] = []
        for _, reference in self.session.optimizers.values():
            optimizer = reference()
            if optimizer is not None and len(rates) < 64:
                rates += [_plain(group.get("lr")) for group in optimizer.param_groups[:16]]
        return rates

    def _peak(self) -> Optional[int]:
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return None
        return sum(int(cuda.max_memory_allocated(i)) for i in range(cuda.device_count()))


def _ended(owner: Any) -> Dict[str, Any]:
    """How the process ends: `by` exit (of itself), exception (uncaught) or os._exit (with its `status`)."""
    if owner.ended["by"] == "exit" and getattr(sys, "last_type", None) is not None:
        return {"by": "exception"}
    return dict(owner.ended)


def _elements(tensors: Any) -> int:
    return sum(t.numel() for t in tensors)


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON, floats to 9 digits; None for what is not one (a callable, a large tensor)."""
    if hasattr(value, "numel"):
        value = float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float("%.9g" % value)
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None


def matches(path: str, patterns: List[str]) -> bool:
    """Whether a relative path matches one of the globs."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
