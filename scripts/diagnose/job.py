"""What a detector sees of a job, and what it gives back.

A detector is a module of `scripts/diagnose/detectors/` with `LOOKED_FOR`, the ids that it can give, and
`detect(job) -> list[Finding]`. It raises `NotApplicable` with the reason where the job has nothing of the kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scripts.diagnose.preparation import Preparation, preparations
from scripts.diagnose.replay import Call, Replay, fit
from scripts.diagnose.source import Function
from scripts.diagnose.timeline import Timeline, backward_ns
from scripts.diagnose.timing import SLOW, Timing

Row = dict[str, Any]


class NotApplicable(Exception):
    """The detector's subject does not occur in this job; the message says what is missing."""


@dataclass
class Finding:
    """One loss of time. `fraction` is the share of the whole job's wall time at the horizon that would go, None if
    unknown."""

    id: str
    title: str
    cause: str
    fraction: float | None
    derivation: str
    confidence: str
    classes: list[str]
    anchors: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self, fixes: list[str]) -> dict[str, Any]:
        """The finding as findings.json states it."""
        ceiling = None
        if self.fraction is not None:
            share = min(max(self.fraction, 0.0), 0.99)
            ceiling = {"fraction": round(share, 4), "speedup": round(1 / (1 - share), 3), "derivation": self.derivation}
        return {
            "id": self.id,
            "title": self.title,
            "evidence": self.evidence,
            "anchors": self.anchors,
            "cause": self.cause,
            "ceiling": ceiling,
            "confidence": self.confidence,
            "classes": self.classes,
            "fixes": fixes,
        }


def evidence(what: str, value: float | str | None, unit: str, source: str) -> dict[str, Any]:
    """One number and where it comes from."""
    return {
        "what": what,
        "value": round(value, 6) if isinstance(value, float) else value,
        "unit": unit,
        "source": source,
    }


def anchor(site: Row, line: int | None = None, code: str | None = None) -> dict[str, Any]:
    """Where in the job's source: a site's first line, or another line of it with its code."""
    return {"path": site["path"], "line": line or site["line"], "code": site["code"] if code is None else code}


