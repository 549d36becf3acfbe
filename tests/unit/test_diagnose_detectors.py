"""Each finding on a hand-made job that has it and on the nearest one that has not: what needs a device, several ranks or
another machine, and so is planted elsewhere or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.diagnose import detectors
from scripts.diagnose.job import Finding, Job
from tests.unit.diagnose_job import LOOP, STEP, event, found, job, op, timing

sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))

import planted

MS = 10**6
H200: dict[str, Any] = {"device": {"name": "NVIDIA H200", "capacity_bytes": 100 << 30}}
HEAD = {"steps": 2, "capture_ns": 200 * MS, "gpu_busy": 0.5, "gpu_idle": 0.5}
Views = dict[str, list[dict[str, Any]]]


def kernel(name: str, kind: str, total_ms: float, **more: Any) -> dict[str, Any]:
    row = {"rank": 0, "name": name, "class": kind, "total_ns": int(total_ms * MS), "count": 10, "mean_ns": 100_000}
    return {**row, "dtypes": '["float", "float"]', "phase": "forward", "path": None, "function": None, **more}


def on_device(folder: Path, views: Views, text: str = LOOP, **more: Any) -> Job:
    device = {**H200["device"], **more.pop("device", {})}
    return job(folder, text, more.pop("events", STEP), views, device=device, headline=HEAD, **more)


def tf32(folder: Path, fault: bool) -> Job:
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_tn" if fault else "sm90_xmma_gemm_f32f32_tf32f32_f32_tn"
    return on_device(folder, {"kernels": [kernel(name, "gemm", 40)]})


def channels_last(folder: Path, fault: bool) -> Job:
    name = "cudnn::nchwToNhwcKernel" if fault else "sm90_xmma_fprop"
    return on_device(folder, {"kernels": [kernel(name, "convolution", 20)]})


def benchmark(folder: Path, fault: bool) -> Job:
    records = {"header": {"backend": {"cudnn_benchmark": not fault}}}
    return on_device(folder, {"kernels": [kernel("sm90_xmma_fprop", "convolution", 60)]}, records=records)


def compile_missed(folder: Path, fault: bool) -> Job:
    long = timing(horizon_steps=100_000 if fault else 100)  # within 11 s the compiler would not even have ended
    return on_device(folder, {"kernels": [kernel("vectorized_elementwise", "elementwise", 60)]}, timing=long)


def roofline(folder: Path, fault: bool) -> Job:
    share = 0.2 if fault else 0.8
    return on_device(folder, {"kernels": [kernel("gemm", "gemm", 60, roofline=share, bound="compute", shapes="[[3]]")]})


def headroom(folder: Path, fault: bool) -> Job:
    peak = (10 if fault else 90) << 30
    text = "from torch.utils.checkpoint import checkpoint\n" + LOOP.replace("model(x)", "checkpoint(model, x)")
    return on_device(folder, {"kernels": [kernel("gemm", "gemm", 30)]}, text, run={"peak_device_bytes": peak})


def thrash(folder: Path, fault: bool) -> Job:
    steps = [{"rank": 0, "step": i, "host_allocations": 3 if fault else 0, "wall_ns": MS} for i in range(4)]
    calls = [{"rank": 0, "kind": "call", "name": "cudaMalloc", "total_ns": 20 * MS, "count": 12}]
    return on_device(folder, {"kernels": [kernel("gemm", "gemm", 30)], "steps": steps, "cpu": calls})


def thrash_beside_kernels(folder: Path, fault: bool) -> Job:
    """As on the H200: of 20 ms in the driver the device idles 8; the rest ran beside queued kernels."""
    lost = [{"rank": 0, "kind": "host_busy", "call": "cudaFree", "lost_ns": 8 * MS, "path": None, "function": None}]
    rows = {name: thrash(folder, fault).view(name) for name in ("kernels", "steps", "cpu")}
    return on_device(folder, {**rows, "lost_time": lost})


def math_path(folder: Path, fault: bool) -> Job:
    """On a device the view names bmm and softmax innermost, scaled_dot_product_attention outermost."""
    whole, bmm = "aten::scaled_dot_product_attention", "aten::bmm"
    forward = kernel("gemm", "sgemm", 20, op=bmm, top_op=whole)
    backward = kernel("gemm", "sgemm", 30, op=bmm, top_op="autograd: BmmBackward0", forward_op=whole)
    fused = kernel("attention", "flash_fwd", 10, op=whole, top_op=whole)
    rows = [forward, backward] if fault else [fused]
    text = LOOP + "        F.scaled_dot_product_attention(x, x, x)\n"
    inside = [op(whole, 0, 300), op("aten::_scaled_dot_product_attention_math", 10, 290)] if fault else []
    return on_device(folder, {"kernels": rows}, text=text, events=[*STEP, *inside])


def pageable(folder: Path, fault: bool) -> Job:
    where = {"path": "job.py", "line": 1, "function": "train", "source": "Pageable" if fault else "Pinned"}
    row = {"rank": 0, "kind": "HtoD", "bytes": 1 << 28, "total_bytes": 1 << 29, "exposed_ns": 60 * MS}
    return on_device(folder, {"copies": [{**row, **where, "destination": "device", "op": "aten::copy_"}]})


def launch_bound(folder: Path, fault: bool) -> Job:
    row = {"rank": 0, "kind": "launch_bound", "lost_ns": (60 if fault else 1) * MS, "path": None, "function": None}
    return on_device(folder, {"lost_time": [row], "kernels": [kernel("gemm", "gemm", 30)]})


def synchronisation(folder: Path, fault: bool) -> Job:
    calls = [{"rank": 0, "call": "cudaStreamSynchronize", "count": 8, "total_ns": 50 * MS, "steps": 2, "path": None}]
    lost = [{"rank": 0, "kind": "synchronisation", "lost_ns": 40 * MS, "path": None}]
    return on_device(folder, {"synchronisations": calls, "lost_time": lost} if fault else {})


def gloo(folder: Path, slower: int, talk_ms: tuple[int, int]) -> Job:
    cpu, runtime = [], []
    for rank in (0, 1):
        frame = {"kind": "frame", "path": "torch/distributed/distributed_c10d.py", "function": "all_reduce"}
        name = "torch/distributed/distributed_c10d.py(1): all_reduce"
        cpu.append({"rank": rank, "name": name, "total_ns": talk_ms[rank] * MS, **frame})
        mark = {"rank": rank, "source": "profiler_step", "wall_ns": 50 * MS}
        runtime += [{**mark, "step": step} for step in (0, 1)]
        runtime.append({"rank": rank, "step": None, "source": "capture", "wall_ns": 100 * MS})
    text = LOOP + f"        if rank == {slower}:\n            validate()\n        dist.all_reduce(x)\n"
    return job(folder, text, STEP, {"cpu": cpu, "runtime": runtime})


def exposed(folder: Path, fault: bool) -> Job:
    return gloo(folder, 0, (40, 50) if fault else (0, 50))  # all of the other one's is waiting


def straggler(folder: Path, fault: bool) -> Job:
    return gloo(folder, 1, (60, 20) if fault else (21, 20))


def missing_package(folder: Path, fault: bool) -> Job:
    text = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n" + LOOP
    packages = ["torch"] if fault else ["torch", "flash-attn"]
    return job(folder, text, STEP, records={"packages": packages})


def environment(folder: Path, **fingerprint: Any) -> Job:
    return job(folder, LOOP, STEP, run={"environment": fingerprint})


def cpu_build(folder: Path, fault: bool) -> Job:
    return environment(folder, torch="2.13.0+cpu", gpus=[{"name": "H200"}] if fault else [])


def clocks(folder: Path, fault: bool) -> Job:
    return environment(folder, gpus=[{"name": "H200", "throttle_reasons": 0x40 if fault else 0x1}])


def power(folder: Path, fault: bool) -> Job:
    limit = 400.0 if fault else 700.0
    return environment(folder, gpus=[{"power_limit_w": limit, "default_power_limit_w": 700.0}])


def shared(folder: Path, fault: bool) -> Job:
    gpus = [{"name": "H200", "gpu_processes": int(fault), "memory_used_bytes": 0}]
    return on_device(folder, {"kernels": [kernel("gemm", "gemm", 30)]}, run={"environment": {"gpus": gpus}})


def hidden(folder: Path, fault: bool) -> Job:
    """In a container the driver lists nobody, but memory is taken."""
    gpus = [{"name": "H200", "gpu_processes": 0, "memory_used_bytes": (700 if fault else 3) << 20}]
    return on_device(folder, {"kernels": [kernel("gemm", "gemm", 30)]}, run={"environment": {"gpus": gpus}})


def threads(folder: Path, fault: bool) -> Job:
    records = {"header": {"backend": {"threads": 16 if fault else 2}}}
    return job(folder, LOOP, STEP, run={"environment": {"cores": 2}}, records=records)


def startup(folder: Path, fault: bool) -> Job:
    spent = timing(startup_s=6.0)
    return job(folder, LOOP, STEP, timing=spent, records={"import_s": 1.0 if fault else 5.5, "warm_up_s": 0.3})


Build = Callable[[Path, bool], Job]
CASES: list[tuple[str, Build, float | None]] = [
    ("tf32_off", tf32, 0.2 * 10 / 11 * 7 / 8),
    ("channels_last_missed", channels_last, 0.1 * 10 / 11),
    ("cudnn_benchmark_off", benchmark, 0.3 * 10 / 11 * 0.33),
    ("compile_missed", compile_missed, 0.3 * 0.6 - 30 / 10_001),
    ("kernel_below_roofline", roofline, 0.3 * 0.8 * 10 / 11),
    ("memory_headroom", headroom, 0.15 * 10 / 11),
    ("allocator_thrash", thrash, 0.1 * 10 / 11),
    ("allocator_thrash", thrash_beside_kernels, 0.04 * 10 / 11),
    ("attention_math_path", math_path, 0.25 * 10 / 11),
    ("pageable_copies", pageable, (60 - 2**29 / 55e6) / 200 * 10 / 11),
    ("launch_bound", launch_bound, 0.3 * 10 / 11),
    ("step_synchronisation", synchronisation, 0.2 * 10 / 11),
    ("communication_exposed", exposed, 0.4 * 10 / 11),
    ("straggler_rank", straggler, 0.4 * 10 / 11),
    ("environment_missing_package", missing_package, None),
    ("environment_cpu_build", cpu_build, None),
    ("environment_clocks", clocks, None),
    ("environment_clocks", power, None),
    ("environment_shared_device", shared, 0.5 * 10 / 11),
    ("environment_shared_device", hidden, 0.5 * 10 / 11),
    ("environment_threads", threads, None),
    ("startup_dominates", startup, (6.0 - 1.0 - 0.2) / 16),
]
ELSEWHERE = {"weights_moved"}  # tests/unit/test_diagnose_preparation.py


@pytest.mark.parametrize(("identity", "build", "fraction"), CASES, ids=[f"{i}-{b.__name__}" for i, b, _ in CASES])
def test_found_with_its_ceiling_and_silent_without_the_fault(
    tmp_path: Path, identity: str, build: Build, fraction: float | None
) -> None:
    first, second = (tmp_path / "fault"), (tmp_path / "clean")
    first.mkdir()
    second.mkdir()
    result: list[Finding] = found(build(first, True), identity)
    assert len(result) == 1
    assert result[0].fraction == (None if fraction is None else pytest.approx(fraction, rel=0.02))
    assert result[0].evidence
    assert found(build(second, False), identity) == []


def test_recomputation_is_worth_the_kernels_that_the_backward_pass_repeats(tmp_path: Path) -> None:
    """As torch.utils.checkpoint does on the H200: it stops before a block's last product, which nobody needs again."""
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    again = op("aten::addmm", 950, 960, sequence=40, input_dims="[[8], [4, 8]]")
    events = [*STEP, op(node, 940, 990, sequence=7), again, op("aten::mm", 970, 980, input_dims="[[4, 8], [8, 8]]")]
    rows = [
        kernel("gemm", "gemm", 30),
        kernel("gemm", "gemm", 12, phase="backward", op="aten::addmm", shapes="[[8],[4,8]]", count=1, mean_ns=12 * MS),
        kernel("gemm", "gemm", 50, phase="backward", op="aten::mm", shapes="[[4,8],[8,8]]"),
    ]
    text = "from torch.utils.checkpoint import checkpoint\n" + LOOP.replace("model(x)", "checkpoint(model, x)")
    a_job = on_device(tmp_path, {"kernels": rows}, text, events=events, run={"peak_device_bytes": 10 << 30})
    result = found(a_job, "memory_headroom")[0]
    assert result.fraction == pytest.approx(12 / 200 * 10 / 11)
    assert result.confidence == "high"


