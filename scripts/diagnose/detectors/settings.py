"""Backend settings that leave the device's faster paths unused."""

from __future__ import annotations

import re

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence

LOOKED_FOR = ("tf32_off", "channels_last_missed", "cudnn_benchmark_off", "compile_missed")
HAS_TF32 = re.compile(r"\bA(10|16|30|40|100|800)\b|\bL(4|20|40)|\bG?[HB]\d{2,3}|RTX ([A3-6]|PRO)")
TF32_FASTER = 8.0  # A100: 156 of 19.5 TFLOP/s; H100, H200: 7.4
TUNED = 0.33  # of the convolutions' time: 31 % twice, a step with float32 kernels of 3 to 7 on an H200
SEARCH_CALLS = 130  # calls of a convolution that tuning it takes, measured there: 0.7 s in nine searches
COMPILE_S = 30.0  # a cold inductor cache for a small model, measured: 31 s; a warm one 5.5 s


def detect(job: Job) -> list[Finding]:
    """TF32, memory format, cudnn.benchmark and compilation, each from what the trace shows ran."""
    if job.timeline is None and not job.view("kernels"):
        raise NotApplicable("the profiled run has neither operators nor kernels")
    return [*tf32(job), *channels_last(job), *benchmark(job), *compiled(job)]


def _settings(job: Job, *names: str) -> list[Row]:
    return [s for s in job.sites("setting") if any(n in str(s["detail"].get("name")) for n in names)]


def _kernel_share(job: Job, rows: list[Row]) -> float:
    return job.kernel_share(sum(r["total_ns"] for r in rows))


def tf32(job: Job) -> list[Finding]:
    """Float32 matrix products and convolutions whose kernels do not use tensor cores."""
    rows = [
        r
        for r in job.view("kernels")
        if r["class"] in ("gemm", "convolution")
        and "float" in str(r.get("dtypes"))
        and "bfloat16" not in str(r.get("dtypes"))
        and "half" not in str(r.get("dtypes")).lower()
        and not any(word in r["name"].lower() for word in ("tf32", "bf16", "f16", "h16", "1688", "16816"))
        and any(
            word in r["name"].lower() for word in ("sgemm", "simt", "f32", "scudnn", "implicit_con", "fft", "winograd")
        )
    ]
    share = _kernel_share(job, rows)
    if share < 0.01 or not HAS_TF32.search(str((job.device or {}).get("name"))):
        return []
    return [
        Finding(
            "tf32_off",
            f"Float32 products run without tensor cores ({share:.0%} of the job)",
            "torch.backends.cuda.matmul.allow_tf32 is off (the default) or the matmul precision is 'highest'. TF32 "
            "rounds inputs to 10 "
            "bits: allowed only where the contract's tolerance is.",
            share * (1 - 1 / TF32_FASTER),
            f"those kernels' time less an {TF32_FASTER:.0f}th of it (TF32 peaks at up to {TF32_FASTER:.0f} times "
            "float32), were they on the critical path",
            "medium",
            ["backend"],
            [anchor(s) for s in _settings(job, "tf32", "set_float32_matmul_precision")],
            [
                evidence(r["name"][:80], r["total_ns"] / 1e6, "ms in the window", "views: kernels")
                for r in sorted(rows, key=lambda r: -r["total_ns"])[:4]
            ],
        )
    ]


