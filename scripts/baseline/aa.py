"""Race the unmodified job against itself: the noise of its time, and the smallest gain that the pairs can find.

Runs before any candidate is timed, through the same session as a race.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from scripts.common.errors import run
from scripts.common.files import read_json, write_json
from scripts.common.statistics import LOOKS, bimodal, cutoff_at, estimate, resolvable, verdict_of
from scripts.judge.session import BASE, Session, require_ok

SCHEMA = "wholejob/aa@1"
SAME = "again"


def summarise(walls: list[tuple[float, float]], alpha: float, min_effect: float, pairs: int) -> dict[str, Any]:
    """The A/A document of pairs of wall times in seconds: estimate, answer, spread, and the smallest gain (a fraction)
    that a race of `pairs` pairs would find with a probability of 0.8.
    """
    logs = [math.log(one / two) for one, two in walls]
    found = estimate(logs, cutoff_at(len(logs), alpha))
    times = [time for pair in walls for time in pair]
    return {
        "pairs": len(walls),
        "estimate": found.document(),
        "answer": verdict_of(found, min_effect),
        "median_s": statistics.median(times),
        "coefficient_of_variation": statistics.stdev(times) / statistics.fmean(times),
        "bimodal": bimodal([math.log(time) for time in times]),
        "smallest_effect": resolvable(logs, pairs, alpha),
        "smallest_effect_by_pairs": {str(count): resolvable(logs, count, alpha) for count in LOOKS},
    }


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `aa`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="aa.json; aa.parquet is written beside it")
    args = parser.parse_args(argv)
    spec, tree = read_json(args.spec, "spec"), read_json(args.source, "source")["tree"]
    name, settings = spec.get("workload", spec["name"]), spec["measure"]
    arms = {BASE: tree, SAME: tree}
    walls = []
    with Session.held(spec, read_json(args.env, "env"), arms, "aa", args.output.with_suffix(".parquet")) as session:
        cold = session.block(-1, [BASE], cold=True)
        require_ok(cold, BASE, name)
        for block in range(settings["aa_pairs"]):
            rows = session.block(block, [BASE, SAME])
            for arm in (BASE, SAME):
                require_ok(rows, arm, name)
            walls.append((rows[BASE]["wall_s"], rows[SAME]["wall_s"]))
    document = summarise(walls, settings["alpha"], settings["min_effect"], settings.get("pairs", LOOKS[-1]))
    write_json(args.output, SCHEMA, {**document, "cold_s": cold[BASE]["wall_s"], "machine": session.state()})
    return 0


if __name__ == "__main__":
    run(main)
