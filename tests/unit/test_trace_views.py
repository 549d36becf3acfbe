"""Each view on a small trace whose numbers follow from how it was written."""

from __future__ import annotations

import pytest

from scripts.trace.views import (
    copies,
    cpu,
    critical_path,
    gaps,
    kernels,
    lost_time,
    memory,
    memory_timeline,
    modules,
    overlap,
    phases,
    runtime,
    steps,
    synchronisations,
)
from scripts.trace.views.diff import diff
from tests.unit.trace_scene import MS, US, Scene


def rows(view, capture, **wanted):
    """Rows of a view as dictionaries, those with the wanted values."""
    found = view.view(capture).to_pylist()
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def one(view, capture, **wanted):
    """The only such row."""
    found = rows(view, capture, **wanted)
    assert len(found) == 1, found
    return found[0]


def two_steps() -> Scene:
    """Two steps of 10 ms; each launches a kernel that runs 8 ms later, across the end of the mark."""
    scene = Scene()
    for step in (0, 1):
        begin = step * 10 * MS
        scene.mark(f"ProfilerStep#{step + 5}", begin, begin + 10 * MS)
        scene.op("aten::mm", begin + 1 * MS, begin + 2 * MS, [[64, 128], [128, 32]], ["float", "float"])
        scene.kernel("gemm_kernel", begin + 1 * MS + 100 * US, begin + 9 * MS, begin + 13 * MS)
    return scene


def test_asynchronous_work_stays_with_the_step_that_launched_it():
    table = rows(runtime, two_steps().capture())
    first, second, whole = table
    assert (first["step"], second["step"], whole["step"]) == (5, 6, None)
    assert (first["start_ns"], first["end_ns"], first["wall_ns"]) == (9 * MS, 19 * MS, 10 * MS)
    assert (first["busy_ns"], first["idle_ns"], first["kernels"]) == (4 * MS, 6 * MS, 1)
    assert (second["start_ns"], second["end_ns"], second["busy_ns"]) == (19 * MS, 23 * MS, 4 * MS)
    assert (whole["wall_ns"], whole["busy_ns"], whole["kernels"]) == (14 * MS, 8 * MS, 2)
    assert {row["window"] for row in table} == {"gpu"} and {row["source"] for row in table} == {"profiler_step"}


def test_without_marks_the_capture_is_one_window_and_the_notes_say_so():
    from scripts.trace.summarise import summarise

    scene = Scene().op("aten::add", 0, MS).kernel("k", 100, 5 * MS, 7 * MS).kernel("k", 200, 9 * MS, 10 * MS)
    capture = scene.capture()
    row = one(runtime, capture)
    assert (row["step"], row["source"], row["wall_ns"], row["busy_ns"]) == (None, "capture", 5 * MS, 3 * MS)
    _, document = summarise(capture)
    assert any("no step marks: the whole capture is one window" in note for note in document["notes"])
    assert document["headline"]["steps"] == 0 and document["headline"]["median_step_ns"] is None