def channels_last(job: Job) -> list[Finding]:
    """Layout conversions around convolutions on the device; on CPU the measured difference of the formats."""
    if job.sites("channels_last"):
        return []
    rows = [r for r in job.view("kernels") if "nchwtonhwc" in r["name"].lower() or "nhwctonchw" in r["name"].lower()]
    share = _kernel_share(job, rows)
    if share >= 0.005:
        return [
            Finding(
                "channels_last_missed",
                f"Convolutions convert their layout back and forth ({share:.1%} of the job)",
                "The kernels want channels last, the tensors are channels first; keep the model and its inputs in "
                "torch.channels_last.",
                share,
                "time of the conversion kernels, were they on the critical path",
                "medium",
                ["config"],
                # the format is set where the model goes to the device
                [anchor(s) for s in job.sites("transfer") if not job.in_step(s) and s["detail"].get("to") != "cpu"][:4],
                [evidence("conversions", sum(r["count"] for r in rows), "in the window", "views: kernels")],
            )
        ]
    if job.on_gpu or job.timeline is None:
        return []
    convolutions = job.timeline.outermost(job.timeline.calls("aten::conv2d") + job.timeline.calls("aten::_convolution"))
    spent = job.timeline.total_ns(convolutions)
    spent += job.backward([j for i in convolutions for j in job.timeline.under(i)])
    gone = spent * (1 - 1 / 1.13)
    if job.share(gone) < 0.005:
        return []
    return [
        Finding(
            "channels_last_missed",
            "Convolutions run in channels-first layout",
            "On CPU channels-last convolutions save reordering; it rounds differently (1.7e-3 in the loss of YOLO11n "
            "after 4 steps, measured).",
            job.share(gone),
            f"convolutions take {job.per_step_s(spent) * 1e3:.2f} ms a step; the format gained at most 1.13 times "
            "where measured",
            "low",
            ["config"],
            [],
            [evidence("convolutions", job.per_step_s(spent) * 1e3, "ms/step", "events: aten::conv2d and its backward")],
        )
    ]


def benchmark(job: Job) -> list[Finding]:
    """Convolutions of fixed shapes with cudnn.benchmark off."""
    rows = [r for r in job.view("kernels") if r["class"] == "convolution"]
    flags = job.records.get("header", {}).get("backend") or {}
    changing = sum(1 for r in job.view("steps") if r.get("new_signature")) > 2
    on = flags.get("cudnn_benchmark") is True or any(
        s["detail"].get("value") is True for s in _settings(job, "cudnn.benchmark")
    )
    share = _kernel_share(job, rows)
    search_s = SEARCH_CALLS * sum(r.get("mean_ns") or 0 for r in rows) / 1e9
    gone = share * TUNED - search_s / job.timing.total_s
    if not rows or changing or on or share < 0.05 or gone <= 0:
        return []
    return [
        Finding(
            "cudnn_benchmark_off",
            f"Convolutions of fixed shapes take cuDNN's first guess ({share:.0%} of the job)",
            "torch.backends.cudnn.benchmark is off: algorithms are chosen by heuristic. Deterministic mode keeps it "
            "off on purpose.",
            gone,
            f"{TUNED:.0%} of the convolutions' time at most, less about {search_s:.1f} s of searching before the first "
            f"step, of {job.timing.total_s:.1f} s",
            "low",
            ["backend"],
            [anchor(s) for s in _settings(job, "cudnn", "use_deterministic_algorithms")],
            [
                evidence(
                    "convolution kernels", sum(r["total_ns"] for r in rows) / 1e6, "ms in the window", "views: kernels"
                )
            ],
        )
    ]


def compiled(job: Job) -> list[Finding]:
    """Elementwise kernels and launches that torch.compile would join, less the time that compiling takes."""
    if job.sites("compile") or not job.on_gpu:
        return []
    rows = [r for r in job.view("kernels") if r["class"] in ("elementwise", "norm", "reduction")]
    waiting = sum(r["lost_ns"] for r in job.view("lost_time") if r["kind"] == "launch_bound")
    share = _kernel_share(job, rows) * 0.6 + job.idle_share(waiting)
    share -= COMPILE_S / job.timing.total_s
    if share < 0.02:
        return []
    return [
        Finding(
            "compile_missed",
            "No torch.compile, and the step is made of kernels that it would join",
            "Pointwise, norm and reduction kernels read and write the same tensors again and again; the compiler "
            "fuses them and launches less.",
            share,
            f"60 % of those kernels' time and the launch-bound idle time, less {COMPILE_S:.0f} s to compile, of "
            f"{job.timing.total_s:.0f} s",
            "low",
            ["config"],
            [anchor(s) for s in job.sites("optimizer")[:1]],
            [
                evidence(
                    "pointwise, norm, reduction",
                    sum(r["total_ns"] for r in rows) / 1e6,
                    "ms in the window",
                    "views: kernels",
                )
            ],
        )
    ]
