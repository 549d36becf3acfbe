"""Race the finalists of a round against its baseline: fresh pairs, planned looks, an exact interval.

One session for all of them: each block runs the baseline and every candidate still in the race once, in random order,
so that they share the baseline's runs. Screening pairs are never used again. With two finalists their composition runs
beside them up to the first look, so that attribution finds all its arms in one session and needs none of its own. The
rule `final_race` races the one composed patch against the untouched source with the same program.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.common import tree
from scripts.common.errors import run
from scripts.common.files import read_json, write_json
from scripts.common.statistics import look, planned_looks, prospect
from scripts.common.timeline import marks_per_step
from scripts.judge import outputs
from scripts.judge.decomposition import describe
from scripts.judge.session import BASE, Session, require_ok, write_rows

SCHEMA = "wholejob/race@1"
TOGETHER = "together"  # the arm with both finalists' changes
DISTINCT = 4  # outputs of the timed runs of an arm that are compared with those of its checked run
FUTILE = 0.1  # chance of an answer below which more pairs are not worth their time
Row = dict[str, Any]
Measure = Callable[[int, Sequence[str]], dict[str, Row]]


def confirm(
    measure: Measure, names: Sequence[str], *, alpha: float, min_effect: float, pairs: int
) -> dict[str, dict[str, Any]]:
    """Race `names` against the baseline until each has an answer or `pairs` pairs are run.

    `measure(block, arms)` runs the arms once and returns their rows. Returns for each name `status` (ok | failed),
    `answer` (faster | slower | no_difference | inconclusive), `estimate`, `looks`. The probability that any of them
    gets a false `faster` or `slower` is at most `alpha`, looks and number of candidates included. A candidate whose
    chance of an answer falls below `FUTILE` stays `inconclusive` and leaves the race (`futile`: that chance).
    """
    plan = planned_looks(alpha, pairs, max(1, len(names)))
    found: dict[str, dict[str, Any]] = {name: {"status": "ok", "reason": None, "looks": []} for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    racing, done, rejected = list(names), 0, 0
    for number, target in enumerate(plan):
        while done < target and racing:
            rows = measure(done, [BASE, *racing])
            done += 1
            for name in list(racing):
                if rows[name]["status"] != "ok":
                    found[name] |= {
                        "status": "failed",
                        "reason": rows[name]["reason"],
                        "answer": None,
                        "estimate": None,
                    }
                    racing.remove(name)
                else:
                    ratios[name].append(math.log(rows[BASE]["wall_s"] / rows[name]["wall_s"]))
        answers = look(
            {name: ratios[name] for name in racing},
            plan,
            number,
            alpha,
            min_effect,
            tests=len(names),
            rejected=rejected,
        )
        for name, (answer, estimate) in answers.items():
            found[name]["looks"].append({**estimate.document(), "answer": answer})
            found[name] |= {"answer": answer, "estimate": estimate.document()}
            rejected += answer in ("faster", "slower")
            if answer != "inconclusive":
                racing.remove(name)
            elif number + 1 < len(plan):
                chance = prospect(ratios[name], plan, alpha / len(names), min_effect)
                if chance < FUTILE:
                    found[name]["futile"] = round(chance, 4)
                    racing.remove(name)
        if not racing:
            break
    return found


def race(
    spec: dict[str, Any],
    env: dict[str, Any],
    arms: dict[str, str],
    output: Path,
    *,
    base: str,
    stage: str,
    together: str | None = None,
    checked: dict[str, Path] | None = None,
    spread: Sequence[Path] = (),
) -> dict[str, Any]:
    """Race the trees `{name: hash}` against the tree `base`; writes the table `output`, returns the document.

    together: hash of a tree that runs beside them while all are raced, up to the first look. It gets no answer.
    checked: folders of the checked runs of the arms on the visible seed, whose outputs the timed ones must repeat.
    spread: `out` folders of the baseline's checked runs of that seed, the unperturbed one first.
    """
    settings = spec["measure"]
    if not arms:
        write_rows([], output)
        return {
            "alpha": settings["alpha"],
            "min_effect": settings["min_effect"],
            "plan": [],
            "machine": None,
            "arms": {},
        }
    plan = planned_looks(settings["alpha"], settings["pairs"], len(arms))
    beside = {} if together is None else {TOGETHER: together}
    with Session.held(spec, env, {BASE: base, **arms, **beside}, stage, output, keep=DISTINCT) as session:
        cold = session.block(-1, [BASE, *arms], cold=True)
        require_ok(cold, BASE, spec.get("workload", spec["name"]))

        def measure(block: int, names: Sequence[str]) -> dict[str, Row]:
            more = beside if block < plan[0] and len(names) > len(arms) else ()
            rows = session.block(block, [*names, *more])
            require_ok(rows, BASE, spec.get("workload", spec["name"]))
            return rows

        found = confirm(
            measure, list(arms), alpha=settings["alpha"], min_effect=settings["min_effect"], pairs=settings["pairs"]
        )
        how = spec["parity"].get("outputs", "values")
        wrote = {
            name: repeated(folder, session.kept.get(name, {}), spread, how) for name, folder in (checked or {}).items()
        }
    for name, result in found.items():
        pairs = paired(session.rows, name)
        result["cold"] = {"baseline": cold[BASE]["wall_s"], "candidate": cold[name]["wall_s"]}
        result["observed"] = {**observed(session.rows, name), "outputs": wrote.get(name)}
        if result["status"] == "ok":
            result |= describe(
                pairs,
                alpha=settings["alpha"],
                horizon=horizon(settings, session.rows),
                warmup=spec["launch"].get("warmup", 2),
            )
    return {
        "alpha": settings["alpha"],
        "min_effect": settings["min_effect"],
        "plan": list(plan),
        "machine": session.state(),
        "base": {**observed(session.rows, BASE), "outputs": wrote.get(BASE)},
        "arms": found,
    }


def horizon(settings: dict[str, Any], rows: list[Row]) -> int | None:
    """The declared length of the job in steps as the recorder marks them; None where it marks none.

    The contract counts what the command's `{steps}` counts, requests for example; each may be several marked calls.
    """
    marked = next((row["steps"] for row in rows if row["arm"] == BASE and row["steps"]), None)
    declared = (settings.get("horizon") or {}).get("steps") or settings["steps"]
    return round(declared * marks_per_step(settings, marked)) if marked else None


def repeated(checked: Path, kept: dict[str, Path], spread: Sequence[Path], how: str) -> dict[str, Any] | None:
    """How the outputs of an arm's timed runs stand to those of its checked run: `{"compared", "differing", "undecided"}`.

    kept: `{hash: folder}` of the outputs that differ from one another; those with the hash of the checked run are equal
    byte by byte. Values may differ by what the unmodified job's perturbed runs do. None where there is nothing to compare.
    """
    told = read_json(checked / "run.json", "run")
    others = {folder for content, folder in kept.items() if content != outputs.digest(told)}
    if not kept or not told["outputs"]:
        return None
    found: dict[str, Any] = {"compared": len(kept), "differing": [], "undecided": []}
    names = [entry["path"] for entry in told["outputs"]]
    for folder in sorted(others):
        answers = outputs.compare(names, checked / "out", spread, folder, how)
        for answer in ("differing", "undecided"):
            found[answer] += [entry for entry in answers[answer] if entry not in found[answer]]
    return found


def paired(rows: list[Row], name: str) -> list[tuple[Row, Row]]:
    """(baseline, candidate) rows of the warm blocks in which both ran."""
    blocks: dict[int, dict[str, Row]] = {}
    for row in rows:
        if not row["cold"] and row["status"] == "ok":
            blocks.setdefault(row["block"], {})[row["arm"]] = row
    return [(arms[BASE], arms[name]) for _, arms in sorted(blocks.items()) if BASE in arms and name in arms]


def observed(rows: list[Row], name: str) -> dict[str, Any]:
    """What the timed runs of an arm computed, cold ones included: distinct numbers of steps, losses, output hashes."""
    own = [row for row in rows if row["arm"] == name and row["status"] == "ok"]
    return {
        "steps": sorted({row["steps"] for row in own}),
        "final_loss": sorted({row["final_loss"] for row in own if row["final_loss"] is not None}),
        "outputs_hash": sorted({row["outputs_hash"] for row in own}),
    }


def main(argv: list[str] | None = None) -> int:
    """Program of the rules `race` and `final_race`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--screen", type=Path, help="screen.json of the round, which names the finalists")
    parser.add_argument("--compose", action="store_true", help="run the composition of two finalists beside them")
    parser.add_argument("--guard", type=Path, help="guard.json of the composed patch, for the final race")
    parser.add_argument("--parity", type=Path, help="parity.json of the composed patch, for the final race")
    parser.add_argument("-o", "--output", type=Path, required=True, help="race.json; race.parquet is written beside it")
    args = parser.parse_args(argv)
    spec, env = read_json(args.spec, "spec"), read_json(args.env, "env")
    together = None
    seed = spec["parity"]["seed"]
    runs = args.source.parent / "baseline" / "checked"
    plain = runs / f"seed{seed}-repeat0"
    spread = [plain / "out", *sorted(run / "out" for run in runs.glob(f"seed{seed}-*") if run != plain)]
    pristine = read_json(args.source, "source")["tree"]
    if args.screen is not None:
        screen = read_json(args.screen, "screen")
        base, stage = screen["base"], "confirm"
        arms = {name: screen["arms"][name]["tree"] for name in screen["finalists"]}
        checked = {name: args.output.with_name(name) / "checked" / str(seed) for name in arms}
        if args.compose and len(arms) == 2 and spec["measure"].get("accept", "all") == "all":
            together = tree.composed(base, [args.output.with_name(name) / "patch.diff" for name in arms])
    else:
        guard, parity = read_json(args.guard, "guard"), read_json(args.parity, "parity")
        base, stage = pristine, "final"
        fit = guard["status"] == "pass" and parity["answer"] == "equivalent"
        arms = {"final": guard["tree"]} if fit else {}
        checked = {name: args.parity.parent / "checked" / str(seed) for name in arms}
    if base == pristine:
        checked[BASE] = plain  # a stack of earlier rounds has no checked run of its own
    table = args.output.with_suffix(".parquet")
    document = race(spec, env, arms, table, base=base, stage=stage, together=together, checked=checked, spread=spread)
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