def test_a_cpu_only_trace_has_every_host_number_and_null_for_the_device():
    scene = Scene()
    for step in range(4):
        begin = step * 10 * MS
        scene.mark("Optimizer.step#AdamW.step", begin + 8 * MS, begin + 10 * MS)
        scene.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, begin + 3 * MS)
        scene.frame("train.py(9): __getitem__", begin + MS, begin + 2 * MS)
        scene.frame("train.py(20): loop", begin + 3 * MS, begin + 8 * MS)
        scene.op("aten::linear", begin + 4 * MS, begin + 6 * MS, sequence=step)
        scene.op("autograd::engine::evaluate_function: AddmmBackward0", begin + 6 * MS, begin + 7 * MS, sequence=step)
        scene.op("aten::add_", begin + 8 * MS, begin + 9 * MS)
    capture = scene.capture(device=None)
    whole = one(runtime, capture, step=None)
    assert whole["busy_ns"] is None and whole["kernels"] is None and whole["source"] == "optimizer_step"
    assert (whole["cpu_wall_ns"], whole["data_ns"], whole["op_ns"], whole["python_ns"]) == (
        40 * MS,
        12 * MS,
        16 * MS,
        12 * MS,
    )
    found = {row["phase"]: row["wall_ns"] for row in rows(phases, capture, step=None)}
    assert found == {"data": 12 * MS, "forward": 8 * MS, "backward": 4 * MS, "optimizer": 8 * MS, "other": 8 * MS}
    loader = one(cpu, capture, name="train.py(9): __getitem__")
    assert (loader["path"], loader["line"], loader["function"], loader["own"]) == ("train.py", 9, "__getitem__", True)
    assert (loader["count"], loader["self_ns"], loader["source_ns"]) == (4, 4 * MS, 4 * MS)
    lost = {(row["kind"], row["path"]): row["lost_ns"] for row in rows(lost_time, capture)}
    assert (
        lost[("data", "train.py")] == 4 * MS
        and lost[("data", None)] == 8 * MS
        and lost[("python", "train.py")] == 8 * MS
    )
    assert sum(lost.values()) == whole["data_ns"] + whole["python_ns"]
    assert runtime.headline(runtime.view(capture), capture)["data_wait"] == pytest.approx(0.3)


def test_the_autograd_thread_is_followed_while_the_main_thread_waits_for_it():
    scene = Scene().mark("ProfilerStep#1", 0, 20 * MS)
    scene.frame("torch/_tensor.py(600): backward", 5 * MS, 15 * MS)
    scene.frame("<built-in method run_backward of torch._C._EngineBase object at 0x7f01>", 6 * MS, 15 * MS)
    scene.op("aten::linear", MS, 2 * MS, sequence=7)
    scene.op("autograd::engine::evaluate_function: AddmmBackward0", 7 * MS, 13 * MS, sequence=7, tid="200")
    capture = scene.capture(device=None)
    assert one(phases, capture, step=1, phase="backward")["wall_ns"] == 10 * MS
    assert one(runtime, capture, step=1)["op_ns"] == 7 * MS  # 1 forward, 6 on the other thread
    assert one(cpu, capture, name="aten::linear")["role"] == "main"
    assert one(cpu, capture, name="autograd::engine::evaluate_function: AddmmBackward0")["role"] == "backward"


def test_a_closure_inside_the_optimizer_keeps_its_phases():
    # Lightning runs forward and backward inside Optimizer.step; checkpointing runs modules inside backward.
    scene = Scene().mark("ProfilerStep#1", 0, 10 * MS).mark("Optimizer.step#AdamW.step", 0, 10 * MS)
    scene.frame("nn.Module: Net_0", MS, 3 * MS).op("aten::linear", MS, 2 * MS, sequence=1)
    scene.frame("torch/_tensor.py(600): backward", 4 * MS, 7 * MS)
    scene.frame("nn.Module: Recomputed_0", 4 * MS, 5 * MS)
    scene.op("autograd::engine::evaluate_function: AddmmBackward0", 5 * MS, 6 * MS, sequence=1)
    found = {row["phase"]: row["wall_ns"] for row in rows(phases, scene.capture(device=None), step=1)}
    assert found == {"forward": 2 * MS, "backward": 3 * MS, "optimizer": 5 * MS}


def test_without_python_frames_the_time_between_operators_of_a_phase_is_that_phase():
    scene = Scene().mark("ProfilerStep#1", 0, 12 * MS)
    scene.op("aten::linear", MS, 2 * MS, sequence=1).op("aten::view", 3 * MS, 4 * MS).op(
        "aten::relu", 5 * MS, 6 * MS, sequence=2
    )
    scene.op("autograd::engine::evaluate_function: ReluBackward0", 8 * MS, 9 * MS, sequence=2, tid="200")
    scene.op("autograd::engine::evaluate_function: AddmmBackward0", 9 * MS, 10 * MS, sequence=1, tid="200")
    scene.mark("Optimizer.step#SGD.step", 10 * MS, 12 * MS)
    found = {row["phase"]: row["wall_ns"] for row in rows(phases, scene.capture(device=None), step=1)}
    assert found["forward"] == 5 * MS and found["optimizer"] == 2 * MS
    assert found["forward"] + found["optimizer"] + found.get("backward", 0) + found["other"] == 12 * MS


