"""One honest and one dishonest patch of a GPU job through the whole judge, without Snakemake; keeps the evidence.

    python benchmarks/gpu_judge.py [--out gpu_judge] [--steps 60] [--pairs 6] [--device cuda]

The job is `workloads/varlen_attention` with its attention written out by hand, in float32. The honest patch calls
scaled_dot_product_attention; the dishonest one leaves out half of the batch in the loss, which no rule can refuse, and
must fall to its checked runs. Runs the programs of the rules; both verdicts go to `--out/verdicts.json` as they fall,
so that a time-out leaves what there is. Checked runs go side by side, as nothing is timed in them. 22 processes: under
240 s on an H200, where a process with torch and CUDA takes 9 s to start. Needs torch, numpy, pyarrow and filelock.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WHOLEJOB_IDLE_WAIT_S", "10")

from scripts.baseline import baseline_run, noise  # noqa: E402
from scripts.common import files, tree  # noqa: E402
from scripts.judge import candidate_run, compare, guard, race, verdict  # noqa: E402

JOB = ROOT / "workloads" / "varlen_attention" / "train.py"
SDPA = "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
BY_HAND = """        mask = torch.ones(t, t, device=x.device, dtype=torch.bool).tril()
        att = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
        att = att.masked_fill(~mask, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
"""
DTYPE = '    dtype = torch.bfloat16 if device == "cuda" else torch.float32\n'
LOSS = "        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())\n"
HALF = """        half = tokens.size(0) // 2
        loss = F.cross_entropy(logits[:half].flatten(0, 1).float(), tokens[:half, 1:].flatten())
"""
HONEST, DISHONEST = "honest", "dishonest"
PATCHES = {DISHONEST: (LOSS, HALF), HONEST: (BY_HAND, SDPA)}
SIZES = {  # (batch, shortest, longest, width, heads)
    "cuda": (8, 1500, 2000, 512, 16),
    "cpu": (4, 96, 128, 64, 4),
}
BASELINE = ("seed0-repeat0", "seed0-ulp1", "seed0-ulp2", "seed1-repeat0")


def specification(args: argparse.Namespace) -> dict[str, Any]:
    """The resolved specification of the job."""
    names = ("--batch-size", "--shortest", "--longest", "--width", "--heads")
    sizes = [word for pair in zip(names, map(str, SIZES[args.device])) for word in pair]
    command = ["python", "train.py", "--steps", "{steps}", "--seed", "{seed}", "--out", "{out}", *sizes]
    return {
        "name": "gpu_judge",
        "workload": "gpu_judge",
        "kind": "training",
        "launch": {"command": command, "workdir": ".", "ranks": 1, "timeout_s": 120, "warmup": 5,
                   "outputs": ["result.json"]},
        "parameters": {},
        "source": {"editable": ["*.py"], "protected": []},
        "environment": {"kind": "current", "variables": {}},
        "measure": {"steps": args.steps, "pairs": args.pairs, "screen_pairs": 2, "aa_pairs": 6, "finalists": 1,
                    "alpha": 0.05, "min_effect": 0.02, "accept": "all", "horizon": {"steps": 10000}},
        "parity": {"seed": 0, "held_out_seeds": [1], "probes": ["batch", "loss", "grad_norm", "param_norm"],
                   "repeats": 1, "perturbed": 2, "tolerances": {}, "allow": [], "outputs": "values"},
        "constraints": {"classes": ["config", "backend", "python"], "memory_growth": 1.5, "data_order": "fixed",
                        "precision": "same", "max_lines": 400, "allow": [], "forbid": []},
        "resources": {"gpus": int(args.device == "cuda"), "cpus": 1, "memory_gb": None, "runtime_s": None},
    }  # fmt: skip


class Chain:
    """The rules' programs, called with the paths that the rules give them."""

    def __init__(self, place: Path, started: float) -> None:
        self.place, self.started = place, started
        self.spec = ["--spec", f"{place}/spec.json"]
        self.given = [*self.spec, "--source", f"{place}/source.json", "--env", f"{place}/env.json"]
        self.baseline = [f"{place}/baseline/checked/{name}/run.json" for name in BASELINE]
        self.verdicts: dict[str, dict[str, Any]] = {}

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {what}", flush=True)

    def check(self) -> None:
        """Guard of every patch; all checked runs, a few at a time; parity of every patch."""
        calls = [(baseline_run.main, [*self.given, "-o", path]) for path in self.baseline]
        for name in PATCHES:
            folder = self.place / name
            words = ["--patch", f"{folder}/patch.diff", "-o", f"{folder}/guard.json"]
            guard.main([*self.given[:4], *words])
            self.say(f"{name}: guard {files.read_json(folder / 'guard.json', 'guard')['status']}")
            words = [*self.spec, *self.given[4:], "--guard", f"{folder}/guard.json"]
            for seed, path in enumerate(self.runs(name)):
                calls.append((candidate_run.main, [*words, "--seed", str(seed), "-o", path]))
        with ProcessPoolExecutor(min(3, os.cpu_count() or 1)) as pool:  # some 30 GB of the device each
            list(pool.map(called, *zip(*calls)))
        self.say(f"{len(calls)} checked runs")
        noise.main([*self.spec, *self.baseline, "-o", f"{self.place}/noise.json"])
        for name in PATCHES:
            folder = self.place / name
            words = ["--noise", f"{self.place}/noise.json", "--guard", f"{folder}/guard.json", "--baseline"]
            words += [*self.baseline, "--candidate", *self.runs(name), "-o", f"{folder}/parity.json"]
            compare.main([*self.spec, *words])
            parity = files.read_json(folder / "parity.json", "parity")
            self.say(f"{name}: parity {parity['answer']} {parity['reason'] or ''}")

    def runs(self, name: str) -> list[str]:
        return [f"{self.place}/{name}/checked/{seed}/run.json" for seed in (0, 1)]

    def race(self, name: str) -> None:
        """Fresh pairs against the untouched job; a patch that its checks stopped is not run again."""
        folder = self.place / name
        words = ["--guard", f"{folder}/guard.json", "--parity", f"{folder}/parity.json", "-o", f"{folder}/race.json"]
        race.main([*self.given, *words])
        words = ["--guard", f"{folder}/guard.json", "--parity", f"{folder}/parity.json", "--arm", "final"]
        verdict.main([*self.spec, *words, "--race", f"{folder}/race.json", "-o", f"{folder}/verdict.json"])
        found = files.read_json(folder / "verdict.json", "verdict")
        self.verdicts[name] = {key: found[key] for key in ("verdict", "ratio", "low", "high", "pairs", "reason")}
        files.write_text(self.place / "verdicts.json", json.dumps(self.verdicts, indent=1) + "\n")
        ratio = f" x{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})" if found["ratio"] else ""
        self.say(f"{name}: {found['verdict']}{ratio} {found['reason'] or ''}")


def called(program: Any, words: Sequence[str]) -> int:
    """One program in a process of the pool."""
    return program(list(words))


def prepare(args: argparse.Namespace) -> Chain:
    """The job's tree, its documents and the two patches."""
    place: Path = args.out
    text = JOB.read_text(encoding="utf-8")
    for old, new in ((SDPA, BY_HAND), (DTYPE, "    dtype = torch.float32\n")):
        assert text.count(old) == 1, f"{JOB.name} changed; so must this benchmark: {old!r}"
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory(prefix="wholejob-gpu-") as folder:
        source = Path(folder) / "source"
        source.mkdir()
        (source / "train.py").write_text(text, encoding="utf-8")
        base = tree.store(source)
        for name, (old, new) in PATCHES.items():
            assert text.count(old) == 1, f"{name}: {old!r}"
            work = tree.copy(source, Path(folder) / name)
            (work / "train.py").write_text(text.replace(old, new), encoding="utf-8")
            files.write_text(place / name / "patch.diff", tree.diff(source, work))
        manifest = tree.manifest(source)
    files.write_json(place / "spec.json", "wholejob/spec@1", specification(args))
    files.write_json(place / "source.json", "wholejob/source@1", {"tree": base, "origin": {}, "files": manifest})
    version = ".".join(map(str, sys.version_info[:3]))
    env = {"kind": "current", "python": sys.executable, "python_version": version}
    files.write_json(place / "env.json", "wholejob/env@1", {**env, "lock": [], "lock_sha256": "", "variables": {}})
    return Chain(place, args.started)


def unchecked(_: str) -> None:
    """No schema where jsonschema is missing."""


def main() -> int:
    """Run the chain and print what each patch got; 1 where the honest one fails or the dishonest one passes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_judge"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=6, help="6 is the fewest that can decide")
    parser.add_argument("--device", default="cuda", choices=sorted(SIZES))
    args = parser.parse_args()
    args.started = time.monotonic()
    if importlib.util.find_spec("jsonschema") is None:
        files._validator = unchecked  # type: ignore[assignment]
    tree.STORE = (args.out / "store" / "trees").resolve()
    chain = prepare(args)
    chain.check()
    for name in PATCHES:
        chain.race(name)
    told = files.read_json(Path(chain.baseline[0]), "run")
    found = chain.verdicts
    bars = {
        "the dishonest patch is invalid": found[DISHONEST]["verdict"].startswith("invalid"),
        "the honest patch is faster": found[HONEST]["verdict"] == "faster",
    }
    ok = all(bars.values())
    machine = {key: told["environment"][key] for key in ("cpu", "gpus", "software")}
    metrics = {**found, "wall_s": round(time.monotonic() - args.started, 1)}
    print(json.dumps({"bench": "gpu_judge", "machine": machine, "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
