"""Do two clones that ran the same graph agree in everything that is not a time?

    python benchmarks/two_clones.py ONE TWO [--workload minigpt]

ONE and TWO are checkouts of one commit in which `snakemake --config workload=...` has ended. Compared are hashes of the
specification, source and candidate trees, patches, what the checked runs wrote and counted, guards, verdicts, and the
structure of the tables. A candidate whose verdict hangs on noise can differ there: it is listed, and fails the bar.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KINDS = {
    "specification": "spec/*.json",
    "source": "source.json",
    "patches": "**/patch.diff",
    "proposals": "**/proposal.json",
    "guards": "**/guard.json",
    "outputs of checked runs": "**/checked/*/run.json",
    "ledgers of checked runs": "**/checked/*/records/ledger.json",
    "verdicts": "**/verdict.json",
}
TABLES = ("speedups", "changes", "candidates", "costs", "noise")


def content(kind: str, path: Path) -> Any:
    """What of a file may not depend on time or place."""
    if path.suffix != ".json":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    document = json.loads(path.read_text(encoding="utf-8"))
    if kind == "outputs of checked runs":
        return document.get("status"), document.get("steps"), document.get("outputs")
    if kind == "ledgers of checked runs":
        return document["invariants"]
    if kind == "verdicts":
        return document["verdict"], document["tree"]
    if kind == "proposals":
        return {key: document.get(key) for key in ("status", "fix", "title", "findings_used", "classes")}
    if kind == "source":
        return document["tree"], document["files"]
    if kind == "guards":
        return document["status"], document["tree"], document.get("changed_lines")
    return document


def compared(kind: str, one: Path, two: Path) -> Iterator[tuple[str, bool]]:
    """(relative path, whether both agree) of every file of a kind that either has."""
    names = {path.relative_to(root).as_posix() for root in (one, two) for path in root.glob(KINDS[kind])}
    for name in sorted(names):
        pair = [root / name for root in (one, two)]
        yield name, all(p.is_file() for p in pair) and content(kind, pair[0]) == content(kind, pair[1])


def shape(path: Path) -> tuple[list[str], int]:
    """Columns and number of rows of a CSV table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return rows[0], len(rows) - 1


def main() -> int:
    """Print the table and the JSON line; 1 where anything differs or nothing was there to compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("one", type=Path)
    parser.add_argument("two", type=Path)
    parser.add_argument("--workload", default="minigpt")
    args = parser.parse_args()
    places = [next(iter(sorted((root / "results").glob(f"*/{args.workload}"))), None) for root in (args.one, args.two)]
    if None in places:
        print(f"error: no results of {args.workload} in both checkouts; run snakemake in each", file=sys.stderr)
        return 2
    one, two = (place for place in places if place is not None)
    metrics: dict[str, dict[str, int]] = {}
    print(f"{'what':26} {'compared':>8} {'equal':>6}")
    for kind in KINDS:
        found = list(compared(kind, one, two))
        metrics[kind] = {"compared": len(found), "equal": sum(same for _, same in found)}
        print(f"{kind:26} {len(found):8d} {metrics[kind]['equal']:6d}")
        for name, same in found:
            if not same:
                print(f"  differs: {name}")
    shapes = [
        shape(one.parent / "tables" / f"{name}.csv") == shape(two.parent / "tables" / f"{name}.csv") for name in TABLES
    ]
    metrics["structure of tables"] = {"compared": len(TABLES), "equal": sum(shapes)}
    print(f"{'structure of tables':26} {len(TABLES):8d} {sum(shapes):6d}")
    bars = {kind: count["compared"] > 0 and count["compared"] == count["equal"] for kind, count in metrics.items()}
    ok = all(bars.values())
    print(json.dumps({"bench": "two_clones", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
