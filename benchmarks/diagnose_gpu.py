"""The two published cases in small, on a bare GPU machine: profile both with torch.profiler and time them with and
without the fault.

    python benchmarks/diagnose_gpu.py --out OUT [--quick]            on the GPU machine
    python benchmarks/diagnose_gpu.py --out OUT --read WORK          afterwards, where the pipeline is

Needs torch alone. For each job of workloads/{varlen_attention,frozen_decoder} it leaves OUT/<job>/profiled (trace,
step marks), OUT/<job>/twin-profiled, the same of the clean twin, and OUT/<job>/{fault,clean}-<pair>/run.json;
`--read` diagnoses them elsewhere. The clean twin of varlen_attention switches cuDNN attention off; that of
frozen_decoder leaves the decoder on the device. `--quick` shrinks both for a CPU.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "planted" / "record.py"
JOBS = {
    "varlen_attention": {
        "script": "train.py",
        "arguments": ["--steps", "40"],
        "quick": [
            "--steps",
            "8",
            "--width",
            "64",
            "--heads",
            "4",
            "--shortest",
            "16",
            "--longest",
            "64",
            "--vocabulary",
            "64",
        ],
        "window": "4:20",
        "before": "import torch\n",
        "after": "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)\n",
        "finding": "new_shapes_slow_steps",
        "line": "F.scaled_dot_product_attention(",
    },
    "frozen_decoder": {
        "script": "serve.py",
        "arguments": ["--requests", "12"],
        "quick": ["--requests", "4", "--width", "16", "--layers", "2", "--size", "8", "--denoise-steps", "3"],
        "window": "42:84",
        "before": '        self.decoder.to("cpu")\n',
        "after": "",
        "finding": "weights_moved",
        "line": "self.decoder.to(",
    },
}

PROFILED = {"fault": "profiled", "clean": "twin-profiled"}


def tree(name: str, arm: str, out: Path) -> Path:
    """A copy of the job's script, with its fault or without it."""
    job = JOBS[name]
    text = (ROOT / "workloads" / name / str(job["script"])).read_text(encoding="utf-8")
    if str(job["before"]) not in text:
        raise SystemExit(f"{name}: the line that the clean twin changes is gone from workloads/{name}/{job['script']}")
    folder = out / name / f"{arm}-tree"
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / str(job["script"])
    script.write_text(
        text if arm == "fault" else text.replace(str(job["before"]), str(job["after"]), 1), encoding="utf-8"
    )
    return script


