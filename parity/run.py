"""`parity run`: run any torch program unedited, and record what it computes.

    parity run --out records -- python train.py --epochs 1
    parity run --out records --seed 1 --perturb ulp -- torchrun --nproc-per-node 2 train.py

The command runs in its own interpreter, where parity need not be installed: it is found through PYTHONPATH. The exit
code is the command's.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from parity.hooks.options import MODES, PROBES, UNITS, window

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooks", "site")


def environment(
    out: Any,
    *,
    mode: str = "checked",
    probes: Optional[Sequence[str]] = None,
    steps: Optional[Tuple[int, Optional[int]]] = None,
    seed: Optional[int] = None,
    deterministic: bool = False,
    perturb: Optional[str] = None,
    perturb_seed: int = 0,
    profile: Optional[Tuple[int, int]] = None,
    stacks: bool = False,
    structure: bool = False,
    modules: bool = False,
    cover: Optional[Any] = None,
    tree: Optional[Any] = None,
    tree_hash: Optional[str] = None,
    outputs: Sequence[str] = (),
    unit: str = "auto",
    pythonpath: Optional[str] = None,
) -> Dict[str, str]:
    """The environment variables under which a job records into the folder `out`. Pure; to be added to the job's own
    environment.

    `mode`: `checked` records values and the ledger; `timed` only marks steps (and keeps the final loss); `profiled`
    adds a torch.profiler window over the steps `profile` = (first, last), half-open, with Python stacks if `stacks`.
    `structure` writes the module tree of one step in any mode. `unit` is what a step is: optimizer steps, root-module
    calls (`forward`), or what the job turns out to do (`auto`). `cover` names a JSON file `{relative path: [lines]}`
    (or one with that under `changed_lines`), relative to `tree`. `outputs` are globs of files that the job must
    write. `pythonpath` is the job's own PYTHONPATH, which stays behind ours. Raises ValueError for what has no
    meaning.
    """
    if mode not in MODES:
        raise ValueError("mode is one of %s, not %r" % (", ".join(MODES), mode))
    if unit not in UNITS:
        raise ValueError("unit is one of %s, not %r" % (", ".join(UNITS), unit))
    unknown = set(probes or ()) - set(PROBES)
    if unknown:
        raise ValueError("probes are %s; unknown: %s" % (", ".join(PROBES), ", ".join(sorted(unknown))))
    if perturb not in (None, "ulp"):
        raise ValueError("perturb is 'ulp' or nothing, not %r" % (perturb,))
    if cover is not None and tree is None:
        raise ValueError("cover needs tree: its paths are relative to it")
    variables = {
        "PARITY": "1",
        "PARITY_OUT": os.path.abspath(out),
        "PARITY_MODE": mode,
        "PYTHONPATH": SITE + (os.pathsep + pythonpath if pythonpath else ""),
    }
    if probes is not None:
        variables["PARITY_PROBES"] = ",".join(probes)
    if unit != "auto":
        variables["PARITY_UNIT"] = unit
    for name, span in (
        ("PARITY_STEPS", steps),
        ("PARITY_PROFILE", profile if profile or mode != "profiled" else (2, 5)),
    ):
        if span is not None:
            text = "%d:%s" % (span[0], "" if span[1] is None else span[1])
            window(text)
            variables[name] = text
    if seed is not None:
        variables["PARITY_SEED"] = str(int(seed))
        variables["PYTHONHASHSEED"] = str(int(seed) % 2**32)
    if deterministic:
        variables["PARITY_DETERMINISTIC"] = "1"
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if perturb:
        variables["PARITY_PERTURB"] = perturb
        variables["PARITY_PERTURB_SEED"] = str(int(perturb_seed))
    for name, on in (("PARITY_STACKS", stacks), ("PARITY_STRUCTURE", structure), ("PARITY_MODULES", modules)):
        if on:
            variables[name] = "1"
    if cover is not None:
        variables["PARITY_COVER"] = os.path.abspath(cover)
    if tree is not None:
        variables["PARITY_TREE"] = os.path.abspath(tree)
    if tree_hash is not None:
        variables["PARITY_TREE_HASH"] = tree_hash
    if outputs:
        variables["PARITY_OUTPUTS"] = json.dumps(list(outputs))
    return variables


def main(argv: Optional[List[str]] = None) -> int:
    """The command. Exit code of the job; 2 for bad usage; 127 where the command does not exist; 128 + n for a job that
    signal n ended.
    """
    parser = _parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    ours, command = _split(arguments)
    options = parser.parse_args(ours)
    if not command:
        parser.error("no command; type: parity run --out DIR -- python train.py")
    if glob.glob(os.path.join(glob.escape(options.out), "rank*.jsonl")):
        parser.error("%s holds an earlier recording; name another --out or delete it" % options.out)
    try:
        variables = _variables(options)
    except ValueError as error:
        parser.error(str(error))
    os.makedirs(options.out, exist_ok=True)
    code = _run(_resolved(command), {**os.environ, **variables})
    print(summary(options.out), file=sys.stderr)
    return code


def summary(out: str) -> str:
    """One line on what a run left in its folder, and what to type next."""
    files = sorted(glob.glob(os.path.join(glob.escape(out), "rank*.jsonl")))
    if not files:
        return (
            "parity: nothing was recorded in %s: the command never imported torch, "
            "or its Python ignores PYTHONPATH (-E, -I, -S)" % out
        )
    records, errors = 0, 0
    tags = set()
    for path in files:
        with open(path, encoding="utf-8") as file:
            next(file, None)
            for line in file:
                row = json.loads(line)
                records += 1
                errors += row["kind"] == "error"
                tags.add(row["tag"])
    steps = 0
    marks = os.path.join(out, "steps.jsonl")
    if os.path.exists(marks):
        with open(marks, encoding="utf-8") as file:
            steps = max(0, sum(1 for _ in file) - 1)
    line = "parity: %d steps, %d records of %d tags, %d rank%s in %s" % (
        steps,
        records,
        len(tags),
        len(files),
        "s"[: len(files) > 1],
        out,
    )
    if errors:
        line += "; %d could not be recorded (kind error)" % errors
    unseen = _unseen(out)
    if unseen:
        line += "; unseen: %s" % ", ".join(unseen)
    return line + "\nparity: next: parity show %s" % out


def _unseen(out: str) -> List[str]:
    try:
        with open(os.path.join(out, "ledger.json"), encoding="utf-8") as file:
            return list(json.load(file)["unseen"])
    except (OSError, ValueError, KeyError):
        return []


def _split(arguments: List[str]) -> Tuple[List[str], List[str]]:
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _resolved(command: List[str]) -> List[str]:
    """A bare script gets this interpreter."""
    if command[0].endswith(".py") and not shutil.which(command[0]):
        return [sys.executable, *command]
    return command


def _run(command: List[str], variables: Dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=variables)
    except FileNotFoundError:
        print("parity: no such command: %s" % command[0], file=sys.stderr)
        return 127
    except PermissionError:
        print("parity: not executable: %s; put its interpreter before it" % command[0], file=sys.stderr)
        return 126
    # Ctrl-C reaches the job by itself (same group); a TERM is handed on, and we wait for the job in both cases
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _variables(options: argparse.Namespace) -> Dict[str, str]:
    if os.pathsep in SITE:
        raise ValueError("parity lies in a folder whose name holds %r, which PYTHONPATH cannot hold" % os.pathsep)
    if options.cover and not os.path.isfile(options.cover):
        raise ValueError("--cover %s: no such file" % options.cover)
    if options.tree and not os.path.isdir(options.tree):
        raise ValueError("--tree %s: no such folder" % options.tree)
    mode = "profiled" if options.profile else options.mode
    return environment(
        options.out,
        mode=mode,
        probes=None if options.probes is None else [p for p in options.probes.split(",") if p],
        steps=window(options.steps),
        seed=options.seed,
        deterministic=options.deterministic,
        perturb=options.perturb,
        perturb_seed=options.perturb_seed,
        profile=window(options.profile),  # type: ignore[arg-type]
        stacks=options.stacks,
        structure=options.structure,
        modules=options.modules,
        cover=options.cover,
        tree=options.tree or (os.getcwd() if options.cover else None),
        outputs=options.outputs,
        unit=options.unit,
        pythonpath=os.environ.get("PYTHONPATH"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parity run",
        description="Run a torch program unedited and record what it computes.",
        usage="parity run [options] -- COMMAND ...",
    )
    add = parser.add_argument
    add("--out", default="parity-records", metavar="DIR", help="where the records go (default: %(default)s)")
    add(
        "--mode",
        choices=MODES,
        default="checked",
        help="checked: values and counts; timed: step marks only; profiled: a profiler window",
    )
    add("--probes", metavar="A,B", help="of %s (default: all)" % ", ".join(PROBES))
    add("--steps", metavar="A:B", help="record values of these steps only (half-open)")
    add("--seed", type=int, metavar="N", help="seed random, numpy and torch when the job imports them")
    add("--deterministic", action="store_true", help="ask torch for deterministic algorithms (in all runs or in none)")
    add("--perturb", choices=["ulp"], help="nudge every weight by one unit in the last place before the first step")
    add("--perturb-seed", type=int, default=0, metavar="N", help="which nudge (default: 0)")
    add("--profile", metavar="A:B", help="profile these steps with torch.profiler into trace.json.gz")
    add("--stacks", action="store_true", help="with Python stacks in the profile")
    add("--structure", action="store_true", help="write the module tree of one step to modules.json")
    add("--modules", action="store_true", help="record the output of every leaf module, for localising a difference")
    add("--cover", metavar="FILE", help="which of these lines ran: JSON {path: [lines]}, into coverage.json")
    add("--tree", metavar="DIR", help="hash the files that the job imports from here")
    add("--outputs", action="append", default=[], metavar="GLOB", help="files that the job must write (repeatable)")
    add("--unit", choices=UNITS, default="auto", help="what a step is (default: what the job turns out to do)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
