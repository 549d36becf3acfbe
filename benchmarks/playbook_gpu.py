"""Each fix of the playbook that a GPU decides about: applied to a small real job, run before and after, compared.

    python benchmarks/playbook_gpu.py [--out playbook_gpu] [--only sdpa,dataloader] [--device cuda] [--seconds 240]

Every job is in the shape that its fix is made for; the fix itself (libcst) writes the second source. Each run is a
process of its own, forked before the device is touched, so that flags, plans and memory of one run are not the
other's; the two sources take turns, two pairs, in alternating order. Values of every step must agree within the job's
tolerance. Results are written after every fix. Needs torch, libcst and what `scripts/propose` imports; `transformers`
for two of them. About four minutes on an H200; `--device cpu` tries the script with tiny sizes and measures nothing.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import os
import re
import runpy
import select
import statistics
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PAIRS = 2
WARM = 3
"""Steps before the clock starts: kernels are loaded, plans are made, memory is taken."""
RUN_SECONDS = 100.0
SPEC: dict[str, Any] = {
    "source": {"editable": ["**"], "protected": []},
    "resources": {"gpus": 1, "cpus": 8},
    "constraints": {"precision": "tf32", "memory_growth": 2.0, "data_order": "fixed"},
    "measure": {"horizon": {"steps": 100_000}},
}

HEAD = """import sys

import torch
import torch.nn.functional as F
from torch import nn

from progress import mark

device = torch.device(sys.argv[1])
torch.manual_seed(0)
"""


@dataclass(frozen=True)
class Case:
    """A fix and the job it is tried on. `rtol` bounds every recorded value; sizes are constants of the job."""

    fix: str
    finding: str
    job: str
    rtol: float
    steps: int = 40
    name: str = ""
    tiny: dict[str, str] = field(default_factory=dict)
    pairs: int = PAIRS
    may_lose: str = ""
    """Why a slower result here is no defect; the bar is then only that values agree."""


MLP = """
WIDTH, BATCH, LAYERS = 4096, 4096, 4
model = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

if __name__ == "__main__":
    x = torch.randn(BATCH, WIDTH, device=device)
    for step in range(STEPS):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mark(step, loss)
"""
CONVOLUTIONS = """
WIDTH, BATCH, SIZE = 128, 64, 56


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.body = nn.ModuleList([nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(8)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(WIDTH) for _ in range(8)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.stem(x)
        for conv, norm in zip(self.body, self.norms):
            x = x + F.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


if __name__ == "__main__":
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(BATCH, 3, SIZE, SIZE, device=device)
    labels = torch.randint(10, (BATCH,), device=device)
    for step in range(STEPS):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=AUTOCAST):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mark(step, loss)
"""
LOADER = """from torch.utils.data import DataLoader, Dataset

ITEMS, LENGTH, BATCH, WORK = 4096, 50_000, 64, 0


class Signals(Dataset):
    def __init__(self):
        self.base = torch.linspace(0, 1, LENGTH)

    def __len__(self):
        return ITEMS

    def __getitem__(self, i):
        x = self.base * (i + 1)
        for _ in range(WORK):
            x = torch.sin(x)
        return x


if __name__ == "__main__":
    loader = DataLoader(Signals(), batch_size=BATCH, drop_last=True, WORKERS)
    weight = torch.full((LENGTH, 64), 1e-3, device=device)
    step = 0
    for batch in loader:
        batch = batch.to(device)
        loss = torch.tanh(batch @ weight).mean()
        mark(step, loss)
        step += 1
        if step == STEPS:
            break
"""
MANY = """
LAYERS, WIDTH = 120, 256
model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)
"""
OPTIMIZER = """
if __name__ == "__main__":
    optimizer = torch.optim.OPTIMIZER
    x = torch.randn(64, WIDTH, device=device)
    for step in range(STEPS):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad(ZERO)
        loss.backward()
        optimizer.step()
        mark(step, loss)
