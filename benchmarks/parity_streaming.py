"""Memory and CPU time of `parity compare` on two runs of ten million records each.

Two runs of 1,000 tags are written, in which one value in a hundred differs in its last digit and, for the second
measurement, the tags of every step stand in another order. The comparison runs in a process of its own, whose peak
resident memory is read by `resource`.

    python benchmarks/parity_streaming.py [--records 10_000_000]

Time is linear in the records: 10 M take 89 s of CPU in the same order and 123 s
where steps are shuffled; writing the runs takes about half a minute more.

Bar (issue 3): under 1 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAGS = 1000

CHILD = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from parity.compare import compare
report = compare(sys.argv[2], sys.argv[3])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"answer": report["answer"], "compared": report["counts"]["compared"], "reason": report["reason"],
                  "peak_mb": usage.ru_maxrss / 1024, "cpu_s": usage.ru_utime + usage.ru_stime}))
"""


def write(folder: Path, records: int, seed: int, shuffled: bool) -> Path:
    """One run; `seed` 0 is the baseline."""
    folder.mkdir()
    generator = random.Random(seed)
    order = list(range(TAGS))
    header = {"schema": "parity/records@1", "run_id": f"run{folder.name}", "rank": 0, "world_size": 1}
    with (folder / "rank0.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        for step in range(records // TAGS):
            if shuffled:
                generator.shuffle(order)
            lines = []
            for tag in order:
                last = 7 if seed and generator.random() < 0.01 else 1
                place = f'"tag": "module/{tag}", "step": {step}, "occurrence": 0'
                lines.append(f'{{{place}, "kind": "float", "value": {tag}.{step}000{last}}}\n')
            file.writelines(lines)
    return folder


def main() -> int:
    """Prints the table and, last, one JSON line; 1 where the bar falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    options = parser.parse_args()
    metrics = {}
    print(f"{'candidate':<16} {'records':>12} {'compared':>12} {'peak MB':>9} {'CPU s':>8}  answer")
    with tempfile.TemporaryDirectory() as temporary:
        base = write(Path(temporary) / "base", options.records, 0, False)
        for name, shuffled in (("same order", False), ("shuffled steps", True)):
            cand = write(Path(temporary) / "cand", options.records, 1, shuffled)
            command = [sys.executable, "-c", CHILD, str(ROOT), str(base), str(cand)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            sizes = f"{options.records:>12,} {found['compared']:>12,} {found['peak_mb']:>9.0f} {found['cpu_s']:>8.0f}"
            print(f"{name:<16} {sizes}  {found['answer']}", flush=True)
            metrics[f"{name}: peak_mb"], metrics[f"{name}: cpu_s"] = found["peak_mb"], found["cpu_s"]
            if found["compared"] != options.records:
                print("not all records were compared", file=sys.stderr)
                return 1
            (cand / "rank0.jsonl").unlink()
            cand.rmdir()
    bars = {name: value < 1000 for name, value in metrics.items() if name.endswith("peak_mb")}
    print(json.dumps({"bench": "parity_streaming", "metrics": metrics, "bars": bars, "ok": all(bars.values())}))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
