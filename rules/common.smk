"""What the rules share: the selected workloads, paths, and small input functions."""

import gc
import inspect
import tempfile
from pathlib import Path

from snakemake.exceptions import WorkflowError

from scripts.common.device import slug as device_slug
from scripts.common.errors import InputError
from scripts.common.imports import stamp as code
from scripts.common.interpreter import prefer_own
from scripts.source import spec as specs

prefer_own()

# Planning makes millions of small objects that live on: collecting among them again and again is 8 % of a plan of 1,000 experiments.
gc.set_threshold(2_000_000, 50, 50)

try:
    CONFIG = specs.validated_config(config)
    SPECS = specs.select(CONFIG)
except InputError as error:
    raise WorkflowError(str(error)) from None

DEVICE = device_slug(CONFIG["device"])
WORKLOADS = sorted(SPECS)
W = "results/{device}/{workload}"
ROUND = f"{W}/{{proposer}}/r{{round}}"
C = f"{ROUND}/c{{candidate}}"
FINAL = f"{W}/{{proposer}}/final"


wildcard_constraints:
    device=r"[a-z0-9_]+",
    workload=r"[a-z][a-z0-9_]*(-[a-z0-9_]+)?",
    proposer=r"[a-z0-9_]+",
    round=r"\d+",
    candidate=r"\d+",
    seed=r"\d+",
    run=r"seed\d+-(repeat|ulp)\d+",
    part=r"[a-z]+",


def planned(function):
    """Marks an input or params function of the wildcards alone.

    For every job Snakemake asks for the signature and for the value, each several times: looked up once, here.
    """
    known = {}

    def remembered(wildcards):
        key = tuple(wildcards)
        if key not in known:
            known[key] = function(wildcards)
        value = known[key]
        return list(value) if isinstance(value, list) else value

    remembered.__name__ = remembered.__qualname__ = function.__name__
    remembered.__signature__ = inspect.signature(function)
    return remembered


def spec_part(name):
    """Path of the part of the specification that the rules of a group read."""
    return f"{W}/spec/{name}.json"


def per_workload(path):
    """A path under every selected workload's folder."""
    return [f"results/{DEVICE}/{workload}/{path}" for workload in WORKLOADS]


def proposers(workload):
    """`{folder name: proposer}` of a workload."""
    return {specs.slug(name): name for name in SPECS[workload]["proposers"]}


def baseline_runs(workload):
    """Names of the checked baseline runs: repeats, perturbed ones, and one for each held-out seed."""
    parity = SPECS[workload]["parity"]
    seed = parity["seed"]
    visible = [f"seed{seed}-repeat{i}" for i in range(parity["repeats"])]
    visible += [f"seed{seed}-ulp{i}" for i in range(parity["perturbed"])]
    others = [f"seed{other}-repeat0" for other in parity["held_out_seeds"]]
    return visible + others


def checked_seeds(workload):
    """Seeds on which candidates are checked, the visible one first."""
    parity = SPECS[workload]["parity"]
    return [parity["seed"], *parity["held_out_seeds"]]


def needs(resource):
    """What a job of the workload takes of a resource: a number where all selected workloads agree, else a function.

    Snakemake calls a function several times for each job.
    """
    values = {SPECS[workload]["resources"][resource] for workload in WORKLOADS}
    if len(values) == 1:
        return values.pop()
    return planned(lambda wildcards: SPECS[wildcards.workload]["resources"][resource])


def candidates(workload):
    """Numbers of the candidates of a round."""
    return range(SPECS[workload]["candidates"])


def rounds(workload):
    """Numbers of the rounds."""
    return range(SPECS[workload]["rounds"])


def last_round(workload):
    """Number of the last round."""
    return SPECS[workload]["rounds"] - 1


@planned
def earlier_stack(wildcards):
    """The stack of the round before, nothing for the first round."""
    if int(wildcards.round) == 0:
        return []
    return f"{W}/{{proposer}}/r{int(wildcards.round) - 1}/stack.json".format(
        **wildcards
    )


@planned
def rounds_before(wildcards):
    """Folders of the rounds before, whose verdicts are read as history.

    The stack of the round before is the input that stands for them: an edge to each verdict would make the graph quadratic.
    """
    return [
        f"{W}/{{proposer}}/r{earlier}".format(**wildcards)
        for earlier in range(int(wildcards.round))
    ]


def final_verdicts():
    """The verdict on every composed patch."""
    return [
        f"results/{DEVICE}/{workload}/{proposer}/final/verdict.json"
        for workload in WORKLOADS
        for proposer in proposers(workload)
    ]


