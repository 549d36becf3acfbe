"""What the detectors say about real traces, each parsed, summarised and diagnosed alone by the pipeline's own programs.

    python benchmarks/diagnose_real.py [--traces ../shared/data/traces] [--source h200/yolo11n=TREE]

Prints the sections of docs/evidence/diagnose_real_traces.md. `--source` is the unpacked source of a trace's job, for its
anchors. Bars: every trace is read, and no detector fails on any.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "planted")]

import planted  # noqa: E402

from scripts.common.errors import InputError  # noqa: E402

TRACES = {
    "h200/yolo11n_train_4steps_stacks.json.gz": "NVIDIA H200",
    "kineto/resnet50_num_workers_0*": "Tesla V100, 2021",
    "hta/nccl_parser_config__*": "A100, 2 ranks, rank 0",
    "hta/ns_resolution_trace__*": "V100",
    "hta/critical_path__alexnet__*": "A100",
    "dlrm8/rank?.json.gz": "8 x V100, one run",
    "tracelens/h100__Qwen*": "H100",
    "tracelens/b200__eager*": "B200, vLLM",
    "tracelens/mi300__ddp_resnet18*": "MI300X",
    "tracelens/inference__sglang_decode*": "MI300X",
    "tracelens/inference__vllm_decode_full*": "MI300X",
    "kineto/docs__traces__before_fix*": "H100, 75 events",
    "kineto/docs__traces__after_fix*": "H100, 75 events",
    "hta/cpu_only__*": "30 events",
}


def diagnose(traces: list[Path], out: Path, source: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """findings.json and the views' headline of one trace (of one run's ranks)."""
    views, structure, tree = f"{out}/views", f"{out}/structure.json", ["--source", source] if source else []
    planted.program("scripts.trace.parse", *map(str, traces), "-o", str(out), "--no-progress")
    planted.program("scripts.trace.summarise", str(out), "-o", views)
    planted.program("scripts.diagnose.structure", "--run", str(out), *tree, "-o", structure)
    where = ["--structure", structure, "--views", views, "--events", f"{out}/events"]
    planted.program("scripts.diagnose.findings", *where, "-o", f"{out}/findings.json")
    read = [json.loads((out / name).read_text(encoding="utf-8")) for name in ("findings.json", "views/views.json")]
    return read[0], read[1]["headline"]


def section(title: str, found: dict[str, Any], headline: dict[str, Any]) -> str:
    """The evidence's section of a trace."""
    busy = headline.get("gpu_busy")
    device = "no device events" if busy is None else f"device busy {busy:.1%}"
    kernels = headline.get("kernels_per_step")
    lines = [f"### {title}", ""]
    lines += [
        f"{headline.get('steps') or 0} steps, {(headline.get('capture_ns') or 0) / 1e6:.1f} ms captured, {device}"
        + (f", {kernels:.0f} kernels a step." if kernels else "."),
        "",
    ]
    if found["findings"]:
        lines += ["| at most | finding | says | first places |", "|---|---|---|---|"]
    for one in found["findings"]:
        most = f"{one['ceiling']['fraction']:.1%}" if one["ceiling"] else "unknown"
        places = ", ".join(f"{a['path']}:{a['line']}" for a in one["anchors"][:3]) or "-"
        lines.append(f"| {most} | `{one['id']}` ({one['confidence']}) | {one['title']} | {places} |")
    if not found["findings"]:
        lines.append("No finding.")
    none = ", ".join(e["id"] for e in found["looked_for"] if e["result"] == "none")
    return "\n".join([*lines, "", f"Looked for, none: {none}.", ""])


def main() -> int:
    """Print every section, then one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "data" / "traces")
    parser.add_argument("--source", action="append", default=[], metavar="PATTERN=TREE")
    arguments = parser.parse_args()
    sources = dict(entry.split("=", 1) for entry in arguments.source)
    metrics: dict[str, Any] = {}
    failed, unread = [], {}
    with tempfile.TemporaryDirectory(prefix="wholejob-real-") as folder:
        for number, (pattern, device) in enumerate(TRACES.items()):
            traces = sorted(arguments.traces.glob(pattern))
            source = next((tree for start, tree in sources.items() if pattern.startswith(start)), None)
            try:
                if not traces:
                    raise InputError(f"no such file below {arguments.traces.name}")
                found, headline = diagnose(traces, Path(folder) / str(number), source)
            except InputError as error:
                unread[pattern] = str(error)
                continue
            print(section(f"{pattern.rstrip('*').rstrip('_')} ({device})", found, headline), flush=True)
            failed += [f"{pattern}: {e['id']}" for e in found["looked_for"] if e["result"] == "failed"]
            metrics[pattern] = {f["id"]: f["ceiling"]["fraction"] if f["ceiling"] else None for f in found["findings"]}
    bars = {"unread": unread, "detectors_failed": failed}
    ok = bool(metrics) and not failed and not unread
    print(json.dumps({"bench": "diagnose_real", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