def test_a_backward_kernel_belongs_to_the_forward_line_and_module():
    scene = Scene().mark("ProfilerStep#1", 0, 20 * MS)
    scene.frame("train.py(12): forward", 0, 4 * MS)
    scene.frame("nn.Module: Linear_3", MS, 3 * MS)
    scene.op("aten::linear", MS, 2 * MS, sequence=7)
    scene.op("autograd::engine::evaluate_function: AddmmBackward0", 7 * MS, 9 * MS, sequence=7, tid="200")
    scene.op("aten::mm", 7 * MS, 8 * MS, [[8, 16], [16, 4]], ["c10::BFloat16", "c10::BFloat16"], tid="200")
    scene.kernel("cryptic", 7 * MS + 10, 10 * MS, 11 * MS, tid="200")
    row = one(kernels, scene.capture())
    assert (row["class"], row["op"], row["forward_op"], row["module"], row["phase"]) == (
        "gemm",
        "aten::mm",
        "aten::linear",
        "Linear",
        "backward",
    )
    assert (row["path"], row["line"], row["function"]) == ("train.py", 12, "forward")
    assert row["flops"] == 2 * 8 * 16 * 4 and row["bytes"] == 2 * (8 * 16 + 16 * 4 + 8 * 4)
    assert row["flops_per_s"] == pytest.approx(1024 / 1e-3)
    # 448 bytes at 4.8 TB/s take longer than 1,024 FLOP at 989.4 TFLOP/s
    assert row["bound"] == "memory" and row["roofline"] == pytest.approx(448 / 4.8e12 / 1e-3)


def test_the_operator_gives_the_class_not_the_kernels_name():
    scene = Scene()
    scene.op("aten::cudnn_convolution", 0, MS).kernel("void nchwToNhwcKernel<float>", 10, 2 * MS, 3 * MS)
    scene.op("aten::fill_", MS, 2 * MS).kernel("vectorized_elementwise_kernel<FillFunctor>", MS + 10, 3 * MS, 4 * MS)
    scene.op("aten::copy_", 2 * MS, 3 * MS).kernel("elementwise_kernel<direct_copy>", 2 * MS + 10, 4 * MS, 5 * MS)
    scene.op("my_extension::thing", 3 * MS, 4 * MS).kernel("fused_softmax_kernel", 3 * MS + 10, 5 * MS, 6 * MS)
    scene.kernel("ampere_sgemm_128x64_nn", None, 6 * MS, 7 * MS)
    found = {row["name"]: (row["class"], row["attributed"]) for row in rows(kernels, scene.capture())}
    assert found == {
        "void nchwToNhwcKernel<float>": ("convolution", "correlation"),
        "vectorized_elementwise_kernel<FillFunctor>": ("copy", "correlation"),
        "elementwise_kernel<direct_copy>": ("copy", "correlation"),
        "fused_softmax_kernel": ("reduction", "correlation"),
        "ampere_sgemm_128x64_nn": ("gemm", "none"),
    }


def test_kernels_without_a_launch_row_are_found_by_external_id_and_graph_launches_are_named():
    scene = Scene()
    scene.op("aten::relu", 0, MS)
    scene.kernel("a", None, 2 * MS, 3 * MS, external_id=1)
    scene.op("Torch-Compiled Region", MS, 2 * MS)
    scene.kernel("b", MS + 10, 3 * MS, 4 * MS, call="cudaGraphLaunch")
    found = {row["name"]: (row["op"], row["attributed"]) for row in rows(kernels, scene.capture())}
    assert found == {"a": ("aten::relu", "external_id"), "b": ("Torch-Compiled Region", "graph")}


