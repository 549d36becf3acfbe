"""One honest and two dishonest patches of a GPU job through the whole judge, without Snakemake; keeps the evidence.

    python benchmarks/gpu_judge.py [--out gpu_judge] [--steps 150] [--device cuda]

Runs the programs of the rules one after the other on a small GPT that is written with its attention by hand. Needs
torch, numpy, pyarrow and filelock; jsonschema where it is installed. Minutes on an H200; `--device cpu` to try it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.baseline import aa, baseline_run, noise  # noqa: E402
from scripts.common import files, tree  # noqa: E402
from scripts.judge import attribution, candidate_run, compare, guard, race, screen, stack, verdict  # noqa: E402

JOB = '''
"""Train a small GPT on random tokens."""
import argparse
import json
import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        mask = torch.tril(torch.ones(t, t, device=x.device))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        att = att.masked_fill(mask == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out")
    parser.add_argument("--device")
    parser.add_argument("--length", type=int)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = GPT(256, 256, 8, 6, args.length).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        x = torch.randint(0, 256, (8, args.length + 1), generator=generator).to(args.device)
        logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with open(args.out + "/result.json", "w") as file:
        json.dump({"loss": loss.item()}, file)


if __name__ == "__main__":
    main()
'''
BY_HAND = JOB[JOB.index("        mask = torch.tril") : JOB.index("        return self.out(y.transpose")]
LOSS = "        loss = F.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1))\n"
HALF = """        half = x.size(0) // 2
        loss = F.cross_entropy(logits[:half].reshape(-1, 256), x[:half, 1:].reshape(-1))
"""
SEED = "    torch.manual_seed(args.seed)\n"
SDPA = "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
PATCHES = {
    "c0": ("Attention by scaled_dot_product_attention (honest)", BY_HAND, SDPA),
    "c1": ("Backward for half of the batch only (dishonest)", LOSS, HALF),
    "c2": (
        "Lower matmul precision where the contract says same (dishonest)",
        SEED,
        SEED + '    torch.set_float32_matmul_precision("high")\n',
    ),
}


def specification(args: argparse.Namespace) -> dict:
    """The resolved specification of the job."""
    command = [
        "python",
        "job.py",
        "--seed",
        "{seed}",
        "--steps",
        "{steps}",
        "--out",
        "{out}",
        "--device",
        "{device}",
        "--length",
        "{length}",
    ]
    return {
        "name": "gpu_judge",
        "workload": "gpu_judge",
        "kind": "training",
        "launch": {
            "command": command,
            "workdir": ".",
            "ranks": 1,
            "timeout_s": 300,
            "warmup": 5,
            "outputs": ["result.json"],
        },
        "parameters": {"device": args.device, "length": args.length},
        "source": {"editable": ["*.py"], "protected": []},
        "environment": {"kind": "current", "variables": {}},
        "measure": {
            "steps": args.steps,
            "pairs": 8,
            "screen_pairs": 2,
            "aa_pairs": 6,
            "finalists": 2,
            "alpha": 0.05,
            "min_effect": 0.02,
            "accept": "all",
            "horizon": {"steps": 10000},
        },
        "parity": {
            "seed": 0,
            "held_out_seeds": [1],
            "probes": ["batch", "loss", "grad_norm", "param_norm"],
            "repeats": 2,
            "perturbed": 2,
            "tolerances": {},
            "allow": [],
            "outputs": "values",
        },
        "constraints": {
            "classes": ["config", "backend", "python"],
            "memory_growth": 1.5,
            "data_order": "fixed",
            "precision": "same",
            "max_lines": 400,
            "allow": [],
            "forbid": [],
        },
        "resources": {"gpus": int(args.device == "cuda"), "cpus": 1, "memory_gb": None, "runtime_s": None},
    }


class Chain:
    """The rules' programs, called with the paths that the rules give them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.spec = ["--spec", f"{place}/spec.json"]
        self.env = ["--env", f"{place}/env.json"]
        self.source = ["--source", f"{place}/source.json"]
        self.given = [*self.spec, *self.source, *self.env]
        names = ["seed0-repeat0", "seed0-repeat1", "seed0-ulp0", "seed0-ulp1", "seed1-repeat0"]
        self.runs = [f"{place}/baseline/checked/{name}/run.json" for name in names]

    def baseline(self) -> None:
        for path in self.runs:
            baseline_run.main([*self.given, "-o", path])
        noise.main([*self.spec, *self.runs, "-o", f"{self.place}/noise.json"])
        aa.main([*self.given, "-o", f"{self.place}/timing/aa.json"])

    def check(self, folder: Path) -> None:
        where = ["--guard", f"{folder}/guard.json"]
        guard.main([*self.spec, *self.source, "--patch", f"{folder}/patch.diff", "-o", f"{folder}/guard.json"])
        runs = [f"{folder}/checked/{seed}/run.json" for seed in (0, 1)]
        for seed, path in enumerate(runs):
            candidate_run.main([*self.spec, *self.env, *where, "--seed", str(seed), "-o", path])
        words = ["--noise", f"{self.place}/noise.json", *where, "--baseline", *self.runs, "--candidate", *runs]
        compare.main([*self.spec, *words, "-o", f"{folder}/parity.json"])

    def decide(self, folder: Path, race_file: Path, arm: str, more: list[str]) -> dict:
        words = ["--guard", f"{folder}/guard.json", "--parity", f"{folder}/parity.json", "--race", str(race_file)]
        words += ["--aa", f"{self.place}/timing/aa.json", "--arm", arm, *more, "-o", f"{folder}/verdict.json"]
        verdict.main([*self.spec, *words])
        return files.read_json(folder / "verdict.json", "verdict")


