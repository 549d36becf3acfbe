"""Ask a proposer for one patch: known fixes, a search over settings, somebody's patch, or a language model.

    python -m scripts.propose.propose --spec W/spec/propose.json --source W/source.json --findings W/findings.json \\
        --brief W/brief.md --proposer playbook --round 0 --candidate 0 -o C

Writes `proposal.json`, `patch.diff` and `transcript.jsonl` into the output folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scripts.common import tree as trees
from scripts.common.errors import InputError, run
from scripts.common.files import read_json
from scripts.common.history import verdict_files
from scripts.propose.proposal import Answer, Task, read_history, write

KINDS = "playbook, knobs, file:PATH, git:URL@REV, replay:DIR or a litellm model id such as anthropic/NAME"


def propose(task: Task) -> Answer:
    """One answer of the task's proposer. Raises InputError for a proposer that there is not."""
    kind, _, rest = task.proposer.partition(":")
    if task.proposer == "playbook":
        from scripts.propose.from_playbook import propose as ask
    elif task.proposer == "knobs":
        from scripts.propose.knobs import propose as ask
    elif kind in ("file", "git") and rest:
        from scripts.propose.from_file import propose as ask
    elif (kind == "replay" and rest) or "/" in task.proposer:
        from scripts.propose.llm.ask import propose as ask
    else:
        raise InputError(f"proposer: {task.proposer!r} is none; should be {KINDS}")
    return ask(task)


def task_of(
    *,
    spec: dict[str, Any],
    source: Path,
    findings: Path,
    brief: Path,
    stack: Path | None,
    history: list[Path],
    proposer: str,
    number: tuple[int, int],
    trace: Path | None,
) -> Task:
    """The task from the files of the rooms above. The tree is the stack's where there is one."""
    accepted: list[dict[str, Any]] = []
    if stack is None:
        tree = str(read_json(source, "source")["tree"])
    else:
        stacked = read_json(stack, "stack")
        tree, accepted = stacked["tree"], stacked["accepted"]
    try:
        text = brief.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{brief}: {error.strerror}; the rule `brief` writes it") from None
    return Task(
        proposer=proposer,
        round=number[0],
        candidate=number[1],
        spec=spec,
        base_tree=tree,
        tree=trees.stored(tree),
        findings=read_json(findings, "findings")["findings"],
        brief=text,
        history=read_history(history),
        accepted=accepted,
        trace=trace,
    )


def main(argv: list[str] | None = None) -> int:
    """Ask for one candidate; exit 0 whether there is a patch or not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--brief", type=Path, required=True)
    parser.add_argument("--stack", type=Path, help="the stack of the round before")
    parser.add_argument(
        "--history",
        type=Path,
        nargs="*",
        default=[],
        help="folders of the earlier rounds, or verdict.json files, a proposal.json beside each",
    )
    parser.add_argument("--trace", type=Path, help="folder with views/ and events/, for an agent's SQL")
    parser.add_argument("--proposer", required=True, help=KINDS)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--candidate", type=int, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    task = task_of(
        spec=read_json(args.spec, "spec"),
        source=args.source,
        findings=args.findings,
        brief=args.brief,
        stack=args.stack,
        history=verdict_files(args.history),
        proposer=args.proposer,
        number=(args.round, args.candidate),
        trace=args.trace,
    )
    answer = propose(task)
    write(task, answer, args.output)
    print(f"{task.proposer} r{task.round} c{task.candidate}: {answer.title or answer.status}{_because(answer)}")
    return 0


def _because(answer: Answer) -> str:
    return "" if answer.status == "patch" or not answer.reason else f": {answer.reason}"


if __name__ == "__main__":
    run(main)
