"""Real traces: HTA's own expected values, HTA's outputs, TraceLens' reports, and exact nanoseconds.

The rows are numbered as in the facts sheet's conformance table; sources are the tests of HolisticTraceAnalysis (MIT)
and TraceLens (MIT).
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from scripts.trace import critical, intervals
from scripts.trace.capture import Capture
from scripts.trace.views import hta, kernels, lost_time, overlap, runtime

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "traces"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real traces are not there: ../shared/data/traces")

MTIA = "hta/mtia_trace_single_rank__mtia_rank_0.json.gz"
NS = "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
QUEUE = "hta/negative_queue_length_values_check__rank0.json.gz"
NCCL = "hta/nccl_parser_config__nccl_data.json.gz"
QWEN = "tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """`opened(file, ...)`: the capture of a parsed trace, parsed once a session."""
    from scripts.trace import parse

    @cache
    def open_(*names: str) -> Capture:
        folder = tmp_path_factory.mktemp("events")
        parse.main([*(str(DATA / name) for name in names), "-o", str(folder)])
        return Capture.open(folder)

    return open_


def sides(capture: Capture) -> tuple[hta.Rows, hta.Rows]:
    """(GPU rows, host rows) of the first rank, HTA's way."""
    return hta.rows(capture, capture.ranks[0])


def test_1_temporal_breakdown_mtia(opened):
    found = hta.temporal_breakdown(sides(opened(MTIA))[0])
    for key, expected in (("idle", 5648827), ("compute", 7305596), ("non_compute", 373924)):
        assert found[f"{key}_percent"] == pytest.approx(100 * expected / 13328347, abs=0.01)


def test_2_kernel_breakdown_mtia(opened):
    gpu = sides(opened(MTIA))[0]
    first = hta.kernel_type_breakdown([gpu], memory=True)[0]
    assert (first["kernel_type"], first["sum"]) == ("COMPUTATION", 7305597)
    found = hta.kernel_breakdown({0: gpu}, memory=True)
    assert (found[0]["kernel_type"], found[0]["sum"]) == ("COMPUTATION", 77283)
    assert (found[11]["kernel_type"], found[11]["sum"]) == ("MEMORY", 400892)


def test_3_launch_statistics_mtia(opened):
    row = next(row for row in hta.launch_statistics(*sides(opened(MTIA))) if row["correlation"] == 423)
    assert row["cpu_duration"] == pytest.approx(435.2, abs=2) and row["gpu_duration"] == pytest.approx(124.768, abs=2)
    assert row["launch_delay"] == 0


def test_4_and_5_queue_length_mtia(opened):
    gpu, host = sides(opened(MTIA))
    series = hta.queue_length(gpu, host)
    assert set(series) == {1, 102}
    length = series[102][1]
    assert (len(length), length.mean(), length.max()) == (6, 0.5, 1)
    assert length.std(ddof=1) == pytest.approx(0.547723, abs=1e-6)
    start = np.concatenate([gpu.start, host.start])
    # HTA reports one stream a rank, the last: 102.
    spent, share = hta.blocked_on_queue(series, 1, float(start.max() - start.min()))[102]
    assert spent == 1060 and share == pytest.approx(0.000079, abs=1e-6)


def test_6_idle_breakdown_mtia(opened):
    found = hta.idle_breakdown(*sides(opened(MTIA)))
    assert {row["stream"] for row in found} == {1, 102}
    first = next(row for row in found if row["stream"] == 1)
    assert (first["idle_category"], first["idle_time"], first["idle_time_ratio"]) == ("host_wait", 417937, 0.07)
    assert sum(row["idle_time_ratio"] for row in found) == pytest.approx(2.0)


def test_7_operator_delays_mtia(opened):
    first = hta.operator_delays(*sides(opened(MTIA)))[0]
    assert (first["op"], first["kernels"], first["count"]) == ("aten::mul", "customized_fba_mul_const-dtype_Float", 822)
    assert first["launch_delay"] == pytest.approx(1092.545, abs=2) and first["runtime_delay"] == pytest.approx(
        293.113, abs=2
    )


def test_8_annotations_ns(opened):
    _, host = sides(opened(NS))
    assert len(hta.annotation_breakdown(host, gpu=True)) == 3
    assert len(hta.annotation_breakdown(host, gpu=False)) == 12
    allowed = hta.annotation_breakdown(host, gpu=False, most=5, allow="Optimizer")
    assert len(allowed) == 8 and sum("Optimizer" in row["name"] for row in allowed) == 2