"""


def updating(optimizer: str, zero: str = "") -> str:
    """A job of many small parameters with an optimizer; `zero` are the arguments of `zero_grad`."""
    return MANY + OPTIMIZER.replace("OPTIMIZER", optimizer).replace("ZERO", zero)


GPT = """import math

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 768, 12, 6, 8, 1024


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        ATTENTION
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        h = self.up(self.ln_2(x))
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        return x + self.down(h)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    for step in range(STEPS):
        x = data[:, : LENGTH_OF_STEP]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mark(step, loss)


if __name__ == "__main__":
    main()
"""
BY_HAND = """mask = torch.tril(torch.ones(T, T, device=x.device)).view(1, 1, T, T)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(mask == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v"""
CALLED = "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)"


def gpt(attention: str = CALLED, length: str = "LENGTH") -> str:
    """The GPT with one way of attention; `length` is the number of tokens of a step."""
    return GPT.replace("ATTENTION", attention).replace("LENGTH_OF_STEP", length)


LLAMA = """from transformers import AutoModelForCausalLM, LlamaConfig

WIDTH, LAYERS, BATCH, LENGTH = 1024, 6, 8, 1024
config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=8,
                     num_key_value_heads=8, vocab_size=1000, max_position_embeddings=2048, pad_token_id=0)
"""
SMALL_GPT = {"WIDTH, HEADS, LAYERS, BATCH, LENGTH": "32, 2, 2, 2, 16"}
SMALL_LLAMA = {"WIDTH, LAYERS, BATCH, LENGTH": "64, 2, 2, 16"}

CASES = [
    Case("matmul_precision", "tf32_off", MLP, 2e-3, 30, tiny={"WIDTH, BATCH, LAYERS": "32, 8, 2"}),
    Case(
        "cudnn_benchmark", "cudnn_benchmark_off", CONVOLUTIONS.replace("AUTOCAST", "False"), 3e-2, 40,
        tiny={"WIDTH, BATCH, SIZE": "8, 2, 12"}, may_lose="cuDNN's own choice is often the best already",
    ),
    Case(
        "channels_last", "channels_last_missed", CONVOLUTIONS.replace("AUTOCAST", "True"), 5e-2, 60,
        tiny={"WIDTH, BATCH, SIZE": "8, 2, 12"},
    ),
    Case(
        "nonblocking_copies", "pageable_copies", LOADER.replace("WORKERS", "num_workers=2"), 1e-5, 50,
        tiny={"ITEMS, LENGTH, BATCH, WORK": "48, 100, 4, 0"},
        may_lose="the loader's thread that pins memory may be what the step waits for",
    ),
    Case(
        "dataloader", "loader_bound", LOADER.replace("WORKERS", "num_workers=0").replace("50_000, 64, 0", "25_000, 64, 16"),
        1e-5, 40, tiny={"ITEMS, LENGTH, BATCH, WORK": "48, 100, 4, 1"},
    ),
    Case(
        "fused_optimizer", "optimizer_unfused",
        updating("AdamW(model.parameters(), lr=1e-4)"),
        1e-3, 60, tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "fused_optimizer", "optimizer_unfused",
        updating("AdamW(model.parameters(), lr=1e-4, foreach=False)"),
        1e-3, 40, name="fused_optimizer, from a loop", tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "set_to_none", "tiny_kernels",
        updating("SGD(model.parameters(), lr=1e-4, momentum=0.9)", "set_to_none=False"),
        1e-5, 80, tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "foreach_ema", "ema_loop",
        MANY + """
teacher = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)