def test_work_of_a_call_is_shared_by_its_kernels_and_never_counted_twice():
    scene = Scene().op("aten::mm", 0, MS, [[100, 200], [200, 300]], ["float", "float"])
    scene.kernel("main", 10, 2 * MS, 5 * MS).kernel("splitk_reduce", 20 * US, 5 * MS, 6 * MS)
    found = rows(kernels, scene.capture())
    assert sum(row["flops"] for row in found) == 2 * 100 * 200 * 300
    assert {row["flops_per_s"] for row in found} == {found[0]["flops_per_s"]}


def idle_scene() -> Scene:
    """One step; five kernels with gaps of one cause each."""
    scene = Scene().mark("ProfilerStep#1", 0, 30 * MS)
    scene.frame("train.py(30): step", 0, 30 * MS)
    scene.kernel("k0", 10 * US, MS, 2 * MS)
    # host busy: 3 ms of python before the launch
    scene.frame("train.py(50): tokenize", 2 * MS, 5 * MS)
    scene.kernel("k1", 5 * MS, 5 * MS + 10 * US, 6 * MS)
    # launch bound: 50 us
    scene.op("aten::add", 6 * MS, 6 * MS + 60 * US)
    scene.kernel("k2", 6 * MS + 40 * US, 6 * MS + 50 * US, 7 * MS)
    # synchronisation, then a launch at once
    scene.call("cudaStreamSynchronize", 6500 * US, 9 * MS)
    scene.kernel("k3", 9 * MS, 9 * MS + 10 * US, 10 * MS)
    # data loader
    scene.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10 * MS, 14 * MS)
    scene.kernel("k4", 14 * MS, 14 * MS + 10 * US, 15 * MS)
    # already queued: the device's own business
    scene.kernel("k5", 14 * MS + 100 * US, 15 * MS + 30 * US, 16 * MS)
    return scene


def test_every_nanosecond_of_idle_time_has_one_cause():
    capture = idle_scene().capture()
    found = {}
    for row in rows(lost_time, capture):
        found[row["kind"]] = found.get(row["kind"], 0) + row["lost_ns"]
    whole = one(runtime, capture, step=None)
    assert sum(found.values()) == whole["idle_ns"]
    # A gap after its launch call (5 us) is the device's own: 5 us after each of four launches, and 30 us before k5.
    assert found["data"] == 4 * MS and found["synchronisation"] == 2 * MS and found["launch_bound"] == 45 * US
    assert found["device"] == 4 * 5 * US + 30 * US
    busy = next(row for row in rows(lost_time, capture) if row["function"] == "tokenize")
    assert (busy["kind"], busy["path"], busy["line"], busy["lost_ns"], busy["gaps"]) == (
        "host_busy",
        "train.py",
        50,
        3 * MS,
        1,
    )


def test_time_lost_in_backward_is_booked_to_the_forward_line():
    scene = Scene().mark("ProfilerStep#1", 0, 20 * MS)
    scene.frame("model.py(8): forward", 0, 3 * MS)
    scene.op("aten::conv2d", MS, 2 * MS, sequence=4).kernel("conv", MS + 10, MS + 20 * US, 2 * MS)
    scene.op("autograd::engine::evaluate_function: ConvolutionBackward0", 3 * MS, 9 * MS, sequence=4, tid="200")
    scene.kernel("wgrad", 8 * MS, 8 * MS + 10 * US, 9 * MS, tid="200")
    found = [row for row in rows(lost_time, scene.capture()) if row["op"] and "Convolution" in row["op"]]
    assert {(row["path"], row["line"], row["kind"]) for row in found} == {("model.py", 8, "host_busy")}
    assert sum(row["lost_ns"] for row in found) == 5 * MS + 5 * US


def test_the_longest_gap_comes_first_with_its_neighbours():
    first = rows(gaps, idle_scene().capture())[0]
    assert (first["kind"], first["before"], first["after"], first["dur_ns"]) == ("data", "k3", "k4", 4 * MS + 10 * US)


