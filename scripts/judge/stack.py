"""Put the confirmed candidates of a round on the stack of changes, where they still apply together.

Each was raced alone against the stack below it; together they are as good as attribution and the final race say.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.common import tree
from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json, write_text

SCHEMA = "wholejob/stack@1"


def build(
    base: str, below: dict[str, Any] | None, folders: Sequence[Path], place: dict[str, Any], accept: str
) -> dict[str, Any]:
    """The content of `stack.json`. base: hash of the pristine tree; below: the stack of the round before, or None;
    folders: the round's candidates; place: `{"proposer", "round"}`; accept: `all` or `best`.
    """
    current = below["tree"] if below else base
    accepted = list(below["accepted"]) if below else []
    rejected = list(below["rejected"]) if below else []
    judged = [(folder, read_json(folder / "verdict.json", "verdict")) for folder in folders]
    judged.sort(key=lambda pair: -(pair[1]["ratio"] or 0))
    taken = 0
    for folder, verdict in judged:
        entry = _entry(folder, verdict, place)
        if verdict["verdict"] != "faster":
            rejected.append({**entry, "reason": verdict["reason"] or verdict["verdict"]})
            continue
        if accept == "best" and taken:
            rejected.append({**entry, "reason": "another candidate of the round is faster (measure.accept: best)"})
            continue
        try:
            current = tree.patched(current, folder / "patch.diff")
        except InputError as error:
            rejected.append({**entry, "reason": f"does not apply together with what the round accepted: {error}"})
            continue
        taken += 1
        accepted.append({**entry, "reason": None, "tree": current})
    return {"base": base, "tree": current, "round": place["round"], "accepted": accepted, "rejected": rejected}


def _entry(folder: Path, verdict: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    """What is told of a candidate: to the next brief, to attribution, and in the commit message."""
    proposal = read_json(folder / "proposal.json", "proposal")
    race = verdict.get("race") or {}
    return {
        **place,
        "candidate": folder.name,
        "title": _title(proposal, folder),
        "patch": folder.joinpath("patch.diff").as_posix(),
        "verdict": verdict["verdict"],
        **{key: verdict[key] for key in ("ratio", "low", "high", "pairs", "classes", "side_effects")},
        "memory": race.get("memory"),
        "untested": proposal.get("untested") or [],
        "hypothesis": proposal.get("hypothesis"),
    }


def _title(proposal: dict[str, Any], folder: Path) -> str:
    text = proposal.get("title") or proposal.get("hypothesis") or proposal.get("fix") or folder.name
    return str(text).strip().splitlines()[0][:72].rstrip(".")


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `stack`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--below", type=Path, help="stack.json of the round before; left out in the first")
    parser.add_argument("--proposer", required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--candidates", type=Path, nargs="+", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="stack.json; stack.diff is written beside it")
    args = parser.parse_args(argv)
    base = read_json(args.source, "source")["tree"]
    below = read_json(args.below, "stack") if args.below else None
    place = {"proposer": args.proposer, "round": args.round}
    accept = read_json(args.spec, "spec")["measure"].get("accept", "all")
    document = build(base, below, args.candidates, place, accept)
    write_text(args.output.with_suffix(".diff"), tree.diff(tree.stored(base), tree.stored(document["tree"])))
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
