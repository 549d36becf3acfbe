"""`parity show`: what one run recorded, by tag."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any, Optional

from parity import records
from parity.records import Run


def show(path: str) -> dict[str, Any]:
    """Header, ledger and, per rank and tag, kind, number of records, steps and first and last value. One pass."""
    run = Run(path)
    ranks: dict[str, Any] = {}
    for rank in run.ranks:
        tags: dict[str, dict[str, Any]] = {}
        for _, (tag, step, _), (record,), _ in records.align([run], rank):
            assert record is not None
            entry = tags.get(tag)
            value = _brief(record)
            if entry is None:
                shape = (
                    {"shape": record.get("shape"), "dtype": record.get("dtype")} if record["kind"] == "tensor" else {}
                )
                entry = tags[tag] = {"kind": record["kind"], "records": 0, "first_step": step, "first": value, **shape}
            entry["records"] += 1
            entry["last_step"], entry["last"] = step, value
        ranks[rank] = {
            "header": run.headers.get(rank),
            "tags": tags,
            "ledger": run.ledger(rank),
            "torn": rank in run.torn,
        }
    return {"schema": "parity/show@1", "run": run.name, "ranks": ranks}


def _brief(record: records.Record) -> Any:
    if record["kind"] == "tensor":
        return {"l2": record.get("l2"), "sum": record.get("sum")}
    if record["kind"] == "error":
        return record.get("error")
    value = record["value"]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = []
    for rank, entry in document["ranks"].items():
        header = entry["header"] or {}
        program = header.get("program") or "older format"
        perturb = f", perturbed {header['perturb']}" if header.get("perturb") else ""
        lines.append(f"{document['run']} rank {rank}: {program}{perturb}")
        width = max((len(tag) for tag in entry["tags"]), default=4)
        for tag, found in entry["tags"].items():
            shape = f" {found['shape']} {found['dtype']}" if found.get("shape") is not None else ""
            steps = "" if found["first_step"] is None else f" steps {found['first_step']}-{found['last_step']}"
            lines.append(
                f"  {tag:<{width}}  {found['kind']:<6} {found['records']:>6} records{steps}{shape}  "
                f"{_short(found['first'])} .. {_short(found['last'])}"
            )
        if entry["torn"]:
            lines.append("  the last line is cut off")
        ledger = entry["ledger"]
        if ledger:
            lines.append(
                f"  ledger: {len(ledger.get('invariants') or {})} invariants, {ledger.get('errors') or 0} errors"
            )
            if ledger.get("unseen"):
                lines.append(f"  unseen: {', '.join(str(item) for item in ledger['unseen'])}")
        else:
            lines.append("  no ledger")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        l2 = value.get("l2")
        return f"|{l2:.6g}|" if isinstance(l2, (int, float)) else f"|{l2}|"
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]


def main(argv: Optional[list[str]] = None) -> int:
    """`parity show RUN [--json]`."""
    parser = argparse.ArgumentParser(prog="parity show", description="Print what one run recorded, by tag.")
    parser.add_argument("run", metavar="RUN", help="folder of a recorded run")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    arguments = parser.parse_args(argv)
    document = show(arguments.run)
    if arguments.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        print(text(document))
    return 0
