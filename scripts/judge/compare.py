"""Does the patched job compute the same? Its checked runs against the baseline's, on visible and held-out seeds.

Invariants equal exactly, values within the noise of this workload, outputs as the workload declares, and evidence that
the changed lines ran.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.compare import compare as compare_records
from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json
from scripts.judge import outputs

SCHEMA = "wholejob/parity@1"
ORDER = ("failed_run", "different", "undecided", "equivalent")
FREE_ORDER = ("sample_hash*", "target_hash*")
PRECISION = {
    "matmul_tf32", "cudnn_tf32", "matmul_precision", "default_dtype", "bf16_reduced_reduction",
    "fp16_reduced_reduction", "autocast",
}  # fmt: skip
"""Words of the ledger's context that say in which precision a job computes."""


def judge(
    spec: dict[str, Any], noise: dict[str, Any], baseline: Sequence[Path], candidate: Sequence[Path], wanted: int
) -> dict[str, Any]:
    """The content of `parity.json`; `baseline` and `candidate` are run folders, the candidate's one a seed.

    wanted: lines of the diff that should run. The answer is the worst of the seeds', of precision and of the outputs.
    """
    told = {folder: read_json(folder / "run.json", "run") for folder in [*baseline, *candidate]}
    idle = next((told[folder] for folder in candidate if told[folder]["status"] == "not_run"), None)
    if idle is not None:
        return _empty("not_run", idle["reason"])
    failed = next((told[folder] for folder in candidate if told[folder]["status"] != "ok"), None)
    if failed is not None:
        return _empty("failed_run", f"seed {failed['seed']}: {failed['status']}: {failed['reason']}")
    visible = spec["parity"]["seed"]
    plain = {told[f]["seed"]: f for f in reversed(baseline) if told[f]["perturb"] is None}
    own = [f for f in baseline if told[f]["seed"] == visible]
    own.sort(key=lambda folder: folder != plain[visible])
    seeds = []
    files: dict[str, Any] = {"compared": 0, "differing": [], "undecided": []}
    for folder in candidate:
        seed = told[folder]["seed"]
        if seed not in plain:
            raise InputError(f"seed {seed}: no baseline run of it; parity.held_out_seeds names the seeds that have one")
        seeds.append({"seed": seed, "held_out": seed != visible, **_seed(spec, noise, plain[seed], folder)})
        names = [entry["path"] for entry in told[plain[seed]]["outputs"]]
        found = outputs.compare(
            names,
            plain[seed] / "out",
            [f / "out" for f in own],
            folder / "out",
            spec["parity"].get("outputs", "values"),
            held_out=seed != visible,
        )
        files["compared"] += len(names)
        for answer in ("differing", "undecided"):
            files[answer] += [{"seed": seed, **entry} for entry in found[answer]]
    if noise["parity"].get("unprobed") and not files["compared"]:
        return _empty("failed_run", "nothing is probed, and the unmodified job wrote no output to compare")
    return _summary(seeds, files, _executed(candidate, wanted), [told[folder] for folder in candidate])


def _empty(answer: str, reason: str) -> dict[str, Any]:
    return {
        "answer": answer,
        "reason": reason,
        "invariants": {"equal": None, "differing": []},
        "seeds": [],
        "executed": {"wanted": None, "hit": None},
        "outputs": {"compared": 0, "differing": [], "undecided": []},
        "runs": None,
        "side_effects": [],
        "warnings": [],
    }


def _seed(spec: dict[str, Any], noise: dict[str, Any], base: Path, candidate: Path) -> dict[str, Any]:
    """One seed's comparison. Declared tolerances take the place of measured ones for the tags that they name."""
    declared = spec["parity"].get("tolerances") or {}
    free = spec.get("constraints", {}).get("data_order") == "free"
    allow = [*spec["parity"].get("allow", []), *(FREE_ORDER if free else ())]
    excluded = [*declared, *(["batch*"] if free else [])]
    reports = []
    for glob, tolerance in declared.items():
        bounds = {"rtol": tolerance.get("rtol"), "atol": tolerance.get("atol")}
        reports.append(_records(base, candidate, noise, only=[glob], allow=allow, **bounds))
    rest = _records(base, candidate, noise, exclude=excluded, allow=allow)
    if not (declared and "filter selects none" in rest["reason"]):  # the declared tolerances may cover every tag
        reports.insert(0, rest)
    for report in reports:
        if report["answer"] == "cannot" and "noise document" in report["reason"]:  # no fault of the candidate
            raise InputError(f"noise.json: {report['reason']}; delete it and run again")
        if report["answer"] == "cannot":
            return {
                "answer": "failed_run",
                "reason": report["reason"],
                "invariants": None,
                "precision": [],
                "first_divergence": None,
                "worst": None,
            }
    worst = min(reports, key=lambda report: ORDER.index(report["answer"]))
    exact = reports[0]["invariants"]
    return {
        "answer": worst["answer"],
        "reason": worst["reason"],
        "invariants": {key: exact[key] for key in ("equal", "differing", "allowed", "unseen")},
        "precision": _precision(exact.get("context") or []) if _same_precision(spec) else [],
        "side_effects": exact.get("context") or [],
        "first_divergence": worst["first_divergence"],
        "worst": (worst["worst"] or [None])[0],
        "counts": reports[0]["counts"],
        "warnings": [warning for report in reports for warning in report["warnings"]],
    }


