"""Nesting, matching to the job's functions, and the correction for the profiler's own cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.diagnose import source, timeline
from scripts.trace import dataset

US = 1000


def event(name: str, start: int, end: int, tid: str = "1", cat: str = "python_function", **more: object) -> dict:
    return {"name": name, "ts_ns": start * US, "dur_ns": (end - start) * US, "cat": cat, "pid": "1", "tid": tid, **more}


def tables(python: list[dict], ops: list[dict] = (), annotations: list[dict] = ()) -> dict:
    found = {"python": python, "cpu_op": list(ops), "annotation": list(annotations)}
    return {cls: dataset.table(cls, rows) for cls, rows in found.items() if rows}


def functions(tmp_path: Path, text: str) -> list[source.Function]:
    (tmp_path / "job.py").write_text(text, encoding="utf-8")
    return source.read(tmp_path).functions


JOB = "@decorated\ndef work(x):\n    return x.item()\n\ndef main():\n    for _ in range(2):\n        work(1)\n"


def example(tmp_path: Path, **options: object) -> timeline.Timeline:
    python = [
        event("job.py(7): main", 0, 1000),
        event("/elsewhere/tree/job.py(1): work", 100, 400),
        event("<built-in method item of Tensor object at 0x1>", 150, 250),
        event("/elsewhere/tree/job.py(1): work", 500, 700),
        event("other/job.py(9): work", 800, 900),
    ]
    ops = [event("aten::item", 160, 240, cat="cpu_op"), event("aten::mm", 900, 1000, cat="cpu_op")]
    built = timeline.build(tables(python, ops), functions(tmp_path, JOB), **options)
    assert built is not None
    return built


def test_frames_are_matched_by_path_name_and_line_with_decorators(tmp_path: Path) -> None:
    t = example(tmp_path)
    work, main = (next(n for n, f in enumerate(t.functions) if f.name == name) for name in ("work", "main"))
    assert len(t.of_function(work)) == 2  # the frame of other/job.py lies outside the function's lines
    assert len(t.of_function(main)) == 1  # on the stack when the profiler started: it has its current line


def test_calls_belong_to_the_function_that_made_them(tmp_path: Path) -> None:
    t = example(tmp_path)
    work = next(n for n, f in enumerate(t.functions) if f.name == "work")
    assert [t.name[i] for i in t.calls("item", work)] == ["<built-in method item of Tensor object at 0x1>"]
    assert t.calls("item", work + 1) == []


def test_nested_events_count_once(tmp_path: Path) -> None:
    t = example(tmp_path)
    nested = t.calls("item") + t.calls("aten::item")
    assert t.outermost(nested) == t.calls("item")
    assert t.total_ns(nested) == pytest.approx(t.ns(t.calls("item")[0]))


def test_correction_makes_the_window_as_long_as_the_unprofiled_steps(tmp_path: Path) -> None:
    annotations = [event("Optimizer.step#SGD.step", 950, 960, cat="user_annotation")]
    python = [event("job.py(7): main", 0, 1000), event("job.py(1): work", 100, 400)]
    ops = [event("aten::mm", 400, 700, cat="cpu_op"), event("aten::add_", 700, 1000, cat="cpu_op")]
    t = timeline.build(tables(python, ops, annotations), functions(tmp_path, JOB), 0.0007)
    assert t is not None and t.steps == 1
    assert t.window_ns == pytest.approx(700 * US)
    # interpreted code is charged first: 400 us of it become 250; then what writes to new memory, the rest of the excess
    took = {name: t.ns(t.calls(name)[0]) / US for name in ("work", "aten::mm", "aten::add_")}
    assert took["work"] == pytest.approx(300 / 1.6, rel=0.01)
    assert took["aten::add_"] == pytest.approx(299, rel=0.01)
    assert took["aten::mm"] == pytest.approx(700 - 299 - 250, rel=0.02)


def test_a_window_faster_than_the_baseline_is_left_as_it_is(tmp_path: Path) -> None:
    t = example(tmp_path, step_s=10.0)
    assert t.scale == 1.0


def test_partial_overlap_is_no_nesting(tmp_path: Path) -> None:
    python = [event("job.py(5): main", 0, 100), event("job.py(1): work", 50, 150)]
    t = timeline.build(tables(python), functions(tmp_path, JOB))
    assert t is not None and t.parent.tolist() == [-1, -1]


def test_backward_nodes_are_joined_by_sequence_number(tmp_path: Path) -> None:
    ops = [
        event("aten::mm", 0, 10, cat="cpu_op", sequence=7),
        event("autograd::engine::evaluate_function: MmBackward0", 20, 50, tid="2", cat="cpu_op", sequence=7),
        event("autograd::engine::evaluate_function: AddBackward0", 60, 90, tid="2", cat="cpu_op", sequence=8),
    ]
    t = timeline.build(tables([event("job.py(5): main", 0, 100)], ops), functions(tmp_path, JOB))
    assert t is not None
    # recording the node took 1 of its 30 us
    assert timeline.backward_ns(t, t.calls("aten::mm")) == pytest.approx(29 * US)


@pytest.mark.parametrize(
    ("traced", "relative", "same"),
    [
        ("/a/b/pkg/train.py", "pkg/train.py", True),
        ("train.py", "src/train.py", True),
        ("/a/xtrain.py", "train.py", False),
        ("pkg/train.py", "other/train.py", False),
    ],
)
def test_paths_match_by_whole_components(traced: str, relative: str, same: bool) -> None:
    assert timeline.same_file(traced, relative) is same


def test_no_host_events_is_none() -> None:
    assert timeline.build({}, []) is None


def test_what_an_expression_is_made_of_lies_right_before_its_end(tmp_path: Path) -> None:
    python = [
        event("job.py(7): main", 0, 1000),
        event("<built-in method argmax of Tensor object at 0x1>", 50, 90),
        event("job.py(1): work", 100, 900),
        event("<built-in method mul of Tensor object at 0x1>", 110, 190),
        event("<built-in method argmax of Tensor object at 0x1>", 200, 300),
        event("<built-in method mean of Tensor object at 0x1>", 400, 500),
        event("<built-in method item of Tensor object at 0x1>", 600, 700),
    ]
    ops = [
        event("aten::argmax", 210, 290, cat="cpu_op"),
        event("aten::eq", 310, 390, cat="cpu_op"),
        event("aten::item", 610, 690, cat="cpu_op"),
    ]
    built = timeline.build(tables(python, ops), functions(tmp_path, JOB))
    assert built is not None
    item = built.short.index("item")
    names = [built.short[i] for i in built.just_before(item, ["", "argmax", "mean"])]
    assert names == ["mean", "aten::eq", "argmax"]
    assert built.just_before(item, ["argmax"]) == []
    assert built.just_before(built.short.index("mul"), ["argmax", ""]) == []


def test_inference_is_corrected_by_the_calls_of_its_model(tmp_path: Path) -> None:
    python = [event("job.py(5): main", 0, 1000)]
    python += [event("nn.Module: Linear_0", 200 * n, 200 * n + 150) for n in range(5)]
    ops = [event("aten::mm", 200 * n + 10, 200 * n + 140, cat="cpu_op") for n in range(5)]
    t = timeline.build(tables(python, ops), functions(tmp_path, JOB), 0.0001)
    assert t is not None
    assert t.steps == 5
    assert t.window_ns == pytest.approx(500 * US)  # five calls of 100 us
    trained = [*ops, event("autograd::engine::evaluate_function: MmBackward0", 960, 980, cat="cpu_op")]
    t = timeline.build(tables(python, trained), functions(tmp_path, JOB), 0.0001)
    assert t is not None
    assert t.steps == 0  # a training step without an optimizer's mark can call several modules


def test_a_softmax_beside_the_model_is_no_step_of_inference(tmp_path: Path) -> None:
    python = [event("job.py(5): main", 0, 1000)]
    for n in range(5):
        python += [
            event("nn.Module: Model_0", 200 * n, 200 * n + 150),
            event("nn.Module: Softmax_0", 200 * n + 160, 200 * n + 190),
        ]
    ops = [event("aten::addmm", 200 * n + 10, 200 * n + 140, cat="cpu_op") for n in range(5)]
    ops += [event("aten::softmax", 200 * n + 165, 200 * n + 180, cat="cpu_op") for n in range(5)]
    t = timeline.build(tables(python, ops), functions(tmp_path, JOB), 0.0001)
    assert t is not None
    assert t.steps == 5
    assert t.window_ns == pytest.approx(500 * US)
