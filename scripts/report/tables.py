"""Tables from verdicts: speedups, candidates, noise and costs, each as CSV, Markdown, LaTeX and text.

Every number is read from a file that a run or a verdict wrote; a ratio appears only where the verdict is faster, slower or
no_difference. Costs nothing but reading: a few milliseconds an experiment.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.common.errors import run
from scripts.common.files import read_json, write_text

Row = dict[str, Any]
RATIO_VERDICTS = ("faster", "slower", "no_difference")
COLUMNS: dict[str, dict[str, str]] = {
    # column -> heading in Markdown, LaTeX and text
    "speedups": {
        "workload": "workload",
        "proposer": "proposer",
        "verdict": "verdict",
        "ratio": "speedup",
        "low": "low",
        "high": "high",
        "confidence": "confidence",
        "pairs": "pairs",
        "baseline_s": "before s",
        "patched_s": "after s",
        "parity": "parity",
        "accepted": "changes",
        "tried": "tried",
        "noise_floor": "A/A ±",
        "memory_ratio": "memory",
        "breakeven_steps": "break-even steps",
        "horizon_ratio": "at horizon",
        "published": "published",
        "reason": "reason",
    },
    "changes": {
        "workload": "workload",
        "proposer": "proposer",
        "change": "change",
        "kept": "kept",
        "alone": "alone",
        "alone_low": "low",
        "alone_high": "high",
        "left_out": "without it",
        "left_out_low": "low",
        "left_out_high": "high",
        "reason": "reason",
    },
    "candidates": {
        "workload": "workload",
        "proposer": "proposer",
        "round": "round",
        "candidate": "candidate",
        "title": "change",
        "findings": "findings",
        "verdict": "verdict",
        "ratio": "speedup",
        "low": "low",
        "high": "high",
        "reason": "reason",
    },
    "noise": {
        "workload": "workload",
        "aa_ratio": "A/A",
        "aa_low": "low",
        "aa_high": "high",
        "aa_pairs": "pairs",
        "smallest_effect": "smallest effect",
        "runs": "runs",
        "identical_tags": "identical tags",
        "tags": "tags",
    },
    "costs": {
        "workload": "workload",
        "proposer": "proposer",
        "model": "model",
        "prompt": "prompt",
        "calls": "calls",
        "input_tokens": "input tokens",
        "cached_tokens": "cached",
        "output_tokens": "output tokens",
        "dollars": "dollars",
        "wall_s": "wall s",
        "accepted": "accepted",
        "dollars_per_accepted": "dollars per accepted",
    },
}
# What a terminal of ordinary width shows; the files have every column.
BRIEF = {
    "speedups": [
        "workload",
        "proposer",
        "verdict",
        "ratio",
        "low",
        "high",
        "pairs",
        "baseline_s",
        "patched_s",
        "parity",
        "accepted",
        "tried",
    ],
    "changes": [
        "workload",
        "change",
        "kept",
        "alone",
        "alone_low",
        "alone_high",
        "left_out",
        "left_out_low",
        "left_out_high",
    ],
}


def collect(folder: Path, experiments: list[str]) -> dict[str, list[Row]]:
    """Rows of every table for experiments `workload/proposer` under a device's folder."""
    tables: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for experiment in experiments:
        workload, proposer = experiment.split("/")
        tried = list(_candidates(folder, workload, proposer))
        changes = _changes(folder, workload, proposer)
        tables["speedups"].append(_speedup(folder, experiment, changes, tried))
        tables["changes"] += changes
        tables["candidates"] += [{key: value for key, value in row.items() if key != "proposal"} for row in tried]
        tables["costs"].append(_cost(workload, proposer, tried, changes))
    for workload in sorted({experiment.split("/")[0] for experiment in experiments}):
        tables["noise"].append(_noise(folder, workload))
    return tables