def _records(base: Path, candidate: Path, noise: dict[str, Any], **options: Any) -> dict[str, Any]:
    return compare_records(base / "records", candidate / "records", noise["parity"], **options)


def _same_precision(spec: dict[str, Any]) -> bool:
    return spec.get("constraints", {}).get("precision", "same") == "same"


def _precision(context: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of the context that differ and say in which precision the job computes."""
    return [entry for entry in context if PRECISION & set(entry["name"].split("."))]


def _executed(candidate: Sequence[Path], wanted: int) -> dict[str, Any]:
    """How many of the diff's lines ran on any seed; null where the patch has no line that could run."""
    if not wanted:
        return {"wanted": 0, "hit": None}
    hit: set[tuple[str, int]] = set()
    seen = False
    for folder in candidate:
        for path in (folder / "records").glob("coverage*.json"):
            seen = True
            for name, lines in json.loads(path.read_text(encoding="utf-8"))["files"].items():
                hit |= {(name, line) for line in lines["hit"]}
    return {"wanted": wanted, "hit": len(hit) if seen else None}


def _summary(
    seeds: list[dict[str, Any]], files: dict[str, Any], executed: dict[str, Any], runs: list[dict[str, Any]]
) -> dict[str, Any]:
    differing = [
        {"seed": seed["seed"], **entry}
        for seed in seeds
        for entry in [*((seed["invariants"] or {}).get("differing") or []), *seed["precision"]]
    ]
    worst = min(seeds, key=lambda seed: ORDER.index(seed["answer"]))
    answer, reason = worst["answer"], f"seed {worst['seed']}: {worst['reason']}" if worst["reason"] else None
    if answer != "failed_run" and differing:
        names = ", ".join(sorted({entry["name"] for entry in differing})[:5])
        answer, reason = "different", f"what may not move differs: {names}"
    elif answer in ("equivalent", "undecided") and files["differing"]:
        first = files["differing"][0]
        answer, reason = "different", f"output {first['path']}, seed {first['seed']}: {first['why']}"
    elif answer == "equivalent" and files["undecided"]:
        first = files["undecided"][0]
        answer, reason = "undecided", f"output {first['path']}: {first['why']}"
    return {
        "answer": answer,
        "reason": reason,
        "invariants": {"equal": None if answer == "failed_run" else not differing, "differing": differing},
        "seeds": seeds,
        "executed": executed,
        "outputs": files,
        "runs": {
            "protected_unchanged": all(told["protected_unchanged"] for told in runs),
            "tree_verified": None
            if any(t["tree_verified"] is None for t in runs)
            else all(t["tree_verified"] for t in runs),
            "steps": sorted({told["steps"] for told in runs}),
            "final_loss": {str(told["seed"]): told["final_loss"] for told in runs},
        },
        "side_effects": seeds[0].get("side_effects") or [],
        "warnings": sorted({warning for seed in seeds for warning in seed.get("warnings") or []}),
    }


def main(argv: list[str] | None = None) -> int:
    """Program of the rules `compare` and `final_compare`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--guard", type=Path, required=True)
    parser.add_argument(
        "--baseline", type=Path, nargs="+", required=True, help="run.json of the baseline's checked runs"
    )
    parser.add_argument(
        "--candidate", type=Path, nargs="+", required=True, help="run.json of the candidate, one a seed"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    guard = read_json(args.guard, "guard")
    document = judge(
        read_json(args.spec, "spec"),
        read_json(args.noise, "noise"),
        [path.parent for path in args.baseline],
        [path.parent for path in args.candidate],
        sum(len(lines) for lines in (guard.get("changed_lines") or {}).values()),
    )
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
