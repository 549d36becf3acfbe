"""Fuzz the trace parser: `python benchmarks/trace_fuzz.py [--seconds 600] [--seed 1] [--finds DIR]`.

Small traces of every malformed kind are cut, flipped, spliced and repeated; each is scanned by both scanners, in blocks cut at
random. A find is an exception or a difference between the scanners.
Finds are written to DIR; exit 1 when there is one. Each one that was fixed lives on in tests/unit/trace_malformed.py.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

import trace_malformed as malformed

from scripts.trace import blocks, compiled, dataset, runs
from scripts.trace.blocks import Workers, parse_file
from scripts.trace.pure import PlainScanner
from scripts.trace.scanner import Scanner

SPICE = [
    *(bytes([c]) for c in b'{}[]":,\\\0\n \xff-.eEnt0'),
    b'}, {"ph": "X"',
    b'"traceEvents": [',
    b'"args": {',
    b"\\u12",
    b"NaN",
    b"]}",
    b'\\"',
    b"\0" * 9,
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few random edits."""
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        if not made:
            break
        at = chance.randrange(len(made))
        span = chance.choice([1, 1, 2, 8, 64, 512])
        kind = chance.randrange(6)
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del made[at : at + span]
        elif kind == 2:
            made[at:at] = chance.choice(SPICE)
        elif kind == 3:
            made[at : at + 1] = chance.choice(SPICE)
        elif kind == 4:
            other = chance.randrange(len(made))
            made[at:at] = made[other : other + span]
        else:
            del made[at + chance.randrange(len(made)) :]
    return bytes(made)


def outcome(path: Path, workers: Workers, block: int) -> tuple[Any, ...]:
    """What the parser makes of a file, comparable between scanners."""
    blocks.BLOCK = block
    parsed = parse_file(path, 0, workers)
    for scanner in workers.scanners:
        scanner.finish()
    tables = {}
    for number, cls in enumerate(dataset.CLASSES):
        mine = [run for run in parsed.runs if run.cls == number]
        rows = [row for table in runs.merged(mine, cls, 0, runs.present(mine, cls)) for row in table.to_pylist()]
        full = {column.name: None for column in dataset.COLUMNS[cls]}
        tables[cls] = sorted(json.dumps({**full, **row}, sort_keys=True) for row in rows)
    workers.scanners.clear()
    while not workers.idle.empty():
        workers.idle.get()
    return parsed.found, parsed.stats.tolist(), tables, parsed.header == parsed.header and len(parsed.header)


def agree(path: Path, plain: Workers, quick: Workers | None, block: int) -> bool:
    """Whether both scanners get through the file and make the same of it."""
    try:
        one = outcome(path, plain, block)
        return quick is None or one == outcome(path, quick, block)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--finds", type=Path, default=Path("trace_fuzz_finds"))
    arguments = parser.parse_args()
    malformed.events.__defaults__ = (96,)
    bases = [make().data for make in malformed.KINDS.values()]
    chance = random.Random(arguments.seed)
    finds = cases = 0
    begun = last = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        spool = runs.Spool(folder, 1 << 30)
        plain = Workers(lambda: PlainScanner(spool), 1, inline=True)
        quick = Workers(lambda: Scanner(spool), 1, inline=True) if compiled.available() else None
        while time.monotonic() - begun < arguments.seconds:
            spool.room = 1 << 30
            path.write_bytes(data := mutated(chance.choice(bases), chance))
            cases += 1
            block = chance.choice([257, 700, 1500, 1 << 16])
            if not agree(path, plain, quick, block):
                finds += 1
                arguments.finds.mkdir(parents=True, exist_ok=True)
                (arguments.finds / f"{arguments.seed}-{cases}-{block}.json").write_bytes(data)
            if time.monotonic() - last > 60:
                last = time.monotonic()
                print(f"{cases} cases, {finds} finds", flush=True)
    print(
        json.dumps(
            {"bench": "trace_fuzz", "metrics": {"cases": cases, "finds": finds}, "bars": {"finds": 0}, "ok": not finds}
        )
    )
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
