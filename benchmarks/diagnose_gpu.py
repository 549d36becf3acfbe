"""Faults that need a GPU, on a bare GPU machine: profile and time each job with and without its fault.

    python benchmarks/diagnose_gpu.py --out OUT [--only NAME ...] [--pairs 2] [--limit 420] [--quick]    on the machine
    python benchmarks/diagnose_gpu.py --out OUT --read WORK [--only NAME ...]          afterwards, where the pipeline is

Needs torch alone. The jobs are the two published cases in small, workloads/{varlen_attention,frozen_decoder}, and the
planted jobs of tests/planted/jobs that run on a device; those with ranks run where there are as many GPUs. One process
imports torch and forks for each run, so that a run is a fresh process without the seconds of the import. First every
job is profiled and timed once with and without its fault, then the other pairs follow, so that a time-out leaves whole
jobs: OUT/pack<k>.tar (at most eight files) holds every run that has ended, and is written again after each job.
`--limit` is in seconds; nothing is started that would not end by then. `--quick` is a CPU's smoke test.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "planted" / "record.py"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "planted")]

import planted  # noqa: E402  standard library only, until it diagnoses

from scripts.common.errors import InputError  # noqa: E402

PUBLISHED: dict[str, dict[str, Any]] = {
    "varlen_attention": {
        "script": "train.py",
        "kind": "training",
        "arguments": ["--steps", "40", "--batch-size", "16"],
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
        "kind": "inference",
        "arguments": ["--requests", "12", "--size", "64", "--denoise-steps", "4"],
        "quick": ["--requests", "4", "--width", "16", "--layers", "2", "--size", "8", "--denoise-steps", "3"],
        "window": "10:30",
        "before": '        self.decoder.to("cpu")\n',
        "after": "",
        "finding": "weights_moved",
        "line": "self.decoder.to(",
    },
}
ARMS = ("fault", "clean")
PACKS = 8  # files that come back from the machine
LARGEST = 16 << 20  # bytes of one of them
WITHIN, CLEAN = 0.30, 0.03


def cases() -> list[str]:
    """Names of everything that this benchmark can run."""
    return [*PUBLISHED, *planted.names("gpu")]


class Server:
    """A process that has imported torch and forks for each run.

    Should a fork not be able to start the device, the first run fails, and this and all others are processes of their
    own, which pay for the import.
    """

    def __init__(self, threads: str, log: Path) -> None:
        self.log = log
        # asked through the driver's CUDA the count would start it before the fork
        self.environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self.process: subprocess.Popen[str] | None = None
        self.forks: bool | None = None

    def run(self, arguments: list[str], variables: dict[str, str], limit_s: float) -> None:
        """One run of record.py. Raises RuntimeError where it fails, TimeoutError where it lasts longer."""
        if self.forks is False:
            self._spawn(arguments, variables, limit_s)
            return
        try:
            self._fork(arguments, variables, limit_s)
            self.forks = True
        except RuntimeError:
            if self.forks:
                raise
            self._spawn(arguments, variables, limit_s)
            self.forks = False
            print("a fork cannot run this: every run is a process of its own", flush=True)
            self.close()

    def _spawn(self, arguments: list[str], variables: dict[str, str], limit_s: float) -> None:
        command = [sys.executable, str(RECORD), *arguments]
        try:
            done = subprocess.run(
                command, env={**self.environment, **variables}, check=False, timeout=max(1.0, limit_s)
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"longer than {limit_s:.0f} s") from None
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}: {self.last_line()}")

    def _fork(self, arguments: list[str], variables: dict[str, str], limit_s: float) -> None:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(RECORD), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log.open("ab"),
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"arguments": arguments, "environment": variables}) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], max(1.0, limit_s))
        if not ready:
            self.close()
            raise TimeoutError(f"longer than {limit_s:.0f} s")
        answer = self.process.stdout.readline().strip()
        if answer != "0":
            if not answer:
                self.close()
            raise RuntimeError(f"exit status {answer or 'of the server'}: {self.last_line()}")

    def last_line(self) -> str:
        """What the last run said last."""
        lines = (
            self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if self.log.is_file() else []
        )
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the server and what it forked."""
        if self.process is not None:
            os.killpg(self.process.pid, 9)  # a session of its own: nothing else is in it
            self.process.wait()
            self.process = None