def _speedup(folder: Path, experiment: str, changes: list[Row], tried: list[Row]) -> Row:
    workload, proposer = experiment.split("/")
    final = read_json(folder / experiment / "final" / "verdict.json", "verdict")
    spec = read_json(folder / workload / "spec" / "all.json", "spec")
    race = final.get("race") or {}
    aa = read_json(folder / workload / "timing" / "aa.json", "aa")
    parity = read_json(folder / workload / proposer / "final" / "parity.json", "parity")
    quoted = final["verdict"] in RATIO_VERDICTS
    wall = race.get("wall_s") or {}
    published = spec.get("published") or {}
    return {
        "workload": workload,
        "proposer": proposer,
        "verdict": final["verdict"],
        "ratio": final["ratio"] if quoted else None,
        "low": final["low"] if quoted else None,
        "high": final["high"] if quoted else None,
        "confidence": final["confidence"] if quoted else None,
        "pairs": final["pairs"] if quoted else None,
        "baseline_s": wall.get("baseline") if quoted else None,
        "patched_s": wall.get("candidate") if quoted else None,
        "parity": parity["answer"],
        "accepted": sum(row["kept"] is True for row in changes),
        "tried": sum(row["verdict"] != "nothing" for row in tried),
        "noise_floor": _half_width(aa),
        "memory_ratio": _nested(race, "memory", "host", "ratio") if quoted else None,
        "breakeven_steps": _nested(race, "breakeven", "steps") if quoted else None,
        "horizon_ratio": _nested(race, "horizon", "ratio") if quoted else None,
        "published": f"{published['speedup']}x ({published.get('metric', '')})" if "speedup" in published else None,
        "reason": final["reason"],
    }


def _candidates(folder: Path, workload: str, proposer: str) -> Iterator[Row]:
    for path in sorted((folder / workload / proposer).glob("r*/c*/verdict.json"), key=_order):
        verdict = read_json(path, "verdict")
        proposal = read_json(path.with_name("proposal.json"), "proposal")
        quoted = verdict["verdict"] in RATIO_VERDICTS
        yield {
            "workload": workload,
            "proposer": proposer,
            "round": int(path.parts[-3][1:]),
            "candidate": int(path.parts[-2][1:]),
            "title": proposal.get("title") or proposal.get("fix") or _first_line(proposal.get("hypothesis")),
            "findings": ", ".join(proposal.get("findings_used") or []),
            "verdict": verdict["verdict"] if proposal["status"] == "patch" else "nothing",
            "ratio": verdict["ratio"] if quoted else None,
            "low": verdict["low"] if quoted else None,
            "high": verdict["high"] if quoted else None,
            "reason": verdict["reason"] if proposal["status"] == "patch" else proposal["reason"],
            "proposal": proposal,
        }


def _changes(folder: Path, workload: str, proposer: str) -> list[Row]:
    document = read_json(folder / workload / proposer / "attribution.json", "attribution")
    rows = []
    for change in document["changes"]:
        alone, without = change.get("alone") or {}, change.get("left_out") or {}
        rows.append(
            {
                "workload": workload,
                "proposer": proposer,
                "change": change["title"],
                "kept": change["kept"],
                "alone": alone.get("ratio"),
                "alone_low": alone.get("low"),
                "alone_high": alone.get("high"),
                "left_out": without.get("ratio"),
                "left_out_low": without.get("low"),
                "left_out_high": without.get("high"),
                "reason": change.get("reason"),
            }
        )
    return rows


def _noise(folder: Path, workload: str) -> Row:
    aa = read_json(folder / workload / "timing" / "aa.json", "aa")
    noise = read_json(folder / workload / "noise.json", "noise")
    estimate = aa.get("estimate") or {}
    tags = noise.get("tags") or {}
    return {
        "workload": workload,
        "aa_ratio": estimate.get("ratio"),
        "aa_low": estimate.get("low"),
        "aa_high": estimate.get("high"),
        "aa_pairs": estimate.get("pairs"),
        "smallest_effect": aa.get("smallest_effect"),
        "runs": len(noise.get("runs") or []),
        "identical_tags": sum(tag.get("verdict") == "identical" for tag in tags.values()),
        "tags": len(tags),
    }


