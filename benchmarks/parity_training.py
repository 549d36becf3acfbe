"""Does `parity` accept honest runs and find faults in training? 40 clean runs and ten kinds of fault on a transformer.

A two-layer character transformer trains for 200 steps with AdamW and clipping at a learning rate that makes it chaotic:
the last bit grows to a few percent of the loss. Each run has gradient rounding noise of its own (relative 1e-6 on each
gradient element, as nondeterministic kernels have); the recorder stores loss, gradient norm and parameter norm of each
step. Baselines are perturbed as `parity run --perturb ulp` does: every parameter moves by one unit in the last
place before the first step. Then, over many draws of baselines, the real `derive` and `compare` judge:

- 40 clean runs (unperturbed): which share is called different, or undecided?
- faults of ten kinds, six seeds each: which share is called different, and how many steps after the fault?
- an honest variant whose gradients round ten times more (relative 1e-5): is it accepted?
- the same on three held-out seeds of the job, judged by the noise of the first seed;
- for information: two of the faults at step 150, where the runs have already parted by percents.

    python benchmarks/parity_training.py [--quick] [--keep DIR]

Bars (issue 3): with 5 perturbed baselines at most 2 % of clean comparisons rejected, all faults found, the first hit
within two steps of the fault for at least eight kinds, the honest variant accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch.nn import functional

from parity import recorder
from parity.compare import compare
from parity.derive import derive

STEPS = 200
VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 32, 8
LATE, LATEST = 60, 150  # steps at which faults of the second group begin, and the ones inside the chaos


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scale = (WIDTH // HEADS) ** -0.5
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attention = ((q @ k.transpose(-2, -1)) * self.scale + self.mask).softmax(-1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Two blocks over learned token and position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def corpus() -> torch.Tensor:
    """The text of the demo job as tokens, one a character."""
    text = (Path(__file__).resolve().parents[1] / "workloads" / "minigpt" / "input.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(text))[:VOCABULARY]
    return torch.tensor([alphabet.index(character) if character in alphabet else 0 for character in text[:50_000]])


# name -> (step at which it begins, what it changes); those at 0 hold for the whole run.
FAULTS: dict[str, int] = {
    "learning rate +1 %": 0,
    "Adam eps 1e-8 -> 1e-6": 0,
    "weight decay off": 0,
    "bfloat16 forward": 0,
    "attention sees one token ahead": 0,
    "labels of one row shifted": 0,
    "clip 0.5 -> 0.3": LATE,
    "one optimizer step skipped": LATE,
    "one batch used twice": LATE,
    "gradient of one layer lost": LATE,
}
INSIDE_CHAOS = {"one optimizer step skipped, late": LATEST, "one batch used twice, late": LATEST}


@dataclass
class Variant:
    """What one run is: `seed` drives rounding noise and perturbation, `job` weights and data order."""

    seed: int
    noise: float = 1e-6
    ulp: bool = False
    fault: str = ""
    begin: int = 0
    job: int = 0  # the seed of weights and data order

    def now(self, fault: str, step: int) -> bool:
        """Whether this fault acts at a step."""
        return self.fault.startswith(fault) and step >= self.begin


def train(out: Path, data: torch.Tensor, run: Variant) -> None:
    """One run of STEPS steps, recorded in `out`."""
    start_recording(out, run)
    torch.manual_seed(run.job)
    model = Transformer()
    rounding = torch.Generator().manual_seed(1000 + run.seed)
    if run.ulp:
        nudge(model, rounding)
    if run.fault == "attention sees one token ahead":
        for block in model.blocks:
            block.mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(2)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=3e-2 * (1.01 if run.fault == "learning rate +1 %" else 1.0),
        eps=1e-6 if run.fault == "Adam eps 1e-8 -> 1e-6" else 1e-8,
        weight_decay=0.0 if run.fault == "weight decay off" else 0.01,
    )
    order = torch.Generator().manual_seed(5 + run.job)
    starts = torch.zeros(BATCH, dtype=torch.long)
    for step in range(STEPS):
        recorder.step(step)
        fresh = torch.randint(len(data) - LENGTH - 1, (BATCH,), generator=order)
        starts = starts if run.now("one batch used twice", step) and step == run.begin else fresh
        loss = forward(model, data, starts, run)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 + run.noise * torch.randn(parameter.shape, generator=rounding))
        if run.now("gradient of one layer lost", step):
            dict(model.named_parameters())["blocks.0.up.weight"].grad = None
        clip = 0.3 if run.now("clip 0.5 -> 0.3", step) else 0.5
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        if not (run.now("one optimizer step skipped", step) and step == run.begin):
            optimizer.step()
        recorder.record("loss", loss)
        recorder.record("grad_norm", norm)
        with torch.no_grad():
            recorder.record("param_norm", torch.linalg.vector_norm(nn.utils.parameters_to_vector(model.parameters())))
    recorder.flush()
    recorder.set_enabled(False)


def start_recording(out: Path, run: Variant) -> None:
    """A recorder of its own for this run, in this process."""
    os.environ["PARITY_OUT"] = str(out)
    os.environ["PARITY_PERTURB"] = "ulp" if run.ulp else ""
    os.environ["PARITY_PERTURB_SEED"] = str(run.seed) if run.ulp else ""
    recorder.set_enabled(True)
    recorder._recorder = recorder.Recorder()


def forward(model: Transformer, data: torch.Tensor, starts: torch.Tensor, run: Variant) -> torch.Tensor:
    """The loss of one batch."""
    tokens = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
    if run.fault == "labels of one row shifted":
        labels[3] = labels[3].roll(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=run.fault == "bfloat16 forward"):
        logits = model(inputs)
    return functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), labels.reshape(-1))


def nudge(model: nn.Module, generator: torch.Generator) -> None:
    """Every parameter up or down by one unit in the last place."""
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            infinity = torch.full_like(parameter, float("inf"))
            parameter.copy_(torch.where(up, parameter.nextafter(infinity), parameter.nextafter(-infinity)))


def cached(folder: Path, name: str, work: Callable[[Path], None]) -> Path:
    """The folder of a run, made by `work` unless an earlier call left it whole."""
    path = folder / name
    if not (path / "done").exists():
        for old in path.glob("*"):
            old.unlink()
        work(path)
        (path / "done").touch()
    return path


def record_all(folder: Path, clean: int, perturbed: int, seeds: int) -> dict[str, Any]:
    """Trains every run that the tables need; about a CPU second each."""
    data = corpus()

    def make(name: str, run: Variant) -> Path:
        print(f"\r  training {name:<48}", end="", file=sys.stderr, flush=True)
        return cached(folder, name, lambda out: train(out, data, run))

    runs: dict[str, Any] = {
        "clean": [make(f"clean{i}", Variant(i)) for i in range(clean)],
        "perturbed": [make(f"ulp{i}", Variant(200 + i, ulp=True)) for i in range(perturbed)],
        "benign": [make(f"benign{i}", Variant(300 + i, noise=1e-5)) for i in range(seeds * 2)],
        "faults": {
            fault: [
                make(f"fault{index}-{i}", Variant(400 + 10 * index + i, fault=fault, begin=begin)) for i in range(seeds)
            ]
            for index, (fault, begin) in enumerate({**FAULTS, **INSIDE_CHAOS}.items())
        },
        "held out": [
            {
                "clean": [make(f"job{job}-clean{i}", Variant(i, job=job)) for i in range(seeds)],
                "benign": [
                    make(f"job{job}-benign{i}", Variant(300 + i, noise=1e-5, job=job)) for i in range(seeds // 2)
                ],
                "fault": [
                    make(f"job{job}-{fault}", Variant(400, fault=fault, begin=begin, job=job))
                    for fault, begin in FAULTS.items()
                ],
            }
            for job in (1, 2, 3)
        ],
    }
    print(file=sys.stderr)
    return runs


class Tally:
    """Answers of many comparisons of one kind."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.worst: list[float] = []
        self.delays: list[int] = []

    def note(self, report: dict[str, Any], begin: int) -> None:
        """Takes one report."""
        self.answers[report["answer"]] = self.answers.get(report["answer"], 0) + 1
        self.worst.append(max((entry["ratio"] or 0.0 for entry in report["worst"]), default=0.0))
        if report["answer"] == "different":
            self.delays.append(report["first_divergence"]["step"] - begin)

    def share(self, answer: str) -> float:
        """The share of an answer."""
        return self.answers.get(answer, 0) / sum(self.answers.values())

    def median_delay(self) -> int | None:
        """Steps from the start of the fault to the first divergence."""
        return sorted(self.delays)[len(self.delays) // 2] if self.delays else None


def judge(runs: dict[str, Any], group: str, size: int, draws: int) -> dict[str, Tally]:
    """Answers over random draws of `size` baselines of `group` and one unperturbed base run."""
    generator = random.Random(17)
    held_out = [f"held-out {kind}" for kind in ("clean", "benign", "fault")]
    tallies = {name: Tally() for name in ("clean", "benign", *held_out, *runs["faults"])}
    for _ in range(draws):
        base = generator.choice(runs["clean"])
        pool = runs["perturbed"] if group == "perturbed" else [run for run in runs["clean"] if run != base]
        drawn = generator.sample(pool, size)
        noise = derive(drawn)
        for run in runs["clean"]:
            if run != base and run not in drawn:
                tallies["clean"].note(compare(base, run, noise), 0)
        for run in runs["benign"]:
            tallies["benign"].note(compare(base, run, noise), 0)
        for fault, faulty in runs["faults"].items():
            for run in faulty:
                tallies[fault].note(compare(base, run, noise), {**FAULTS, **INSIDE_CHAOS}[fault])
        for other in runs["held out"]:
            base, *clean = other["clean"]
            for kind, found in (("clean", clean), ("benign", other["benign"]), ("fault", other["fault"])):
                for run in found:
                    tallies[f"held-out {kind}"].note(compare(base, run, noise), 0)
    return tallies


def print_row(group: str, size: int, found: dict[str, Tally]) -> None:
    """One line of the first table."""
    faults = [found[fault].share("different") for fault in FAULTS]
    cells = [
        found["clean"].share("different"), found["clean"].share("undecided"),
        found["benign"].share("different"), found["benign"].share("undecided"), min(faults),
    ]  # fmt: skip
    worst = f"{max(found['clean'].worst):>10.2f} {max(found['benign'].worst):>10.2f}"
    print(f"{size:>4} {group:<10}" + "".join(f"{cell:>12.1%}" for cell in cells) + worst, flush=True)


def print_faults(found: dict[str, Tally]) -> int:
    """The second table (`least`: smallest ratio to the tolerance); returns how many kinds are hit within two steps."""
    heads = f"{'begins':>6} {'found':>7} {'first hit after':>16} {'least ratio':>12}"
    print(f"\n{'fault (5 perturbed baselines)':<36} {heads}")
    for fault, begin in {**FAULTS, **INSIDE_CHAOS}.items():
        row = found[fault]
        delay = row.median_delay()
        print(f"{fault:<36} {begin:>6} {row.share('different'):>7.1%} {delay!s:>16} {min(row.worst):>12.3g}")
    return sum(delay is not None and abs(delay) <= 2 for delay in (found[fault].median_delay() for fault in FAULTS))


def main() -> int:
    """Prints the tables and, last, one JSON line; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs and draws (a look, not the measurement)")
    parser.add_argument("--keep", type=Path, help="where to keep the runs (default: a temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clean, perturbed, seeds, draws = (8, 12, 2, 3) if options.quick else (41, 24, 6, 6)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        runs = record_all(folder, clean, perturbed, seeds)
        print(f"{'':<15}{'clean:':>12}{'':>12}{'10x rounding:':>24}{'faults':>12}   worst, in tolerances")
        columns = ("different", "undecided", "different", "undecided", "found")
        print(f"{'baselines':<15}" + "".join(f"{column:>12}" for column in columns) + "     clean    benign")
        for group, size in (("perturbed", 3), ("perturbed", 4), ("perturbed", 5), ("perturbed", 10), ("plain", 5)):
            results[group, size] = judge(runs, group, size, draws)
            print_row(group, size, results[group, size])
    five = results["perturbed", 5]
    within = print_faults(five)
    for kind in ("clean", "benign", "fault"):
        row = five[f"held-out {kind}"]
        ratios = f"ratios {min(row.worst):.3g} to {max(row.worst):.3g}"
        print(f"held-out seeds, {kind:<20} different {row.share('different'):>7.1%}, {ratios}")
    metrics = {
        "clean_rejected": five["clean"].share("different"),
        "clean_undecided": five["clean"].share("undecided"),
        "benign_accepted": five["benign"].share("equivalent"),
        "faults_found": min(five[fault].share("different") for fault in FAULTS),
        "kinds_hit_within_two_steps": within,
        "clean_comparisons": len(five["clean"].worst),
        "held_out_clean_rejected": five["held-out clean"].share("different"),
        "held_out_benign_accepted": five["held-out benign"].share("equivalent"),
        "held_out_faults_found": five["held-out fault"].share("different"),
        "clean_rejected_with_3": results["perturbed", 3]["clean"].share("different"),
        "faults_found_with_3": min(results["perturbed", 3][fault].share("different") for fault in FAULTS),
    }
    bars = {
        "clean_rejected": metrics["clean_rejected"] <= 0.02,
        "benign_accepted": metrics["benign_accepted"] == 1.0,
        "faults_found": metrics["faults_found"] == 1.0,
        "kinds_hit_within_two_steps": within >= 8,
        "held_out_clean_rejected": metrics["held_out_clean_rejected"] <= 0.02,
        "held_out_faults_found": metrics["held_out_faults_found"] == 1.0,
    }
    print(json.dumps({"bench": "parity_training", "metrics": metrics, "bars": bars, "ok": all(bars.values())}))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