def arguments(name: str, arm: str, folder: Path, *, quick: bool, plain: bool) -> list[str]:
    """What record.py is given; writes the arm's source to `folder`/<arm>-tree."""
    if name not in PUBLISHED:
        found = planted.record_arguments(name, arm, folder, plain=plain, cpu_clock=False)
        return [*found, "12"] if quick else found
    job = PUBLISHED[name]
    text = (ROOT / "workloads" / name / job["script"]).read_text(encoding="utf-8")
    if job["before"] not in text:
        raise SystemExit(f"{name}: the line that the clean twin changes is gone from workloads/{name}/{job['script']}")
    script = folder / f"{arm}-tree" / job["script"]
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text if arm == "fault" else text.replace(job["before"], job["after"], 1), encoding="utf-8")
    options = ["--window", "2:4" if quick else job["window"], *(["--plain"] if plain else [])]
    return [*options, "--", str(script), *(job["quick"] if quick else job["arguments"]), "--out", str(folder / "out")]


def measure(args: argparse.Namespace, work: Path) -> int:
    """Run everything that fits into the limit; print the ratios, then one JSON line."""
    begun, gpus = time.monotonic(), count_gpus()
    server = Server("1" if args.quick else "4", work / "log.txt")
    chosen, dropped = [], {}
    for name in args.only or cases():
        ranks = 1 if name in PUBLISHED else planted.read(name).ranks
        if ranks > 1 and not args.quick and gpus < ranks:
            dropped[name] = f"needs {ranks} GPUs, the machine has {gpus}"
        else:
            chosen.append(name)
    longest: dict[str, float] = {}
    try:
        for pair in range(args.pairs):
            for name in [name for name in chosen if name not in dropped]:
                left = args.limit - (time.monotonic() - begun)
                if left < longest.get(name, 10.0):
                    dropped[name] = f"{pair} of {args.pairs} pairs: the limit of {args.limit:.0f} s"
                    continue
                started = time.monotonic()
                try:
                    one_pair(server, name, pair, work, quick=args.quick, limit_s=left)
                except (RuntimeError, TimeoutError) as error:
                    dropped[name] = f"pair {pair}: {error}"
                    print(f"{name}: {error}", flush=True)
                longest[name] = time.monotonic() - started
                pack(work, args.out, chosen)
                print(f"{time.monotonic() - begun:6.1f} s  {describe(name, work)}", flush=True)
    finally:
        server.close()
    metrics = {name: walls(work / name) for name in chosen}
    ok = all(each["fault"] and each["clean"] for each in metrics.values())
    print(
        json.dumps({"bench": "diagnose_gpu", "metrics": {"wall_s": metrics, "dropped": dropped}, "bars": {}, "ok": ok})
    )
    return 0 if ok else 1


def one_pair(server: Server, name: str, pair: int, work: Path, *, quick: bool, limit_s: float) -> None:
    """Both arms timed, in alternating order; before the first pair both are profiled."""
    folder = work / name
    until = time.monotonic() + limit_s
    variables = {arm: {} if name in PUBLISHED else planted.read(name).variables(arm) for arm in ARMS}
    order = ARMS if pair % 2 == 0 else ARMS[::-1]
    runs = [(arm, f"{arm}-plain-{pair}", True) for arm in order]
    runs = [(arm, f"{arm}-profiled", False) for arm in ARMS] + runs if pair == 0 else runs
    for arm, run, plain in runs:
        shutil.rmtree(folder / run, ignore_errors=True)
        given = arguments(name, arm, folder, quick=quick, plain=plain)
        server.run(["--out", str(folder / run), *given], variables[arm], until - time.monotonic())


