"""Float64 where nobody asked for it."""

from __future__ import annotations

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.timeline import OPERATOR

LOOKED_FOR = ("double_precision",)
HEAVY = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::conv2d")


def detect(job: Job) -> list[Finding]:
    """Operators with double inputs under modules; half of their time is the least that single precision saves."""
    timeline = job.timeline
    if timeline is None or not any(timeline.types):
        raise NotApplicable("the profiled run recorded no operator types")
    doubles = [
        i for i in range(len(timeline.name)) if timeline.kind[i] == OPERATOR and "double" in (timeline.types[i] or "")
    ]
    heavy = [i for i in doubles if timeline.name[i] in HEAVY]
    if not heavy:
        return []
    # operators of the backward pass have double inputs too, so that they are among these
    own = timeline.total_ns(timeline.outermost(doubles))
    gone = own * (1 - 1 / 2.24)  # measured on CPU: a GPT in float64 against float32
    return [
        Finding(
            "double_precision",
            f"{len(heavy) / max(1, timeline.steps):.0f} matrix products a step run in float64",
            "A double constant, numpy array or default dtype leaks into the model; float32 halves the bytes and "
            "doubles the lanes.",
            job.share(gone),
            "operators with float64 inputs, forward and backward, at 2.24 times (measured on CPU): "
            f"{job.wall_note(gone)}",
            "high" if _places(job) else "medium",
            ["python", "config"],
            [anchor(s) for s in _places(job)],
            [evidence("float64 operators", len(doubles) / max(1, timeline.steps), "per step", "events: input types")],
        )
    ]


def _places(job: Job) -> list[Row]:
    """Where float64 enters: casts, dtypes, the default dtype, arrays taken from numpy as they are."""
    default = [
        s
        for s in job.sites("setting")
        if s["detail"]["name"] == "set_default_dtype" and "64" in str(s["detail"]["value"])
    ]
    arrays = [s for s in job.sites("tensor_from_host") if s["detail"]["call"] == "from_numpy"]
    return [*job.sites("float64"), *default, *arrays]