def test_idle_time_without_any_record_of_the_host_is_unexplained():
    scene = Scene().kernel("a", None, 0, MS).kernel("b", None, 5 * MS, 6 * MS)
    row = one(lost_time, scene.capture())
    assert (row["kind"], row["lost_ns"], row["op"], row["path"]) == ("unknown", 4 * MS, None, None)


def test_exposed_communication_is_what_neither_compute_nor_copies_hide():
    scene = Scene().mark("ProfilerStep#1", 0, 20 * MS)
    scene.kernel("gemm", 10, 0 + MS, 4 * MS)
    scene.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20 * US, 2 * MS, 10 * MS, stream=20,
                 collective="allreduce", group="0", group_size=2,
                 in_nelems=1_000_000, out_nelems=1_000_000, dtype="Float")  # fmt: skip
    scene.kernel("Memcpy HtoD (Pinned -> Device)", 40 * US, 5 * MS, 6 * MS, cat="gpu_memcpy", stream=30, bytes=1000)
    row = one(overlap, scene.capture(), collective="allreduce")
    assert (row["total_ns"], row["exposed_ns"], row["hidden_compute_ns"], row["hidden_copy_ns"]) == (
        8 * MS,
        5 * MS,
        2 * MS,
        MS,
    )
    assert row["bytes"] == 4_000_000 and row["algorithm_bytes_per_s"] == pytest.approx(4e6 / 8e-3)
    assert row["wait_ns"] is None and row["transfer_ns"] is None


def test_waiting_for_the_last_rank_is_separated_from_the_transfer_and_the_straggler_named():
    ranks = []
    for rank, late in ((0, 0), (1, 0), (2, 3 * MS)):
        scene = Scene(rank).mark("ProfilerStep#1", 0, 20 * MS).kernel("gemm", 10, MS, 4 * MS + late)
        scene.kernel(
            "ncclKernel_AllReduce",
            20 * US,
            4 * MS + late,
            10 * MS,
            stream=20,
            collective="allreduce",
            group="0",
            group_size=3,
        )
        ranks.append(scene)
    capture = ranks[0].capture(*ranks[1:])
    waits = {
        row["rank"]: (row["wait_ns"], row["transfer_ns"]) for row in rows(overlap, capture, collective="allreduce")
    }
    assert waits == {0: (3 * MS, 3 * MS), 1: (3 * MS, 3 * MS), 2: (0, 3 * MS)}
    assert {row["rank"]: row["straggler"] for row in rows(runtime, capture, step=1)} == {0: False, 1: False, 2: True}


def test_the_same_copy_in_every_step_is_repeated_and_pageable_memory_named():
    scene = Scene()
    for step in range(3):
        begin = step * 10 * MS
        scene.mark(f"ProfilerStep#{step}", begin, begin + 10 * MS).frame("serve.py(7): load", begin, begin + 9 * MS)
        scene.op("aten::copy_", begin + MS, begin + 6 * MS)
        scene.kernel(
            "Memcpy HtoD (Pageable -> Device)",
            begin + MS,
            begin + MS,
            begin + 6 * MS,
            cat="gpu_memcpy",
            bytes=50_000_000,
            call_ns=5 * MS,
        )
    scene.kernel("Memcpy HtoD (Pageable -> Device)", 25 * MS, 28 * MS, 29 * MS, cat="gpu_memcpy", bytes=8)
    capture = scene.capture()
    row = one(copies, capture, bytes=50_000_000)
    assert (row["kind"], row["source"], row["destination"], row["count"], row["steps"], row["repeated"]) == (
        "HtoD",
        "Pageable",
        "Device",
        3,
        3,
        True,
    )
    assert (row["path"], row["line"], row["total_bytes"], row["exposed_ns"]) == ("serve.py", 7, 150_000_000, 15 * MS)
    assert row["bytes_per_s"] == pytest.approx(10e9) and row["host_ns"] == 15 * MS
    assert not one(copies, capture, bytes=8)["repeated"]
    assert copies.headline(copies.view(capture), capture)["repeated_copy_bytes_per_step"] == 50_000_000
    waits = one(synchronisations, capture)  # a copy from pageable memory blocks the host
    assert (waits["call"], waits["count"], waits["total_ns"], waits["function"]) == (
        "cudaMemcpyAsync",
        3,
        15 * MS,
        "load",
    )