def walls(folder: Path) -> dict[str, list[float]]:
    """Wall seconds of the timed runs by arm."""
    return {
        arm: [json.loads(p.read_text())["wall_s"] for p in sorted(folder.glob(f"{arm}-plain-*/run.json"))]
        for arm in ARMS
    }


def gain(folder: Path) -> float | None:
    """Share of the whole job that goes with the fault, of medians; None without a pair."""
    found = walls(folder)
    if not found["fault"] or not found["clean"]:
        return None
    return 1 - statistics.median(found["clean"]) / statistics.median(found["fault"])


def describe(name: str, work: Path) -> str:
    """One line of what was measured."""
    found, share = walls(work / name), gain(work / name)
    texts = [f"{arm} {', '.join(f'{wall:.2f}' for wall in found[arm])} s" for arm in ARMS]
    return f"{name}: {'; '.join(texts)}" + (f"; the fault is {share:.1%} of the job" if share is not None else "")


def pack(work: Path, out: Path, names: list[str]) -> None:
    """All runs in at most PACKS files, each replaced as a whole; a job's second trace stays away where it would be too
    large."""
    out.mkdir(parents=True, exist_ok=True)
    for number in range(min(PACKS, len(names))):
        files = [p for name in names[number::PACKS] for p in sorted((work / name).rglob("*")) if p.is_file()]
        files = [p for p in files if p.relative_to(work).parts[1].endswith(("-profiled", "-tree", *"0123456789"))]
        for twin in ("clean-profiled", "fault-profiled"):
            if sum(p.stat().st_size for p in files) > LARGEST - (1 << 20):
                files = [p for p in files if p.parent.name != twin or not p.name.startswith("trace")]
        temporary = out / f".pack{number}.tar"
        with tarfile.open(temporary, "w") as tar:
            for path in files:
                tar.add(path, str(path.relative_to(work)))
        temporary.replace(out / f"pack{number}.tar")


def count_gpus() -> int:
    """GPUs of the machine, without starting one in this process."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return sum(line.startswith("GPU") for line in done.stdout.splitlines())


def diagnose(name: str, arm: str, work: Path) -> dict[str, Any]:
    """findings.json of an arm's profiled run, with its timed runs as the baseline."""
    folder = work / name
    if not any((folder / f"{arm}-tree").glob("*.py")):  # packs hold the source that ran
        arguments(name, arm, folder, quick=False, plain=False)
    runs = sorted(folder.glob(f"{arm}-plain-*/run.json"))
    if name in PUBLISHED:
        return planted.findings(name, arm, folder, kind=PUBLISHED[name]["kind"], runs=runs)
    return planted.diagnose(name, arm, folder, runs=runs)


def judge(name: str, work: Path) -> dict[str, Any]:
    """What the detectors say about a job beside the gain of removing its fault."""
    own = PUBLISHED.get(name, {}).get("finding", name)
    fault, share = diagnose(name, "fault", work), gain(work / name)
    clean = diagnose(name, "clean", work) if any((work / name / "clean-profiled").glob("trace*.json.gz")) else None
    found = fault["findings"]
    rank = next((n for n, f in enumerate(found, 1) if f["id"] == own), None)
    mine = found[rank - 1] if rank else None
    ceiling = mine["ceiling"]["fraction"] if mine and mine["ceiling"] else None
    text = PUBLISHED.get(name, {}).get("line")
    lines = set() if text else planted.fault_lines(name)
    named = mine is not None and any(text in a["code"] if text else a["line"] in lines for a in mine["anchors"])
    return {
        "finding": own,
        "rank": rank,
        "line_named": named if text or lines else None,
        "ceiling": ceiling,
        "gain": share,
        "ratio": ceiling / share if ceiling is not None and share else None,
        "pairs": len(walls(work / name)["fault"]),
        "others": {f["id"]: f["ceiling"]["fraction"] for f in found if f["id"] != own and f["ceiling"]},
        "on_the_clean_twin": None
        if clean is None
        else {f["id"]: f["ceiling"]["fraction"] for f in clean["findings"] if f["ceiling"]},
        "failed": [e["id"] for e in fault["looked_for"] if e["result"] == "failed"],
    }


