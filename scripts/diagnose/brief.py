"""brief.md: what a proposer reads, and a person too: the goal, the job, where the time goes, the findings, what was
tried.

    python -m scripts.diagnose.brief --spec W/spec/propose.json --structure W/structure.json --findings
    W/findings.json \\
        --source W/source.json [--views W/trace/views] [--history verdict.json ...] [--tokens 12000] -o W/brief.md

The words are in `templates/` (Jinja2). A token budget is kept by leaving out the least valuable blocks, and saying so.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_text
from scripts.common.history import verdict_files
from scripts.common.tree import stored
from scripts.diagnose.measured import views_document
from scripts.diagnose.source import excerpt

TEMPLATES = Path(__file__).with_name("templates")
CHARACTERS_PER_TOKEN = 3.3  # English with code runs at 3.3 to 4 in current tokenizers; the low end keeps the budget
KEEP = math.inf


@dataclass
class Block:
    """A piece of the brief: what it says, what to call it when it is left out, and its worth (KEEP: never left out)."""

    text: str
    name: str
    worth: float


def tokens(text: str) -> int:
    """An upper estimate of a text's tokens, without any model's tokenizer."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def within(blocks: list[Block], budget: int, note: Any) -> str:
    """The blocks in order, the least valuable left out until `budget` tokens hold them and the note that says what
    is missing.

    Raises InputError where even the blocks that must stay are larger.
    """
    kept = list(blocks)
    dropped: list[str] = []
    while tokens(_joined(kept) + (note(dropped) if dropped else "")) > budget:
        candidates = [b for b in kept if b.worth != KEEP]
        if not candidates:
            raise InputError(f"--tokens: {budget} is too small; what must stay takes {tokens(_joined(kept))}")
        least = min(candidates, key=lambda b: b.worth)
        kept.remove(least)
        dropped.append(least.name)
    return _joined(kept) + (note(dropped) if dropped else "")


def compose(
    spec: dict[str, Any],
    structure: dict[str, Any],
    findings: dict[str, Any],
    *,
    tree: Path | None,
    summary: dict[str, Any],
    history: list[dict[str, Any]],
    budget: int,
) -> str:
    """The brief of a job. `tree` is the source for excerpts, `summary` views.json, `history` rows of earlier
    candidates."""
    render = _renderer()
    horizon = findings["horizon"]
    functions = sorted((f for f in structure["functions"] if f["share_of_window"]), key=lambda f: -f["share_of_window"])
    blocks = [
        Block(render("goal", spec=spec, horizon=horizon), "goal", KEEP),
        Block(render("job", structure=structure, horizon=horizon, device=summary["device"]), "the job", 90),
    ]
    modules = _modules(structure)
    if modules:
        blocks.append(Block(render("modules", modules=modules), "the module table", 12))
    whole = [p for p in structure["phases"] if p.get("share") is not None]
    blocks.append(
        Block(
            render("time", phases=whole, headline=summary["headline"], functions=functions[:15]),
            "where the time goes",
            60,
        )
    )
    blocks.append(Block("## Findings, largest first\n\n", "findings heading", KEEP))
    if not findings["findings"]:
        blocks.append(Block("None above the smallest share that is reported.\n\n", "no findings", KEEP))
    for number, finding in enumerate(findings["findings"], 1):
        worth = 80 - number
        blocks.append(Block(render("finding", f=finding, number=number), f"finding {number} ({finding['id']})", worth))
        excerpts = _excerpts(finding, tree)
        if excerpts:
            blocks.append(Block(render("excerpt", excerpts=excerpts), f"code of finding {number}", worth - 30))
    for place, candidate in enumerate(history):
        text = render("history", history=[candidate])
        body = text if place == 0 else text.partition("\n\n")[2]
        age = len(history) - 1 - place
        blocks.append(Block(body, f"round {candidate['round']} candidate {candidate['candidate']}", 70 - min(age, 60)))
    missing = [entry for entry in findings["looked_for"] if entry["result"] != "found"]
    if missing:
        blocks.append(Block(render("looked_for", looked_for=missing), "what was looked for and not found", 10))
    blocks.append(Block(render("contract", spec=spec), "contract", KEEP))
    return within(blocks, budget, lambda dropped: render("dropped", dropped=dropped, tokens=budget))