def test_self_times_of_a_thread_sum_to_what_was_recorded_on_it():
    capture = idle_scene().capture()
    recorded = sum(end - start for start, end in zip(*capture.host.segments(capture.host.main[0])[0]))
    assert sum(row["self_ns"] for row in rows(cpu, capture)) == recorded


def test_recursive_frames_count_their_inclusive_time_once():
    scene = (
        Scene()
        .frame("a.py(1): walk", 0, 10 * MS)
        .frame("a.py(1): walk", MS, 9 * MS)
        .frame("a.py(1): walk", 2 * MS, 3 * MS)
    )
    row = one(cpu, scene.capture(device=None))
    assert (row["count"], row["total_ns"], row["self_ns"]) == (3, 10 * MS, 10 * MS)


def test_addresses_do_not_split_a_builtin():
    scene = (
        Scene()
        .frame("<built-in method append of list object at 0x7f11>", 0, MS)
        .frame("<built-in method append of list object at 0x7f22>", MS, 2 * MS)
    )
    assert one(cpu, scene.capture(device=None))["count"] == 2


def test_memory_peaks_and_headroom_by_step():
    scene = Scene().mark("ProfilerStep#0", 0, 10 * MS).mark("ProfilerStep#1", 10 * MS, 20 * MS).op("aten::empty", 0, 1)
    scene.memory(MS, 500, 1500, 4000).memory(2 * MS, -500, 1000, 4000).memory(11 * MS, 2000, 3000, 6000)
    capture = scene.capture()
    assert one(memory, capture, step=0)["peak_allocated_bytes"] == 1500
    whole = one(memory, capture, step=None)
    assert (whole["peak_allocated_bytes"], whole["peak_reserved_bytes"], whole["peak_ts_ns"]) == (3000, 6000, 11 * MS)
    assert (whole["allocations"], whole["frees"], whole["allocated_bytes"]) == (2, 1, 2500)
    assert whole["headroom_bytes"] == 150_000_000_000 - 6000


def test_a_thinned_memory_timeline_keeps_the_peak():
    scene = Scene()
    for index in range(10_000):
        scene.memory(index * US, 8, 77_777 if index == 4321 else index % 100, 100_000)
    points = rows(memory_timeline, scene.capture())
    assert len(points) <= memory_timeline.MOST
    assert max(points, key=lambda row: row["allocated_bytes"])["ts_ns"] == 4321 * US


def test_the_walls_of_a_diff_sum_to_the_change_of_the_step_at_every_level():
    before = idle_scene()
    after = Scene().mark("ProfilerStep#1", 0, 12 * MS).frame("train.py(30): step", 0, 12 * MS)
    after.op("aten::add", MS, 2 * MS).kernel("k0", 10 * US, MS, 2 * MS).kernel("fused", 2 * MS, 3 * MS, 8 * MS)
    first, second = before.capture(), after.capture()
    found = diff(first, second).to_pylist()
    walls = {"gpu": [one(runtime, c, step=None)["wall_ns"] for c in (first, second)], "host": [30 * MS, 12 * MS]}
    for level, side in (("phase", "host"), ("op", "host"), ("frame", "host"), ("class", "gpu"), ("kernel", "gpu")):
        mine = [row for row in found if row["level"] == level]
        assert sum(row["before_wall_ns"] for row in mine) == walls[side][0], level
        assert sum(row["wall_delta_ns"] for row in mine) == walls[side][1] - walls[side][0], level
    status = {row["name"]: row["status"] for row in found if row["level"] == "kernel"}
    assert (status["k1"], status["fused"], status["k0"], status["(idle)"]) == ("vanished", "appeared", "same", "moved")


