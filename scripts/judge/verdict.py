"""The verdict on one candidate, from measured files only: the first gate that does not pass decides.

A ratio stands in the verdicts `faster`, `slower` and `no_difference` and in no other. Unknown is never a pass.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from scripts.common.errors import run
from scripts.common.files import read_json, write_json

SCHEMA = "wholejob/verdict@1"
SHAPELESS = {"canonical", "applies", "parses", "inert"}
"""Guard rules that say that there is no patch to judge, as against one that may not be."""
WITH_RATIO = ("faster", "slower", "no_difference")
LOSS_FACTOR, LOSS_FLOOR = 5.0, 1e-3
Gate = dict[str, Any]
Answer = tuple[str, str | None]


def decide(
    spec: dict[str, Any],
    guard: dict[str, Any],
    parity: dict[str, Any],
    arm: dict[str, Any] | None,
    *,
    not_raced: str,
    base: dict[str, Any] | None,
    aa: dict[str, Any] | None,
) -> dict[str, Any]:
    """The content of `verdict.json`. `arm` is the candidate's entry in `race.json`, None where it was not raced for the
    reason `not_raced`; `base` is what the baseline's timed runs computed there; `aa` is `aa.json` or None.
    """
    gates: list[Gate] = []
    answer: Answer | None = None
    for name, check in (
        ("guard", lambda: _guard(guard)),
        ("runs", lambda: _runs(parity)),
        ("files", lambda: _files(parity)),
        ("executed", lambda: _executed(parity)),
        ("invariants", lambda: _invariants(parity)),
        ("parity", lambda: _parity(parity)),
        ("raced", lambda: _raced(arm, not_raced)),
        ("timed_as_checked", lambda: _same_job(spec, parity, arm, base)),
        ("memory", lambda: _memory(spec, arm)),
        ("noise_floor", lambda: _noise_floor(arm, aa)),
    ):
        if answer is not None:
            gates.append({"name": name, "passed": None, "detail": "not reached"})
            continue
        answer, detail = check()
        gates.append({"name": name, "passed": answer is None, "detail": detail})
    estimate = (arm or {}).get("estimate") or {}
    verdict, reason = answer or (arm["answer"], _race_reason(arm))  # type: ignore[index]
    quoted = verdict in WITH_RATIO
    return {
        "verdict": verdict,
        "reason": reason,
        "ratio": estimate["ratio"] if quoted else None,
        "low": estimate["low"] if quoted else None,
        "high": estimate["high"] if quoted else None,
        "confidence": estimate["confidence"] if quoted else None,
        "pairs": estimate["pairs"] if quoted else None,
        "gates": gates,
        "tree": guard["tree"],
        "classes": guard.get("classes", []),
        "side_effects": _side_effects(guard, parity),
        "review": [hit for hit in guard.get("hits", []) if hit["action"] == "review"],
        "race": {key: arm.get(key) for key in DETAILS} if quoted and arm else None,
    }


DETAILS = (
    "wall_s",
    "cpu_s",
    "decomposition",
    "median_step_s",
    "periodic",
    "horizon",
    "breakeven",
    "memory",
    "bimodal",
    "cold",
)
"""What a verdict takes over from the race, so that a table needs no other file."""


def _guard(guard: dict[str, Any]) -> tuple[Answer | None, str]:
    if guard["status"] == "nothing":
        return ("not_measured", "there is no patch"), "an empty patch"
    if guard["status"] != "pass":
        hit = next((hit for hit in guard["hits"] if hit["action"] == "refuse"), None)
        if hit is None:
            return ("invalid_guard", f"the guard said {guard['status']}"), guard["status"]
        where = f" ({hit['path']}:{hit['line']})" if hit["path"] and hit["line"] else ""
        text = f"{hit['rule']}: {hit['reason']}{where}"
        return ("invalid_patch" if hit["rule"] in SHAPELESS else "invalid_guard", text), text
    return None, f"{len(guard['hits'])} remarks, none of them a refusal"


def _runs(parity: dict[str, Any]) -> tuple[Answer | None, str]:
    if parity["answer"] == "failed_run":
        return ("failed_run", parity["reason"]), parity["reason"] or ""
    if parity["answer"] == "not_run" or parity["runs"] is None:
        return ("not_measured", f"no checked run: {parity['reason']}"), parity["reason"] or ""
    return None, f"{len(parity['seeds'])} checked runs ended by themselves"


def _files(parity: dict[str, Any]) -> tuple[Answer | None, str]:
    runs = parity["runs"]
    if not runs["protected_unchanged"]:
        text = "a run changed protected files"
        return ("invalid_guard", text), text
    if runs["tree_verified"] is False:
        text = "the job imported other files than its tree's"
        return ("invalid_patch", text), text
    return None, "protected files unchanged" + (
        "" if runs["tree_verified"] else "; which files the job imported is unknown"
    )


def _executed(parity: dict[str, Any]) -> tuple[Answer | None, str]:
    wanted, hit = parity["executed"]["wanted"], parity["executed"]["hit"]
    if wanted and not hit:
        text = "no changed line ran" if hit == 0 else "it is unknown whether the changed lines ran"
        return ("invalid_patch", f"inert: {text}"), text
    return None, f"{hit} of {wanted} changed lines ran" if wanted else "the patch has no line that could be watched"


def _invariants(parity: dict[str, Any]) -> tuple[Answer | None, str]:
    differing = parity["invariants"]["differing"]
    if differing:
        names = ", ".join(sorted({entry["name"] for entry in differing})[:5])
        entry = differing[0]
        text = f"{names}: {entry['base']!r} in the baseline, {entry['cand']!r} in the candidate"[:300]
        return ("invalid_invariant", text), text
    if parity["invariants"]["equal"] is None:
        return ("invalid_invariant", "the counts of the job are unknown"), "unknown"
    return None, "equal"


def _parity(parity: dict[str, Any]) -> tuple[Answer | None, str]:
    if parity["answer"] != "equivalent":
        text = f"{parity['answer']}: {parity['reason']}"
        return ("invalid_parity", text), text
    seeds = ", ".join(str(seed["seed"]) + (" (held out)" if seed["held_out"] else "") for seed in parity["seeds"])
    return None, f"equivalent on seeds {seeds}"


def _raced(arm: dict[str, Any] | None, not_raced: str) -> tuple[Answer | None, str]:
    if arm is None:
        return ("not_measured", not_raced), not_raced
    if arm["status"] != "ok":
        return ("failed_run", arm["reason"]), arm["reason"]
    return None, f"{arm['estimate']['pairs']} pairs"


def _same_job(
    spec: dict[str, Any], parity: dict[str, Any], arm: dict[str, Any] | None, base: dict[str, Any] | None
) -> tuple[Answer | None, str]:
    """What was timed is what was checked: the same number of steps, final loss, and outputs where those are repeatable."""
    assert arm is not None
    seen, runs, base = arm["observed"], parity["runs"], base or {}
    # A timed run watches fewer modules of an inference job and may mark fewer calls: then the baseline's does as well.
    if seen["steps"] not in (runs["steps"], base.get("steps")):
        text = f"timed runs took {seen['steps']} steps, checked runs {runs['steps']}"
        return ("invalid_invariant", text), text
    wrote = seen.get("outputs")
    told = "no outputs to compare"
    if wrote is not None:
        told = "outputs as in the checked run"
        # A job whose own timed runs write otherwise than its checked run says nothing about a candidate's.
        if wrote["differing"] and not (base.get("outputs") or {}).get("differing"):
            entry = wrote["differing"][0]
            text = f"timed runs write another {entry['path']} than the checked run of the same seed: {entry['why']}"
            return ("invalid_parity", text), text
        if wrote["differing"] or wrote["undecided"]:
            told = "outputs differ from the checked run's, as the baseline's do or in a format that is not read"
    checked = runs["final_loss"].get(str(spec["parity"]["seed"]))
    if checked is None:
        return None, f"{seen['steps']} steps; {told}; the job has no loss"
    losses = base.get("final_loss") or []
    spread = max(losses) - min(losses) if losses else 0.0
    allowed = LOSS_FACTOR * spread + LOSS_FLOOR * abs(checked)
    worst = max((abs(loss - checked) for loss in seen["final_loss"]), default=math.inf)
    if not worst <= allowed:
        text = f"timed runs end at another loss than the checked run: apart by {worst:.3g}, allowed {allowed:.3g}"
        return ("invalid_parity", text), text
    return None, f"{seen['steps']} steps; {told}; the final loss as in the checked runs"


def _memory(spec: dict[str, Any], arm: dict[str, Any] | None) -> tuple[Answer | None, str]:
    assert arm is not None
    limit = spec.get("constraints", {}).get("memory_growth", 1.5)
    for kind in ("host", "device"):
        ratio = arm["memory"][kind]["ratio"]
        if ratio is not None and ratio > limit:
            text = f"peak {kind} memory grew {ratio:.2f} times; constraints.memory_growth allows {limit:g}"
            return ("invalid_guard", text), text
    return None, f"host memory {arm['memory']['host']['ratio'] or math.nan:.2f} times the baseline's"


def _noise_floor(arm: dict[str, Any] | None, aa: dict[str, Any] | None) -> tuple[Answer | None, str]:
    """A baseline that seems to differ from itself lends no claim that is not clearly beyond that difference."""
    assert arm is not None
    if aa is None or aa["estimate"]["low"] is None:
        return None, "no A/A interval to compare with"
    low, high = aa["estimate"]["low"], aa["estimate"]["high"]
    if low <= 1 <= high:
        return None, f"A/A {low:.3f} to {high:.3f} includes 1"
    bias = max(high, 1 / low)
    estimate = arm["estimate"]
    beyond = estimate["low"] > bias if arm["answer"] == "faster" else estimate["high"] < 1 / bias
    if arm["answer"] in ("faster", "slower") and not beyond:
        text = f"the baseline differs from itself by up to {bias:.3f} here, and the claim does not exceed that"
        return ("inconclusive", text), text
    return None, f"A/A {low:.3f} to {high:.3f} excludes 1; the claim exceeds it"


def _race_reason(arm: dict[str, Any] | None) -> str | None:
    assert arm is not None
    if arm["answer"] == "inconclusive":
        estimate = arm["estimate"]
        if estimate["low"] is None:
            return f"{estimate['pairs']} pairs cannot decide at this alpha"
        span = f"{estimate['low']:.3f} to {estimate['high']:.3f}"
        given_up = f"; given up, as more would decide with a chance of {arm['futile']:.0%}" if "futile" in arm else ""
        return f"{estimate['pairs']} pairs leave {span}: neither clear nor negligible{given_up}"
    return None


def _side_effects(guard: dict[str, Any], parity: dict[str, Any]) -> list[str]:
    """Refused by no rule, and yet to be known: what the guard saw, and what of the job's surroundings moved."""
    found = [f"{hit['rule']}: {hit['reason']}" for hit in guard.get("hits", []) if hit["action"] == "side_effect"]
    for entry in parity.get("side_effects") or []:
        before, after = (_short(entry[side]) for side in ("base", "cand"))
        found.append(f"{entry['name']}: {before} -> {after}" if before != after else f"{entry['name']} changed")
    return found