def test_recomputed_products_with_the_shapes_of_the_backward_pass_s_own_are_told_apart(tmp_path: Path) -> None:
    """Without biases, and so as in Llama: up's product again has the shapes of down's gradient."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    both = [
        op("aten::mm", 945, 950, sequence=40, input_dims="[[4, 8], [8, 8]]"),
        op("aten::mm", 955, 960, input_dims="[[4, 8], [8, 8]]"),
    ]
    rows = [
        kernel("gemm", "gemm", 30),
        kernel("gemm", "gemm", 20, phase="backward", op="aten::mm", shapes="[[4,8],[8,8]]", count=2),
        kernel("fill", "other", 2, phase="backward", op="aten::mm", shapes="[[4,8],[8,8]]", count=2),
    ]
    text = "from torch.utils.checkpoint import checkpoint\n" + LOOP.replace("model(x)", "checkpoint(model, x)")
    events = [*STEP, op(node, 940, 990, sequence=7), *both]
    a_job = on_device(tmp_path, {"kernels": rows}, text, events=events, run={"peak_device_bytes": 10 << 30})
    assert found(a_job, "memory_headroom")[0].fraction == pytest.approx(11 / 200 * 10 / 11)


@pytest.mark.parametrize("prepares", [True, False])
def test_longer_inputs_alone_are_no_preparation(tmp_path: Path, prepares: bool) -> None:
    """No shape repeats; steps take as long as their kernels, or as long as those and something on the host."""
    lengths = [20, 60, 25, 90, 30, 80]
    idle = [3, 3, 40, 3, 45, 3] if prepares else [3] * 6
    walls = [(a + b) * MS for a, b in zip(lengths, idle, strict=True)]
    steps = [
        {"rank": 0, "step": i, "wall_ns": w, "new_signature": bool(i) or None, "cause": None}
        for i, w in enumerate(walls)
    ]
    runtime = [
        {"rank": 0, "step": i, "start_ns": i, "end_ns": i + 1, "wall_ns": w, "busy_ns": b * MS}
        for i, (w, b) in enumerate(zip(walls, lengths, strict=True))
    ]
    views: Views = {"kernels": [kernel("gemm", "gemm", 30)], "steps": steps, "runtime": runtime}
    result = found(on_device(tmp_path, views), "new_shapes_slow_steps")
    if prepares:
        assert result[0].fraction == pytest.approx((37 + 42) / (sum(walls[1:]) / MS) * 10 / 11, rel=0.02)
    else:
        assert result == []


def test_every_finding_has_a_case_here_or_a_planted_job_on_the_cpu() -> None:
    every = {name for module in detectors.modules() for name in module.LOOKED_FOR}
    assert every - {name for name, _, _ in CASES} - ELSEWHERE - set(planted.names("cpu")) == set()


def test_an_odd_size_is_named_where_the_source_has_it(tmp_path: Path) -> None:
    text = "width = 4095 if cuda else 63\nother = 999\n" + LOOP
    row = kernel("gemm", "gemm", 60, roofline=0.2, bound="compute", shapes="[[4095,4095],[4095,4095]]")
    result = found(on_device(tmp_path, {"kernels": [row]}, text), "kernel_below_roofline")[0]
    assert [(a["line"], "4095" in a["code"]) for a in result.anchors] == [(1, True)]
    assert "4095" in result.cause


def test_the_layout_is_named_where_the_model_goes_to_the_device(tmp_path: Path) -> None:
    row = kernel("cudnn::nchwToNhwcKernel", "convolution", 20)
    result = found(
        on_device(tmp_path, {"kernels": [row]}, "model = make().to('cuda')\n" + LOOP), "channels_last_missed"
    )
    assert [a["line"] for a in result[0].anchors] == [1]


def test_the_straggler_s_own_branch_is_named(tmp_path: Path) -> None:
    places = found(straggler(tmp_path, True), "straggler_rank")[0].anchors
    assert [a["code"] for a in places] == ["if rank == 1:"]


def test_a_straggler_of_two_on_devices_is_compared_with_the_other(tmp_path: Path) -> None:
    runtime: list[dict[str, Any]] = []
    for rank, own in ((0, 100 * MS), (1, 60 * MS)):
        marks = {"rank": rank, "source": "profiler_step", "wall_ns": 100 * MS, "own_ns": own, "straggler": rank == 0}
        runtime += [{**marks, "step": step} for step in range(2)]
    overlap = [{"rank": r, "group": None, "collective": None, "exposed_ns": ns} for r, ns in ((0, MS), (1, 80 * MS))]
    a_job = on_device(tmp_path, {"runtime": runtime, "overlap": overlap, "kernels": [kernel("gemm", "gemm", 30)]})
    late = found(a_job, "straggler_rank")
    assert late[0].fraction == pytest.approx(
        0.4 * 10 / 11, rel=0.01
    )  # not the half of it that the median of both gives
    assert found(a_job, "communication_exposed") == []  # rank 1 waits; rank 0, for which it waits, does not


def test_start_up_without_a_known_floor_has_no_ceiling_and_says_why(tmp_path: Path) -> None:
    result = found(job(tmp_path, LOOP, STEP, timing=timing(startup_s=6.0)), "startup_dominates")
    assert result[0].fraction is None
    assert "no step marks say" in result[0].evidence[-1]["what"] + result[0].evidence[-1]["source"]


def test_compiling_is_not_part_of_the_floor_of_start_up(tmp_path: Path) -> None:
    text = "import torch\n" + LOOP + "\nmodel = torch.compile(model)\n"
    a_job = job(tmp_path, text, STEP, timing=timing(startup_s=6.0), records={"import_s": 1.0, "warm_up_s": 4.0})
    assert found(a_job, "startup_dominates")[0].fraction == pytest.approx(5.0 / 16)


def test_collectives_started_early_count_by_what_is_waited_for(tmp_path: Path) -> None:
    name = "<built-in method wait of pybind11_builtins.pybind11_detail_function_record object>"
    a_job = gloo(tmp_path, 0, (1, 1))
    rows = [*a_job.views("cpu"), *({"rank": r, "kind": "frame", "name": name, "total_ns": 30 * MS} for r in (0, 1))]
    a_job.views = lambda view, kept=a_job.views: rows if view == "cpu" else kept(view)  # type: ignore[misc]
    assert found(a_job, "communication_exposed")[0].fraction == pytest.approx(0.3 * 10 / 11, rel=0.02)


@pytest.mark.parametrize(
    ("width", "kept", "worth"), [(64, None, True), (1024, None, False), (1024, "1073741824", True)]
)
def test_zeroed_gradients_are_worth_something_where_new_memory_is_cheaper(
    tmp_path: Path, width: int, kept: str | None, worth: bool
) -> None:
    spec = {"kind": "training", "environment": {"variables": {"MALLOC_TRIM_THRESHOLD_": kept}}}
    text = LOOP + "        optimizer.zero_grad(set_to_none=False)\n"
    zero = event("Optimizer.zero_grad#AdamW.zero_grad", 400, 500, "user_annotation")
    events = [*STEP, zero, op("aten::zero_", 410, 490, input_dims=f"[[{width}, {width}]]")]
    share = found(job(tmp_path, text, events, spec=spec), "tiny_kernels")[0].fraction
    assert (share or 0.0) > 0.05 if worth else share == 0.0


@pytest.mark.parametrize(("tokens", "padded"), [(2 * 4 * 25, 0.75), (2 * 4 * 100, None)])
def test_padding_is_what_the_ledger_did_not_count(tmp_path: Path, tokens: int, padded: float | None) -> None:
    text = LOOP + "\ndef collate(rows, n):\n    return tokenizer(rows, padding='max_length', max_length=100)\n"
    call = event("nn.Module: Bert_0", 0, 400)
    events = [STEP[0], call, op("aten::embedding", 10, 390, input_dims="[[512, 64], [4, 100], [], [], []]"), *STEP[2:]]
    a_job = job(tmp_path, text, events, records={"counted": {"tokens": tokens, "batches": 2}})
    result = found(a_job, "padding_waste")
    assert len(result) == 1  # the source pads to a constant either way
    if padded is None:
        assert result[0].fraction is None
    else:
        assert result[0].evidence[0]["value"] == pytest.approx(padded)
        assert result[0].fraction == pytest.approx(0.75 * 380 / 1000 * 10 / 11, rel=0.05)
