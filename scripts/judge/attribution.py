"""What each accepted change is worth: alone, and left out of the whole, all in one session with one baseline.

A change without which the job is as fast is dropped. The rest is the final patch, and the same as one commit a change.
Where the race of the round ran every arm that this needs in one session, its runs are taken; else they are made.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.common import tree
from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json, write_text
from scripts.common.statistics import cutoff_at, estimate, verdict_of
from scripts.judge.session import BASE, Session, read_rows, require_ok, write_rows

SCHEMA = "wholejob/attribution@1"
BLOCKS = 6  # the fewest with which an exact 95 % interval exists
FULL = "full"
IDENTITY = {
    "GIT_AUTHOR_NAME": "wholejob", "GIT_AUTHOR_EMAIL": "wholejob@localhost", "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "wholejob", "GIT_COMMITTER_EMAIL": "wholejob@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
    "LC_ALL": "C", "HOME": "/nonexistent",
}  # fmt: skip
"""Constant, so that the same changes give the same files."""


def arms(base: str, accepted: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """`{"full", "alone0", "without0", ...: tree hash}`; None where the change cannot be separated from the others."""
    patches = [Path(entry["patch"]) for entry in accepted]
    found: dict[str, str | None] = {FULL: tree.composed(base, patches)}
    for number, patch in enumerate(patches):
        found[f"alone{number}"] = tree.composed(base, [patch])
        found[f"without{number}"] = tree.composed(base, [*patches[:number], *patches[number + 1 :]])
    return found


def measure(
    spec: dict[str, Any], env: dict[str, Any], base: str, trees: dict[str, str | None], output: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Rows of every arm, block by block; arms of one tree share their runs."""
    names: dict[str, str] = {base: BASE}
    for name, identity in trees.items():
        if identity is not None:
            names.setdefault(identity, name)
    distinct = {arm: identity for identity, arm in names.items()}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    rows[BASE] = []
    blocks = min(BLOCKS, spec["measure"]["pairs"])
    with Session.held(spec, env, distinct, "attribution", output) as session:
        session.block(-1, [BASE], cold=True)
        for number in range(blocks):
            block = session.block(number, list(distinct))
            require_ok(block, BASE, spec.get("workload", spec["name"]))
            for arm, wanted in {BASE: base, **trees}.items():
                if wanted is not None:
                    rows[arm].append(block[names[wanted]])
    return rows, session.state()