def _short(value: Any, limit: int = 60) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def main(argv: list[str] | None = None) -> int:
    """Program of the rules `verdict` and `final_verdict`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--guard", type=Path, required=True)
    parser.add_argument("--parity", type=Path, required=True)
    parser.add_argument("--race", type=Path, required=True)
    parser.add_argument("--aa", type=Path)
    parser.add_argument("--screen", type=Path, help="screen.json of the round; left out for the final verdict")
    parser.add_argument("--arm", required=True, help="the candidate's name in race.json: c0, c1, ..., or final")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    guard, race = read_json(args.guard, "guard"), read_json(args.race, "race")
    not_raced = "no candidate was accepted" if guard["status"] == "nothing" else "it was not raced"
    if args.screen:
        screened = read_json(args.screen, "screen")["arms"][args.arm]
        not_raced = screened["reason"] or not_raced
    arm = race["arms"].get(args.arm)
    if arm is None and args.screen and screened["status"] == "failed":
        arm = {"status": "failed", "reason": screened["reason"]}
    document = decide(
        read_json(args.spec, "spec"),
        guard,
        read_json(args.parity, "parity"),
        arm,
        not_raced=not_raced,
        base=race.get("base"),
        aa=read_json(args.aa, "aa") if args.aa else None,
    )
    if args.arm == "final" and guard["status"] == "nothing":
        document["reason"] = not_raced
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