def _joined(blocks: list[Block]) -> str:
    return "".join(
        b.text.strip("\n") + ("\n" if b.text.lstrip().startswith("- ") else "\n\n") for b in blocks if b.text.strip()
    )


def _renderer() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )

    def render(name: str, **values: Any) -> str:
        return environment.get_template(f"{name}.md.j2").render(
            **{k: _Lenient(v) if isinstance(v, dict) else v for k, v in values.items()}
        )

    return render


class _Lenient(dict[str, Any]):
    """A document whose missing keys are null, so that a template may ask for an optional field; a misspelt variable
    still fails."""

    def __missing__(self, key: str) -> None:
        return None


def _modules(structure: dict[str, Any]) -> list[dict[str, Any]]:
    """Classes of modules, the job's own first, then those with most time: instances of a class summed."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for module in structure["computed"]["modules"]:
        place = module.get("source") or {}
        key = (module["class"], f"{place.get('path')}:{place.get('line')}" if place else "")
        row = rows.setdefault(
            key,
            {
                "class": key[0],
                "where": key[1],
                "own": bool(place.get("in_tree")),
                "count": 0,
                "calls": 0,
                "forward": 0.0,
                "backward": 0.0,
            },
        )
        row["count"] += 1
        row["calls"] += module.get("calls") or 0
        row["forward"] += module.get("forward_ms") or 0.0
        row["backward"] += module.get("backward_ms") or 0.0
    return sorted(rows.values(), key=lambda r: (not r["own"], -(r["forward"] + r["backward"])))[:14]


def _excerpts(finding: dict[str, Any], tree: Path | None) -> list[dict[str, str]]:
    """Lines around the anchors, those that overlap joined; three at most."""
    if tree is None:
        return []
    out: list[dict[str, str]] = []
    shown: dict[str, set[int]] = {}
    for anchor in finding["anchors"]:
        path = tree / anchor["path"]
        if anchor["line"] in shown.get(anchor["path"], set()) or not path.is_file() or len(out) == 3:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        out.append({"path": anchor["path"], "text": excerpt(lines, anchor["line"], 4)})
        shown.setdefault(anchor["path"], set()).update(range(anchor["line"] - 3, anchor["line"] + 4))
    return out


def tried(path: Path) -> dict[str, Any]:
    """A row of the history from a candidate's verdict.json and the proposal.json beside it."""
    verdict = read_json(path, "verdict")
    beside = path.parent / "proposal.json"
    proposal = read_json(beside, "proposal") if beside.is_file() else {}
    return {
        "round": proposal.get("round", "?"),
        "candidate": proposal.get("candidate", "?"),
        "fix": proposal.get("fix"),
        "hypothesis": proposal.get("hypothesis") or proposal.get("reason"),
        "verdict": verdict["verdict"],
        "reason": verdict.get("reason"),
        "ratio": verdict.get("ratio"),
        "low": verdict.get("low"),
        "high": verdict.get("high"),
    }


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `brief`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--structure", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--source", type=Path, help="source.json, or a folder with the source: for code excerpts")
    parser.add_argument("--views", type=Path)
    parser.add_argument(
        "--history",
        type=Path,
        nargs="*",
        default=[],
        help="folders of the earlier rounds, or verdict.json files, oldest first",
    )
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    tree = None
    if args.source is not None:
        tree = args.source if args.source.is_dir() else stored(read_json(args.source, "source")["tree"])
    summary = views_document(args.views) if args.views else {"device": None, "headline": {}, "notes": [], "views": {}}
    text = compose(
        read_json(args.spec, "spec"),
        read_json(args.structure, "structure"),
        read_json(args.findings, "findings"),
        tree=tree,
        summary=summary,
        history=[tried(path) for path in verdict_files(args.history)],
        budget=args.tokens,
    )
    write_text(args.output, text)
    return 0


if __name__ == "__main__":
    run(main)