def launch(name: str, arm: str, folder: Path, out: Path, *, quick: bool, plain: bool) -> dict:
    """One run under the recorder; its run.json."""
    job = JOBS[name]
    window = "2:4" if quick else str(job["window"])
    command = [
        sys.executable,
        str(RECORD),
        "--out",
        str(folder),
        "--window",
        window,
        *(["--plain"] if plain else []),
        "--",
    ]
    arguments = [*(job["quick"] if quick else job["arguments"]), "--out", str(folder / "out")]
    subprocess.run(
        [*command, str(tree(name, arm, out)), *arguments],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1" if quick else "4"},
    )
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def read(name: str, out: Path, work: Path, arm: str = "fault") -> dict[str, Any]:
    """findings.json of a job's profiled run, or of its clean twin's, with the arm's unprofiled runs as the baseline."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "planted")]
    import planted

    folder = work / (name if arm == "fault" else f"{name}-{arm}")
    shutil.copytree(out / name / PROFILED[arm], folder, dirs_exist_ok=True)
    spec = folder / "spec.json"
    kind = "training" if name == "varlen_attention" else "inference"
    spec.write_text(
        json.dumps({"schema": "wholejob/spec@1", "name": name, "title": name, "kind": kind}), encoding="utf-8"
    )
    runs = [str(path) for path in sorted((out / name).glob(f"{arm}-*/run.json"))]
    planted.program("scripts.trace.parse", str(folder / "trace.json.gz"), "-o", str(folder))
    planted.program("scripts.trace.summarise", str(folder), "-o", str(folder / "views"))
    tree_of = str(tree(name, arm, work).parent)
    planted.program(
        "scripts.diagnose.structure", "--run", str(folder), "--source", tree_of, "-o", str(folder / "structure.json")
    )
    planted.program(
        "scripts.diagnose.findings",
        "--spec",
        str(spec),
        "--structure",
        str(folder / "structure.json"),
        "--views",
        str(folder / "views"),
        "--events",
        str(folder / "events"),
        "--run",
        str(folder),
        "--runs",
        *runs,
        "-o",
        str(folder / "findings.json"),
    )
    return dict(json.loads((folder / "findings.json").read_text(encoding="utf-8")))


def compare(out: Path, work: Path) -> int:
    """Print what the detectors say about runs that were brought back, beside the gain of removing the fault.

    The bar: the fault's finding comes first, names the line that the twin changes or that the fault slows, and its
    ceiling is within 30 % of the gain; no finding of the clean twin by that name is above 3 % of it.
    """
    metrics, ok = {}, True
    for name, job in JOBS.items():
        walls = {
            arm: [json.loads(p.read_text())["wall_s"] for p in sorted((out / name).glob(f"{arm}-*/run.json"))]
            for arm in ("fault", "clean")
        }
        gain = 1 - statistics.median(walls["clean"]) / statistics.median(walls["fault"])
        findings = read(name, out, work)["findings"]
        print(f"{name}: removing the fault gains {gain:.1%} of the whole job ({len(walls['fault'])} pairs)")
        show(findings)
        rank = next((n for n, f in enumerate(findings, 1) if f["id"] == job["finding"]), None)
        ceiling = findings[rank - 1]["ceiling"]["fraction"] if rank else None
        named = rank is not None and any(str(job["line"]) in a["code"] for a in findings[rank - 1]["anchors"])
        twin = None
        if (out / name / PROFILED["clean"]).is_dir():
            clean = read(name, out, work, "clean")["findings"]
            print("  its clean twin:")
            show(clean)
            twin = max(
                (f["ceiling"]["fraction"] for f in clean if f["id"] == job["finding"] and f["ceiling"]), default=0.0
            )
        ok = (
            ok
            and rank == 1
            and named
            and ceiling is not None
            and abs(ceiling / gain - 1) <= 0.3
            and (twin or 0) <= 0.03
        )
        metrics[name] = {
            "finding": job["finding"],
            "rank": rank,
            "line_named": named,
            "ceiling": ceiling,
            "gain": gain,
            "ratio": ceiling / gain if ceiling is not None else None,
            "on_the_clean_twin": twin,
        }
    bars = {"rank": 1, "ratio": [0.7, 1.3], "on_the_clean_twin": 0.03}
    print(json.dumps({"bench": "diagnose_gpu", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


def show(findings: list[dict[str, Any]]) -> None:
    """One line a finding: ceiling, title, first places."""
    for finding in findings:
        share = f"{finding['ceiling']['fraction']:6.1%}" if finding["ceiling"] else "unknown"
        places = ", ".join(f"{a['path']}:{a['line']} {a['code']}" for a in finding["anchors"][:3])
        print(f"  {share}  {finding['id']}: {finding['title']} [{places}]")


def main() -> int:
    """Run everything; print the ratios, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--read", type=Path, metavar="WORK", help="diagnose runs that OUT already has, into this folder"
    )
    args = parser.parse_args()
    if args.read:
        return compare(args.out, args.read)
    metrics = {}
    for name in JOBS:
        for arm, folder in PROFILED.items():
            launch(name, arm, args.out / name / folder, args.out, quick=args.quick, plain=False)
        walls: dict[str, list[dict]] = {"fault": [], "clean": []}
        for pair in range(args.pairs):
            for arm in ("fault", "clean") if pair % 2 == 0 else ("clean", "fault"):
                walls[arm].append(
                    launch(name, arm, args.out / name / f"{arm}-{pair}", args.out, quick=args.quick, plain=True)
                )
        whole = {arm: statistics.median(run["wall_s"] for run in runs) for arm, runs in walls.items()}
        steady = {
            arm: statistics.median(run["last_step_s"] - run["first_step_s"] for run in runs)
            for arm, runs in walls.items()
        }
        print(
            f"{name}: whole job {whole['fault']:.2f} -> {whole['clean']:.2f} s, after the first step "
            f"{steady['fault']:.2f} -> {steady['clean']:.2f} s"
        )
        metrics[name] = {
            "fault_s": whole["fault"],
            "clean_s": whole["clean"],
            "steady_fault_s": steady["fault"],
            "steady_clean_s": steady["clean"],
        }
    print(json.dumps({"bench": "diagnose_gpu", "metrics": metrics, "bars": {}, "ok": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
