"""`parity compare`: do two runs compute the same? Where do they part, and what kind of difference is it?

Rules that do not bend, whatever the options: the baseline's tolerance counts, never the candidate's; tag sets must
match; a NaN never passes (only where *every* baseline of the noise document has one too, and then with a warning); a
value of another kind differs at any tolerance; a filter that selects nothing, and a run against itself or a copy of
itself, cannot be compared; what a person overrode is stored in the report.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from parity import difference, invariants, records
from parity.comparison import Comparison, TagState
from parity.derive import check, write
from parity.derive import read as read_noise
from parity.envelope import margin
from parity.records import BadInput, Run

SCHEMA = "parity/report@1"
EXIT = {"equivalent": 0, "different": 1, "undecided": 2, "cannot": 3}
WORST = 10
ENOUGH = 5
# Without measured noise, a first divergence of up to this many tolerances may be honest growth of rounding.
UNMEASURED_DOUBT = 100.0


def compare(
    base_dir: str | Path,
    cand_dir: str | Path,
    noise: Optional[dict[str, Any]] = None,
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow: Sequence[str] = (),
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
    rounding: Optional[float] = None,
) -> dict[str, Any]:
    """A report (`parity/report@1`) of the candidate run against the baseline run; bad input gives `cannot`, no raise.

    noise: the document of `parity.derive.derive`, or None, where the floor by dtype is all there is. only, exclude:
    globs of tags. allow: globs of invariants that may differ. rtol, atol: replace every tolerance of float values.
    rounding: how many times the rounding of the baselines the candidate may have (10; more is a declared policy).
    `answer` is equivalent, different, undecided or cannot; `exit_code` 0 to 3. One pass over both runs.
    """
    overrides: dict[str, Any] = {"only": list(only), "exclude": list(exclude), "allow": list(allow)}
    overrides.update(
        {name: value for name, value in (("rtol", rtol), ("atol", atol), ("rounding", rounding)) if value is not None}
    )
    typed = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    try:
        if noise is not None:
            check(noise)
        base, cand = Run(base_dir), Run(cand_dir)
        check_distinct(base, cand)
        records.check_same_world([base, cand])
        measured = (noise or {}).get("environment", {}).get("summary") or 1
        if noise is not None and measured != base.summary:
            raise BadInput(
                f"the noise was measured on tensors summarised by version {measured}, {base.name} by {base.summary}; "
                "derive it again from runs of this version"
            )
        state = Comparison(noise, records.selector(only, exclude), typed, rounding)
        state.recognise(base, {identity for run in (noise or {}).get("runs", []) for identity in run["run_ids"]})
        for rank in base.ranks:
            state.read(base, cand, rank)
        unprobed = bool((noise or {}).get("unprobed"))
        if not state.seen and not unprobed:
            raise BadInput(f"{base.name}: no records; a comparison of nothing would always pass")
        if not state.selected and state.seen:
            raise BadInput(f"the filter selects none of {state.seen} records; `parity show {base.name}` lists the tags")
        exact = invariants.compare_invariants(base, cand, allow)
    except BadInput as error:
        return _cannot(str(base_dir), str(cand_dir), overrides, str(error))
    return _report(base, cand, noise, state, exact) | {"overrides": overrides}


def check_distinct(base: Run, cand: Run) -> None:
    """Raises BadInput where the two runs are one run, or one is a copy of the other."""
    if base.path.resolve() == cand.path.resolve():
        raise BadInput(f"{base.name} and {cand.name} are the same run; record the candidate in a folder of its own")
    if base.run_ids & cand.run_ids:
        raise BadInput(f"{cand.name} is a copy of {base.name}: their headers name the same launch")
    if base.legacy != cand.legacy:
        raise BadInput(f"{base.name} and {cand.name} are of different formats; record both with the same tool")


def _cannot(base: str, cand: str, overrides: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "answer": "cannot",
        "exit_code": EXIT["cannot"],
        "reason": reason,
        "base": base,
        "cand": cand,
        "first_divergence": None,
        "worst": [],
        "invariants": {"equal": None, "differing": []},
        "needs_runs": None,
        "warnings": [],
        "overrides": overrides,
    }


def _report(
    base: Run, cand: Run, noise: Optional[dict[str, Any]], state: Comparison, exact: dict[str, Any]
) -> dict[str, Any]:
    answer, reason, needs = _answer(state, exact, noise)
    first = _first_divergence(state)
    worst = sorted((tag for tag in state.tags.values() if tag.worst), key=lambda tag: -tag.ratio)[:WORST]
    drawn = {(tag.worst["rank"], tag.worst["tag"]): tag for tag in worst if tag.worst}
    if first and (first["rank"], first["tag"]) in state.tags:
        drawn[first["rank"], first["tag"]] = state.tags[first["rank"], first["tag"]]
    return {
        "schema": SCHEMA,
        "answer": answer,
        "exit_code": EXIT[answer],
        "reason": reason,
        "base": base.name,
        "cand": cand.name,
        "judged_by": _judged_by(noise, state),
        "first_divergence": first,
        "worst": [{**(tag.worst or {}), "outside": tag.outside} for tag in worst],
        "missing": list(state.missing.values())[:1000],
        "extra": list(state.extra.values())[:1000],
        "invariants": exact,
        "gates": state.gates,
        "counts": {
            "ranks": len(base.ranks),
            "records": state.seen,
            "selected": state.selected,
            "compared": state.compared,
            "identical": state.identical,
            "outside": state.outside,
            "tags": len({name for _, name in state.tags}),
            "last_step": state.last_step,
        },
        "environment": {"differing": invariants.environment(base, cand)},
        "needs_runs": needs,
        "warnings": _warnings(base, cand, noise, state, exact),
        "series": [{"rank": rank, "tag": tag, "points": found.series} for (rank, tag), found in drawn.items()],
    }


def _first_divergence(state: Comparison) -> Optional[dict[str, Any]]:
    """The first record outside its tolerance or without partner, with how the deviation goes on."""
    first = state.first
    if first:
        tag = state.tags.get((first["rank"], first["tag"]))
        start = -1 if first["step"] is None else first["step"]
        first["growth"] = difference.growth(tag.series, start) if tag and tag.series else None
    unpaired = [("missing", entry) for entry in state.missing.values()]
    unpaired += [("extra", entry) for entry in state.extra.values()]
    for what, entry in unpaired:
        step = -1 if entry["step"] is None else entry["step"]
        if first is None or step < (-1 if first["step"] is None else first["step"]):
            text = "the candidate lacks it" if what == "missing" else "only the candidate has it"
            first = {"tag": entry["tag"], "step": entry["step"], "occurrence": 0, "rank": entry["rank"], "what": what}
            first.update({"base": None, "cand": None, "deviation": None, "tolerance": None, "relative": None})
            first.update(
                ratio=None, by="exact", difference={"kind": what, "text": text}, agreed_in_step=[], growth=None
            )
    return first


def _answer(
    state: Comparison, exact: dict[str, Any], noise: Optional[dict[str, Any]]
) -> tuple[str, str, Optional[int]]:
    """The answer, its reason in a sentence, and how many more baseline runs would decide (None: that is no help)."""
    for what, found in (("lacks", state.missing), ("has extra", state.extra)):
        if found:
            names = ", ".join(list(found)[:5]) + (", ..." if len(found) > 5 else "")
            total = sum(entry["records"] for entry in found.values())
            return "different", f"the candidate {what} {total} record(s) of {names}; tag sets must match", None
    if exact["differing"]:
        names = ", ".join(entry["name"] for entry in exact["differing"][:5])
        return "different", f"{len(exact['differing'])} invariant(s) differ: {names}", None
    if not state.seen and (noise or {}).get("unprobed"):
        return "equivalent", "nothing is probed; the ledgers' invariants agree", None
    if not state.compared:
        return "undecided", "no record could be compared: all are error records on both sides", None
    if state.first is None:
        return "equivalent", _agreement(state), None
    return _parted(state, noise, state.first)


def _parted(
    state: Comparison, noise: Optional[dict[str, Any]], first: dict[str, Any]
) -> tuple[str, str, Optional[int]]:
    where = records.describe_key((first["tag"], first["step"], first["occurrence"]))
    if state.first_order[0]:
        text = f"only values that move between runs of unmodified code differ, first {where}; seed or exclude them"
        return "undecided", text, None
    distinct = int((noise or {}).get("distinct") or 0)
    outside = [tag for tag in state.tags.values() if tag.first and not tag.unstable]
    if not outside or any(_decisive(tag, distinct) for tag in outside):
        return "different", f"the runs part: {where} is outside {_bound(first['by'])}", None
    if any((tag.worst or {})["by"] == "noise" for tag in outside):
        largest = max(tag.ratio for tag in outside)
        more = next((runs for runs in range(distinct + 1, 12) if margin(runs) < largest), 12) - distinct
        text = f"{where} is up to {largest:.3g} times its tolerance, which {distinct} baseline runs cannot settle"
        return "undecided", text, more
    text = f"{where} is beyond rounding of its dtype, but no noise was measured to judge it by"
    return "undecided", text, max(1, ENOUGH - distinct)


def _decisive(tag: TagState, distinct: int) -> bool:
    """Whether a tag that lies outside settles that the runs differ."""
    worst, first = tag.worst or {}, tag.first or {}
    if worst["by"] == "noise":
        return tag.ratio > margin(distinct)
    if first["by"] == "dtype":
        return first["ratio"] is None or first["ratio"] > UNMEASURED_DOUBT
    return True


def _bound(by: str) -> str:
    return {
        "noise": "the noise of unmodified code",
        "dtype": "what rounding of its dtype does",
        "declared": "the tolerance that the baseline declares",
        "typed": "the tolerance that was typed",
    }.get(by, "what must be equal")


def _agreement(state: Comparison) -> str:
    if state.identical == state.compared:
        return f"all {state.compared} records are bit-identical"
    worst = max((tag.ratio for tag in state.tags.values()), default=0.0)
    return f"all {state.compared} records agree ({state.identical} bit for bit), within {worst:.2g} of their tolerance"


def _judged_by(noise: Optional[dict[str, Any]], state: Comparison) -> dict[str, Any]:
    if not state.measured or noise is None:
        why = f"the noise document is {noise['verdict']}: {noise['reason']}" if noise else "no --noise was given"
        return {"how": "dtype", "text": f"rounding of the dtype alone ({why})"}
    return {
        "how": "noise",
        "distinct": noise["distinct"],
        "perturbed": noise["perturbed"],
        "threshold": noise["threshold"],
        "other_seed": state.foreign,
        "text": f"the spread of {noise['distinct']} distinct baseline runs ({noise['perturbed']} perturbed)",
    }


def _warnings(
    base: Run,
    cand: Run,
    noise: Optional[dict[str, Any]],
    state: Comparison,
    exact: dict[str, Any],
) -> list[str]:
    """What a reader must know although it does not change the answer, one line each."""
    found = [
        f"{run.name}: the last line of rank {rank} is cut off, left out" for run in (base, cand) for rank in run.torn
    ]
    found += [
        f"{entry['name']}: {_brief(entry['base'])} in the baseline, {_brief(entry['cand'])} in the candidate"
        for entry in invariants.environment(base, cand)[:20]
    ]
    found += [f"device differs: {line}" for line in sorted(state.devices)[:5]]
    if state.unrecorded:
        total, names = sum(state.unrecorded.values()), _some(state.unrecorded)
        found.append(f"{total} record(s) of {names} could be recorded in neither run; nothing is known of them")
    if state.nan_as_baselines:
        found.append(f"{state.nan_as_baselines} record(s) are NaN in both runs, as in every baseline of the noise")
    if state.tolerances_differ:
        found.append(f"declared tolerances differ, the baseline's counted: {_some(state.tolerances_differ)}")
    if state.unmeasured:
        found.append(f"judged by dtype alone, as the noise document lacks them: {_some(state.unmeasured)}")
    if noise:
        fields = {entry["name"] for entry in invariants.differences(noise.get("environment") or {}, base.environment())}
        elsewhere = [name for name in fields if name.startswith(("gpus", "backend", "torch", "cuda", "cudnn"))]
        if elsewhere:
            found.append(f"the noise was measured elsewhere: {_some(elsewhere)} differ from the baseline's")
    if state.foreign:
        found.append(
            "the baseline starts with other values than the noise runs (another seed?): more is allowed later on"
        )
    if exact["equal"] is None:
        found.append("no ledger in either run: invariants (steps, samples, parameters) were not compared")
    if exact["allowed"]:
        found.append(f"invariants allowed to differ: {_some([entry['name'] for entry in exact['allowed']])}")
    if exact["unseen"]:
        found.append(f"unseen by the recorder: {_some(exact['unseen'])}")
    if exact["same_source"]:
        found.append("both runs ran the same source files: this compares a job with itself")
    return found


def _some(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def main(argv: Optional[list[str]] = None) -> int:
    """`parity compare BASE CAND`: exit 0 equivalent, 1 different, 2 undecided, 3 cannot compare."""
    arguments = _parser().parse_args(argv)
    noise = read_noise(arguments.noise) if arguments.noise else None
    report = compare(
        arguments.base,
        arguments.cand,
        noise,
        only=arguments.only,
        exclude=arguments.exclude,
        allow=arguments.allow,
        rtol=arguments.rtol,
        atol=arguments.atol,
        rounding=arguments.rounding,
    )
    if arguments.json and arguments.json != "-":
        write(arguments.json, report)
    if arguments.plot and report["answer"] != "cannot":
        from parity.plot import drift

        Path(arguments.plot).write_text(drift(report), encoding="utf-8")
    if arguments.json == "-":
        json.dump(report, sys.stdout, indent=1, allow_nan=False)
        print()
    elif report["answer"] == "cannot":
        print(f"parity compare: {report['reason']}", file=sys.stderr)
    else:
        from parity.report import compared

        print(compared(report))
    return int(report["exit_code"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parity compare",
        description="Say whether two recorded runs compute the same, and where they part if they do not.",
        epilog="Exit: 0 equivalent, 1 different, 2 undecided (more baseline runs would decide), 3 cannot compare.",
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="folder of a run of the unmodified job")
    add("cand", metavar="CAND", help="folder of a run of the changed job, with the same seed")
    add("--noise", metavar="FILE", help="what `parity derive` wrote; without it only rounding of the dtype is allowed")
    add("--only", metavar="GLOB", action="append", default=[], help="compare these tags only (repeatable)")
    add("--exclude", metavar="GLOB", action="append", default=[], help="leave these tags out (repeatable)")
    add("--allow", metavar="GLOB", action="append", default=[], help="invariants that may differ (repeatable)")
    add("--rtol", type=float, help="replace every tolerance of float values; stored in the report")
    add("--atol", type=float, help="the same, absolute")
    add("--rounding", type=float, metavar="X", help="the candidate may round X times as much as the baselines (10)")
    add("--json", metavar="FILE", help="write the complete report ('-': print it instead of the text)")
    add("--plot", metavar="FILE.svg", help="draw how far the candidate drifts, inside or outside the baselines' band")
    return parser