def _cost(workload: str, proposer: str, tried: list[Row], changes: list[Row]) -> Row:
    usages = [row["proposal"].get("usage") or {} for row in tried]

    def total(key: str) -> float | None:
        values = [usage.get(key) for usage in usages]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    accepted = sum(row["kept"] is True for row in changes)
    dollars = total("dollars")
    proposals = [row["proposal"] for row in tried]
    return {
        "workload": workload,
        "proposer": proposer,
        "model": next((p["model"] for p in proposals if p.get("model")), None),
        "prompt": next((str(p["prompt_hash"])[:12] for p in proposals if p.get("prompt_hash")), None),
        "calls": total("calls"),
        "input_tokens": total("input_tokens"),
        "cached_tokens": total("cached_tokens"),
        "output_tokens": total("output_tokens"),
        "dollars": dollars,
        "wall_s": total("wall_s"),
        "accepted": accepted,
        "dollars_per_accepted": dollars / accepted if dollars is not None and accepted else None,
    }


def to_csv(rows: list[Row], columns: dict[str, str]) -> str:
    """Every column at full precision; unknown is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows([{key: "" if row.get(key) is None else row[key] for key in columns} for row in rows])
    return text.getvalue()


def to_markdown(rows: list[Row], columns: dict[str, str]) -> str:
    """A pipe table."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(shown(key, row.get(key)).replace("|", "\\|") for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def to_latex(rows: list[Row], columns: dict[str, str]) -> str:
    """A booktabs tabular, numbers right-aligned."""
    numeric = [
        any(isinstance(row.get(key), (int, float)) and not isinstance(row.get(key), bool) for row in rows)
        for key in columns
    ]
    head = " & ".join(_escaped(heading) for heading in columns.values())
    lines = [
        f"\\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
        "\\toprule",
        head + r" \\",
        "\\midrule",
    ]
    lines += [" & ".join(_escaped(shown(key, row.get(key))) for key in columns) + r" \\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def to_text(rows: list[Row], columns: dict[str, str]) -> str:
    """Aligned columns for a terminal."""
    cells = [list(columns.values())] + [[shown(key, row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]) + "\n"


def shown(column: str, value: Any) -> str:
    """A value as people read it: three decimals for ratios, `-` for unknown; an unknown price in words, as it is no zero."""
    if value is None or value == "":
        return "unknown" if column == "dollars" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"
        return f"{text}x" if column in ("ratio", "alone", "left_out", "horizon_ratio") else text
    return " ".join(str(value).split())


def _nested(document: Row, *keys: str) -> Any:
    """The value at a path of keys, None where a part of the path is missing."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _half_width(aa: Row) -> float | None:
    estimate = aa.get("estimate") or {}
    if estimate.get("low") is None or estimate.get("high") is None:
        return None
    return max(estimate["high"] - 1, 1 - estimate["low"])


def _escaped(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, "\\textbackslash{}" if character == "\\" else f"\\{character}")
    return (
        text.replace("~", "\\textasciitilde{}")
        .replace("^", "\\textasciicircum{}")
        .replace("×", "$\\times$")
        .replace("±", "$\\pm$")
    )


def _first_line(text: str | None) -> str | None:
    return text.strip().splitlines()[0] if text and text.strip() else None


def _order(path: Path) -> tuple[int, int]:
    return int(path.parts[-3][1:]), int(path.parts[-2][1:])


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `tables`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="+", help="workload/proposer")
    parser.add_argument("-o", "--output", type=Path, required=True, help="results/<device>/tables")
    args = parser.parse_args(argv)
    for name, rows in collect(args.output.parent, args.experiments).items():
        columns = COLUMNS[name]
        brief = {key: columns[key] for key in BRIEF.get(name, columns)}
        for suffix, text in (
            ("csv", to_csv(rows, columns)),
            ("md", to_markdown(rows, columns)),
            ("tex", to_latex(rows, columns)),
            ("txt", to_text(rows, brief)),
        ):
            write_text(args.output / f"{name}.{suffix}", text)
    return 0


if __name__ == "__main__":
    run(main)