def compare(args: argparse.Namespace) -> int:
    """Print what the detectors say about runs that were brought back, beside the gain of removing the fault.

    The bar of a job: its finding comes first or second, its ceiling is within 30 % of the gain (or there is none, by
    declaration), and no finding is above 3 % of its clean twin. `met` counts the jobs by each part of it.
    """
    work = args.read
    for archive in sorted(args.out.glob("pack*.tar")):
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
    metrics, unread = {}, {}
    for name in args.only or cases():
        if why := missing(work / name):
            unread[name] = why
            continue
        try:
            metrics[name] = judge(name, work)
        except (InputError, OSError, ValueError, KeyError, SystemExit) as error:  # one job must not end the table
            unread[name] = f"{type(error).__name__}: {error}"
            continue
        print(json.dumps({name: metrics[name]}), file=sys.stderr, flush=True)
    print(
        "| job | rank | line named | at most | measured gain | ratio | pairs | others above 3 % | on the clean twin |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, m in metrics.items():
        print(
            f"| {name} | {m['rank'] or '-'} | {_yes(m['line_named'])} | {_share(m['ceiling'])} | "
            f"{_share(m['gain'])} | {'-' if m['ratio'] is None else format(m['ratio'], '.2f')} | {m['pairs']} | "
            f"{_named(m['others'])} | {_named(m['on_the_clean_twin'])} |"
        )
    for name, why in unread.items():
        print(f"| {name} | not measured: {why} | | | | | | | |")
    parts = {name: _parts(m) for name, m in metrics.items()}
    passed = [name for name, of in parts.items() if all(of.values())]
    met: Counter[str] = Counter()
    for of in parts.values():
        met.update(of)
    print(f"\nof {len(metrics)} jobs: " + ", ".join(f"{part} {count}" for part, count in met.items()))
    bars = {"rank": 2, "ratio": [1 - WITHIN, 1 + WITHIN], "on_the_clean_twin": CLEAN}
    ok = bool(metrics) and len(passed) == len(metrics) and not unread
    found = {"passed": passed, "met": met, "not_measured": unread, **metrics}
    print(json.dumps({"bench": "diagnose_gpu", "metrics": found, "bars": bars, "ok": ok}))
    return 0 if ok else 1


def missing(folder: Path) -> str | None:
    """Why the runs of a job say nothing, None where they are whole."""
    run = folder / "fault-profiled" / "run.json"
    if not run.is_file():
        return "no run of it came back"
    if not any(run.parent.glob("trace*.json.gz")):
        steps = json.loads(run.read_text(encoding="utf-8")).get("steps")
        return f"the faulty job left no trace (it ended after {steps} steps, before the profiled window was over)"
    if gain(folder) is None:
        return "no pair of timed runs"
    return None


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _parts(m: dict[str, Any]) -> dict[str, bool]:
    """The parts of a job's bar, and whether each is met; a twin that was not profiled is not silent."""
    twin = m["on_the_clean_twin"]
    return {
        "rank": m["rank"] is not None and m["rank"] <= 2,
        "ceiling": m["ceiling"] is None or (m["ratio"] is not None and abs(m["ratio"] - 1) <= WITHIN),
        "silent": twin is not None and max(twin.values(), default=0.0) <= CLEAN,
        "none_failed": not m["failed"],
    }


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _named(shares: dict[str, float] | None) -> str:
    if shares is None:
        return "not profiled"
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > CLEAN) or "none"


def main() -> int:
    """Measure, or read what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=cases(), metavar="NAME", help=f"of {', '.join(cases())}")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=420.0, help="seconds for all of it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--read", type=Path, metavar="WORK", help="diagnose runs that OUT already has, into this folder"
    )
    args = parser.parse_args()
    if args.read:
        return compare(args)
    with tempfile.TemporaryDirectory(prefix="wholejob-gpu-") as work:
        return measure(args, Path(work))


if __name__ == "__main__":
    sys.exit(main())
