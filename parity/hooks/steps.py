"""Time stamps of steps: kept in memory, written at exit. A mark costs two clock reads and, with CUDA in use, one event;
nothing waits.
"""

from __future__ import annotations

import time
from typing import Any, List, Optional, Tuple

SCHEMA = "parity/steps@1"


class Marks:
    """Ends of optimizer steps (training) or begins and ends of root calls (inference)."""

    def __init__(self, torch: Any, process_start_ns: int) -> None:
        self.torch = torch
        self.process_start_ns = process_start_ns
        self.torch_imported_ns: Optional[int] = None
        self.first_activity_ns: Optional[int] = None
        self.epoch_offset_ns = time.time_ns() - time.monotonic_ns()
        self.rows: List[Tuple[int, int, int]] = []  # step, begin, end
        self.device_ms: List[Optional[float]] = []
        self.forwards = 0
        self.is_training = False
        self.last_event: Any = None
        self.waiting: List[Tuple[int, Any, Any]] = []  # row, event before, event after

    def torch_imported(self) -> None:
        self.torch_imported_ns = time.monotonic_ns()

    def activity(self, now_ns: int) -> None:
        """The job did something with data or a model; the first time is where the first step begins."""
        if self.first_activity_ns is None:
            self.first_activity_ns = now_ns

    def training(self) -> None:
        """The job trains: root calls were no steps after all."""
        self.is_training = True
        self._clear()

    def optimizer(self, step: int) -> None:
        """An optimizer step ended now."""
        end = time.monotonic_ns()
        if not self.is_training:
            self.training()
        begin = self.rows[-1][2] if self.rows else self.first_activity_ns or self.torch_imported_ns or end
        self._mark(step, begin, end)

    def forward(self, step: int, begin_ns: int) -> None:
        """A root call ended now."""
        self.forwards += 1
        self._mark(step, begin_ns, time.monotonic_ns())

    def write(self) -> None:
        """Write `steps.jsonl`; waits for the device."""
        import json

        from parity.recorder import _recorder

        for row, before, after in self.waiting:
            after.synchronize()
            self.device_ms[row] = before.elapsed_time(after)
        self.waiting = []
        head = {
            "schema": SCHEMA,
            "process_start_ns": self.process_start_ns,
            "torch_imported_ns": self.torch_imported_ns,
            "first_activity_ns": self.first_activity_ns,
            "unit": "optimizer" if self.is_training else "forward",
        }
        lines = [json.dumps(head)]
        for (step, begin, end), device_ms in zip(self.rows, self.device_ms):
            mark = {
                "step": step,
                "begin_ns": begin,
                "end_ns": end,
                "device_ms": device_ms,
                "epoch_offset_ns": self.epoch_offset_ns,
            }
            lines.append(json.dumps(mark))
        with open(_recorder.output("steps.jsonl"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _mark(self, step: int, begin: int, end: int) -> None:
        self.rows.append((step, begin, end))
        self.device_ms.append(None)
        event = self._event()
        if event is not None:
            if self.last_event is not None:
                self.waiting.append((len(self.rows) - 1, self.last_event, event))
            while len(self.waiting) > 64 and self.waiting[0][2].query():
                row, before, after = self.waiting.pop(0)
                self.device_ms[row] = before.elapsed_time(after)
        self.last_event = event

    def _event(self) -> Any:
        cuda = self.torch.cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _clear(self) -> None:
        self.rows, self.device_ms, self.waiting, self.last_event = [], [], [], None