def main() -> int:
    """Run the chain and print what each patch got; 1 where an honest one fails or a dishonest one passes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_judge"))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    if importlib.util.find_spec("jsonschema") is None:
        files._validator = unchecked  # type: ignore[assignment]
    tree.STORE = (args.out / "store").resolve()
    place, source = args.out, Path(tempfile.mkdtemp(prefix="wholejob-gpu-"))
    (source / "job.py").write_text(JOB.lstrip(), encoding="utf-8")
    base = tree.store(source)
    files.write_json(place / "spec.json", "wholejob/spec@1", specification(args))
    files.write_json(
        place / "source.json", "wholejob/source@1", {"tree": base, "origin": {}, "files": tree.manifest(source)}
    )
    files.write_json(
        place / "env.json",
        "wholejob/env@1",
        {
            "kind": "current",
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "lock": [],
            "lock_sha256": "",
            "variables": {},
        },
    )
    chain = Chain(place)
    chain.baseline()
    folders = [place / "r0" / name for name in PATCHES]
    for folder in folders:
        title, old, new = PATCHES[folder.name]
        propose(folder, source, base, title, (old, new))
        chain.check(folder)
    listed = ["--candidates", *map(str, folders)]
    screen.main([*chain.given, *listed, "-o", f"{place}/r0/screen.json"])
    race.main([*chain.given, "--screen", f"{place}/r0/screen.json", "-o", f"{place}/r0/race.json"])
    screened = ["--screen", f"{place}/r0/screen.json"]
    found = {f.name: chain.decide(f, place / "r0" / "race.json", f.name, screened) for f in folders}
    words = [*chain.spec, *chain.source, "--proposer", "hand", "--round", "0", *listed, "-o", f"{place}/r0/stack.json"]
    stack.main(words)
    final = place / "final"
    attribution.main(
        [
            *chain.spec,
            *chain.env,
            "--stack",
            f"{place}/r0/stack.json",
            "--patch",
            f"{final}/patch.diff",
            "-o",
            f"{place}/attribution.json",
        ]
    )
    chain.check(final)
    words = ["--guard", f"{final}/guard.json", "--parity", f"{final}/parity.json", "-o", f"{final}/race.json"]
    race.main([*chain.given, *words])
    found["final"] = chain.decide(final, final / "race.json", "final", [])
    for name, one in found.items():
        title = PATCHES[name][0] if name in PATCHES else "The composed patch against the untouched job"
        ratio = f"x{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f})" if one["ratio"] else ""
        print(f"{name:6} {one['verdict']:18} {ratio:24} {title}: {one['reason'] or ''}")
    told = files.read_json(place / "baseline" / "checked" / "seed0-repeat0" / "run.json", "run")
    bars = {
        "dishonest patches are invalid": all(found[name]["verdict"].startswith("invalid") for name in ("c1", "c2")),
        "the honest patch is judged by its time": found["c0"]["verdict"]
        in ("faster", "slower", "no_difference", "inconclusive"),
    }
    metrics = {
        name: {key: one[key] for key in ("verdict", "ratio", "low", "high", "reason")} for name, one in found.items()
    }
    ok = all(bars.values())
    environment = {key: told["environment"][key] for key in ("cpu", "gpus", "software")}
    print(json.dumps({"bench": "gpu_judge", "machine": environment, "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


def unchecked(_: str) -> None:
    """No schema where jsonschema is missing."""


def propose(folder: Path, source: Path, base: str, title: str, edit: tuple[str, str]) -> None:
    """Write a candidate's patch and proposal."""
    with tempfile.TemporaryDirectory() as place:
        work = tree.copy(source, Path(place) / "tree")
        text = (work / "job.py").read_text(encoding="utf-8")
        assert edit[0] in text, title
        (work / "job.py").write_text(text.replace(*edit, 1), encoding="utf-8")
        files.write_text(folder / "patch.diff", tree.diff(source, work))
    usage = {"calls": 0, "input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "dollars": 0.0, "wall_s": 0.0}
    files.write_json(
        folder / "proposal.json",
        "wholejob/proposal@1",
        {
            "status": "patch",
            "reason": None,
            "proposer": "hand",
            "model": None,
            "round": 0,
            "candidate": int(folder.name[1:]),
            "base_tree": base,
            "findings_used": [],
            "fix": None,
            "title": title,
            "hypothesis": title,
            "expected_gain": None,
            "risk": None,
            "classes": [],
            "needs_flag": None,
            "untested": ["other GPUs"],
            "usage": usage,
            "prompt_hash": None,
        },
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
