"""The hooks of one process, and the state that tells which step of the job is running.

A step is an optimizer step; of several optimizers, the first that steps again leads. A job that makes no optimizer
and calls no backward is inference, whose steps are calls of root modules (outermost `nn.Module` calls, or outermost
calls of a module's `generate`).

Every hook leaves the job alone: it returns None, catches its own errors (they become error records), and does nothing
while dynamo traces it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
import time
import types
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

from parity import recorder
from parity.hooks import batches, sources, values
from parity.hooks.graphs import Captured, Graphs
from parity.hooks.ledger import Ledger
from parity.hooks.options import Options
from parity.hooks.perturb import Nudger
from parity.hooks.steps import Marks

MAX_OPTIMIZERS = 16
HELD = 256


def install(torch: Any, options: Options, process_start_ns: int) -> "Session":
    """Put the hooks into a freshly imported torch."""
    session = Session(torch, options, process_start_ns)
    session.install()
    recorder.at_exit(session.finish)
    return session


def quiet(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that cannot hurt the job."""

    def call(*args: Any, **kwargs: Any) -> None:
        if recorder._compiling():
            return
        try:
            method(*args, **kwargs)
        except Exception as error:
            recorder._recorder.fail(
                "hook." + method.__name__.strip("_"), None, "%s: %s" % (type(error).__name__, error)
            )

    call.__name__ = method.__name__
    return call


class Call:
    """One root call in progress."""

    __slots__ = ("begin_ns", "module", "role")

    def __init__(self, module: Any, role: str) -> None:
        self.module = module
        self.role = (
            role  # batch: training mode with gradients; evaluation: eval mode; no_grad: training mode without gradients
        )
        self.begin_ns = time.monotonic_ns()


