"""The red team: every bad patch must be refused or invalidated by a named rule or check, every honest one must pass.

    python -m tests.redteam.run [--static] [--only NAME ...] [-o docs/redteam.md]

The guard judges all of them; whatever it lets pass runs for real, through the launcher, the recorder and the
comparison. Prints the confusion matrix and writes the table. Exit 1 where a bad patch got through, one was caught by
nothing that it names, or an honest one was refused. Two runs at a time: nothing here is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.baseline import noise
from scripts.common import launch, tree
from scripts.common.errors import InputError, run
from scripts.common.files import ROOT, sha256_bytes, sha256_file, write_text
from scripts.common.imports import code
from scripts.judge.compare import judge
from scripts.judge.guard import guard
from scripts.judge.rules import rules
from scripts.judge.verdict import decide
from scripts.source.environment import build
from scripts.source.spec import resolve, validated_config
from tests.redteam.bad import BAD
from tests.redteam.honest import HONEST
from tests.redteam.patches import JOB, Patch

VISIBLE, HELD_OUT = 0, 1
TABLE = ROOT / "docs" / "redteam.md"
BASELINE = ("seed0-repeat0", "seed0-ulp1", "seed0-ulp2", "seed0-ulp3", "seed1-repeat0")
AFTER_PARITY = ("raced", "timed_as_checked", "memory", "noise_floor")
# Patterns that no patch of a small CPU job can carry, or that are not about a patch, and where they are met instead.
ELSEWHERE = {
    "J7": "one rank only; the rule training_calls has unit tests for collectives",
    "J10": "the headline is the wall time of the whole process",
    "J19": "A/A goes through the same rules",
    "J22": "the verdict reports memory, start-up and break-even",
    "J28": "no generation in this job; the ledger counts tokens",
    "J30": "every pair is kept",
    "J31": "finalists are raced afresh, with Holm's correction",
    "J33": "recorded with the machine",
    "J34": "no requests in this job; the rule output_cache has unit tests",
    "J36": "not about a patch",
    "J37": "attribution leaves each change out",
    "J38": "attribution runs in one session",
    "J41": "no tuning data in this job",
    "J43": "timed runs import no profiler",
    "J44": "one rank only; the rule training_calls has unit tests for collectives",
    "K10": "no per-call weights in this job; the rule output_cache has unit tests",
    "K25": "needs a GPU; the rule native_code has a unit test for the cache calls",
    "K26": "the launcher owns the clock",
    "K32": "needs CUDA graphs; parity compares the values of every step",
    "K33": "the race draws a random order",
}


@dataclass
class Outcome:
    """What became of one patch. `stopped`: guard, a gate of the verdict, or "" where it passed all before a race."""

    name: str
    stopped: str = ""
    rules: list[str] = field(default_factory=list)
    detail: str = ""
    remarks: list[str] = field(default_factory=list)
    past_guard: str | None = None  # the gate that stops it when the guard is ignored; None where that is not tried

    @property
    def patch(self) -> Patch:
        return PATCHES[self.name]

    @property
    def expected(self) -> bool:
        """Whether a bad patch was caught by something that it names, or an honest one passed."""
        if self.patch.pattern == "honest":
            return not self.stopped
        checks = {GATES.get(check, check) for check in self.patch.checks}
        if self.stopped == "guard":
            return bool(self.patch.rules & set(self.rules)) and (self.past_guard is None or self.past_guard in checks)
        return self.stopped in checks


PATCHES = {patch.name: patch for patch in [*BAD, *HONEST]}
GATES = {"run": "runs", "tree": "files"}  # short names that patches use for gates of the verdict


def static(name: str, spec: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    """The guard's answer to one patch."""
    patch = PATCHES[name]
    contract = {**spec, "constraints": {**spec["constraints"], **patch.constraints}}
    document = guard(patch.diff().encode(), JOB, contract)
    outcome = Outcome(name)
    refusals = [hit for hit in document["hits"] if hit["action"] == "refuse"]
    outcome.remarks = sorted(
        {f"{hit['rule']} ({hit['action']})" for hit in document["hits"] if hit["action"] != "refuse"}
    )
    if document["status"] != "pass":
        outcome.stopped = "guard"
        outcome.rules = list(dict.fromkeys(hit["rule"] for hit in refusals))
        named = [hit for hit in refusals if hit["rule"] in patch.rules] or refusals
        outcome.detail = named[0]["reason"] if named else document["status"]
    return outcome, document