def raced(rows: Sequence[dict[str, Any]], base: str, trees: dict[str, str | None]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every arm from a session that happened to run all their trees in blocks, or {} where too few blocks hold all.

    rows: those of `race.parquet`; what a run was of, its `tree` tells.
    """
    blocks: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if not row["cold"] and row["status"] == "ok":
            blocks.setdefault(row["block"], {})[row["tree"]] = row
    wanted = {arm: identity for arm, identity in {BASE: base, **trees}.items() if identity is not None}
    whole = [block for _, block in sorted(blocks.items()) if set(wanted.values()) <= set(block)]
    if len(whole) < BLOCKS:
        return {}
    return {arm: [block[wanted[arm]] for block in whole] if arm in wanted else [] for arm in (BASE, *trees)}


def effect(slow: list[dict[str, Any]], fast: list[dict[str, Any]], alpha: float, min_effect: float) -> dict[str, Any]:
    """How many times faster `fast` is than `slow`, with its interval; null where a run failed."""
    if not slow or any(row["status"] != "ok" for row in [*slow, *fast]):
        return {"ratio": None, "low": None, "high": None, "answer": None}
    logs = [math.log(a["wall_s"] / b["wall_s"]) for a, b in zip(slow, fast, strict=True)]
    found = estimate(logs, cutoff_at(len(logs), alpha))
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "answer": verdict_of(found, min_effect)}


def useless(without: dict[str, Any], min_effect: float) -> bool:
    """Whether leaving a change out costs nothing that matters: the interval includes 1, the estimate is negligible."""
    if without["ratio"] is None or without["low"] is None:
        return False
    return without["low"] <= 1 and without["ratio"] < 1 + min_effect


def attribute(
    spec: dict[str, Any], env: dict[str, Any], stack: dict[str, Any], output: Path, race: Path | None = None
) -> dict[str, Any]:
    """The content of `attribution.json`; writes the table `output`. race: race.json of the only round, if it is that."""
    accepted, base = stack["accepted"], stack["base"]
    document: dict[str, Any] = {"base": base, "full": stack["tree"], "machine": None}
    if len(accepted) < 2:
        write_rows([], output)
        why = "no candidate was accepted" if not accepted else "one change: there is nothing to leave out"
        kept = [{**entry, "alone": None, "left_out": None, "kept": True, "reason": why} for entry in accepted]
        return {**document, "status": "not_measured", "reason": why, "together": None, "changes": kept}
    settings = spec["measure"]
    trees = arms(base, accepted)
    earlier = read_rows(race.with_suffix(".parquet")) if race else []
    rows = raced(earlier, base, trees)
    if rows:
        assert race is not None
        write_rows(earlier, output)
        document["machine"] = read_json(race, "race")["machine"]
    else:
        rows, document["machine"] = measure(spec, env, base, trees, output)
    limits = (settings["alpha"], settings["min_effect"])
    changes = []
    for number, entry in enumerate(accepted):
        alone = effect(rows[BASE], rows[f"alone{number}"], *limits) if trees[f"alone{number}"] else None
        left_out = effect(rows[f"without{number}"], rows[FULL], *limits) if trees[f"without{number}"] else None
        dropped = left_out is not None and useless(left_out, settings["min_effect"])
        reason = None if left_out is not None else "inseparable from the others"
        reason = "without it the job is as fast" if dropped else reason
        changes.append({**entry, "alone": alone, "left_out": left_out, "kept": not dropped, "reason": reason})
    together = effect(rows[BASE], rows[FULL], *limits)
    return {**document, "status": "ok", "reason": None, "together": together, "changes": changes}


def message(change: dict[str, Any]) -> str:
    """The commit message of a change: what it does, what it was measured to be worth, and what nobody tested."""
    lines = [change["title"], ""]
    if change.get("hypothesis") and str(change["hypothesis"]).strip() != change["title"]:
        lines += [*map(_plain, str(change["hypothesis"]).strip().splitlines()), ""]
    if change["ratio"] is not None:
        lines.append(f"When accepted: {_interval(change)} over {change['pairs']} pairs, whole job.")
    if change["alone"] and change["alone"]["ratio"]:
        lines.append(f"Alone: {_interval(change['alone'])}.")
    if change["left_out"] and change["left_out"]["ratio"]:
        lines.append(f"Left out of all changes: {_interval(change['left_out'])}.")
    lines.append("Parity: equivalent on the visible and the held-out seeds.")
    host = ((change.get("memory") or {}).get("host") or {}).get("ratio")
    device = ((change.get("memory") or {}).get("device") or {}).get("ratio")
    lines.append(f"Peak memory: host {_times(host)}, device {_times(device)}.")
    lines.append("Side effects: " + ("; ".join(change["side_effects"]) or "none seen") + ".")
    lines.append("Not tested: " + ("; ".join(change["untested"]) or "nothing was named") + ".")
    return "\n".join(lines) + "\n"


def _plain(line: str) -> str:
    """Set in where `git am` would take a line of the text for a header of the mail or for the begin of the patch."""
    odd = line.startswith(("---", "diff ", "Index:", "From ", ">From ", "From:", "Subject:", "Date:"))
    return f"  {line}" if odd else line


def _interval(found: dict[str, Any]) -> str:
    if found["low"] is None:
        return f"{found['ratio']:.3f} times as fast (no interval)"
    return f"{found['ratio']:.3f} times as fast ({found['low']:.3f} to {found['high']:.3f})"


def _times(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f} times the baseline's"


def series(base: str, changes: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write the changes as `git format-patch` files into `folder`, one commit each; returns the final tree's hash.

    `git am` takes them; `--keep-cr` where a file has carriage returns.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="wholejob-series-") as place:
        work = tree.copy(tree.stored(base), Path(place) / "tree")
        _git(work, "init", "--quiet", "--initial-branch=main")
        _git(work, "add", "--all", "--force")
        _git(work, "commit", "--quiet", "--allow-empty", "--message", "The job as it was")
        for change in changes:
            tree.apply(Path(change["patch"]), work)
            _git(work, "add", "--all", "--force")
            _git(work, "commit", "--quiet", "--file", "-", text=message(change))
        if changes:
            _git(work, "format-patch", "--quiet", "--zero-commit", "--no-signature", "--full-index", "--binary",
                 "--output-directory", str(folder.resolve()), f"HEAD~{len(changes)}")  # fmt: skip
        return tree.store(work)


def _git(work: Path, *arguments: str, text: str | None = None) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **IDENTITY}
    done = subprocess.run(
        ["git", *arguments], cwd=work, env=environment, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"git {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `attribution`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--stack", type=Path, required=True, help="stack.json of the last round")
    parser.add_argument("--race", type=Path, help="race.json of the only round; race.parquet lies beside it")
    parser.add_argument("--patch", type=Path, required=True, help="the composed patch to write")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="attribution.json; .parquet is written beside it"
    )
    args = parser.parse_args(argv)
    spec, stack = read_json(args.spec, "spec"), read_json(args.stack, "stack")
    document = attribute(spec, read_json(args.env, "env"), stack, args.output.with_suffix(".parquet"), args.race)
    kept = [change for change in document["changes"] if change["kept"]]
    if tree.composed(stack["base"], [Path(change["patch"]) for change in kept]) is None:
        # A change that was to be dropped holds up a later one: the whole stack stays.
        for change in document["changes"]:
            change |= {"reason": change["reason"] if change["kept"] else "another change builds on it", "kept": True}
        kept = document["changes"]
    final = series(stack["base"], kept, args.patch.parent / "patches")
    write_text(args.patch, tree.diff(tree.stored(stack["base"]), tree.stored(final)))
    write_json(args.output, SCHEMA, {**document, "final": final})
    return 0


if __name__ == "__main__":
    run(main)