def test_a_trace_compared_with_itself_moves_nothing():
    capture = idle_scene().capture()
    assert {row["status"] for row in diff(capture, idle_scene().capture()).to_pylist()} == {"same"}


@pytest.mark.parametrize(
    "scene",
    [Scene(), Scene().op("aten::add", 0, 5), Scene().kernel("k", None, 0, 5), Scene().mark("ProfilerStep#1", 0, 5)],
)
def test_no_view_fails_on_a_trace_that_lacks_almost_everything(scene):
    from scripts.trace.summarise import summarise

    tables, document = summarise(scene.capture(device=None))
    assert set(tables) == set(modules()) and document["device"] is None
    assert all(table.num_columns for table in tables.values())


def test_new_shapes_explain_slow_steps():
    scene = Scene()
    for step in range(12):
        begin = step * 100 * MS
        width = 64 if step not in (4, 9) else 64 + step
        length = 20 * MS if step not in (4, 9) else 90 * MS
        scene.mark(f"ProfilerStep#{step}", begin, begin + max(length, 20 * MS)).frame(
            "model.py(40): attend", begin, begin + length
        )
        scene.op(
            "aten::_scaled_dot_product_cudnn_attention",
            begin + MS,
            begin + length - MS,
            [[2, 4, width, 8]],
            ["c10::Half"],
        )
    capture = scene.capture(device=None)
    slow = rows(steps, capture, slow=True)
    assert [row["step"] for row in slow] == [4, 9]
    assert all(row["new_shapes"] == 1 and row["new_signature"] for row in slow)
    assert {row["new_shapes"] for row in rows(steps, capture, slow=False)} == {0, None}
    assert (slow[0]["cause"], slow[0]["cause_ns"], slow[0]["line"]) == (
        "aten::_scaled_dot_product_cudnn_attention",
        70 * MS,
        40,
    )
    assert "[[2, 4, 68, 8]]" in slow[0]["example"]
    headline = steps.headline(steps.view(capture), capture)
    assert (headline["slow_steps_with_new_shapes"], headline["other_steps_with_new_shapes"]) == (2, 0)


def test_deterministic_fills_are_counted_per_step():
    scene = Scene()
    for step in range(2):
        begin = step * 10 * MS
        scene.mark(f"ProfilerStep#{step}", begin, begin + 10 * MS)
        for index in range(50):
            at = begin + index * 100 * US
            scene.op("aten::empty", at, at + 50 * US).op("aten::fill_", at + US, at + 40 * US)
            scene.kernel(
                "vectorized_elementwise_kernel<4, FillFunctor<float>>", at + 10 * US, at + 20 * US, at + 25 * US
            )
    capture = scene.capture()
    headline = kernels.headline(kernels.view(capture), capture)
    assert headline["fill_kernels_per_step"] == 50
    assert one(kernels, capture)["top_op"] == "aten::empty"


def test_nanoseconds_since_1970_stay_exact():
    # A float cannot hold them: an empty list in a concatenation once made the windows floats.
    epoch = 1_700_000_000_000_000_000
    scene = Scene().op("aten::add", epoch, epoch + MS).kernel("a", epoch + 7, epoch + 10_001, epoch + 20_003)
    scene.kernel("b", epoch + 30_001, epoch + 40_007, epoch + 50_011)
    capture = scene.capture()
    whole = one(runtime, capture, step=None)
    assert (whole["start_ns"] - epoch, whole["end_ns"] - epoch, whole["idle_ns"]) == (10_001, 50_011, 20_004)
    assert sum(row["lost_ns"] for row in rows(lost_time, capture)) == 20_004
    assert diff(capture, capture).num_rows > 0