def test_9_kernels_with_annotations_ns(opened):
    gpu, host = sides(opened(NS))
    notes = hta.annotated_kernels(gpu, host)
    assert len(gpu.start) == 4876 and len(set(notes)) == 4
    assert notes.count("Optimizer.step#SGD.step") == 27
    at = {int(correlation): row for row, correlation in enumerate(gpu.correlation.tolist())}
    assert (
        notes[at[135139]] == "DistributedDataParallel.forward"
        and gpu.name[at[135139]] == "Memcpy DtoD (Device -> Device)"
    )
    assert notes[at[164926]] == "Optimizer.step#SGD.step" and "multi_tensor_apply_kernel" in gpu.name[at[164926]]


def test_10_collectives_nccl(opened):
    capture = opened(NCCL)
    table = capture.table(
        "gpu", ["name", "collective", "in_nelems", "out_nelems", "group", "group_description", "group_ranks"]
    )
    found = [row for row in table.to_pylist() if row["name"].startswith("nccl")]
    assert len(found) == 21 and int(capture.gpu.communication.sum()) == 21
    first = next(row for row in found if row["collective"] == "allreduce" and row["in_nelems"] == 2049000)
    assert (first["out_nelems"], first["group"], first["group_description"], json.loads(first["group_ranks"])) == (
        2049000,
        "0",
        "default_pg",
        [0, 1],
    )
    assert sum(row["count"] for row in overlap.view(capture).to_pylist() if row["collective"]) == 21


def test_11_counters_with_orphan_kernels(opened):
    gpu, host = sides(opened(QUEUE))
    queue, bandwidth = hta.queue_length(gpu, host), hta.memory_bandwidth(gpu)
    assert sum(len(one[0]) for one in (*queue.values(), *bandwidth.values())) >= 12000
    assert set(bandwidth) == {"Memcpy DtoH", "Memcpy HtoD", "Memcpy DtoD", "Memset"} and len(queue) == 6
    assert min(one[1].min() for one in queue.values()) >= 0 and min(one[1].min() for one in bandwidth.values()) >= 0


def test_12_a_rank_without_gpu_gives_empty_results_and_a_plain_error(opened):
    capture = opened("hta/mixed_files__rank_non_gpu.json.gz")
    gpu, host = sides(capture)
    assert hta.queue_length(gpu, host) == {} and hta.memory_bandwidth(gpu) == {}
    with pytest.raises(ValueError, match="no GPU events"):
        hta.temporal_breakdown(gpu)
    whole = next(row for row in runtime.view(capture).to_pylist() if row["step"] is None)
    assert whole["busy_ns"] is None and whole["op_ns"] > 0


def test_13_no_sequence_of_three_kernels_under_clone(opened):
    capture = opened("hta/df_index_resolver__df_index_resolver.json.gz")
    assert hta.kernel_sequences(capture, "aten::clone") == []
    assert hta.kernel_sequences(capture, "CompiledFunction")  # the search does find sequences where there are some


SIMPLE_ADD = "hta/critical_path__end_to_end__simple_add__input__trace.json.gz"
ALEXNET = "hta/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz"
MEASURED = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


class Critical:
    """The graph of one annotation's window and its path; edges by the names or correlations of their events."""

    def __init__(self, capture: Capture, annotation: str, instance: int) -> None:
        host = capture.host
        if annotation == "ProfilerStep":
            low, high = int(host.marks["start"][instance]), int(host.marks["end"][instance])
        else:
            found = np.flatnonzero(host.flag(lambda name: annotation in name))[instance]
            low, high = int(host.start[found]), int(host.end[found])
        builder = critical.Builder(capture, capture.ranks[0])
        self.capture, self.graph = capture, builder.graph(*builder.window(low, high))
        self.path = critical.heaviest(self.graph)

    @property
    def size(self) -> tuple[int, int, int]:
        """Nodes, events and edges on the path."""
        return len(self.path.nodes), len(np.unique(self.path.nodes >> 1)), len(self.path.edges)

    def kernel(self, correlation: int) -> int:
        """Number of the graph's event for a GPU event."""
        found = np.flatnonzero(self.capture.gpu.correlation[self.graph.gpu] == correlation)
        assert len(found) == 1
        return len(self.graph.host) + int(found[0])

    def call(self, name: str) -> int:
        """Number of the only host event of that name."""
        host = self.capture.host
        found = [number for number, event in enumerate(self.graph.host) if host.names[host.name[event]] == name]
        assert len(found) == 1
        return found[0]

    def edge(self, source: int, target: int) -> tuple[str, int]:
        """(kind, ns) of the only edge between two instants."""
        found = np.flatnonzero((self.graph.source == source) & (self.graph.target == target))
        assert len(found) == 1
        return critical.KINDS[self.graph.kind[found[0]]], int(self.graph.weight[found[0]])