@dataclass
class Job:
    """One job as measured: `structure` (structure.json), `timing`, host `timeline` (None without events), views as
    rows.

    `view(name)` gives the rows of a view, [] where it was not made. `run` is the profiled run's run.json, `runs` the
    baselines'.
    """

    spec: dict[str, Any]
    structure: dict[str, Any]
    timing: Timing
    timeline: Timeline | None
    views: Callable[[str], list[Row]]
    headline: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] | None = None
    run: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def view(self, name: str) -> list[Row]:
        """Rows of a view of the first rank; of every rank for the views that compare ranks."""
        rows = self.views(name)
        return rows if name in ("overlap", "runtime") else self.first_rank(rows)

    @staticmethod
    def first_rank(rows: list[Row]) -> list[Row]:
        """Rows of the first rank that a view has."""
        first = min((r["rank"] for r in rows), default=None)
        return [r for r in rows if r["rank"] == first]

    @cached_property
    def training(self) -> bool:
        """Whether the job trains: it has optimizer steps or a backward pass, in the source or, without it, in the
        window."""
        if self.spec.get("kind") == "training" or self.sites("backward"):
            return True
        timeline = self.timeline
        return timeline is not None and bool(timeline.named("autograd::engine::evaluate_function", "Optimizer.step#"))

    @property
    def on_gpu(self) -> bool:
        """Whether the profiled window has device work."""
        return self.device is not None or bool(self.view("kernels"))

    def sites(self, kind: str, in_step: bool = False) -> list[Row]:
        """Sites of a kind, in source order; with `in_step` those whose function ran in the profiled window."""
        found = [s for s in self.structure["sites"] if s["kind"] == kind]
        return [s for s in found if self.in_step(s)] if in_step else found

    def in_step(self, site: Row) -> bool:
        """Whether a site runs every step: its function ran in the window, inside a loop if the function holds the
        loop."""
        function = self.function_of(site)
        if function is None or not function["ran"] or site["guard"]:
            return False
        return bool(site["loops"]) or not function["holds_loop"]

    def function_of(self, site: Row) -> Row | None:
        """The function that holds a site."""
        return self._functions.get((site["path"], site["function"]))

    @cached_property
    def _functions(self) -> dict[tuple[str, str], Row]:
        return {(f["path"], f["qualname"]): f for f in self.structure["functions"]}

    def function_index(self, site: Row) -> int:
        """Index of a site's function in the timeline, -1 where it did not run."""
        if self.timeline is not None:
            for number, function in enumerate(self.timeline.functions):
                if (function.path, function.qualname) == (site["path"], site["function"]):
                    return number
        return -1

    def code(self, path: str, line: int) -> str:
        """The text of a source line that structure.json kept, or nothing."""
        return self.structure["lines"].get(path, {}).get(str(line), "")

    def function_anchor(self, function: Function) -> Row:
        """Where a function of the job begins, with its source line, or its name without source."""
        code = self.code(function.path, function.line) or f"def {function.name}"
        return {"path": function.path, "line": function.line, "code": code}

    def anchors(self, rows: list[Row]) -> list[Row]:
        """Places of the rows of a view that have one, with their source line, or the function's name without source."""
        return [
            {"path": r["path"], "line": r["line"], "code": self.code(r["path"], r["line"]) or r["function"]}
            for r in rows
            if r.get("path")
        ]

    # time

    def call_ns(self, site: Row, names: list[str] | None = None) -> float:
        """Corrected time in the window of the calls that a site makes; calls of one name in a function share it by
        line."""
        if self.timeline is None:
            return 0.0
        function = self.function_index(site)
        found = [i for name in names or [site["callee"]] for i in self.timeline.calls(name, function)]
        same = (site["path"], site["function"], site["callee"], site["kind"], site["guard"], self.in_step(site))
        twins = [
            s
            for s in self.structure["sites"]
            if (s["path"], s["function"], s["callee"], s["kind"], s["guard"], self.in_step(s)) == same
        ]
        return self.timeline.total_ns(found) / (len(twins) if names is None and twins else 1)

    def calls_per_step(self, site: Row) -> float:
        """How often a site's callee is called by its function, a step."""
        if self.timeline is None:
            return 0.0
        return len(self.timeline.calls(site["callee"], self.function_index(site))) / max(1, self.timeline.steps)

    @property
    def window_ns(self) -> float:
        """Corrected length of the window."""
        return self.timeline.window_ns if self.timeline is not None else 1.0

    def per_step_s(self, window_ns: float) -> float:
        """Seconds a step, at the speed of the unprofiled run, of a time in the window; slow steps that it holds count
        in."""
        steady = self.timing.steady_share()
        return window_ns / self.window_ns * self.timing.step_s * (self.window_share / steady if steady else 1.0)

    @cached_property
    def window_steps(self) -> int:
        """Steps in the window: the trace's marks, else calls of the outermost module; 1 where neither tells."""
        marked = self.headline.get("steps") or (self.timeline.steps if self.timeline is not None else 0)
        return int(marked) or max(1, len(self._calls_ns))

    @cached_property
    def _calls_ns(self) -> list[int]:
        return self.timeline.calls_ns() if self.timeline is not None else []

    @cached_property
    def window_share(self) -> float:
        """Share of the whole job in work like the window's: its steady steps, and slow steps as far as it holds them.

        Optimizer steps are alike, and what is not (evaluation, new shapes) has detectors of its own. A step of inference
        is a call of the model, and a request has many of them with other work in between: most of its time can lie in
        the one step that moves weights, and the median step says nothing of it. The window then stands for as much slow
        time beside each steady step as it holds, never for more than the job has.
        """
        steady = self.timing.steady_share()
        calls = self._calls_ns
        if self.training or len(calls) < 2 or not self.timing.runs or not self.timing.step_s:
            return steady
        typical = statistics.median(calls)
        slow_s = sum(ns - typical for ns in calls if ns > SLOW * typical) / 1e9
        return steady + min(self.timing.excess_share(), steady * slow_s / (len(calls) * self.timing.step_s))

    @cached_property
    def preparations(self) -> list[Preparation]:
        """Operators that prepare something for each new shape, on a device: on CPU an operator's own time is its work,
        and the page faults of memory of a new size."""
        if self.timeline is None or not self.on_gpu:
            return []
        waiting = {r["op"] for r in self.view("synchronisations") if r.get("op")}
        return preparations(self.timeline, waiting)

    def share(self, window_ns: float, evaluated_ns: float = 0.0, kernel_ns: float = 0.0) -> float:
        """Share of the whole job at the horizon: a host time in the window, and of it the part that evaluations repeat.

        Evaluation has the data and the forward part of a step: `evaluated_ns` takes the same share of it as of those.
        Beside a device, host work can only give back time in which the device idles, and its own kernels (`kernel_ns`).
        """
        share = window_ns / self.window_ns * self.window_share
        if self.on_gpu and self.headline.get("gpu_idle") is not None:
            share = min(
                share, self.idle_share(self.headline["gpu_idle"] * self.capture_ns) + self.kernel_share(kernel_ns)
            )
        if evaluated_ns:
            share += min(1.0, evaluated_ns / max(1.0, self.forward_side_ns)) * self.evaluation_share
        return share

    # the device: its kernels take as long without the profiler, the host does not

    @property
    def capture_ns(self) -> float:
        """Length of the captured window as profiled."""
        return float(self.headline.get("capture_ns") or 1)

    @cached_property
    def unprofiled_capture_ns(self) -> float:
        """What the captured steps take in the unprofiled job; the capture itself where no such run is at hand."""
        steps = self.headline.get("steps") or 0
        if not self.timing.runs or not steps:
            return self.capture_ns
        slow = self.window_share / (self.timing.steady_share() or 1.0)
        return min(self.capture_ns, self.timing.step_s * 1e9 * steps * max(1.0, slow))

    @cached_property
    def replay(self) -> Replay | None:
        """The window replayed at the unprofiled job's speed; None without device work or unprofiled runs."""
        return fit(self.calls, self.unprofiled_capture_ns) if self.timing.runs else None

    @property
    def replayed_ns(self) -> float:
        """Length of the replayed window; that of the unprofiled steps where the replay is shorter than they are, as it
        holds no host time before its first call."""
        return max(self.replay.total_ns if self.replay is not None else 0.0, self.unprofiled_capture_ns)

    def replayed_share(self, saved_ns: float) -> float:
        """Share of the whole job of what a replay saves."""
        return max(0.0, saved_ns) / self.replayed_ns * self.window_share

    def kernel_share(self, kernel_ns: float) -> float:
        """Share of the whole job of device time, were it all on the critical path."""
        return min(1.0, kernel_ns / self.unprofiled_capture_ns) * self.window_share

    def idle_share(self, lost_ns: float) -> float:
        """Share of the whole job of device idle time, scaled to the unprofiled job: profiling lengthens it."""
        busy = float(self.headline.get("gpu_busy") or 0.0) * self.capture_ns
        profiled, actual = self.capture_ns - busy, max(0.0, self.unprofiled_capture_ns - busy)
        return min(1.0, lost_ns / max(1.0, profiled)) * actual / self.unprofiled_capture_ns * self.window_share

    def idle_note(self, lost_ns: float) -> str:
        """How the idle time of the capture stands to the unprofiled job's."""
        note = f"{lost_ns / 1e6:.1f} ms of {self.capture_ns / 1e6:.1f} ms captured"
        if not self.timing.runs:
            return note + ", as profiled: without the profiler the host is faster and the device idles less"
        share = self.unprofiled_capture_ns / self.capture_ns
        return note + f"; unprofiled, the same steps take {share:.0%} of that and only the idle part shrinks"

    @cached_property
    def forward_side_ns(self) -> float:
        """Window time without backward pass and optimizer."""
        if self.timeline is None:
            return 1.0
        away = self.timeline.named("Optimizer.", "<built-in method run_backward", "torch/nn/utils/clip_grad")
        return self.window_ns - self.timeline.total_ns(away)

    @cached_property
    def evaluation_share(self) -> float:
        """Share of the whole job in evaluations: the excess of the periodic slow steps, once a period over the
        horizon."""
        if not self.sites("evaluation") or not self.timing.slow or not self.timing.total_s:
            return 0.0
        each = self.evaluation_s
        count = (
            self.timing.horizon_steps // self.timing.period
            if self.timing.period
            else (self.timing.horizon_steps * len(self.timing.slow) / self.timing.steps)
        )
        return min(0.99, each * count / self.timing.total_s)

    @property
    def evaluation_s(self) -> float:
        """Seconds of one evaluation: median excess of the slow steps."""
        slow = sorted(self.timing.durations_s[i] - self.timing.step_s for i in self.timing.slow)
        return slow[len(slow) // 2] if slow else 0.0

    def evaluates(self, site: Row) -> bool:
        """Whether evaluation runs a site's function too: called by name from it, or part of the model."""
        names = {s["function"].rpartition(".")[2] for s in self.sites("evaluation")}
        callers = [f for f in self.structure["functions"] if f["name"] in names]
        function = self.function_of(site)
        if not callers or function is None:
            return False
        return function["name"] == "forward" or any(function["name"] in f["calls"] for f in callers)

    # operators

    def backward(self, forward: list[int]) -> float:
        """Corrected time of the backward nodes of forward operators in the timeline."""
        return backward_ns(self.timeline, forward) if self.timeline is not None else 0.0

    def wall_note(self, window_ns: float) -> str:
        """`12.3 of 56.9 ms a step; steps are 39 % of the job at 24 steps`."""
        timing = self.timing
        if self.window_share > timing.steady_share():
            return (
                f"{window_ns / 1e6:.1f} of {self.window_ns / 1e6:.1f} ms recorded; steps, slow ones included, are "
                f"{self.window_share:.0%} of the {timing.total_s:.1f} s that {timing.horizon_steps} steps take"
            )
        return (
            f"{self.per_step_s(window_ns) * 1e3:.2f} of {timing.step_s * 1e3:.2f} ms a step; steady steps are "
            f"{timing.steady_share():.0%} of the {timing.total_s:.1f} s that {timing.horizon_steps} steps take"
        )