class Session:
    """State and hooks of the process."""

    def __init__(self, torch: Any, options: Options, process_start_ns: int) -> None:
        self.torch = torch
        self.options = options
        self.checked = options.mode == "checked"
        self.marks = Marks(torch, process_start_ns)
        self.ledger = Ledger(torch, options)
        self.nudger = Nudger(torch, options.perturb_seed) if options.perturb == "ulp" else None
        self.step = 0
        self.training = options.unit == "optimizer"  # known to be a training job
        self.stepped_once = False
        self.optimizers: Dict[int, Any] = {}  # id -> (index, weak reference)
        self.leader: Optional[int] = None
        self.followers: Set[int] = set()
        self.last_loss: Any = None
        self.unscaled: Dict[int, Any] = {}
        self.raw_norms: Dict[int, Any] = {}
        self.before: Dict[int, List[Any]] = {}
        self.held: Optional[List[Any]] = []  # outputs of calls that may turn out to be training
        self.loader_batches: Optional[List[Any]] = []  # batches before it is known whether root calls show them
        self.loader_count = 0
        self.threads = threading.local()
        self.owns_parameters: Any = weakref.WeakKeyDictionary()
        self.names: Dict[int, str] = {}
        self.instance_roots: Any = weakref.WeakKeyDictionary()
        self.instance_calls: List[Call] = []
        self.module_handles: List[Any] = []
        self.windows: List[Any] = []  # profiler and structure: begin(step), end(step), close()
        self.in_backward = 0
        self.pending_advance = False
        self.graphs = Graphs(self)
        self.clipped = False  # by a captured graph

    # installation

    def install(self) -> None:
        torch = self.torch
        optim = importlib.import_module("torch.optim.optimizer")
        optim.register_optimizer_step_pre_hook(quiet(self.step_begins))
        optim.register_optimizer_step_post_hook(quiet(self.step_ends))
        self._wrap(torch.optim.Optimizer, "__init__", after=lambda call, result: self.optimizer_made(call[0][0]))
        self._wrap(
            torch.autograd, "backward", before=self.backward_begins, after=lambda call, result: self.backward_ended()
        )
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
        self._wrap(scaler, "scale", after=lambda call, result: self.scaled(call[0][1], result))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._wrap_clip(name)
        self._watch_loader()
        self._watch_generate()
        self._watch_compile()
        self.graphs.install(torch.cuda)
        register = importlib.import_module("torch.nn.modules.module")
        self.module_handles = [
            register.register_module_forward_pre_hook(self._forward_begins),
            self._register_forward_hook(register.register_module_forward_hook, self._forward_ended),
        ]
        from parity.hooks import windows

        self.windows = windows.make(self)
        self.ledger.session = self
        sources.remember_main()
        self.marks.torch_imported()
        self._begin_windows()

    def _wrap(self, owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        original = getattr(owner, name)
        before = quiet(before) if before is not None else None
        after = quiet(after) if after is not None else None

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(args, kwargs)
            result = original(*args, **kwargs)
            if after is not None:
                after((args, kwargs), result)
            return result

        setattr(owner, name, wrapper)

    def _wrap_clip(self, name: str) -> None:
        module = importlib.import_module("torch.nn.utils.clip_grad")
        original = getattr(module, name)
        before = quiet(self.clip_begins)

        @functools.wraps(original)
        def wrapper(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(parameters, types.GeneratorType):
                parameters = list(parameters)
            before(parameters)
            return original(parameters, *args, **kwargs)

        setattr(module, name, wrapper)
        setattr(self.torch.nn.utils, name, wrapper)

    def _watch_loader(self) -> None:
        loader = importlib.import_module("torch.utils.data.dataloader")
        self._wrap(loader._BaseDataLoaderIter, "__next__", after=lambda call, data: self.loaded(call[0][0], data))

    def _watch_compile(self) -> None:
        """A module compiled in place has its hooks inside the trace, where they do nothing: watch it from outside."""
        module_class = self.torch.nn.Module
        original = getattr(module_class, "compile", None)
        if original is None:
            return
        session = self

        @functools.wraps(original)
        def compile(module: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(module, *args, **kwargs)
            compiled = getattr(module, "_compiled_call_impl", None)
            if compiled is not None:
                module._compiled_call_impl = session._from_outside(module, compiled)
            return result

        module_class.compile = compile

    def _from_outside(self, module: Any, compiled: Any) -> Any:
        reference = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            owner = reference()
            if recorder._compiling() or owner is None or (self.training and not self.module_handles):
                return compiled(*args, **kwargs)
            self._forward_begins(owner, args)
            try:
                result = compiled(*args, **kwargs)
            except BaseException:
                self._forward_ended(owner, args, None)
                raise
            self._forward_ended(owner, args, kwargs, result)
            return result

        return call

    def _watch_generate(self) -> None:
        """Wrap `generate` of module classes as they are defined."""
        module_class = self.torch.nn.Module
        session = self

        def __init_subclass__(cls: Any, **kwargs: Any) -> None:
            super(module_class, cls).__init_subclass__(**kwargs)
            for owner in cls.__mro__:
                found = owner.__dict__.get("generate")
                if found is not None:
                    if isinstance(found, types.FunctionType) and not hasattr(found, "__parity__"):
                        owner.generate = session._generating(found)
                    break

        module_class.__init_subclass__ = classmethod(__init_subclass__)

    def _generating(self, original: Any) -> Any:
        if (
            inspect.isgeneratorfunction(original)
            or inspect.iscoroutinefunction(original)
            or inspect.isasyncgenfunction(original)
        ):
            return original
        begin, end = quiet(self._generate_begins), quiet(self._generate_ended)

        @functools.wraps(original)
        def generate(module: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder._compiling():
                return original(module, *args, **kwargs)
            begin(module)
            result = None
            try:
                result = original(module, *args, **kwargs)
            finally:
                end(module, args, kwargs, result)
            return result

        generate.__parity__ = True  # type: ignore[attr-defined]
        return generate

    @staticmethod
    def _register_forward_hook(register: Any, hook: Any) -> Any:
        try:
            return register(hook, with_kwargs=True, always_call=True)
        except TypeError:  # before torch 2.1
            return register(lambda module, args, output: hook(module, args, {}, output))

    # root calls

    def _stack(self) -> List[Any]:
        stack = getattr(self.threads, "stack", None)
        if stack is None:
            stack = self.threads.stack = []
        return stack

    def _forward_begins(self, module: Any, args: Any) -> None:
        if recorder._compiling():
            return
        stack = self._stack()
        if stack:
            stack.append(None)
            if self.windows and self.graphs.capture is None:
                for window in self.windows:
                    window.module_begins(module, args)
            return
        stack.append(None)
        if module in self.instance_roots or self.graphs.muted:
            return
        try:
            stack[-1] = self._root(module)
            if self.graphs.capture is not None:
                return
            for window in self.windows:
                window.module_begins(module, args)
            if stack[-1] is not None:
                self.root_begins(stack[-1])
                if self.options.mode == "timed" and not self.training and "torch._dynamo" in sys.modules:
                    self._narrow_at_once(stack[-1])
        except Exception as error:
            recorder._recorder.fail("hook.forward", None, "%s: %s" % (type(error).__name__, error))

    def _forward_ended(self, module: Any, args: Any, *rest: Any) -> None:
        """`rest` is (kwargs, output); torch gives (output,) alone where forward raised. Recomputation under an
        activation checkpoint raises as soon as it has what it needs.
        """
        if recorder._compiling():
            return
        stack = self._stack()
        if not stack:
            return
        call = stack.pop()
        raised = len(rest) == 1
        kwargs, output = ({}, None) if raised else rest
        try:
            if self.graphs.capture is not None:
                if call is not None and not raised:
                    self.graphs.capture.root(self.torch, call, args, kwargs, output, self._wants("output"))
                return
            if self.windows:
                for window in self.windows:
                    window.module_ended(module, args, kwargs, output)
            if raised:  # no call of the model came of it
                return
            if self.options.modules and self.checked and not self.graphs.muted:
                self._leaf(module, output)
            if call is not None:
                self.root_ended(call, args, kwargs, output)
        except Exception as error:
            recorder._recorder.fail("hook.forward", None, "%s: %s" % (type(error).__name__, error))

    def _root(self, module: Any) -> Optional[Call]:
        """The call; None where it is no root call of a model (a loss, a recomputation inside backward)."""
        if self._inside_backward():
            return None
        owns = self.owns_parameters.get(module)
        if owns is None:
            owns = next(iter(module.parameters()), None) is not None
            self.owns_parameters[module] = owns
        if not owns:
            return None
        if not module.training:
            role = "evaluation"
        else:
            role = "batch" if self.torch.is_grad_enabled() else "no_grad"
        return Call(module, role)

    def _inside_backward(self) -> bool:
        task = getattr(self.torch._C, "_current_graph_task_id", None)
        return task is not None and task() != -1

    def root_begins(self, call: Call) -> None:
        if self.pending_advance and not self.training:
            self._advance(forward=True)
        self.pending_advance = False
        if self.nudger is not None and not self.stepped_once:
            self.nudger.nudge(call.module.parameters())
        self.marks.activity(call.begin_ns)
        if self.checked and not self.names and self.options.modules:
            self.names = {id(m): name or "root" for name, m in call.module.named_modules()}

    def root_ended(self, call: Call, args: Any, kwargs: Any, output: Any) -> None:
        self.ledger.root_call(call)
        if not self.training:
            self.marks.forward(self.step, call.begin_ns)
        if self.checked:
            self._fed(call.role, batches.named(self.torch, args, kwargs))
            if self._wants("output"):
                self._output(call, output)
        elif self.options.mode == "timed":
            self._narrow(call.module)
        if not self.training and (call.role != "batch" or self.options.unit == "forward"):
            self.pending_advance = True
            self._end_windows()
            if recorder._recorder.queue:  # a server may wait long for its next call
                recorder._recorder.write_arrived()

    def _fed(self, role: str, found: List[Any]) -> None:
        if role == "batch":
            self._batch(found)
        else:
            self._evaluated(role, found)

    def _batch(self, found: List[Any]) -> None:
        hashes = self.ledger.batch(found)
        if self._wants("batch"):
            self._record_batch(found, dict(hashes), None)
        if self.training:
            self.loader_batches = None  # root calls show what is consumed; the loader need not

    def _evaluated(self, role: str, found: List[Any]) -> None:
        hashes = self.ledger.evaluated(role, found)
        if not self.training:
            self.loader_batches = None
            if self._wants("batch"):
                self._record_batch(found, dict(hashes), None)

    def _record_batch(self, found: List[Any], hashes: Dict[str, Any], at: Optional[int]) -> None:
        for name, tensor in found:
            tag = "batch." + name if name else "batch"
            if name in hashes:
                self._hash_record(tag, hashes[name], at)
            elif not batches.is_integer(tensor) or tensor.dim() == 0:
                recorder._recorder.add(tag, tensor.detach(), at, None, None, None)

    def _hash_record(self, tag: str, whole: Any, at: Optional[int]) -> None:
        """The content hash as a text; padding does not change it (`parity.hooks.batches`)."""
        recorder._recorder.add_hash(tag, whole, at)

    def _output(self, call: Call, output: Any) -> None:
        if call.role == "batch":
            if self.training or self.held is None:
                return
            # training mode with gradients: inference that forgot eval() and no_grad(), unless backward follows
            if len(self.held) < HELD:
                self.held.append((self.step, _summaries(self.torch, output)))
            return
        for name, tensor in batches.leaves(self.torch, output):
            if tensor.layout is self.torch.strided:
                recorder._recorder.add(
                    "output." + name if name else "output", tensor.detach(), self.step, None, None, None
                )

    def _leaf(self, module: Any, output: Any) -> None:
        name = self.names.get(id(module))
        if name is None or self._inside_backward() or next(module.children(), None) is not None:
            return
        if not self._wants_modules():
            return
        for part, tensor in batches.leaves(self.torch, output):
            tag = "module/" + name + ("." + part if part else "")
            recorder._recorder.add(tag, tensor.detach(), self.step, None, None, None)

    def _narrow(self, module: Any) -> None:
        """Timed runs: watch the first three root modules themselves instead of every module."""
        if len(self.instance_roots) < 3 and not _compiled_in_place(module):
            self._watch_instance(module)
        if len(self.instance_roots) >= 3 or self.marks.forwards > 16:
            self._release()

    def _narrow_at_once(self, call: Call) -> None:
        """The same before dynamo traces the first call: hooks that vanish later would make it trace again."""
        self._release()
        if not _compiled_in_place(call.module):
            self._watch_instance(call.module)
            self.instance_calls.append(call)
            self._stack().pop()  # the instance's own hook ends this call

    def _watch_instance(self, module: Any) -> None:
        if module in self.instance_roots:
            return
        self.instance_roots[module] = True
        calls = self.instance_calls

        def begin(module: Any, args: Any) -> None:
            if (
                recorder._compiling()
                or self.training
                or self.graphs.muted
                or getattr(self.threads, "generating", 0) > 0
            ):
                return
            calls.append(Call(module, "no_grad" if module.training else "evaluation"))

        def end(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            if recorder._compiling() or not calls:
                return
            call = calls.pop()
            if self.graphs.capture is not None:
                self.graphs.capture.root(self.torch, call, (), {}, None, False)
                return
            raised = output is None and sys.exc_info()[0] is not None
            if not raised and not calls and not self.training:
                quiet(self.root_begins)(call)
                quiet(self.root_ended)(call, (), {}, None)

        module.register_forward_pre_hook(begin)
        self._register_forward_hook(module.register_forward_hook, end)

    def _release(self) -> None:
        for handle in self.module_handles:
            handle.remove()
        self.module_handles = []

    def _generate_begins(self, module: Any) -> None:
        depth = getattr(self.threads, "generating", 0)
        self.threads.generating = depth + 1
        stack = self._stack()
        call = Call(module, "evaluation") if depth == 0 and not stack else None
        stack.append(call)
        if call is not None:
            self.root_begins(call)

    def _generate_ended(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.threads.generating = getattr(self.threads, "generating", 1) - 1
        stack = self._stack()
        call = stack.pop() if stack else None
        if call is None or result is None:
            return
        self.ledger.generated(self.torch, module, result)
        if not self.training:
            self.marks.forward(self.step, call.begin_ns)
        if self.checked and self._wants("output"):
            for name, tensor in batches.leaves(self.torch, result):
                recorder._recorder.add(
                    "output." + name if name else "output", tensor.detach(), self.step, None, None, None
                )
        if not self.training:
            self.pending_advance = True
            self._end_windows()

    # training

    def optimizer_made(self, optimizer: Any) -> None:
        self._is_training()

    def _is_training(self) -> None:
        if self.training or self.options.unit == "forward":
            return
        self.training = True
        self.held = None
        self.marks.training()
        if self.step:
            self.step = 0
            recorder.step(0)
        if not self.checked and self.nudger is None and not any(window.needs_modules for window in self.windows):
            self._release()

    def backward_begins(self, args: Any, kwargs: Any) -> None:
        if self._inside_backward() or self.graphs.muted:
            return
        self._is_training()
        self.held = None
        tensors = args[0] if args else kwargs.get("tensors")
        tensors = [tensors] if isinstance(tensors, self.torch.Tensor) else list(tensors or [])
        self.in_backward += 1
        losses = [self.unscaled.pop(id(t), t) for t in tensors]
        self.unscaled.clear()
        if losses:
            self.last_loss = losses[-1].detach()
        capture = self.graphs.capture
        if capture is not None:
            capture.backwards += 1
            capture.losses += [loss.detach() for loss in losses]
            return
        self.ledger.backward_calls += 1
        for window in self.windows:
            window.backward_begins(tensors)
        if self._wants("loss"):
            for loss in losses:
                recorder._recorder.add("loss", loss.detach(), self.step, None, None, None)

    def backward_ended(self) -> None:
        self.in_backward = max(0, self.in_backward - 1)

    def scaled(self, outputs: Any, result: Any) -> None:
        """AMP: backward will see `result`; the loss is `outputs`."""
        if isinstance(result, self.torch.Tensor) and result is not outputs:
            self.unscaled[id(result)] = outputs.detach()

    def clip_begins(self, parameters: Any) -> None:
        if self.graphs.capture is not None:
            self.graphs.capture.clipped = True
            return
        if not self._wants("grad_norm"):
            return
        parameters = [parameters] if isinstance(parameters, self.torch.Tensor) else list(parameters)
        norm = values.total_norm(self.torch, [p.grad for p in parameters if p.grad is not None])
        if norm is not None:
            for parameter in parameters:
                self.raw_norms.setdefault(id(parameter), norm)

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._is_training()
        self.ledger.optimizer(optimizer)
        if self.graphs.capture is None:
            self._before_step(optimizer)

    def _before_step(self, optimizer: Any) -> None:
        if not self.checked and self.nudger is None:
            return
        parameters = values.parameters_of(optimizer)
        if self.nudger is not None and not self.stepped_once:
            self.nudger.nudge(parameters)
        if self._wants("update_norm") and self._index(optimizer) < MAX_OPTIMIZERS and self._room_for_copies(parameters):
            self.before[id(optimizer)] = values.copies(self.torch, parameters)

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.graphs.capture is not None:
            self.graphs.capture.optimizers.append(optimizer)
            return
        index = self._index(optimizer)
        if self.checked and index < MAX_OPTIMIZERS:
            self._norms(optimizer, "" if index == 0 else ".%d" % index)
        self.ledger.stepped(optimizer)
        key = id(optimizer)
        if self.leader is None:
            self.leader = key
        if key == self.leader or key in self.followers:
            self.leader = key
            self.followers.clear()
            if not self.stepped_once:
                self.stepped_once = True
                if self.nudger is not None:
                    self.nudger.done()
            self._advance()
        else:
            self.followers.add(key)

    def replay_begins(self, found: Captured) -> None:
        """A CUDA graph is about to run what was captured."""
        quiet(self._replay_begins)(found)

    def replay_ended(self, found: Captured) -> None:
        """It was launched: its tensors hold the values of this replay for whatever follows on the stream."""
        quiet(self._replay_ended)(found)

    def _replay_begins(self, found: Captured) -> None:
        for call, _, _ in found.roots:
            if not self.training:
                call.begin_ns = time.monotonic_ns()
            self.root_begins(call)
        for optimizer in {id(o): o for o in found.optimizers}.values():
            self._before_step(optimizer)

    def _replay_ended(self, found: Captured) -> None:
        for call, inputs, outputs in found.roots:
            self.ledger.root_call(call)
            if not self.training:
                self.marks.forward(self.step, call.begin_ns)
                self.pending_advance = True
            if self.checked:
                self._fed(call.role, inputs)
            for name, tensor in outputs:
                recorder._recorder.add("output." + name if name else "output", tensor, self.step, None, None, None)
        self.ledger.backward_calls += found.backwards
        if self._wants("loss"):
            for loss in found.losses:
                recorder._recorder.add("loss", loss, self.step, None, None, None)
        if found.optimizers and self._wants("grad_norm"):
            if found.clipped:  # the graph holds them as they are after it
                self.ledger.unseen.add("grad_norm")
            for optimizer in found.optimizers:
                if all(p.grad is None for p in values.parameters_of(optimizer)):
                    self.ledger.unseen.add("grad_norm")
        self.clipped = found.clipped
        for optimizer in found.optimizers:
            self.step_ends(optimizer, (), {})
        self.clipped = False

    def _norms(self, optimizer: Any, suffix: str) -> None:
        torch = self.torch
        parameters = values.parameters_of(optimizer)
        add = recorder._recorder.add
        if self._wants("grad_norm"):
            raw = next((self.raw_norms[id(p)] for p in parameters if id(p) in self.raw_norms), None)
            norm = values.total_norm(torch, [p.grad for p in parameters if p.grad is not None])
            if raw is not None:
                add("grad_norm" + suffix, raw, self.step, None, None, None)
            if norm is not None:
                name = "grad_norm" if raw is None and not self.clipped else "grad_norm_clipped"
                add(name + suffix, norm, self.step, None, None, None)
            for parameter in parameters:
                self.raw_norms.pop(id(parameter), None)
        if self._wants("param_norm"):
            norm = values.total_norm(torch, parameters)
            if norm is not None:
                add("param_norm" + suffix, norm, self.step, None, None, None)
        before = self.before.pop(id(optimizer), None)
        if before is not None:
            norm = values.total_norm(torch, values.moved(torch, parameters, before))
            if norm is not None:
                add("update_norm" + suffix, norm, self.step, None, None, None)

    def _index(self, optimizer: Any) -> int:
        known = self.optimizers.get(id(optimizer))
        if known is None or known[1]() is not optimizer:
            known = (len(self.optimizers), weakref.ref(optimizer))
            self.optimizers[id(optimizer)] = known
        return known[0]

    def _room_for_copies(self, parameters: List[Any]) -> bool:
        first = next((p for p in parameters if p.is_cuda), None)
        if first is None:
            return True
        needed = sum(p.numel() * p.element_size() for p in parameters if p.is_cuda)
        free, _ = self.torch.cuda.mem_get_info(first.device)
        if needed < free / 2:
            return True
        self.ledger.unseen.add("update_norm")
        return False

    def loaded(self, iterator: Any, data: Any) -> None:
        """A DataLoader gave a batch (in the main process)."""
        if recorder._is_loader_worker():
            return
        self.ledger.loader(iterator)
        self.marks.activity(time.monotonic_ns())
        for window in self.windows:
            window.loaded(iterator, data)
        if not self.checked:
            return
        found = batches.named(self.torch, (data,), {})
        hashes = self.ledger.loaded(found)
        if self.loader_batches is None:
            return
        if self._wants("batch"):
            self.loader_batches.append((self.loader_count, found, dict(hashes)))
        self.loader_count += 1
        if self.stepped_once or len(self.loader_batches) > HELD:
            self._flush_loader()

    def _flush_loader(self) -> None:
        """No root call showed the batches: record them as the loader gave them, numbered in their order."""
        waiting, self.loader_batches = self.loader_batches or [], []
        for number, found, hashes in waiting:
            self._record_batch(found, hashes, number)

    def _advance(self, forward: bool = False) -> None:
        """A step is over."""
        if not forward:
            self.marks.optimizer(self.step)
            self._end_windows()
            if self.loader_batches is not None:
                if self.ledger.trained.calls:
                    self.loader_batches = None
                else:
                    self._flush_loader()
            self._stack().clear()
        self.step += 1
        recorder.step(self.step)
        self._begin_windows()

    def call_site(self) -> Optional[Dict[str, Any]]:
        """Where the job is now, for the structure; None when nobody asked."""
        for window in self.windows:
            places = getattr(window, "places", None)
            if places is not None:
                return places.caller()
        return None

    def _begin_windows(self) -> None:
        for window in self.windows:
            window.begins(self.step)

    def _end_windows(self) -> None:
        for window in self.windows:
            window.ends(self.step)

    def _wants(self, probe: str) -> bool:
        return self.checked and self.options.wants(probe, self.step)

    def _wants_modules(self) -> bool:
        steps = self.options.steps
        return steps is None or (self.step >= steps[0] and (steps[1] is None or self.step < steps[1]))

    # the end

    def finish(self) -> None:
        """At exit: close the windows, then write what was counted. Waiting for the device is fine here, and needed:
        what the job's streams computed may be read from another thread.
        """
        with contextlib.suppress(Exception):  # a device that failed
            cuda = self.torch.cuda
            for device in range(cuda.device_count() if cuda.is_initialized() else 0):
                if cuda.memory_reserved(device):  # the others stay untouched
                    cuda.synchronize(device)
        for window in self.windows:
            window.close()
        active = self.ledger.active() or recorder._recorder.written > 1 or recorder._recorder.queue
        if not active and (self.ledger.only_launches() or recorder._recorder.taken()):
            return  # a launcher: its children have recorded
        if not recorder._recorder.claim():
            return
        if self.held and not self.training:
            for at, summaries in self.held:
                for tag, (vector, meta) in summaries:
                    recorder._recorder.add_summary(tag, at, vector, meta)
        if not self.checked and self.last_loss is not None:
            recorder._recorder.add("loss", self.last_loss, max(0, self.step - 1), None, None, "final")
        recorder._recorder.flush()
        self.marks.write()
        self.ledger.write()
        if self.options.cover:
            from parity.hooks import coverage

            coverage.write()


def _compiled_in_place(module: Any) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None


def _summaries(torch: Any, output: Any) -> List[Any]:
    """(tag, started summary) of each tensor that a call returned."""
    from parity import summary

    tagged = [("output." + name if name else "output", tensor) for name, tensor in batches.leaves(torch, output)]
    return [(tag, summary.compute(torch, tensor, tag)) for tag, tensor in tagged if tensor.dim()]