def table(name, suffix):
    """Path of a table of this device."""
    return f"results/{DEVICE}/tables/{name}.{suffix}"


@planned
def checked_baseline(wildcards):
    """The baseline's checked runs."""
    return [
        f"{W}/baseline/checked/{run}/run.json".format(**wildcards)
        for run in baseline_runs(wildcards.workload)
    ]


@planned
def checked_once(wildcards):
    """One checked run of the baseline: its ledger has counted the tokens."""
    return checked_baseline(wildcards)[0]


@planned
def checked_candidate(wildcards):
    """A candidate's checked runs, the visible seed first."""
    return [
        f"{C}/checked/{seed}/run.json".format(**wildcards)
        for seed in checked_seeds(wildcards.workload)
    ]


@planned
def checked_final(wildcards):
    """The composed patch's checked runs, the visible seed first."""
    return [
        f"{FINAL}/checked/{seed}/run.json".format(**wildcards)
        for seed in checked_seeds(wildcards.workload)
    ]


def of_round(name):
    """An input function: the file `name` of every candidate of the round."""

    @planned
    def files(wildcards):
        return [
            f"{ROUND}/c{candidate}/{name}".format(**wildcards)
            for candidate in candidates(wildcards.workload)
        ]

    return files


@planned
def folders_of_round(wildcards):
    """The candidates' folders of a round."""
    return [
        f"{ROUND}/c{candidate}".format(**wildcards)
        for candidate in candidates(wildcards.workload)
    ]


@planned
def last_stack(wildcards):
    """The stack of the last round."""
    last = last_round(wildcards.workload)
    return f"{W}/{{proposer}}/r{last}/stack.json".format(**wildcards)


@planned
def only_race(wildcards):
    """The race of the only round; nothing where there are more, whose changes were not all raced in one session."""
    only = SPECS[wildcards.workload]["rounds"] == 1
    return f"{W}/{{proposer}}/r0/race.json".format(**wildcards) if only else []


@planned
def compose(wildcards):
    """The race of the only round also runs what its finalists are together."""
    return "--compose" if SPECS[wildcards.workload]["rounds"] == 1 else ""


def option(flag):
    """A params function: `flag path` where there is an earlier stack, nothing in the first round."""

    @planned
    def words(wildcards):
        stack = earlier_stack(wildcards)
        return f"{flag} {stack}" if stack else ""

    return words


@planned
def proposer_of(wildcards):
    """The proposer behind a folder's name."""
    return proposers(wildcards.workload)[wildcards.proposer]


@planned
def brief_of(wildcards):
    """The brief of the round; the first round has that of the workload."""
    folder = W if int(wildcards.round) == 0 else ROUND
    return f"{folder}/brief.md"


@planned
def given_files(wildcards):
    """The patches of `file:PATH` and the answers of `replay:DIR`, whose content decides what is proposed."""
    kind, _, place = proposers(wildcards.workload)[wildcards.proposer].partition(":")
    place = Path(place)
    if kind == "file" and place.is_file():
        return [str(place)]
    patterns = {"file": ["*.diff", "*.patch"], "replay": ["*.json"]}.get(kind, [])
    return sorted(str(path) for pattern in patterns for path in place.glob(pattern))


def experiments():
    """`workload/proposer` of everything selected."""
    return [
        f"{workload}/{name}" for workload in WORKLOADS for name in proposers(workload)
    ]


def candidate_files(name):
    """One file of every candidate of every experiment."""
    return [
        f"results/{DEVICE}/{workload}/{proposer}/r{round}/c{candidate}/{name}"
        for workload in WORKLOADS
        for proposer in proposers(workload)
        for round in rounds(workload)
        for candidate in candidates(workload)
    ]


# Read from folders, so that adding a file reruns what shows it.
TEMPLATES = sorted(str(p) for p in Path("scripts/diagnose/templates").glob("*.j2"))
PROMPTS = sorted(str(p) for p in Path("scripts/propose/prompts").glob("*.j2"))
FIXES = sorted(str(p) for p in Path("scripts/propose/playbook").glob("*.py"))

# Snakemake's own default, looked up once: of a default it asks for the signature four times for each job. For rules that
# run no job; those that do have the temporary folder of the machine that they run on.
TMPDIR = tempfile.gettempdir()

# A timed rule takes every core, so that nothing else of this run shares the machine with it.
ALL_CORES = workflow.cores or 1
