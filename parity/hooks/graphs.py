"""CUDA graphs: while one is captured nothing runs, so nothing is recorded then; each replay is recorded afterwards.

During a capture the hooks note what the captured code does (calls of models, losses, optimizer steps) and start no work
of their own: it would become part of the graph, and a query of the device would break the capture. After a replay, the
same tensors hold that replay's values. What they no longer hold is listed as unseen: the gradient norm before a
clipping that was captured. `make_graphed_callables` warms up with calls that belong to no step: they are not counted.

Cost: a dictionary look-up a replay, and what the probes cost.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, List, Optional, Tuple

from parity.hooks import batches


class Captured:
    """What one graph does when it is replayed."""

    def __init__(self) -> None:
        self.roots: List[Tuple[Any, List[Any], List[Any]]] = []  # call, inputs, outputs as (name, tensor)
        self.losses: List[Any] = []
        self.backwards = 0
        self.optimizers: List[Any] = []
        self.clipped = False

    def root(  # noqa: PLR0917 - two callers
        self, torch: Any, call: Any, args: Any, kwargs: Any, output: Any, wants_output: bool
    ) -> None:
        """A call of a model was captured."""
        found = [(name, tensor.detach()) for name, tensor in batches.named(torch, args, kwargs)]
        left = list(batches.leaves(torch, output)) if wants_output and call.role != "batch" else []
        self.roots.append((call, found, [(name, tensor.detach()) for name, tensor in left]))

    def __bool__(self) -> bool:
        return bool(self.roots or self.backwards or self.optimizers)


class Graphs:
    """The captures of a process; `capture` is the one in progress."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.capture: Optional[Captured] = None
        self.muted = 0
        self.known: Any = weakref.WeakKeyDictionary()  # graph -> Captured

    def install(self, cuda: Any) -> None:
        """Watch captures and replays. `cuda` is torch.cuda."""
        graph = getattr(cuda, "CUDAGraph", None)
        if graph is None:
            return
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay
        graphs, session = self, self.session

        @functools.wraps(begin)
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = begin(self, *args, **kwargs)
            graphs.capture = Captured()
            return result

        @functools.wraps(end)
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            found, graphs.capture = graphs.capture, None
            if found and not graphs.muted:
                graphs.known[self] = found
            return end(self, *args, **kwargs)

        @functools.wraps(replay)
        def replayed(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = graphs.known.get(self)
            if found is None or graphs.capture is not None:
                return replay(self, *args, **kwargs)
            session.replay_begins(found)
            result = replay(self, *args, **kwargs)
            session.replay_ended(found)
            return result

        graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed
        self._mute(cuda, "make_graphed_callables")
        if hasattr(getattr(cuda, "graphs", None), "make_graphed_callables"):
            cuda.graphs.make_graphed_callables = cuda.make_graphed_callables

    def _mute(self, cuda: Any, name: str) -> None:
        original = getattr(cuda, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.muted += 1
            try:
                return original(*args, **kwargs)
            finally:
                self.muted -= 1

        setattr(cuda, name, wrapper)