@torch.no_grad()
def update(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(decay).add_(p, alpha=1 - decay)


if __name__ == "__main__":
    for step in range(STEPS):
        update(teacher, model, 0.99)
        mark(step, teacher[0].weight.norm())
""",
        1e-5, 300, tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "batch_item_logging", "step_synchronisation",
        MANY + """

if __name__ == "__main__":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(64, WIDTH, device=device)
    for step in range(STEPS):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        total = 0.0
        for p in model.parameters():
            total += p.grad.norm().item() ** 2
        grad_norm = total**0.5
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mark(step, loss, grad_norm)
""",
        1e-3, 40, tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "inference_mode", "gradients_in_evaluation",
        MANY + """

def evaluate(model, batches):
    model.eval()
    total = 0.0
    for x in batches:
        total += (model(x) - x).square().mean().item()
    return total / len(batches)


if __name__ == "__main__":
    batches = [torch.randn(64, WIDTH, device=device) for _ in range(4)]
    for step in range(STEPS):
        mark(step, evaluate(model, batches))
""",
        1e-5, 40, tiny={"LAYERS, WIDTH": "3, 8"},
    ),
    Case(
        "keep_on_device", "weights_moved",
        """
WIDTH, LAYERS = 4096, 8


class Pipeline:
    def __init__(self):
        self.decoder = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    def decode(self, latents):
        self.decoder.to(device)
        image = self.decoder(latents)
        self.decoder.to("cpu")
        return image.cpu()


if __name__ == "__main__":
    pipeline = Pipeline()
    latents = torch.randn(16, WIDTH, device=device)
    with torch.inference_mode():
        for step in range(STEPS):
            mark(step, pipeline.decode(latents).norm())
""",
        1e-5, 8, tiny={"WIDTH, LAYERS": "8, 2"},
    ),
    Case(
        "deterministic_fill", "deterministic_fill",
        """import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
WIDTH, BATCH, BUFFERS = 1024, 1024, 200

if __name__ == "__main__":
    weight = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5
    for step in range(STEPS):
        x = torch.ones(BATCH, WIDTH, device=device)
        for _ in range(BUFFERS):
            out = torch.empty(BATCH, WIDTH, device=device)
            torch.add(x, 1e-3, out=out)
            x = out
        mark(step, (x @ weight).norm())
""",
        1e-6, 60, tiny={"WIDTH, BATCH, BUFFERS": "8, 4, 3"},
    ),
    Case("sdpa", "attention_handwritten", gpt(BY_HAND), 2e-2, 30, tiny=SMALL_GPT),
    Case(
        "sdpa_backend", "attention_math_path",
        LLAMA + """
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16).to(device).eval()

if __name__ == "__main__":
    tokens = torch.arange(BATCH * LENGTH, device=device).view(BATCH, LENGTH) % 1000
    with torch.inference_mode():
        for step in range(STEPS):
            mark(step, model(tokens).logits.float().norm())
""",
        1e-2, 40, name="sdpa_backend, from eager", tiny=SMALL_LLAMA,
    ),
    Case(
        "cudnn_attention", "new_shapes_slow_steps", gpt(length="LENGTH - 8 * (step % 60) - 1"), 2e-2, 60,
        tiny=SMALL_GPT,
        may_lose="torch chooses cuDNN's attention only where its own order of backends says so",
    ),
    Case(
        "use_cache", "kv_cache_missed",
        LLAMA + """
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()

if __name__ == "__main__":
    prompt = torch.arange(BATCH * 64, device=device).view(BATCH, 64) % 999 + 1
    for step in range(STEPS):
        tokens = model.generate(prompt, max_new_tokens=48, do_sample=False, use_cache=False)
        mark(step, tokens.float().norm())