class Bench:
    """Baseline runs of the demo job in a folder of their own, and checked runs of patches against them."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        self.env = build(spec)
        self.base = tree.store(JOB)
        self.noise: dict[str, Any] = {}

    def baseline(self, name: str) -> Path:
        """One baseline run by its name (`seed0-ulp1`)."""
        seed, kind = name.removeprefix("seed").split("-")
        perturb = {"kind": "ulp", "seed": int(kind[3:])} if kind.startswith("ulp") else None
        job = launch.Job(spec=self.spec, env=self.env, tree=self.base, seed=int(seed), perturb=perturb)
        document = _once(job, self.folder / "baseline" / name / "run.json")
        if document["status"] != "ok":
            raise InputError(f"the demo job itself fails: {document['reason']} ({self.folder}/baseline/{name}/job.log)")
        return self.folder / "baseline" / name

    def measure_noise(self) -> None:
        folders = [self.folder / "baseline" / name for name in BASELINE]
        self.noise = noise.measure(folders, VISIBLE, "minigpt")

    def verdict(self, outcome: Outcome, document: dict[str, Any], seeds: tuple[int, ...]) -> Outcome:
        """Run the patch on the seeds, compare, and note the gate that stopped it."""
        place = self.folder / "candidates" / outcome.patch.name
        tree.remove(place / "tree")
        work = tree.copy(JOB, place / "tree")
        (place / "patch.diff").write_text(outcome.patch.diff(), encoding="utf-8")
        tree.apply(place / "patch.diff", work)
        hits = [hit for hit in document["hits"] if hit["action"] != "refuse"]
        passed = {**document, "status": "pass", "hits": hits, "tree": tree.store(work)}
        for seed in seeds:
            job = launch.Job(
                spec=self.spec, env=self.env, tree=passed["tree"], seed=seed, cover=passed["changed_lines"] or None
            )
            _once(job, place / str(seed) / "run.json")
        parity = judge(
            self.spec,
            self.noise,
            [self.folder / "baseline" / name for name in BASELINE],
            [place / str(seed) for seed in seeds],
            sum(len(lines) for lines in passed["changed_lines"].values()),
        )
        answer = decide(self.spec, passed, parity, None, not_raced="the red team races nothing", base=None, aa=None)
        gate = next((gate for gate in answer["gates"] if gate["passed"] is False), None)
        if gate and gate["name"] not in AFTER_PARITY:
            outcome.stopped, outcome.detail = gate["name"], gate["detail"]
            if gate["name"] == "parity" and parity["reason"] and parity["reason"].startswith("output "):
                outcome.stopped = "outputs"
        return outcome


def judge_all(patches: list[Patch], with_runs: bool, folder: Path, progress: Any = print) -> list[Outcome]:
    """Outcomes of all patches, in their order."""
    spec = demo_spec()
    outcomes: dict[str, Outcome] = {}
    with ProcessPoolExecutor(2, initializer=_store, initargs=(folder / "trees",)) as pool:
        documents = {}
        names = [patch.name for patch in patches]
        for outcome, document in pool.map(static, names, [spec] * len(names), chunksize=4):
            outcomes[outcome.name], documents[outcome.name] = outcome, document
        todo = [o for o in outcomes.values() if o.patch.past_guard or (not o.stopped and o.patch.runs)]
        progress(f"guard: {len(patches)} patches, {sum(bool(o.stopped) for o in outcomes.values())} refused")
        if with_runs and todo:
            _store(folder / "trees")
            bench = Bench(folder, spec)
            list(pool.map(bench.baseline, BASELINE))
            bench.measure_noise()
            progress(f"{len(BASELINE)} runs of the baseline; {len(todo)} patches to run")
            jobs = [pool.submit(_run, bench, o.name, documents[o.name]) for o in todo]
            for number, (before, job) in enumerate(zip(todo, jobs), 1):
                gate, detail = job.result()
                if before.stopped:
                    before.past_guard = gate
                else:
                    before.stopped, before.detail = gate, detail
                progress(f"{number}/{len(todo)} {before.name}: {gate or 'passes'} {detail[:80]}")
    return [outcomes[patch.name] for patch in patches]


def demo_spec() -> dict[str, Any]:
    """The demo workload as the pipeline resolves it."""
    from scripts.common.schema import load_yaml

    return resolve("minigpt", None, validated_config(load_yaml(ROOT / "config" / "config.yaml")))


def _run(bench: Bench, name: str, document: dict[str, Any]) -> tuple[str, str]:
    """The visible seed first; a patch that it does not stop runs on the held-out seed too."""
    outcome = bench.verdict(Outcome(name), document, (VISIBLE,))
    if not outcome.stopped and outcome.patch.pattern != "honest":
        outcome = bench.verdict(Outcome(name), document, (VISIBLE, HELD_OUT))
    return outcome.stopped, outcome.detail


def _once(job: launch.Job, path: Path) -> dict[str, Any]:
    """Run the job, unless the folder (`--keep`) has this run of this tree."""
    if path.is_file():
        document = launch.read_run(path)
        same = (document["tree"], document["seed"], document["perturb"]) == (job.tree, job.seed, job.perturb)
        if same and document["status"] != "timeout":  # which a busy machine may have caused
            return document
    return launch.run_json(job, path)


def _store(place: Path) -> None:
    tree.STORE = place


def matrix(outcomes: list[Outcome], with_runs: bool) -> dict[str, int]:
    """Counts of the confusion matrix."""
    bad = [o for o in outcomes if o.patch.pattern != "honest"]
    good = [o for o in outcomes if o.patch.pattern == "honest"]
    later = [o for o in bad if not o.stopped and o.patch.checks and not with_runs]
    return {
        "bad": len(bad),
        "bad_guard": sum(o.stopped == "guard" for o in bad),
        "bad_run": sum(o.stopped not in ("", "guard") for o in bad),
        "bad_not_run": len(later),
        "bad_passed": sum(not o.stopped for o in bad) - len(later),
        "bad_unexpected": sum(bool(o.stopped) and not o.expected for o in bad),
        "honest": len(good),
        "honest_passed": sum(not o.stopped for o in good),
        "honest_stopped": sum(bool(o.stopped) for o in good),
    }


def table(outcomes: list[Outcome], counts: dict[str, int], with_runs: bool) -> str:
    """The Markdown of `docs/redteam.md`."""
    bad = [o for o in outcomes if o.patch.pattern != "honest"]
    lines = [
        "# The red team",
        "",
        "Written by `make redteam`; do not edit. Real patches against the demo job, through the guard and, where it",
        "lets them pass, through checked runs and the comparison. A pattern's number is that of the public catalogue",
        "of false wins: K at kernel level, J at the level of the whole job. What no judge on one machine can rule out:",
        "[design](design.md#what-a-judge-on-one-machine-cannot-rule-out).",
        "",
        "| | stopped by the guard | stopped by a run | passed |",
        "|---|---|---|---|",
        f"| {counts['bad']} bad | {counts['bad_guard']} | {counts['bad_run']} | {counts['bad_passed']} |",
        f"| {counts['honest']} honest | {sum(o.stopped == 'guard' for o in outcomes if o.patch.pattern == 'honest')} | "
        f"{counts['honest_stopped'] - sum(o.stopped == 'guard' for o in outcomes if o.patch.pattern == 'honest')} | "
        f"{counts['honest_passed']} |",
        "",
    ]
    if not with_runs:
        lines += [f"Static only: {counts['bad_not_run']} bad patches need a run and were not run.", ""]
    lines += ["## Bad", "", "| pattern | patch | what it does | stopped by | why |", "|---|---|---|---|---|"]
    for outcome in sorted(bad, key=lambda o: (o.patch.pattern[0], int(o.patch.pattern[1:]))):
        how = (
            f"rule {', '.join(f'`{r}`' for r in _named(outcome))}"
            if outcome.stopped == "guard"
            else f"check `{outcome.stopped}`"
        )
        pending = "not run" if outcome.patch.checks and not with_runs else "**nothing**"
        how = how if outcome.stopped else pending
        how += f"; past the guard check `{outcome.past_guard}`" if outcome.past_guard else ""
        lines.append(
            f"| {outcome.patch.pattern} | {outcome.name} | {outcome.patch.what} | {how} | {_cell(outcome.detail)} |"
        )
    lines += ["", "## Honest", "", "| patch | what it does | result | remarks |", "|---|---|---|---|"]
    for outcome in (o for o in outcomes if o.patch.pattern == "honest"):
        result = "passes" if not outcome.stopped else f"**stopped by {outcome.stopped}**: {_cell(outcome.detail)}"
        allow = "".join(f" (contract allows `{name}`)" for name in outcome.patch.constraints.get("allow", ()))
        lines.append(
            f"| {outcome.patch.name} | {outcome.patch.what}{allow} | {result} | {', '.join(outcome.remarks)} |"
        )
    return "\n".join([*lines, "", *_coverage(bad), "", *_rules(bad), ""])


def _named(outcome: Outcome) -> list[str]:
    """Rules that the patch names first, then the others that refused it too."""
    return sorted(outcome.rules, key=lambda rule: (rule not in outcome.patch.rules, rule))


def _coverage(bad: list[Outcome]) -> list[str]:
    seen: dict[str, int] = {}
    for outcome in bad:
        seen[outcome.patch.pattern] = seen.get(outcome.patch.pattern, 0) + 1
    every = [*(f"J{n}" for n in range(1, 46)), *(f"K{n}" for n in range(1, 36))]
    tried = ", ".join(f"{p} ({seen[p]})" for p in every if p in seen)
    lines = [
        "## Patterns",
        "",
        f"Tried on the demo job ({sum(p in seen for p in every)} of {len(every)}): {tried}.",
        "",
        "Not here:",
        "",
    ]
    return lines + [f"- {p}: {ELSEWHERE.get(p) or 'no patch of this job carries it'}" for p in every if p not in seen]


def _rules(bad: list[Outcome]) -> list[str]:
    """Each rule with its purpose and how many of the bad patches it refused."""
    counts: dict[str, int] = {}
    for outcome in bad:
        for name in outcome.rules:
            counts[name] = counts.get(name, 0) + 1
    lines = [
        "## Rules",
        "",
        "One file each in `scripts/judge/rules/`.",
        "",
        "| rule | asks | against | refused here |",
        "|---|---|---|---|",
    ]
    for rule in rules():
        purpose = (rule.__doc__ or "").split("\n")[0]
        lines.append(f"| `{rule.NAME}` | {_cell(purpose)} | {_cell(rule.WHY)} | {counts.get(rule.NAME, 0)} |")
    return lines


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return "".join(c if c.isprintable() else "?" for c in text[:160])


@contextmanager
def workplace(keep: str | None) -> Iterator[Path]:
    """A folder for runs: a temporary one, or one that stays as long as the launcher and the recorder do."""
    if keep:
        place = Path(keep).resolve()
        sources = sorted({*code("common.launch"), *(str(p.relative_to(ROOT)) for p in ROOT.glob("parity/**/*.py"))})
        stamp = sha256_bytes("".join(sha256_file(ROOT / name) for name in sources).encode())
        if not (place / stamp).is_file():
            tree.remove(place)
            place.mkdir(parents=True)
            (place / stamp).touch()
        yield place
        return
    folder = Path(tempfile.mkdtemp(prefix="wholejob-redteam-"))
    try:
        yield folder
    finally:
        tree.remove(folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.redteam.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--static", action="store_true", help="the guard only; nothing runs")
    parser.add_argument("--only", nargs="+", default=[], help="names of patches; no table is written")
    parser.add_argument("--keep", help="folder for the runs: they stay there, and are not made again")
    parser.add_argument("-o", "--output", default=str(TABLE), help="the table; not written by part of the patches")
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    patches = [p for p in [*BAD, *HONEST] if not args.only or p.name in args.only]
    unknown = sorted(set(args.only) - {p.name for p in patches})
    if unknown:
        raise InputError(
            f"--only: no patch is called {', '.join(unknown)}; tests/redteam/bad.py and honest.py name them"
        )
    started = time.monotonic()
    with workplace(args.keep) as folder:
        outcomes = judge_all(patches, not args.static, folder, lambda text: print(text, file=sys.stderr, flush=True))
    counts = matrix(outcomes, not args.static)
    if not args.only and not (args.static and args.output == str(TABLE)):
        write_text(args.output, table(outcomes, counts, not args.static))
    return report(outcomes, counts, time.monotonic() - started)


def report(outcomes: list[Outcome], counts: dict[str, int], seconds: float) -> int:
    """Print the confusion matrix and what went wrong; the exit code."""
    print(f"{'':8}{'guard':>8}{'run':>8}{'passed':>8}")
    print(f"{'bad':8}{counts['bad_guard']:>8}{counts['bad_run']:>8}{counts['bad_passed']:>8}")
    honest = [o for o in outcomes if o.patch.pattern == "honest"]
    guarded = sum(o.stopped == "guard" for o in honest)
    print(f"{'honest':8}{guarded:>8}{counts['honest_stopped'] - guarded:>8}{counts['honest_passed']:>8}")
    if counts["bad_not_run"]:
        print(f"{counts['bad_not_run']} bad patches need a run and were not run")
    wrong = [o for o in outcomes if not o.expected and not (counts["bad_not_run"] and not o.stopped and o.patch.checks)]
    for outcome in wrong:
        wanted = ", ".join(sorted(outcome.patch.rules | outcome.patch.checks)) or "nothing"
        what = f"{outcome.stopped or 'nothing'} {outcome.rules} ({outcome.detail})"
        what += f", past the guard by {outcome.past_guard or 'nothing'}" if outcome.past_guard is not None else ""
        print(f"WRONG {outcome.name}: stopped by {what}; expected {wanted}")
    print(f"{len(outcomes)} patches in {seconds:.0f} s: {'ok' if not wrong else f'{len(wrong)} wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    run(main)
