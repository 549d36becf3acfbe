"""What every rule file uses: the selected workloads, paths, and small input functions."""

import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from scripts.common.device import slug as device_slug
from scripts.common.errors import InputError
from scripts.common.imports import stamp as code
from scripts.source import spec as specs


# `python` in a rule is the interpreter that runs Snakemake, whether its environment was activated or not.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

try:
    CONFIG = specs.validated_config(config)
    SPECS = specs.select(CONFIG)
except InputError as error:
    raise WorkflowError(str(error)) from None

DEVICE = device_slug(CONFIG["device"])
WORKLOADS = sorted(SPECS)
W = "results/{device}/{workload}"
ROUND = W + "/{proposer}/r{round}"
C = ROUND + "/c{candidate}"
LOGS = "logs/{device}/{workload}"


wildcard_constraints:
    device=r"[a-z0-9_]+",
    workload=r"[a-z][a-z0-9_]*(-[a-z0-9_]+)?",
    proposer=r"[a-z0-9_]+",
    round=r"\d+",
    candidate=r"\d+",
    seed=r"\d+",
    run=r"seed\d+-(repeat|ulp)\d+",
    part=r"[a-z]+",


def spec_part(name):
    """Path of the part of the specification that a group of rules reads."""
    return f"{W}/spec/{name}.json"


def per_workload(path):
    """A path under every selected workload's folder."""
    return [f"results/{DEVICE}/{workload}/{path}" for workload in WORKLOADS]


def proposers(workload):
    """`{folder name: proposer}` of a workload."""
    return {specs.slug(name): name for name in SPECS[workload]["proposers"]}


def baseline_runs(workload, held_out=True):
    """Names of the checked baseline runs: repeats, perturbed ones, and one for each held-out seed."""
    parity = SPECS[workload]["parity"]
    seed = parity["seed"]
    visible = [f"seed{seed}-repeat{i}" for i in range(parity["repeats"])]
    visible += [f"seed{seed}-ulp{i}" for i in range(parity["perturbed"])]
    others = [f"seed{other}-repeat0" for other in parity["held_out_seeds"]]
    return visible + (others if held_out else [])


def checked_seeds(workload):
    """Seeds on which candidates are checked, the visible one first."""
    parity = SPECS[workload]["parity"]
    return [parity["seed"], *parity["held_out_seeds"]]


def candidates(workload):
    """Numbers of the candidates of a round."""
    return range(SPECS[workload]["candidates"])


def rounds(workload):
    """Numbers of the rounds."""
    return range(SPECS[workload]["rounds"])


def last_round(workload):
    """Number of the last round."""
    return SPECS[workload]["rounds"] - 1


def earlier_stack(wildcards):
    """The stack of the round before, nothing for the first round."""
    if int(wildcards.round) == 0:
        return []
    return f"{W}/{{proposer}}/r{int(wildcards.round) - 1}/stack.json".format(**wildcards)


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


# A timed rule takes every core, so that nothing else of this run shares the machine with it.
ALL_CORES = workflow.cores or 1
