"""Screen the candidates of a round with a few pairs, to spend the confirming pairs on those that may be faster.

Screening times choose and are never quoted. A candidate is dropped where not one of its pairs shows the smallest effect
that matters; the best of the rest, at most `measure.finalists`, are confirmed with fresh pairs. Where no more are fit
than can be confirmed, nothing is screened.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.common.errors import run
from scripts.common.files import read_json, write_json
from scripts.common.statistics import affordable
from scripts.judge.session import BASE, Session, require_ok, write_rows

SCHEMA = "wholejob/screen@1"
Row = dict[str, Any]


def candidates(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """`{"c0": {"tree", "fit", "reason"}}`: which candidates passed the guard and parity, each tree once."""
    found: dict[str, dict[str, Any]] = {}
    trees: dict[str, str] = {}
    for folder in folders:
        guard, parity = read_json(folder / "guard.json", "guard"), read_json(folder / "parity.json", "parity")
        reason = None
        if guard["status"] != "pass":
            reason = f"guard: {guard['status']}"
        elif parity["answer"] != "equivalent":
            reason = f"parity: {parity['answer']}"
        elif guard["tree"] in trees:
            reason = f"the same tree as {trees[guard['tree']]}"
        else:
            trees[guard["tree"]] = folder.name
        found[folder.name] = {"tree": guard["tree"], "fit": reason is None, "reason": reason}
    return found


def places(settings: dict[str, Any]) -> int:
    """How many candidates of a round can be confirmed: those the contract allows and the number of pairs can decide."""
    return max(1, min(settings["finalists"], affordable(settings["alpha"], settings["pairs"])))


def screen(
    measure: Callable[[int, Sequence[str]], dict[str, Row]], names: Sequence[str], settings: dict[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run `settings["screen_pairs"]` blocks; `({name: {"status", "ratios", "reason"}}, finalists, best first)`.

    `measure(block, arms)` runs the arms once and returns their rows.
    """
    ratios: dict[str, list[float]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for block in range(settings["screen_pairs"]):
        racing = [name for name in names if name not in failed]
        if not racing:
            break
        rows = measure(block, [BASE, *racing])
        for name in racing:
            if rows[name]["status"] != "ok":
                failed[name] = rows[name]["reason"]
            else:
                ratios[name].append(rows[BASE]["wall_s"] / rows[name]["wall_s"])
    promising = [name for name in names if name not in failed and max(ratios[name]) >= 1 + settings["min_effect"]]
    promising.sort(key=lambda name: -statistics.median(ratios[name]))
    room = places(settings)
    finalists = promising[:room]
    found = {}
    for name in names:
        if name in failed:
            reason: str | None = failed[name]
        elif name not in promising:
            reason = f"screening: none of {len(ratios[name])} pairs gained {settings['min_effect']:.1%} or more"
        elif name not in finalists:
            reason = f"screening: {room} candidate(s) of a round are confirmed, and others looked better"
        else:
            reason = None
        found[name] = {"status": "failed" if name in failed else "ok", "ratios": ratios[name], "reason": reason}
    return found, finalists


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `screen`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--stack", type=Path, help="stack.json of the round before; left out in the first")
    parser.add_argument(
        "--candidates", type=Path, nargs="+", required=True, help="folders with guard.json and parity.json"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="screen.json; screen.parquet is written beside it"
    )
    args = parser.parse_args(argv)
    spec, env = read_json(args.spec, "spec"), read_json(args.env, "env")
    base = read_json(args.stack, "stack")["tree"] if args.stack else read_json(args.source, "source")["tree"]
    arms = candidates(args.candidates)
    fit = {name: arm["tree"] for name, arm in arms.items() if arm["fit"]}
    table, state = args.output.with_suffix(".parquet"), None
    finalists = list(fit) if len(fit) <= places(spec["measure"]) else []
    if len(fit) > len(finalists):
        with Session.held(spec, env, {BASE: base, **fit}, "screen", table) as session:
            name = spec.get("workload", spec["name"])
            require_ok(session.block(-1, [BASE], cold=True), BASE, name)

            def measure(block: int, names: Sequence[str]) -> dict[str, Row]:
                rows = session.block(block, names)
                require_ok(rows, BASE, name)
                return rows

            found, finalists = screen(measure, list(fit), spec["measure"])
        state = session.state()
        for name, result in found.items():
            arms[name] |= result
    else:
        write_rows([], table)
    document = {
        "base": base,
        "finalists": finalists,
        "machine": state,
        "arms": {
            name: {
                "tree": arm["tree"],
                "status": arm.get("status", "not_run"),
                "reason": arm["reason"],
                "ratios": [ratio for ratio in arm.get("ratios", []) if math.isfinite(ratio)],
            }
            for name, arm in arms.items()
        },
    }
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
