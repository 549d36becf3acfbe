"""The text that people read: what `derive`, `compare` and `show` print, in colour on a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

_CODES = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_ANSWER_COLOUR = {"equivalent": "green", "different": "red", "undecided": "yellow", "cannot": "red"}


def paint(text: str, colour: str) -> str:
    """The text in colour where standard output is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        return text
    return f"\033[{_CODES[colour]}m{text}\033[0m"


def compared(report: dict[str, Any]) -> str:
    """The report of a comparison: the answer, where the runs part, invariants, the worst tags, warnings."""
    answer = report["answer"]
    lines = [paint(answer.upper(), _ANSWER_COLOUR[answer]) + f"  {report['reason']}"]
    if report.get("needs_runs"):
        lines.append(
            f"  {report['needs_runs']} more run(s) of the unmodified job would decide: "
            "parity run --perturb ulp --perturb-seed N --out DIR -- <the job>, then parity derive"
        )
    lines += _parting(report)
    lines += _sets(report)
    lines += _invariants(report["invariants"])
    lines += _worst(report)
    counts = report["counts"]
    lines.append("")
    lines.append(
        f"{counts['compared']} records of {counts['tags']} tags compared"
        + (f" on {counts['ranks']} ranks" if counts["ranks"] > 1 else "")
        + f"; {counts['identical']} bit-identical, {counts['outside']} outside; judged by {report['judged_by']['text']}"
    )
    lines += _gates(report["gates"])
    overrides = {name: value for name, value in report["overrides"].items() if value not in ([], None)}
    if overrides:
        lines.append(
            paint("overridden: ", "yellow") + ", ".join(f"{name}={_value(value)}" for name, value in overrides.items())
        )
    lines += [paint("warning: ", "yellow") + warning for warning in report["warnings"]]
    return "\n".join(lines)


def _gates(gates: dict[str, Any]) -> list[str]:
    """The strict gate of the first steps and the statistical one of the later ones, where a run has both."""
    if not all(gate["records"] for gate in gates.values()):
        return []
    names = {"short": "first 20 steps", "long": "later steps"}
    parts = []
    for name, words in names.items():
        outside, worst = gates[name]["outside"], gates[name]["worst_ratio"]
        parts.append(f"{words}: " + (f"{outside} outside" if outside else f"within {worst:.2g} of tolerance"))
    return ["; ".join(parts)]


def _parting(report: dict[str, Any]) -> list[str]:
    first = report["first_divergence"]
    if not first:
        return []
    rank = f" on rank {first['rank']}" if report["counts"]["ranks"] > 1 else ""
    where = "before the first step" if first["step"] is None else f"step {first['step']}"
    lines = ["", paint("where the runs part: ", "bold") + f"{where}, {paint(first['tag'], 'bold')}{_nth(first)}{rank}"]
    lines.append(
        f"  what:     {first['what']}  {_value(first['base'])} -> {_value(first['cand'])}"
        if first["base"] is not None or first["cand"] is not None
        else f"  what:     {first['what']}"
    )
    lines.append(f"  kind:     {first['difference']['text']} [{first['difference']['kind']}]")
    if first["ratio"] is not None:
        relative = "" if first["relative"] is None else f" ({first['relative']:.2g} relative)"
        lines.append(
            f"  size:     {first['deviation']:.3g}{relative}, "
            f"{first['ratio']:.3g} times the tolerance {first['tolerance']:.3g}"
        )
    if first.get("growth"):
        lines.append(f"  then:     {first['growth']['text']}")
    agreed = first["agreed_in_step"]
    before = "all earlier steps" if first["step"] else "nothing is earlier"
    lines.append(
        f"  agreed:   {before}" + (f"; in this step {_some(agreed)}" if agreed else "; it is the first of its step")
    )
    return lines


def _nth(place: dict[str, Any]) -> str:
    return f" (occurrence {place['occurrence']})" if place["occurrence"] else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _sets(report: dict[str, Any]) -> list[str]:
    lines = []
    for what, entries in (("missing in the candidate", report["missing"]), ("extra in the candidate", report["extra"])):
        for entry in entries[:10]:
            step = "" if entry["step"] is None else f", first at step {entry['step']}"
            lines.append(f"  {what}: {entry['tag']} ({entry['records']} record(s){step})")
        if len(entries) > 10:
            lines.append(f"  ... and {len(entries) - 10} more tags")
    return ["", *lines] if lines else []


def _invariants(invariants: dict[str, Any]) -> list[str]:
    if not invariants["differing"]:
        return []
    lines = ["", paint("invariants that differ:", "bold")]
    lines += [
        f"  {entry['name']}: {_value(entry['base'])} -> {_value(entry['cand'])}"
        for entry in invariants["differing"][:10]
    ]
    if len(invariants["differing"]) > 10:
        lines.append(f"  ... and {len(invariants['differing']) - 10} more")
    return lines


def _worst(report: dict[str, Any]) -> list[str]:
    worst = [entry for entry in report["worst"] if entry["ratio"] is None or entry["ratio"] > 0.0]
    if not worst:
        return []
    width = max(12, *(len(entry["tag"]) for entry in worst))
    lines = [
        "",
        f"{'worst tags':<{width}}  {'step':>6}  {'statistic':<9} {'relative':>9} {'of tolerance':>13}  outside",
    ]
    for entry in worst:
        ratio = "beyond any" if entry["ratio"] is None else f"{entry['ratio']:.3g}"
        relative = "" if entry["relative"] is None or entry["ratio"] is None else f"{entry['relative']:.2g}"
        step = "-" if entry["step"] is None else str(entry["step"])
        line = f"{entry['tag']:<{width}}  {step:>6}  {entry['what']:<9} {relative:>9} {ratio:>13}  {entry['outside']}"
        lines.append(paint(line, "red") if entry["outside"] else line)
    return lines


def derived(document: dict[str, Any], output: Optional[str]) -> str:
    """The summary of a noise document: how many tags got which verdict, then those with something to do."""
    counts = ", ".join(f"{count} {word}" for word, count in document["counts"].items())
    lines = [
        f"{len(document['runs'])} runs ({document['distinct']} distinct, {document['perturbed']} perturbed), "
        f"tags: {counts}"
    ]
    colour = {"ok": "green", "unstable": "red"}.get(document["verdict"], "yellow")
    reason = document["reason"] or "the spread of these runs can judge a candidate"
    lines.append(paint(document["verdict"].upper(), colour) + f"  {reason}")
    if document["call"]:
        lines.append(f"  -> {document['call']}")
    entries = [(rank, name, entry) for rank, tags in document["ranks"].items() for name, entry in tags.items()]
    for _, name, entry in entries:
        if entry["verdict"] not in ("ok", "identical") or entry["why"]:
            why = f"  {entry['why']}" if entry["why"] else ""
            lines.append(f"{entry['verdict']:<9} {name}{why}")
            if entry["call"]:
                lines.append(f"          -> {entry['call']}")
    moving = sorted((entry["relative"], name) for _, name, entry in entries if entry["verdict"] == "ok")
    if document["verdict"] == "ok" and moving:
        lines.append("how far values move on their own, relative, by the last step:")
        lines += [f"  {name:<20} {relative:.2g}" for relative, name in moving[::-1][:10]]
    lines += [paint("warning: ", "yellow") + warning for warning in document["warnings"]]
    if output:
        lines.append(f"written: {output}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.8g}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