def test_14_critical_path_of_simple_add(opened):
    found = Critical(opened(SIMPLE_ADD), MEASURED, 1)
    assert found.size == (315, 159, 314)
    assert len(found.graph.source) == 440 and int(found.graph.weight[found.path.edges].sum()) == 241_724_000
    fft, gemm = found.kernel(5597), found.kernel(5604)
    launches = found.graph.source[(found.graph.target == 2 * fft) & (found.graph.kind == critical.LAUNCH)]
    assert len(launches) == 1 and found.edge(int(launches[0]), 2 * fft) == ("launch_delay", 27_000)
    assert found.edge(2 * fft + 1, 2 * gemm) == ("queue_delay", 7_000)
    # aten::relu_ around aten::clamp_min_ around cudaLaunchKernel, as HTA's test finds it, the stretches in order.
    host, graph = found.capture.host, found.graph
    relu = next(n for n, event in enumerate(graph.host) if host.names[host.name[event]] == "aten::relu_")
    edges, at = [], 2 * relu
    while at != 2 * relu + 1:
        edge = np.flatnonzero((graph.source == at) & (graph.kind == critical.HOST))[0]
        edges.append((host.names[host.name[graph.host[graph.owner[edge]]]], int(graph.weight[edge]) // 1000))
        at = int(graph.target[edge])
    assert edges == [
        ("aten::relu_", 15),
        ("aten::clamp_min_", 14),
        ("cudaLaunchKernel", 17),
        ("aten::clamp_min_", 15),
        ("aten::relu_", 32),
    ]


def test_14_kernels_wait_for_kernels_of_other_streams(opened):
    found = Critical(opened(ALEXNET), MEASURED, 1)
    assert found.size[0] == 149
    gpu = found.capture.gpu
    source = found.kernel(5606)
    waited = found.graph.target[(found.graph.source == 2 * source + 1) & (found.graph.kind == critical.SYNCHRONISATION)]
    target = found.kernel(5629)
    assert 2 * target in waited.tolist()
    streams = [int(gpu.stream[found.graph.gpu[one - len(found.graph.host)]]) for one in (source, target)]
    assert streams == [20, 7]


def test_14_calls_that_wait_for_an_event_or_the_device(opened):
    found = Critical(opened("hta/critical_path__cuda_event_sync__event_sync_trace.json.gz"), "ProfilerStep", 0)
    gpu = found.capture.gpu
    spin = [
        len(found.graph.host) + number
        for number, event in enumerate(found.graph.gpu)
        if "spin_kernel" in gpu.names[gpu.name[event]]
    ]
    ends = {2 * one + 1 for one in spin}
    for name in ("cudaEventSynchronize", "cudaDeviceSynchronize"):
        end = 2 * found.call(name) + 1
        sources = found.graph.source[
            (found.graph.target == end) & (found.graph.kind == critical.SYNCHRONISATION)
        ].tolist()
        assert set(sources) & ends, name
    assert found.size == (40, 22, 39)


def test_15_performance_counters(opened):
    found = hta.performance_counters(opened("hta/cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz"))
    assert len(found) == 77
    assert "fft2d_r2c_32x32" in found[5]["name"]
    assert found[5]["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"] == 86114304
    assert (found[5]["top_level_op"], found[5]["bottom_level_op"]) == ("aten::conv2d", "aten::cudnn_convolution")
    assert hta.performance_counters(opened(NCCL)) == []


def test_16_memory_timeline_categories():
    events = json.loads(gzip.decompress((DATA / "hta/memory_analysis__memory_timeline.raw.gz").read_bytes()))
    times, sizes = hta.memory_categories(events)
    assert len(times) == len(sizes)
    assert sizes[744] == [102440608, 102228128, 19395584, 0, 2618160128, 58417152, 41811968, 25494440]


def test_17_triton_operator(opened):
    found = opened("hta/triton_example__triton_example.json.gz").table("cpu_op", ["name"])["name"].to_pylist()
    assert found.count("triton_poi_fused_add_cos_sin_0") == 1
    row = kernels.view(opened("hta/triton_example__triton_example.json.gz")).to_pylist()[0]
    assert (row["class"], row["op"]) == ("elementwise", "triton_poi_fused_add_cos_sin_0")


def test_18_call_stacks_of_main_and_autograd_thread(opened):
    host = opened("hta/call_stack__backward_thread.json").host
    assert len(host) + 1 + len(host.marks["start"]) == 7  # one kernel, one step mark
    assert len(host.threads) == 2
    depth = [0] * len(host)
    for event, parent in enumerate(host.parent.tolist()):
        depth[event] = depth[parent] + 1 if parent >= 0 else 0
    chain = [host.names[host.name[event]] for event in np.argsort(depth)[1:]]
    # Within the autograd thread: node, its function, operator, launch.
    assert sorted(depth) == [0, 0, 1, 2, 3] and chain[-1] == "cudaLaunchKernel" and chain[-2] == "aten::mm"


def test_19_rows_of_a_time_range_and_under_an_operator(opened):
    capture = opened("hta/timeline_analysis__sampled_rank-0.json.gz")
    low, high = 1682725898237042_000, 1682725898240570_000
    count = 0
    for name in ("gpu", "runtime", "cpu_op", "annotation"):
        table = capture.table(name, ["ts_ns", "dur_ns"])
        start, length = table["ts_ns"].to_numpy(), table["dur_ns"].fill_null(0).to_numpy()
        count += int(((start >= low) & (start + length <= high)).sum())
    assert count == 93
    host = capture.host
    first = next(event for event in range(len(host)) if host.names[host.name[event]] == "forward")
    under = {first}
    for event in range(first + 1, len(host)):
        if host.parent[event] in under:
            under.add(event)
    assert len(under) + sum(launch in under for launch in capture.launch.tolist()) == 146


# idle, compute, non-compute, kernel time (us) and communication overlap (%) as HTA 0.5.0 prints them; None: HTA raises.
HTA_SAYS = {
    "hta/amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": (8780, 96, 35, 8911, None),
    "hta/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz": (
        12929684,
        10637,
        55690,
        12996011,
        None,
    ),
    "hta/critical_path__cuda_event_sync__event_sync_trace.json.gz": (207, 49, 7, 263, None),
    "hta/critical_path__end_to_end__simple_add__input__trace.json.gz": (16414376, 10676, 39287, 16464339, None),
    "hta/df_index_resolver__df_index_resolver.json.gz": (643612, 496485, 256572, 1396669, 0.0),
    MTIA: (5649476, 7305597, 372998, 13328071, None),
    NCCL: (338781, 75169, 21636, 435586, 14.31),
    QUEUE: (705853, 143836, 166865, 1016554, 1.37),
    NS: (10113, 372150, 2371, 384634, None),
    "hta/timeline_analysis__sampled_rank-0.json.gz": (321378, 106252, 172428, 600058, 11.81),
    "hta/trace_diff__control__control.json.gz": (62119, 234760, 86525, 383404, 47.03),
    "hta/trace_filter__sampled_rank-1.json.gz": (328671, 135548, 136455, 600674, 20.05),
    "hta/triton_example__triton_example.json.gz": (0, 94, 0, 94, None),
    "hta/with_gpu_user_annotation__step_based_trace_2543932.json.gz": (7446, 290, 1, 7737, None),
    "kineto/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz": (327463, 492891, 10140, 830494, None),
    "tracelens/b200__eager_trace.json.gz": (73669, 10153, 664, 84486, 0.0),
    "tracelens/inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz": (464534, 9205, 10, 473749, None),
    "tracelens/inference__vllm_decode_full__graph_execution.json.gz": (458, 10250, 34, 10742, None),
    "tracelens/mi210__gpu_only_trace__gpu_only_trace.json.gz": (1199, 4780, 0, 5979, None),
    "tracelens/mi300__ddp_resnet18_no_pool__train_resnet18.json.gz": (3034785, 356545, 19, 3391349, None),
}


@pytest.mark.parametrize("name", HTA_SAYS)
def test_20_the_compatible_mode_equals_hta_to_the_microsecond(opened, name):
    idle, compute, rest, whole, percent = HTA_SAYS[name]
    gpu = sides(opened(name))[0]
    found = hta.temporal_breakdown(gpu)
    assert (found["idle_us"], found["compute_us"], found["non_compute_us"], found["kernel_us"]) == (
        idle,
        compute,
        rest,
        whole,
    )
    overlapped = hta.communication_overlap(gpu)
    assert np.isnan(overlapped) if percent is None else overlapped == percent


# Idle share of the time from the first GPU event to the last, exact; HTA's rounding gives 4.26, 20.05, 87.2 and 77.78
# %.
@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("tracelens/inference__vllm_decode_full__graph_execution.json.gz", 0.24),
        ("tracelens/mi210__gpu_only_trace__gpu_only_trace.json.gz", 10.64),
        ("tracelens/b200__eager_trace.json.gz", 86.27),
        (QWEN, 8.07),
        (NCCL, 76.16),
    ],
)
def test_exact_idle_time_agrees_with_tracelens(opened, name, percent):
    gpu = opened(name).gpu
    assert 100 * idle_share(gpu.start, gpu.end) == pytest.approx(percent, abs=0.005)


