"""New shapes that are prepared for in every step, and weights moved between the calls of an inference job: the two cases
seen on an H200, on small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.diagnose import source, structure
from scripts.diagnose.findings import diagnose, known_fixes
from scripts.diagnose.job import Finding, Job
from scripts.diagnose.timeline import build
from scripts.diagnose.timing import Timing
from scripts.trace import dataset
from tests.unit.diagnose_job import found

US, MS = 1000, 10**6
MAIN, AUTOGRAD = "1", "2"
ATTENTION = (
    "import torch.nn.functional as F\n\n\nclass Attention:\n    def forward(self, q):\n"
    "        return F.scaled_dot_product_attention(q, q, q)\n\n\n"
    "def train(model, optimizer, xs):\n    for x in xs:\n        model(x).backward()\n        optimizer.step()\n"
)
BACKWARD = "autograd::engine::evaluate_function: SdpaBackward0"
SERVE = (
    "def decode(vae, z):\n    vae.to('cuda')\n    y = vae(z)\n    vae.to('cpu')\n    return y\n\n\n"
    "def serve(vae, zs):\n    for z in zs:\n        decode(vae, z)\n"
)


def event(name: str, start: int, end: int, cat: str = "python_function", **more: Any) -> dict[str, Any]:
    """An event between two times in microseconds."""
    known = {"name": name, "ts_ns": start * US, "dur_ns": (end - start) * US, "cat": cat, "pid": "1", "tid": MAIN}
    return {**known, **more}


def job(
    folder: Path, text: str, events: list[dict[str, Any]], views: dict[str, list[dict[str, Any]]], **more: Any
) -> Job:
    """A job of one file `job.py` on a device."""
    (folder / "job.py").write_text(text, encoding="utf-8")
    read = source.read(folder)
    classes = {"python_function": "python", "cpu_op": "cpu_op"}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in events:
        rows.setdefault(classes.get(row["cat"], "annotation"), []).append(row)
    timeline = build({name: dataset.table(name, found) for name, found in rows.items()}, read.functions)
    document = structure.extract(read, timeline, {}, folder / "views", None)
    return Job(
        more.pop("spec"),
        document,
        more.pop("timing"),
        timeline,
        lambda name: views.get(name, []),
        device={"name": "H200"},
        **more,
    )


def training(
    folder: Path, first_ms: tuple[int, ...], again_ms: tuple[int, ...], *, fixed: bool = False, waits: bool = False
) -> Job:
    """Six steps of 100 ms with two attention layers each; the calls of a step's first layer take `first_ms[step]`, of
    its second `again_ms[step]`, half in the forward pass and half on the autograd thread."""
    events = [event("job.py(9): train", 0, 600_000)]
    steps = []
    for step in range(6):
        begin = 100_000 * step
        dims = f"[[4,16,{300 if fixed else 300 + step},128]]"
        at, back = begin, begin + 50_000
        for layer, took in enumerate((first_ms[step], again_ms[step])):
            half = 500 * took
            sequence = 2 * step + layer
            events += [
                event("job.py(5): forward", at, at + half + 200),
                event("aten::scaled_dot_product_attention", at + 50, at + half + 150, "cpu_op"),
                event("aten::_plan", at + 100, at + 100 + half, "cpu_op", input_dims=dims, sequence=sequence),
                event(BACKWARD, back, back + half + 50, "cpu_op", tid=AUTOGRAD, sequence=sequence),
                event("aten::_plan_backward", back + 20, back + 20 + half, "cpu_op", tid=AUTOGRAD, input_dims=dims),
            ]
            at, back = at + half + 300, back + half + 300
        events.append(event("Optimizer.step#SGD.step", begin + 99_000, begin + 100_000, "user_annotation"))
        steps.append(
            {
                "rank": 0,
                "step": step,
                "wall_ns": 100 * MS,
                "new_signature": None if not step else not fixed,
                "cause": None,
            }
        )
    idle = [
        {"rank": 0, "kind": "host_busy", "op": BACKWARD, "lost_ns": 230 * MS},
        {"rank": 0, "kind": "host_busy", "op": "aten::scaled_dot_product_attention", "lost_ns": 230 * MS},
        {"rank": 0, "kind": "launch_bound", "op": "aten::add", "lost_ns": 60 * MS},
    ]
    views: dict[str, list[dict[str, Any]]] = {"steps": steps, "lost_time": idle}
    if waits:
        views["synchronisations"] = [
            {"rank": 0, "call": "cudaStreamSynchronize", "op": op}
            for op in (BACKWARD, "aten::scaled_dot_product_attention")
        ]
    timing = Timing(1, 1.2, 0.6, 0.1, 0.0, 0.0, 6, 6)
    headline = {"steps": 6, "capture_ns": 600 * MS, "gpu_busy": 0.05, "gpu_idle": 0.95}
    return job(folder, ATTENTION, events, views, spec={"kind": "training"}, timing=timing, headline=headline)


def test_plans_for_shapes_that_never_repeat_are_seen_against_the_next_layer(tmp_path: Path) -> None:
    """varlen_attention on the H200: every step is new, all steps are slow alike, no step stands out."""
    a_job = training(tmp_path, (80,) * 6, (2,) * 6)
    result = found(a_job, "new_shapes_slow_steps")
    assert len(result) == 1
    # 78 of 100 ms a step, steps are half of the job
    assert result[0].fraction == pytest.approx(0.78 * 0.5, rel=0.02)
    assert [(a["path"], a["line"]) for a in result[0].anchors] == [("job.py", 6)]  # of the backward operator too
    # the device idles behind the preparation, not behind launches: 520 of 600 ms idle, 468 of them prepare
    launches = found(a_job, "launch_bound")
    assert launches[0].fraction == pytest.approx((60 + 460 - 460) / 600 * 0.5, abs=0.01)


@pytest.mark.parametrize(
    ("first", "again", "more"),
    [
        pytest.param((40,) * 6, (40,) * 6, {}, id="no difference"),
        pytest.param((8, 40, 8, 40, 8, 40), (40, 8, 40, 8, 40, 8), {}, id="chance"),
        pytest.param((80, 2, 2, 2, 2, 2), (2,) * 6, {"fixed": True}, id="warm-up of a fixed shape"),
        pytest.param((80,) * 6, (2,) * 6, {"fixed": True}, id="first of a step, shape known"),
        pytest.param((80,) * 6, (2,) * 6, {"waits": True}, id="waits for the device"),
    ],
)
def test_no_preparation_without_a_dearer_first_call_on_a_new_shape(
    tmp_path: Path, first: tuple[int, ...], again: tuple[int, ...], more: dict[str, bool]
) -> None:
    assert found(training(tmp_path, first, again, **more), "new_shapes_slow_steps") == []


def serving(folder: Path, *, moves: bool, marks: bool = False) -> Job:
    """Two requests of ten model calls of 1 ms; before the last call of each a module moves for 190 ms."""
    events = [event("job.py(8): serve", 0, 400_000)]
    now = 0
    copies: list[dict[str, Any]] = []
    for request in range(2):
        for number in range(10):
            if moves and number == 9:
                events += [
                    event("job.py(1): decode", now, now + 190_000),
                    event("torch/nn/modules/module.py(1300): to", now, now + 190_000),
                    event("aten::_to_copy", now + 10, now + 189_000, "cpu_op"),
                ]
                copies.append(
                    {
                        **{"rank": 0, "kind": "HtoD", "bytes": 1 << 26, "total_bytes": 1 << 28, "total_ns": 180 * MS},
                        **{"op": "aten::copy_", "source": "Pageable", "destination": "Device", "exposed_ns": 180 * MS},
                        **{"path": "job.py", "line": 1, "function": "decode"},
                    }
                )
                now += 190_000
            events.append(event(f"nn.Module: Vae_{request}", now, now + 1000))
            events.append(event("aten::conv2d", now, now + 900, "cpu_op"))
            if marks:
                events.append(event(f"ProfilerStep#{10 * request + number}", now, now + 1000, "user_annotation"))
            now += 1000
    # ten such requests: 100 calls of 1 ms, and ten moves
    timing = Timing(1, 4.0, 2.0, 0.001, 1.9 if moves else 0.0, 0.0, 100, 100)
    headline = {
        "steps": 20 if marks else 0,
        "capture_ns": now * US,
        "gpu_busy": 0.9 if moves else 0.2,
        "gpu_idle": 0.1 if moves else 0.8,
    }
    spec = {"kind": "inference"}
    views = {"copies": copies, "kernels": [{"rank": 0}] if not moves else []}
    return job(folder, SERVE, events, views, spec=spec, timing=timing, headline=headline)


@pytest.mark.parametrize("marks", [False, True])
def test_weights_moved_between_the_calls_of_an_inference_job(tmp_path: Path, marks: bool) -> None:
    """frozen_decoder on the H200: the median step is a call of 0.3 ms, and the copies lie in one step of 21."""
    a_job = serving(tmp_path, moves=True, marks=marks)
    result = found(a_job, "weights_moved")
    # 380 of 400 ms captured, and requests are half of the job
    assert result[0].fraction == pytest.approx(0.95 * 0.5, rel=0.05)
    assert [a["line"] for a in result[0].anchors] == [2, 4]
    assert found(a_job, "pageable_copies") == []  # the same copies are not another finding


def test_an_even_window_stands_for_steady_steps_alone(tmp_path: Path) -> None:
    even = serving(tmp_path, moves=False)
    even.timing.excess_s = 1.9  # slow steps that the window does not hold
    assert even.window_share == pytest.approx(even.timing.steady_share())


def test_the_profilers_own_span_is_not_the_main_thread(tmp_path: Path) -> None:
    events = [event("job.py(8): serve", 10, 990), event("PyTorch Profiler (0)", 0, 1000, "Trace", pid="Spans", tid="P")]
    tables = {"python": dataset.table("python", events[:1]), "annotation": dataset.table("annotation", events[1:])}
    timeline = build(tables, [])
    assert timeline is not None
    assert timeline.name == ["job.py(8): serve"]


def test_work_in_the_step_is_answered_by_fixes_that_move_it() -> None:
    fixes = known_fixes()["work_in_step"]
    assert "hoist_encoding" in fixes
    assert not {"set_to_none", "batch_item_logging", "dataloader"} & set(fixes)


def one_request(folder: Path, *, returns: bool = True) -> Job:
    """A window of parity's: nine calls of 1 ms (the profiler starts in the first), a move of 190 ms, a call; the move back
    follows the window. Marks are without gaps, as parity makes them."""
    a_job = serving(folder, moves=True, marks=False)
    assert a_job.timeline is not None
    steps, events, now = [], [event("job.py(8): serve", 0, 300_000)], 0
    for number in range(10):
        took = 5_000 if not number else 191_000 if number == 8 else 1_000
        events.append(event(f"nn.Module: Vae_{number}", now, now + 1000))
        events.append(event("aten::conv2d", now, now + 900, "cpu_op"))
        if number == 8:
            events += [
                event("job.py(1): decode", now + 1000, now + 192_000),
                event("torch/nn/modules/module.py(1300): to", now + 1000, now + 191_000),
                event("aten::_to_copy", now + 1010, now + 190_900, "cpu_op"),
            ]
        events.append(event(f"ProfilerStep#{number}", now, now + took, "user_annotation"))
        steps.append(
            {
                **{"rank": 0, "step": number, "wall_ns": took * US, "start_ns": now * US, "end_ns": (now + took) * US},
                **{"new_signature": None if not number else number >= 8, "cause": "cudaMemcpyAsync"},
                **{"cause_kind": "call", "cause_ns": 144 * MS if number == 8 else 0},
                **{"path": "/x/parity/hooks/windows.py", "line": 125, "function": "_stop"},
            }
        )
        now += took
    views = {"steps": steps, "runtime": steps, "copies": a_job.view("copies")}
    # ten requests, each with a move there and a longer one back
    timing = Timing(1, 12.0, 2.0, 0.001, 9.9, 0.0, 100, 100)
    headline = {"steps": 10, "capture_ns": now * US, "gpu_busy": 0.9, "gpu_idle": 0.1}
    text = SERVE if returns else SERVE.replace("    vae.to('cpu')\n", "    del vae\n")
    made = job(folder, text, events, views, spec={"kind": "inference"}, timing=timing, headline=headline)
    assert made.timeline is not None
    made.timeline.correct(timing.step_s)
    return made


def test_copies_in_a_step_of_a_new_shape_are_no_preparation(tmp_path: Path) -> None:
    assert found(one_request(tmp_path), "new_shapes_slow_steps") == []


def test_a_window_that_is_mostly_one_move_is_not_squeezed_to_the_median_step(tmp_path: Path) -> None:
    timeline = one_request(tmp_path).timeline
    assert timeline is not None
    assert timeline.window_ns > 190 * MS


def test_moves_outside_the_window_count_where_the_source_makes_them(tmp_path: Path) -> None:
    """The window holds one of a request's two moves; slow steps are 82 % of the job."""
    both = found(one_request(tmp_path), "weights_moved")[0]
    assert both.fraction == pytest.approx(0.95 * 10 / 12, rel=0.05)
    assert "1 of 2 moves" in both.derivation
    (tmp_path / "one").mkdir()
    one = found(one_request(tmp_path / "one", returns=False), "weights_moved")[0]
    assert one.fraction is not None
    assert one.fraction < 0.3
    assert "moves, so" not in one.derivation


def test_anchors_of_the_recorder_are_dropped_and_others_have_the_tree_s_name(tmp_path: Path) -> None:
    a_job = one_request(tmp_path)

    class Plugin:
        LOOKED_FOR = ("some",)

        @staticmethod
        def detect(_: Job) -> list[Finding]:
            places = ("/x/parity/hooks/windows.py", "/x/torch/profiler/profiler.py", "/x/job.py")
            anchors = [{"path": path, "line": 1, "code": ""} for path in places]
            return [Finding("some", "t", "c", 0.5, "d", "high", [], anchors)]

    document = diagnose(a_job, [Plugin], {})  # type: ignore[list-item]
    assert [a["path"] for a in document["findings"][0]["anchors"]] == ["job.py"]
