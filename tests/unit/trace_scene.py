"""A small trace, written event by event, as the tables that the parser gives: where tests of the views start."""

from __future__ import annotations

import json
from typing import Any

from scripts.trace import dataset
from scripts.trace.capture import Capture

US, MS = 1_000, 1_000_000


class Scene:
    """Collects events; times in ns. `capture()` gives what the views take."""

    def __init__(self, rank: int = 0, main: str = "100") -> None:
        self.rank, self.main = rank, main
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in dataset.CLASSES}
        self.correlation = 0
        self.external = 0

    def _add(self, table: str, name: str, cat: str, start: int, end: int, **more: Any) -> None:
        tid = more.pop("tid", self.main)
        self.rows[table].append(
            {
                "rank": self.rank,
                "ts_ns": start,
                "dur_ns": end - start,
                "name": name,
                "cat": cat,
                "pid": "100",
                "tid": tid,
                **more,
            }
        )

    def mark(self, name: str, start: int, end: int, **more: Any) -> Scene:
        """An annotation, `ProfilerStep#3` among them."""
        self._add("annotation", name, "user_annotation", start, end, **more)
        return self

    def frame(self, name: str, start: int, end: int, **more: Any) -> Scene:
        """A python frame, a builtin or an nn.Module."""
        self._add("python", name, "python_function", start, end, **more)
        return self

    def op(self, name: str, start: int, end: int, dims: Any = None, types: Any = None, **more: Any) -> Scene:
        """An operator."""
        self.external += 1
        arguments = {"input_dims": dims, "input_types": types, "concrete_inputs": more.pop("concrete", None)}
        texts = {key: json.dumps(value) for key, value in arguments.items() if value is not None}
        self._add("cpu_op", name, "cpu_op", start, end, external_id=self.external, **texts, **more)
        return self

    def call(self, name: str, start: int, end: int, **more: Any) -> Scene:
        """A runtime call without GPU work."""
        self._add("runtime", name, "cuda_runtime", start, end, **more)
        return self

    def kernel(self, name: str, launch: int | None, start: int, end: int, cat: str = "kernel", **more: Any) -> Scene:
        """A GPU event; `launch` is when its 5 us launch call begins, None for none."""
        self.correlation += 1
        host = {key: more.pop(key) for key in ("tid",) if key in more}
        length = more.pop("call_ns", 5 * US)
        call = more.pop("call", "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel")
        if launch is not None:
            self._add("runtime", call, "cuda_runtime", launch, launch + length, correlation=self.correlation, **host)
        stream = more.pop("stream", 7)
        self._add(
            "gpu",
            name,
            cat,
            start,
            end,
            tid=str(stream),
            stream=stream,
            device=more.pop("device", 0),
            correlation=self.correlation,
            **more,
        )
        return self

    def memory(self, when: int, count: int, allocated: int, reserved: int, device: int = 0) -> Scene:
        """An allocator event."""
        self.rows["memory"].append({"rank": self.rank, "ts_ns": when, "name": "[memory]", "cat": "cpu_instant_event",
                                    "pid": "100", "tid": self.main,
                                    "bytes": count, "total_allocated": allocated, "total_reserved": reserved,
                                    "device": device, "device_type": 1})  # fmt: skip
        return self

    def capture(self, *others: Scene, device: str | None = "NVIDIA H200") -> Capture:
        """The capture of this scene and of other ranks."""
        tables = {}
        for name in dataset.CLASSES:
            rows = [row for scene in (self, *others) for row in scene.rows[name]]
            tables[name] = dataset.table(name, sorted(rows, key=lambda row: (row["rank"], row["ts_ns"])))
        properties = [{"id": 0, "name": device, "totalGlobalMem": 150_000_000_000}] if device else []
        return Capture(lambda name, columns: tables[name].select(columns), properties)