def test_tracelens_leaves_kernels_without_a_launch_row_out(opened):
    capture = opened(QWEN)
    launched = capture.launch >= 0
    assert int((~launched).sum()) == 509 and len(capture.gpu) == 1707
    assert 100 * idle_share(capture.gpu.start[launched], capture.gpu.end[launched]) == pytest.approx(8.56, abs=0.005)


def idle_share(start: np.ndarray, end: np.ndarray) -> float:
    """Idle part of the span of the events."""
    return 1 - intervals.length(intervals.merge(start, end)) / int(end.max() - start.min())


def test_time_and_work_by_operator_agree_with_tracelens_report(opened):
    found = kernels.view(opened(QWEN)).to_pylist()
    # Kernel time by launching operator (us), `ops_summary.csv`; operators that launch only kernels of their own.
    report = {"aten::mul": 6752.900, "aten::mm": 6668.682, "aten::copy_": 5101.935, "aten::add": 2607.515,
              "aten::addmm": 2329.076,
              "aten::_flash_attention_forward": 2722.704, "aten::cat": 2017.783, "aten::pow": 1300.795,
              "aten::silu": 925.115, "aten::mean": 743.327,
              "aten::neg": 587.327, "aten::rsqrt": 79.076, "aten::index_select": 51.776}  # fmt: skip
    for op, expected in report.items():
        assert sum(row["total_ns"] for row in found if row["op"] == op) / 1e3 == pytest.approx(expected, rel=1e-4), op
    # FLOPs and bytes a call, `GEMM.csv` (its GFLOPS 51.5816 and 71.0078 MiB; addmm's bias is an add for each output
    # there).
    shape = "[[8944,1024],[1024,2816]]"
    calls = [
        row
        for row in found
        if row["op"] == "aten::mm" and (row["shapes"] or "").replace(" ", "") == shape and row["flops"]
    ]
    assert sum(row["count"] for row in calls) == 48
    assert sum(row["flops"] for row in calls) / 48 == 51.581550592e9
    assert sum(row["bytes"] for row in calls) / 48 == 71.0078125 * 2**20