""",
        1e-6, 2, tiny=SMALL_LLAMA,
    ),
    Case("compile_model", "compile_missed", gpt(), 3e-2, 30, tiny=SMALL_GPT, pairs=1),
    Case("compile_regions", "compile_missed", gpt(), 3e-2, 30, tiny=SMALL_GPT, pairs=1),
    Case(
        "compile_dynamic", "new_shapes_slow_steps", gpt(length="LENGTH - 8 * (step % 20)"), 3e-2, 40,
        tiny=SMALL_GPT, pairs=1,
    ),
]  # fmt: skip


def sources(case: Case, device: str, folder: Path) -> dict[str, str]:
    """The job before and after its fix. Raises the fix's Refusal."""
    from scripts.propose.playbook import fixes

    steps = case.steps + WARM
    text = HEAD + case.job
    if device == "cpu":
        steps = WARM + 2
        for names, values in case.tiny.items():
            text = re.sub(rf"(?m)^{re.escape(names)} = .*$", f"{names} = {values}", text)
        text = re.sub(r"LENGTH - 8 \* \(step % \d+\)", "LENGTH - (step % 3)", text)
    text = text.replace("STEPS", str(steps))
    (folder / "job.py").write_text(text)
    finding = {"id": case.finding, "anchors": [{"path": "job.py", "line": 1, "code": ""}]}
    edits = fixes()[case.fix].fix(folder, finding, SPEC)
    return {"before": text, "after": edits["job.py"]}


