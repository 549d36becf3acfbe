"""What watches only some steps: the profiler and the structure of the job.

A window has `begins(step)`, `ends(step)`, `close()`, and the calls `module_begins`, `module_ended`,
`backward_begins`, `loaded` that the session makes.
"""

from __future__ import annotations

import importlib
from typing import Any, List, Optional

from parity import recorder


def make(session: Any) -> List[Any]:
    """The windows that the options ask for."""
    made: List[Any] = []
    if session.options.mode == "profiled" and session.options.profile is not None:
        made.append(Profile(session))
    if session.options.structure:
        from parity.hooks.structure import Structure

        made.append(Structure(session))
    return made


class Window:
    """A window that watches nothing."""

    needs_modules = False  # whether it watches every module call of every step

    def begins(self, step: int) -> None: ...

    def ends(self, step: int) -> None: ...

    def close(self) -> None: ...

    def module_begins(self, module: Any, args: Any) -> None: ...

    def module_ended(self, module: Any, args: Any, kwargs: Any, output: Any) -> None: ...

    def backward_begins(self, tensors: List[Any]) -> None: ...

    def loaded(self, iterator: Any, data: Any) -> None: ...


class Profile(Window):
    """torch.profiler over a range of steps, written as `trace.json.gz`.

    Two profilers cannot run at once, and the second would silently take the first one's events: ours does not start
    while the job's runs, and stops when the job starts its own. It is always stopped before exit (one that still runs
    then crashes the process).
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.torch = session.torch
        self.first, self.last = session.options.profile
        self.needs_modules = self.first == 0
        self.profiler: Any = None
        self.finished = False
        self.starting = False
        self.seen_activity = False
        self.reason: Optional[str] = None
        self._give_way()

    def begins(self, step: int) -> None:
        if self.profiler is not None and step < self.last:
            self._record_numbers(step)
            self.profiler.step()
        elif not self.finished and self.first <= step < self.last and (step > 0 or self.seen_activity):
            self._start(step)

    def ends(self, step: int) -> None:
        if self.profiler is not None and step + 1 >= self.last:
            self._stop()

    def close(self) -> None:
        if self.profiler is not None:
            self._stop()
        if not self.finished:
            self.reason = self.reason or "the job ended before step %d" % self.first
        if self.reason:
            self.session.ledger.unseen.add("profile")
            recorder._recorder.fail("profile", None, self.reason)

    def module_begins(self, module: Any, args: Any) -> None:
        self._first_activity()

    def loaded(self, iterator: Any, data: Any) -> None:
        self._first_activity()

    def backward_begins(self, tensors: List[Any]) -> None:
        self._first_activity()

    def _first_activity(self) -> None:
        """Step 0 begins where the job first does something, not at the import of torch."""
        if not self.seen_activity:
            self.seen_activity = True
            if self.session.step == 0:
                self.begins(0)

    def _start(self, step: int) -> None:
        if self.torch.autograd._profiler_enabled():
            self.reason = "the job's own profiler was running at step %d" % step
            return
        profiler = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        if self.torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        made = profiler.profile(
            activities=activities,
            schedule=lambda _: profiler.ProfilerAction.RECORD,  # a schedule makes it mark steps
            record_shapes=True,
            profile_memory=True,
            with_stack=self.session.options.stacks,
        )
        made.step_num = step
        self._record_numbers(step)
        self.starting = True
        try:
            made.start()
        finally:
            self.starting = False
        self.profiler, self.reason = made, None

    def _record_numbers(self, step: Optional[int]) -> None:
        """Record lists of numbers that operators are given (a convolution's stride) in the last step of the window only.

        While torch records them it keeps tensors alive until the profiler ends: a window of five steps then held five
        steps' activations, and on a CPU each new page cost more than the operator (a deterministic fill took 15 times as
        long). Only the roofline of a device reads them, and one step tells. None: as torch has it.
        """
        switch = getattr(self.torch._C._profiler, "_set_record_concrete_inputs_enabled_val", None)
        if switch is not None:
            switch(step is None or (step + 1 >= self.last and self.torch.cuda.is_available()))

    def _stop(self) -> None:
        profiler, self.profiler = self.profiler, None
        self.finished = True
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()  # kernels of the last step belong to the window
        profiler.stop()
        self._record_numbers(None)
        if recorder._recorder.claim():
            profiler.export_chrome_trace(recorder._recorder.output("trace.json.gz"))

    def _give_way(self) -> None:
        """Stop ours when the job starts a profiler of its own."""
        autograd = importlib.import_module("torch.autograd.profiler")
        window = self
        for name in ("__enter__", "_prepare_trace"):
            original = getattr(autograd.profile, name, None)
            if original is None:
                continue

            def first_stop_ours(profile: Any, original: Any = original) -> Any:
                if window.profiler is not None and not window.starting and profile is not window.profiler.profiler:
                    window.reason = "the job started its own profiler in step %d" % window.session.step
                    window._stop()
                return original(profile)

            setattr(autograd.profile, name, first_stop_ours)