def test_lost_time_and_idle_time_agree_on_a_real_trace(opened):
    for name in (
        NCCL,
        QUEUE,
        ALEXNET,  # no steps, ns since 1970
        "hta/trace_diff__control__control.json.gz",
    ):
        capture = opened(name)
        whole = next(row for row in runtime.view(capture).to_pylist() if row["step"] is None)
        assert sum(lost_time.view(capture)["lost_ns"].to_pylist()) == whole["idle_ns"], name


def test_every_step_is_tiled_by_phases_and_by_states(opened):
    from scripts.trace.views import phases

    capture = opened(*(f"dlrm8/rank{rank}.json.gz" for rank in range(8)))
    assert capture.ranks == list(range(8))
    by_phase = phases.view(capture).to_pylist()
    for row in runtime.view(capture).to_pylist():
        mine = [one["wall_ns"] for one in by_phase if (one["rank"], one["step"]) == (row["rank"], row["step"])]
        assert sum(mine) == row["cpu_wall_ns"]
        assert row["op_ns"] + row["python_ns"] + row["data_ns"] + row["blocked_ns"] == row["cpu_wall_ns"]
        assert row["busy_ns"] + row["idle_ns"] == row["wall_ns"]


def test_communication_of_eight_ranks_splits_into_waiting_and_transfer(opened):
    capture = opened(*(f"dlrm8/rank{rank}.json.gz" for rank in range(8)))
    total = [row for row in overlap.view(capture).to_pylist() if row["collective"] is None and row["group"] is None]
    assert len(total) == 8
    assert all(row["wait_ns"] + row["transfer_ns"] == row["total_ns"] for row in total)
    assert all(row["exposed_ns"] + row["hidden_compute_ns"] + row["hidden_copy_ns"] == row["union_ns"] for row in total)
    # Every rank moves the same data: the transfers agree within a few percent while the waits differ by several times.
    transfers = [row["transfer_ns"] for row in total]
    assert max(transfers) < 1.3 * min(transfers) and max(row["wait_ns"] for row in total) > 3 * min(
        row["wait_ns"] for row in total
    )
