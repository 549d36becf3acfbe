"""The two published cases in small, on a bare GPU machine: profile both with torch.profiler and time them with and
without the fault.

    python benchmarks/diagnose_gpu.py --out OUT [--quick]

Needs torch alone. For each job of workloads/{varlen_attention,frozen_decoder} it leaves OUT/<job>/profiled (trace,
step marks) and
OUT/<job>/{fault,clean}-<pair>/run.json; `python -m scripts.diagnose...` reads them elsewhere. The clean twin of
varlen_attention
switches cuDNN attention off; that of frozen_decoder leaves the decoder on the device. `--quick` shrinks both for a CPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

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
    },
    "frozen_decoder": {
        "script": "serve.py",
        "arguments": ["--requests", "12"],
        "quick": ["--requests", "4", "--width", "16", "--layers", "2", "--size", "8", "--denoise-steps", "3"],
        "window": "42:84",
        "before": '        self.decoder.to("cpu")\n',
        "after": "",
    },
}


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


def main() -> int:
    """Run everything; print the ratios, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    metrics = {}
    for name in JOBS:
        launch(name, "fault", args.out / name / "profiled", args.out, quick=args.quick, plain=False)
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
