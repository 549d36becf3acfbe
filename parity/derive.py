"""`parity derive`: what the recorded values of unmodified code do on their own, from three or more of its runs.

The result is a noise document (`parity/noise@1`): an envelope per component and tag, the run-level thresholds, places
where every baseline recorded a NaN, and a verdict per tag with the call to type instead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from parity import records
from parity.envelope import LOWEST, Estimate, distance, exact_difference, factor, matching
from parity.invariants import differences
from parity.records import BadInput, Record, Run

SCHEMA = "parity/noise@1"
FEWEST = 3
# Above this relative spread a number says little: the envelope accepts a change of the whole value.
CHAOTIC = 0.1
PERTURB = "parity run --perturb ulp --perturb-seed 1 --out DIR -- <the job>   (then seeds 2, 3, 4)"


class _Tag:
    """What derive learns about one tag of one rank."""

    def __init__(self) -> None:
        self.count = 0
        self.estimates: dict[str, Estimate] = {}
        self.families: dict[str, str] = {}
        self.rtol: Optional[float] = None
        self.atol: Optional[float] = None
        self.declared = False
        self.moved = False
        self.unstable: Optional[str] = None
        self.nan: list[list[Any]] = []
        self.budget_used = 0.0
        self.spread = 0.0
        self.value = 0.0
        self.kind = ""
        self.last_step = -1
        self.start: Optional[list[Any]] = None


def derive(run_dirs: Sequence[str | Path], unprobed: bool = False) -> dict[str, Any]:
    """The noise document of three or more recorded runs of unmodified code.

    unprobed: runs without a single record are no mistake; the document says so, and a comparison by it rests on the
    ledgers' invariants alone. Who asks for it has to compare what the job computed by other means.

    Raises BadInput (one line) for fewer than three runs, the same run given twice, runs of different shape or
    environment. Cost: one pass over all records, O(runs^2) a record; memory grows with the number of tags only.
    """
    runs = [Run(path) for path in run_dirs]
    _check(runs)
    digests = [run.digest() for run in runs]
    # Bit-identical repeats say nothing twice: they would only dilute the spread.
    first_of = [digests.index(digest) for digest in digests]
    distinct = [run for position, run in enumerate(runs) if first_of[position] == position]
    tags: dict[str, dict[str, _Tag]] = {}
    total = 0
    for rank in runs[0].ranks:
        tags[rank] = {}
        total += _learn(distinct if len(distinct) > 1 else distinct[:1], rank, tags[rank])
    if not total and not unprobed:
        raise BadInput(f"{runs[0].name}: no records; nothing was probed, see `parity show {runs[0].name}`")
    scores = {family: [0.0] * len(distinct) for family in LOWEST}
    for found in tags.values():
        for tag in found.values():
            for name, estimate in tag.estimates.items():
                family = scores[tag.families[name]]
                for run, score in enumerate(estimate.finish()):
                    family[run] = max(family[run], score)
    return _document(runs, first_of, tags, scores, len(distinct))


def _check(runs: list[Run]) -> None:
    if len(runs) < FEWEST:
        raise BadInput(f"derive needs {FEWEST} or more runs of unmodified code, got {len(runs)}; record more of them")
    seen: dict[str, str] = {}
    for run in runs:
        for identity in run.run_ids or {str(run.path.resolve())}:
            if identity in seen:
                raise BadInput(
                    f"{run.name}: the same run as {seen[identity]}; a copy of a run says nothing about noise"
                )
        for identity in run.run_ids or {str(run.path.resolve())}:
            seen[identity] = run.name
    records.check_same_world(runs)
    if len({run.legacy for run in runs}) > 1:
        raise BadInput("runs in the older JSON format and in the new one cannot be mixed")
    for run in runs[1:]:
        for entry in differences(runs[0].environment(), run.environment()):
            name = entry["name"]
            # Another number of threads only orders sums anew: it is a perturbation as good as any.
            if (
                name.split(".")[0] in ("seed", "gpus", "backend", "torch", "cuda", "cudnn")
                and name != "backend.threads"
            ):
                raise BadInput(
                    f"{run.name}: {name} is {entry['cand']!r}, in {runs[0].name} {entry['base']!r}; "
                    "baselines must share seed, machine and environment"
                )


def _learn(runs: list[Run], rank: str, tags: dict[str, _Tag]) -> int:
    """One pass over the records of a rank; returns their number."""
    count = 0
    names = [run.name for run in runs]
    for _, identity, row, same in records.align(runs, rank):
        count += 1
        tag = tags.get(identity[0])
        if tag is None:
            tag = tags[identity[0]] = _Tag()
        tag.count += 1
        present = [record for record in row if record is not None]
        if len(present) < len(runs):
            without = names[row.index(None)]
            tag.unstable = tag.unstable or f"{records.describe_key(identity)} is missing in {without}"
            continue
        _note_declared(tag, present[0])
        if any(record["kind"] == "error" for record in present):
            tag.unstable = tag.unstable or f"could not be recorded: {present[0].get('error') or 'error record'}"
            continue
        _note_value(tag, identity, present, same)
    return count


def _note_declared(tag: _Tag, record: Record) -> None:
    tag.kind = record["kind"]
    if record.get("rtol") is not None or record.get("atol") is not None:
        tag.declared = True
        tag.rtol = record.get("rtol") or 0.0
        tag.atol = record.get("atol") or 0.0


def _note_value(tag: _Tag, identity: records.Key, row: list[Record], same: bool) -> None:
    step = identity[1] if identity[1] is not None else -1
    tag.last_step = max(tag.last_step, step)
    nans = [records.has_nan(record) for record in row]
    if all(nans):
        if len(tag.nan) < 10_000:
            tag.nan.append([identity[1], identity[2]])
    elif any(nans):
        tag.unstable = tag.unstable or f"{records.describe_key(identity)} is NaN in some runs only"
        return
    base = row[0]
    if not same:
        for other in row[1:]:
            difference = exact_difference(base, other)
            if difference:
                what, one, two = difference
                tag.unstable = tag.unstable or f"{records.describe_key(identity)}: {what} is {one!r} and {two!r}"
                tag.moved = True
                return
    for parts in matching(row):
        name = parts[0].name
        if tag.start is None and name in ("value", "l2"):
            tag.start = [identity[1], identity[2], parts[0].values[0]]
        estimate = tag.estimates.get(name)
        if estimate is None:
            estimate = tag.estimates[name] = Estimate(len(row))
            tag.families[name] = parts[0].family
        if len(row) > 1:
            estimate.add(step, parts)
        if same or len(row) < 2:
            continue
        widest = max(distance(parts[0], other) for other in parts[1:])
        if widest > 0.0:
            tag.moved = True
        if tag.declared and name in ("value", "l2"):
            budget = (tag.atol or 0.0) + (tag.rtol or 0.0) * parts[0].magnitude
            used = widest / budget if budget > 0.0 else (0.0 if widest == 0.0 else float("inf"))
            if used >= tag.budget_used:
                tag.budget_used, tag.spread, tag.value = used, widest, parts[0].magnitude


def _document(
    runs: list[Run],
    first_of: list[int],
    tags: dict[str, dict[str, _Tag]],
    scores: dict[str, list[float]],
    distinct: int,
) -> dict[str, Any]:
    perturbed = sum(1 for run in runs if run.perturb)
    scale = factor(distinct)
    moved = any(tag.moved for rank in tags.values() for tag in rank.values())
    per_rank: dict[str, Any] = {}
    for rank, found in tags.items():
        per_rank[rank] = {name: _tag_entry(name, tag, distinct) for name, tag in found.items()}
    verdicts = [entry["verdict"] for rank in per_rank.values() for entry in rank.values()]
    probed = any(tags.values())
    call: Optional[str]
    if not probed:
        verdict, call, reason = "vacuous", None, "nothing is probed: only the ledgers' invariants are compared"
    elif not moved:
        verdict = "vacuous"
        call = PERTURB
        reason = f"all {len(runs)} runs are bit-identical: repeats show no spread, so there is none to judge by"
        if perturbed:
            reason = f"all {len(runs)} runs are bit-identical although {perturbed} were perturbed: nothing was nudged"
            call = "parity show RUN   (look for the parameters that --perturb reached)"
    elif distinct < FEWEST:
        verdict, call = "thin", PERTURB
        reason = f"only {distinct} of the {len(runs)} runs differ from each other; a spread needs {FEWEST}"
    elif "unstable" in verdicts or "flaky" in verdicts:
        verdict, call = "unstable", None
        reason = "some tags cannot be gated as they are; see their calls"
    else:
        verdict, call, reason = "ok", None, None
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "reason": reason,
        "call": call,
        "runs": [
            {
                "name": Path(run.name).name or run.name,
                "run_ids": sorted(run.run_ids),
                "perturb": run.perturb,
                "same_as": Path(runs[first_of[position]].name).name if first_of[position] != position else None,
            }
            for position, run in enumerate(runs)
        ],
        "distinct": distinct,
        "perturbed": perturbed,
        "unprobed": not probed,
        "factor": scale,
        "leave_one_out": scores,
        "threshold": {family: max(LOWEST[family], scale * max(values)) for family, values in scores.items()},
        "environment": runs[0].environment(),
        "counts": {word: verdicts.count(word) for word in sorted(set(verdicts))},
        "warnings": _warnings(runs),
        "ranks": per_rank,
    }


def _warnings(runs: list[Run]) -> list[str]:
    return [
        f"{run.name}: rank {rank}'s last line is cut off; the run did not end by itself"
        for run in runs
        for rank in run.torn
    ]


def _tag_entry(name: str, tag: _Tag, distinct: int) -> dict[str, Any]:
    verdict, why, call = _judge(name, tag, distinct)
    return {
        "verdict": verdict,
        "why": why,
        "call": call,
        "kind": tag.kind,
        "records": tag.count,
        "last_step": tag.last_step,
        "start": tag.start if tag.start and math.isfinite(tag.start[2]) else None,
        "relative": max((estimate.largest for estimate in tag.estimates.values()), default=0.0),
        "nan": tag.nan,
        "envelope": {part: estimate.envelope.points for part, estimate in tag.estimates.items()},
    }


def _judge(name: str, tag: _Tag, distinct: int) -> tuple[str, Optional[str], Optional[str]]:
    """A tag's verdict, why, and the call to type instead (None where there is nothing to change)."""
    if tag.unstable:
        return "unstable", tag.unstable, f"--exclude '{name}', or seed what it comes from"
    typed = f"rtol={tag.rtol:g} atol={tag.atol:g}" if tag.declared else ""
    if tag.declared and not tag.moved:
        if not tag.rtol and (tag.atol or 0.0) <= 1e-12:
            return "identical", f"bit-identical in {max(distinct, 1)} runs and gated exactly", None
        return "slack", f"{typed} declared, yet bit-identical in all runs", f"parity.record({name!r}, ...)"
    if not tag.moved:
        return "identical", None, None
    if tag.declared:
        need = max(2.0 * tag.spread / tag.value, 1e-15) if tag.value else 1e-15
        call = f"parity.record({name!r}, ..., rtol={need:.1e})"
        if tag.budget_used > 1.0:
            return "flaky", f"{typed}, but unmodified code moves {tag.budget_used:.3g} times that", call
        if tag.budget_used < 0.1:
            return "vacuous", f"{typed} is {1 / max(tag.budget_used, 1e-15):.3g} times wider than the noise", call
        return "ok", None, None
    relative = max((estimate.largest for estimate in tag.estimates.values()), default=0.0)
    if relative > CHAOTIC:
        return "ok", f"chaotic by the end: moves by {relative:.0%}; only its early steps can tell small faults", None
    return "ok", None, None