def test_the_critical_path_goes_from_the_late_host_to_the_kernel_that_it_delayed():
    scene = Scene().mark("ProfilerStep#4", 0, 30 * MS).frame("train.py(7): step", 0, 29 * MS)
    scene.op("aten::prepare", 0, 10 * MS)  # the host is late: the stream is empty when the first kernel is launched
    scene.op("aten::mm", 10 * MS, 11 * MS).kernel("gemm", 10 * MS + 100 * US, 10 * MS + 150 * US, 15 * MS)
    scene.op("aten::add", 11 * MS, 12 * MS).kernel("add", 11 * MS + 100 * US, 15 * MS + 2 * US, 20 * MS)
    table = rows(critical_path, scene.capture(), step=None)
    found = {(row["kind"], row["name"]): row["critical_ns"] for row in table}
    assert found == {
        ("host", "aten::prepare"): 10 * MS,
        ("host", "aten::mm"): 100 * US,
        ("launch_delay", "gemm"): 50 * US,
        ("compute", "gemm"): 5 * MS - 150 * US,
        ("queue_delay", "add"): 2 * US,
        ("compute", "add"): 5 * MS - 2 * US,
    }
    assert {row["path"] for row in table} == {"train.py"} and sum(row["share"] for row in table) == pytest.approx(1)
    by_kind = {row["kind"]: row["critical_ns"] for row in rows(critical_path, scene.capture(), step=4)}
    assert by_kind == {
        "host": 10 * MS + 100 * US,
        "compute": 10 * MS - 152 * US,
        "launch_delay": 50 * US,
        "queue_delay": 2 * US,
    }


def test_the_critical_path_crosses_streams_where_a_stream_waited_for_an_event():
    scene = Scene().mark("ProfilerStep#1", 0, 30 * MS)
    scene.op("aten::a", 0, MS).kernel("slow", 10 * US, 20 * US, 9 * MS, stream=7)
    scene.call("cudaEventRecord", 30 * US, 31 * US, correlation=900)
    scene.call("cudaStreamWaitEvent", 40 * US, 41 * US, correlation=901)
    scene._add("runtime", "Stream Wait Event", "cuda_sync", 40 * US, 41 * US, tid="8", device=0, stream=8,
               correlation=901, wait_on_stream=7, wait_on_correlation=900)  # fmt: skip
    scene.op("aten::b", MS, 2 * MS).kernel("other", MS + 10 * US, 9 * MS + 5 * US, 12 * MS, stream=8)
    found = [(row["kind"], row["name"], row["critical_ns"]) for row in rows(critical_path, scene.capture(), step=None)]
    assert found[:2] == [("compute", "slow", 9 * MS - 20 * US), ("compute", "other", 3 * MS - 5 * US)]


def test_without_gpu_events_there_is_no_critical_path():
    assert rows(critical_path, Scene().mark("ProfilerStep#1", 0, MS).op("aten::a", 0, MS).capture()) == []


@pytest.mark.parametrize(
    ("strides", "known"),
    [
        pytest.param(["[2, 2]"], True, id="the one call with lists speaks for the calls like it"),
        pytest.param(["[2, 2]", "[1, 1]"], False, id="calls alike in shapes were given different lists"),
        pytest.param([], False, id="no call has its lists"),
    ],
)
def test_numbers_recorded_in_one_step_speak_for_the_others(strides, known):
    scene = Scene()
    dims, types = [[8, 3, 32, 32], [16, 3, 3, 3], [], [], [], [], [], [], []], ["float", "float", *[""] * 7]
    without = ["", "", "", "", "", "", "False", "", "1"]
    for number, stride in enumerate([None, *strides]):
        concrete = without if stride is None else ["", "", "", stride, "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
        begin = number * 10 * MS
        scene.op("aten::convolution", begin, begin + 2 * MS, dims=dims, types=types, concrete=concrete)
        scene.kernel("sm90_xmma_fprop", begin + MS, begin + 2 * MS, begin + 3 * MS)
    found = rows(kernels, scene.capture())
    flops = 2 * 8 * 16 * 16 * 16 * 27  # of one call of stride 2
    if known:
        assert sum(row["flops"] for row in found) == 2 * flops
    else:
        assert all(row["flops"] is None for row in found if len(found) == 1) and any(
            row["flops"] is None for row in found
        )
