"""Ranking, negative results, and detectors that fail; then the detectors on small made-up jobs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.common.errors import InputError
from scripts.common.files import write_json
from scripts.diagnose import detectors, findings, structure
from scripts.diagnose.job import Finding, Job, NotApplicable
from tests.unit.diagnose_job import LOOP, STEP, event, found, job, op, timing


def finding(identity: str, fraction: float | None, confidence: str = "high") -> Finding:
    return Finding(identity, identity, "why", fraction, "how" if fraction is not None else "", confidence, ["python"])


def plugin(names: list[str], detect: Any) -> Any:
    return SimpleNamespace(LOOKED_FOR=tuple(names), detect=detect)


def test_findings_are_ranked_by_ceiling_and_unknown_ones_come_last(tmp_path: Path) -> None:
    plugins = [
        plugin(["a", "b"], lambda job: [finding("a", 0.1), finding("b", None)]),
        plugin(["c"], lambda job: [finding("c", 0.3)]),
    ]
    result = findings.diagnose(job(tmp_path, "x = 1\n", []), plugins, {"c": ["fix"]})
    assert [f["id"] for f in result["findings"]] == ["c", "a", "b"]
    assert result["findings"][0]["ceiling"] == {"fraction": 0.3, "speedup": 1.429, "derivation": "how"}
    assert result["findings"][0]["fixes"] == ["fix"]
    assert result["findings"][2]["ceiling"] is None
    write_json(tmp_path / "findings.json", "wholejob/findings@1", result)  # the schema accepts it


def test_a_detector_that_raises_is_reported_and_the_others_run(tmp_path: Path) -> None:
    def broken(job: Job) -> list[Finding]:
        raise KeyError("count")

    plugins = [plugin(["a"], broken), plugin(["b"], lambda job: [finding("b", 0.2)])]
    result = findings.diagnose(job(tmp_path, "x = 1\n", []), plugins, {})
    assert [f["id"] for f in result["findings"]] == ["b"]
    failed = next(entry for entry in result["looked_for"] if entry["id"] == "a")
    assert failed["result"] == "failed"
    assert "KeyError: 'count' (test_diagnose_findings.py:" in failed["why"]


def test_negative_results_say_why(tmp_path: Path) -> None:
    def absent(job: Job) -> list[Finding]:
        raise NotApplicable("no device")

    plugins = [plugin(["a"], absent), plugin(["b"], lambda job: []), plugin(["c"], lambda job: [finding("c", 0.0001)])]
    result = findings.diagnose(job(tmp_path, "x = 1\n", []), plugins, {})
    assert result["findings"] == []
    assert [(e["id"], e["result"]) for e in result["looked_for"]] == [
        ("a", "not_applicable"),
        ("b", "none"),
        ("c", "none"),
    ]
    assert "no device" in result["looked_for"][0]["why"]
    assert "worth 0.01% of the job" in result["looked_for"][2]["why"]


def test_every_detector_declares_ids_of_the_contract() -> None:
    contract = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    for module in detectors.modules():
        assert module.LOOKED_FOR, module.__name__
        for identity in module.LOOKED_FOR:
            assert f"`{identity}`" in contract or identity.startswith("environment_"), identity


def test_no_detector_fails_on_a_job_without_anything(tmp_path: Path) -> None:
    result = findings.diagnose(job(tmp_path, "x = 1\n", []), detectors.modules(), {})
    assert [e for e in result["looked_for"] if e["result"] == "failed"] == []
    assert result["findings"] == []


def test_fixes_are_read_without_importing_the_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.py").write_text("FINDINGS = ['a', 'b']\nimport nothing_like_this\n")
    (tmp_path / "named.py").write_text("NAME = 'other'\nFINDINGS = ('a',)\n")
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr(findings, "PLAYBOOK", tmp_path)
    findings.known_fixes.cache_clear()
    assert findings.known_fixes() == {"a": ["good", "other"], "b": ["good"]}
    monkeypatch.setattr(findings, "PLAYBOOK", tmp_path / "absent")
    findings.known_fixes.cache_clear()
    assert findings.known_fixes() == {}
    findings.known_fixes.cache_clear()


# detectors


def test_unfused_optimizer_is_its_steps_wall_time(tmp_path: Path) -> None:
    text = "import torch\noptimizer = torch.optim.AdamW(ps, lr=1e-3)\n" + LOOP
    result = found(job(tmp_path, text, STEP), "optimizer_unfused")
    assert len(result) == 1
    assert result[0].anchors == [{"path": "job.py", "line": 2, "code": "optimizer = torch.optim.AdamW(ps, lr=1e-3)"}]
    # 40 % of a step, steps are 10 of 11 s, less one pass over 10,000 parameters at 10 GB/s (28 us of 400)
    assert result[0].fraction == pytest.approx(0.4 * 10 / 11 * (1 - 0.07), rel=0.02)


def test_a_fused_optimizer_is_no_finding(tmp_path: Path) -> None:
    events = [*STEP[:3], op("aten::_fused_adamw_", 500, 900), STEP[-1]]
    assert found(job(tmp_path, LOOP, events), "optimizer_unfused") == []


def test_deterministic_fill_is_a_fill_under_an_allocation(tmp_path: Path) -> None:
    text = "import torch\ntorch.use_deterministic_algorithms(True)\n" + LOOP
    events = [
        *STEP,
        op("aten::empty", 100, 150),
        op("aten::fill_", 110, 150),
        op("aten::zeros", 200, 250),
        op("aten::fill_", 210, 250),
    ]
    result = found(job(tmp_path, text, events), "deterministic_fill")
    assert result[0].evidence[0]["value"] == 1.0  # the fill of zeros() is asked for
    assert result[0].anchors[0]["line"] == 2


def test_math_attention_is_seen_by_its_operator(tmp_path: Path) -> None:
    events = [
        *STEP,
        op("aten::scaled_dot_product_attention", 0, 300),
        op("aten::_scaled_dot_product_attention_math", 10, 300),
    ]
    assert found(job(tmp_path, LOOP, events), "attention_math_path")[0].fraction == pytest.approx(
        0.29 * 10 / 11, rel=0.02
    )


def test_new_shapes_need_slow_steps(tmp_path: Path) -> None:
    def steps(slow_ns: int) -> dict[str, list[dict[str, Any]]]:
        rows = []
        for i in range(10):
            fresh = i in (0, 4, 7)
            rows.append(
                {
                    "rank": 0,
                    "step": i,
                    "wall_ns": slow_ns if fresh and i else 10**8,
                    "excess_ns": 0,
                    "slow": False,
                    "new_signature": fresh,
                    "cause": "aten::_scaled_dot_product_cudnn_attention",
                    "cause_ns": 1,
                    "path": "job.py",
                    "line": 1,
                    "function": "train",
                    "example": "mm [[3, 4]]",
                    "compile_ns": None,
                }
            )
        return {"steps": rows}

    slow = found(job(tmp_path, LOOP, STEP, steps(10**9), timing=timing(excess_s=30.0)), "new_shapes_slow_steps")
    # two steps of 1 s beside seven of 0.1 s: 1.8 of 2.7 s; start-up is 1 of 41 s
    assert slow[0].fraction == pytest.approx(1.8 / 2.7 * 40 / 41, rel=0.01)
    assert slow[0].anchors[0]["path"] == "job.py"
    rare = found(job(tmp_path, LOOP, STEP, steps(10**9), timing=timing(excess_s=2.0)), "new_shapes_slow_steps")
    assert rare[0].fraction == pytest.approx(2 / 13)  # the whole run has fewer slow steps than the window
    assert found(job(tmp_path, LOOP, STEP, steps(10**8)), "new_shapes_slow_steps") == []


def test_the_function_that_makes_steps_of_new_shapes_slow_is_named(tmp_path: Path) -> None:
    text = "def tune(x):\n    return x\n\ndef train(xs):\n    for x in xs:\n        tune(x)\n"
    at, events, steps, runtime = 0, [], [], []
    for number, wall in enumerate([100, 100, 1000, 100, 1000, 100]):
        events.append(event("job.py(1): tune", at + 10, at + wall - 40))
        fresh = wall == 1000
        row = {"rank": 0, "step": number, "wall_ns": wall * 1000, "excess_ns": 0, "slow": fresh, "new_signature": fresh}
        steps.append({**row, "cause": None, "path": "job.py", "line": 6, "function": "train", "example": "mm [[3, 4]]"})
        runtime.append({"rank": 0, "step": number, "start_ns": at * 1000, "end_ns": (at + wall) * 1000})
        at += wall
    events = [event("job.py(4): train", 0, at), *events, op("aten::mm", at - 30, at)]
    views = {"steps": steps, "runtime": runtime}
    made = found(job(tmp_path, text, events, views, timing=timing(excess_s=30.0)), "new_shapes_slow_steps")
    assert [(a["line"], a["code"]) for a in made[0].anchors] == [(1, "def tune(x):"), (6, "train")]


def test_weights_moved_is_the_time_in_module_to_and_names_the_line(tmp_path: Path) -> None:
    text = (
        "def decode(vae, z):\n    vae.to('cuda')\n    y = vae(z)\n    vae.to('cpu')\n    return y\n\ndef "
        "serve(vae, zs):\n    for z in zs:\n        decode(vae, z)\n"
    )
    events = [
        event("job.py(9): serve", 0, 1000),
        event("job.py(1): decode", 0, 1000),
        event("torch/nn/modules/module.py(1300): to", 0, 300),
        op("aten::_to_copy", 10, 290),
        op("aten::conv2d", 300, 600),
        event("torch/nn/modules/module.py(1300): to", 600, 1000),
        op("aten::_to_copy", 610, 990),
    ]
    views = {
        "copies": [
            {
                "rank": 0,
                "kind": "HtoD",
                "bytes": 1 << 22,
                "total_bytes": 1 << 24,
                "total_ns": 10**6,
                "op": "aten::copy_",
                "source": "pageable",
                "destination": "device",
                "exposed_ns": 0,
            },
            {
                "rank": 0,
                "kind": "DtoH",
                "bytes": 1 << 22,
                "total_bytes": 1 << 24,
                "total_ns": 10**6,
                "op": "aten::copy_",
                "source": "device",
                "destination": "pageable",
                "exposed_ns": 0,
            },
        ],
        "kernels": [{"rank": 0}],
    }
    result = found(
        job(
            tmp_path,
            text,
            events,
            views,
            spec={"kind": "inference"},
            device={"name": "H200"},
            headline={"steps": 1, "capture_ns": 10**6},
        ),
        "weights_moved",
    )
    assert result[0].fraction == pytest.approx(0.7 * 10 / 11, rel=0.03)
    assert [a["line"] for a in result[0].anchors] == [2, 4]


def test_idle_device_time_is_scaled_to_the_unprofiled_job(tmp_path: Path) -> None:
    headline = {
        "steps": 10,
        "capture_ns": 2 * 10**9,
        "gpu_busy": 0.4,
    }  # 0.2 s a step profiled, 0.08 of it busy; 0.1 unprofiled
    lost = [{"rank": 0, "kind": "launch_bound", "lost_ns": int(1.2 * 10**9), "path": None, "function": None}]
    a_job = job(
        tmp_path,
        LOOP,
        STEP,
        {
            "lost_time": lost,
            "kernels": [
                {
                    "rank": 0,
                    "class": "gemm",
                    "total_ns": 8 * 10**8,
                    "name": "k",
                    "dtypes": "",
                    "mean_ns": 10**5,
                    "count": 8,
                }
            ],
        },
        device={"name": "H200"},
        headline=headline,
    )
    result = found(a_job, "launch_bound")
    assert result[0].fraction == pytest.approx(0.2 * 10 / 11, rel=0.01)  # idle is 0.02 of 0.1 s a step, not 0.12 of 0.2


def test_double_precision_reads_operator_types(tmp_path: Path) -> None:
    events = [*STEP, op("aten::addmm", 0, 400, input_types='["double", "double"]')]
    assert found(job(tmp_path, LOOP, events), "double_precision")
    assert not found(
        job(tmp_path, LOOP, [*STEP, op("aten::addmm", 0, 400, input_types='["float"]')]), "double_precision"
    )


def test_growing_lengths_mean_no_cache_only_in_inference(tmp_path: Path) -> None:
    text = "def generate(model, ids):\n    for _ in range(9):\n        ids = model.generate(ids, use_cache=False)\n"
    events = [event("job.py(3): generate", 0, 3000)]
    for i in range(3):
        events += [
            event("nn.Module: Llama_0", 1000 * i, 1000 * i + 900),
            op("aten::embedding", 1000 * i, 1000 * i + 10, input_dims=f"[[512, 64], [4, {90 + i}], [], [], []]"),
            op("aten::mm", 1000 * i + 10, 1000 * i + 900, input_dims=f"[[{4 * (90 + i)}, 64], [64, 64]]"),
        ]
    result = found(job(tmp_path, text, events, spec={"kind": "inference"}), "kv_cache_missed")
    assert result[0].evidence[0]["value"] == 2
    assert result[0].anchors[0]["line"] == 3
    assert found(job(tmp_path, text, events), "kv_cache_missed") == []


def test_debug_switches_are_found_in_variables_and_source(tmp_path: Path) -> None:
    text = "import torch\ntorch.autograd.set_detect_anomaly(True)\n" + LOOP
    spec = {"kind": "training", "environment": {"variables": {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN"}}}
    result = found(job(tmp_path, text, STEP, spec=spec), "environment_debug_flag")
    assert "CUDA_LAUNCH_BLOCKING, set_detect_anomaly" in result[0].title
    assert result[0].anchors[0]["line"] == 2


def test_cpu_build_on_a_gpu_machine(tmp_path: Path) -> None:
    run = {"environment": {"torch": "2.13.0+cpu", "gpus": [{"name": "H200"}]}}
    assert found(job(tmp_path, LOOP, STEP, run=run), "environment_cpu_build")
    assert not found(
        job(tmp_path, LOOP, STEP, run={"environment": {"torch": "2.13.0+cpu", "gpus": []}}), "environment_cpu_build"
    )


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder; run the rule parse first"):
        findings.main(
            ["--structure", "s", "--views", "v", "--events", str(tmp_path / "nowhere"), "-o", str(tmp_path / "f.json")]
        )
    assert not (tmp_path / "f.json").exists()


def test_structure_of_the_same_run_is_the_same_file(tmp_path: Path) -> None:
    job(tmp_path, LOOP, STEP)
    for name in ("a", "b"):
        (tmp_path / "run").mkdir(exist_ok=True)
        structure.main(
            ["--run", str(tmp_path / "run"), "--source", str(tmp_path), "-o", str(tmp_path / f"{name}.json")]
        )
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (
        json.loads((tmp_path / "a.json").read_text())["functions"][0]["how"] == "reachable"
    )  # no frames: from the loop


def test_inference_with_gradients_on_shows_in_sequence_numbers(tmp_path: Path) -> None:
    text = "def serve(model, xs):\n    for x in xs:\n        model(x)\n"

    def events(recorded: bool) -> list[dict[str, Any]]:
        rows = [event("job.py(3): serve", 0, 1000), event("nn.Module: Net_0", 0, 1000)]
        return rows + [
            op("aten::mm", 100 * i, 100 * i + 90, **({"sequence": i} if recorded else {})) for i in range(10)
        ]

    found_with = found(job(tmp_path, text, events(True), spec={"kind": "inference"}), "gradients_in_evaluation")
    assert found_with[0].anchors[0]["path"] == "job.py"
    assert found(job(tmp_path, text, events(False), spec={"kind": "inference"}), "gradients_in_evaluation") == []