def in_a_process(work: Callable[[], dict[str, Any]], log: Path, limit_s: float) -> dict[str, Any]:
    """What `work` returns, from a forked process of its own; `{"error": ...}` where it fails or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            answer = work()
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready, _, _ = select.select([pipe], [], [], limit_s)
        if not ready:
            os.kill(child, 9)
        text = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"error": f"no answer within {limit_s:.0f} s, or the process died"}


def measured(source: str, folder: Path, device: str) -> dict[str, Any]:
    """Run a job in this process: seconds of the first steps and of one step after them, and the values of all."""
    import torch

    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    values: list[list[Any]] = []
    times: dict[str, float] = {}

    def mark(step: int, *recorded: Any) -> None:
        values.append([v.detach() if isinstance(v, torch.Tensor) else v for v in recorded])
        if step == WARM - 1:
            synchronise()
            times["warm"] = time.perf_counter()
        times["steps"] = step + 1

    module = types.ModuleType("progress")
    module.mark = mark  # type: ignore[attr-defined]
    sys.modules["progress"] = module
    place = folder / f"run-{os.getpid()}"
    place.mkdir()
    (place / "job.py").write_text(source)
    os.chdir(place)
    sys.path.insert(0, str(place))
    sys.argv = ["job.py", device]
    began = time.perf_counter()
    if device == "cuda":
        torch.zeros(1, device=device)
    times["began"] = time.perf_counter()
    runpy.run_path("job.py", run_name="__main__")
    synchronise()
    end = time.perf_counter()
    memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    gc.collect()
    return {
        "context_s": times["began"] - began,
        "first_steps_s": times["warm"] - times["began"],
        "step_s": (end - times["warm"]) / (times["steps"] - WARM),
        "values": [[float(v) for v in row] for row in values],
        "peak_mib": memory,
    }


def deviation(before: list[list[float]], after: list[list[float]]) -> float:
    """Largest relative difference over all steps and values; infinite where their number or finiteness differs."""
    if [len(row) for row in before] != [len(row) for row in after] or not before:
        return math.inf
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        for a, b in zip(one, other, strict=True):
            if not (math.isfinite(a) and math.isfinite(b)):
                return math.inf
            worst = max(worst, abs(a - b) / max(abs(a), 1e-12))
    return worst


def tried(case: Case, device: str, folder: Path) -> dict[str, Any]:
    """The pairs of one case and what they say."""
    name = case.name or case.fix
    row: dict[str, Any] = {"name": name, "fix": case.fix, "finding": case.finding, "rtol": case.rtol}
    try:
        texts = sources(case, device, folder)
    except Exception as error:
        return {**row, "status": "refused", "reason": f"{type(error).__name__}: {error}"}
    row["diff"] = _diff(texts)
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    limit_s = RUN_SECONDS if device == "cuda" else 10 * RUN_SECONDS
    for pair in range(case.pairs if device == "cuda" else 1):
        for arm in ("before", "after") if pair % 2 == 0 else ("after", "before"):
            work = functools.partial(measured, texts[arm], folder, device)
            runs[arm].append(in_a_process(work, folder / "log", limit_s))
    errors = [f"{arm}: {run['error']}" for arm, many in runs.items() for run in many if "error" in run]
    if errors:
        return {**row, "status": "failed", "reason": errors[0]}
    worst = max(deviation(b["values"], a["values"]) for b, a in zip(runs["before"], runs["after"], strict=True))
    ratios = [b["step_s"] / a["step_s"] for b, a in zip(runs["before"], runs["after"], strict=True)]
    return {
        **row,
        "status": "ok" if worst <= case.rtol else "values differ",
        "deviation": worst,
        "ratios": ratios,
        "ratio": statistics.geometric_mean(ratios),
        "may_lose": case.may_lose,
        **{
            f"{arm}_{key}": statistics.median(run[key] for run in runs[arm])
            for arm in runs
            for key in ("step_s", "first_steps_s")
        },
        "peak_mib": {arm: runs[arm][0]["peak_mib"] for arm in runs},
    }


def _diff(texts: dict[str, str]) -> list[str]:
    import difflib

    lines = difflib.unified_diff(texts["before"].splitlines(), texts["after"].splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    if "ratio" not in row:
        return f"{row['name']:<34} {row['status']}: {row.get('reason', '')}"
    pairs = " ".join(f"{ratio:.3f}" for ratio in row["ratios"])
    return (
        f"{row['name']:<34} {row['before_step_s'] * 1e3:>9.2f} {row['after_step_s'] * 1e3:>9.2f} {row['ratio']:>8.3f}  "
        f"{pairs:<14} {row['before_first_steps_s']:>7.2f} {row['after_first_steps_s']:>7.2f} "
        f"{row['deviation']:>10.1e} {row['rtol']:>8.0e}  {row['status']}"
    )


def main() -> int:
    """Exit 1 where a fix is refused by its own shape, fails, changes values, or makes its step slower."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("playbook_gpu"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", default="", help="names of fixes, with commas")
    parser.add_argument("--seconds", type=float, default=240.0, help="no further fix is begun after so long")
    args = parser.parse_args()
    wanted = [name for name in args.only.split(",") if name]
    cases = [case for case in CASES if not wanted or case.fix in wanted]
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    import torch  # before the forks, so that each run starts with it imported; nothing touches the device here

    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {os.cpu_count()} CPUs, device {args.device}")
    print(
        f"{'fix':<34} {'before ms':>9} {'after ms':>9} {'ratio':>8}  {'pairs':<14} {'first s':>7} {'after':>7} "
        f"{'deviation':>10} {'rtol':>8}",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    for case in cases:
        if time.monotonic() - began > args.seconds:
            rows.append({"name": case.name or case.fix, "fix": case.fix, "status": "not run", "reason": "out of time"})
        else:
            with tempfile.TemporaryDirectory(prefix="playbook-gpu-", ignore_cleanup_errors=True) as folder:
                rows.append(tried(case, args.device, Path(folder)))
                log = Path(folder) / "log"
                if rows[-1]["status"] == "failed" and log.is_file():
                    (args.out / f"{len(rows)}-{case.fix}.log").write_bytes(log.read_bytes()[-20_000:])
        print(line_of(rows[-1]), flush=True)
        (args.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    right = [row for row in rows if row["status"] == "ok"]
    slower = [row["name"] for row in right if row["ratio"] < 1.0 and not row["may_lose"] and args.device == "cuda"]
    metrics = {
        "fixes": len(rows),
        "right": len(right),
        "slower": slower,
        "ratios": {row["name"]: round(row["ratio"], 4) for row in right},
        "not_right": {row["name"]: f"{row['status']}: {row.get('reason', '')}" for row in rows if row not in right},
        "seconds": round(time.monotonic() - began, 1),
        "device": args.device,
    }
    bars = {"all_right": len(right) == len(rows), "none_slower": not slower}
    print(json.dumps({"bench": "playbook_gpu", "metrics": metrics, "bars": bars, "ok": all(bars.values())}))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
