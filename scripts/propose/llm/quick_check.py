"""Run a patched job for two steps and print in one line how it ended; what an agent's quick check calls."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from scripts.common import tree as trees
from scripts.common.errors import run
from scripts.common.files import read_json
from scripts.common.launch import Job, launch

STEPS = 2


def main(argv: list[str] | None = None) -> int:
    """Exit 0 whatever the job does; its end is the output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    spec = json.loads(args.spec.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="wholejob-store-") as folder:
        store = trees.STORE
        trees.STORE = Path(folder)  # tried trees do not pile up in the store
        try:
            seed = int((spec.get("parity") or {}).get("seed", 0))
            job = Job(spec=spec, env=read_json(args.env, "env"), tree=trees.store(args.tree), seed=seed, steps=STEPS)
            result = launch(job, args.output)
        finally:
            trees.STORE = store
            for path in Path(folder).iterdir():
                trees.remove(path)
    log = args.output / "job.log"
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if log.is_file() else []
    print(f"{result['status']}: {result.get('reason') or f'{STEPS} steps ran'}")
    if result["status"] != "ok":
        print("\n".join(tail))
    return 0


if __name__ == "__main__":
    run(main)