def main(argv: Optional[list[str]] = None) -> int:
    """`parity derive RUN RUN RUN... -o noise.json`: 0 usable, 1 a tag cannot be gated, 2 no spread, 3 bad input."""
    parser = argparse.ArgumentParser(
        prog="parity derive",
        description="Learn from three or more runs of unmodified code how far its values move on their own.",
        epilog="Repeats that are bit-identical (usual on a CPU) show nothing: add runs of `parity run --perturb ulp`.\n"
        "Exit: 0 the noise can be used, 1 some tag cannot be gated as it is, 2 no spread was seen, 3 bad input.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of one recorded run (three or more)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write the noise document, for `compare --noise`"
    )
    parser.add_argument("--json", action="store_true", help="print the whole document instead of the summary")
    arguments = parser.parse_args(argv)
    document = derive(arguments.runs)
    if arguments.output:
        write(arguments.output, document)
    if arguments.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        from parity.report import derived

        print(derived(document, arguments.output))
    return {"ok": 0, "unstable": 1}.get(document["verdict"], 2)


def write(path: str | Path, document: dict[str, Any]) -> None:
    """Writes a JSON document whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(json.dumps(document, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if temporary.exists():
            temporary.unlink()


def read(path: str | Path) -> dict[str, Any]:
    """A noise document. Raises BadInput where it is missing or of another kind."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; write it with `parity derive RUN RUN RUN -o {path}`") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not a noise document ({error})") from None
    check(document, str(path))
    return document


def check(document: Any, name: str = "the noise document") -> None:
    """Raises BadInput unless this is a whole document of `derive`, of this version."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise BadInput(f"{name}: schema is {schema!r}, should be {SCHEMA!r}")
    fields = {"verdict", "reason", "distinct", "perturbed", "threshold", "ranks"}
    missing = [*sorted(fields - document.keys()), *sorted(LOWEST.keys() - (document.get("threshold") or {}).keys())]
    entries = [entry for tags in (document.get("ranks") or {}).values() for entry in tags.values()]
    if not missing and not all(
        {"verdict", "envelope", "last_step", "start", "nan"} <= entry.keys() for entry in entries
    ):
        missing = ["parts of its tags"]
    if missing:
        raise BadInput(f"{name}: lacks {', '.join(missing)}; write it again with `parity derive`")
