"""wholejob: make whole AI jobs faster, and prove it.

snakemake                                    the default workload
snakemake --config workload=ultralytics      another one
snakemake baseline | diagnose | tables       part of the chain
"""

import os

from snakemake.utils import min_version

min_version("9.20")


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/source.smk"
include: "rules/baseline.smk"
include: "rules/trace.smk"
include: "rules/diagnose.smk"
include: "rules/propose.smk"
include: "rules/judge.smk"
include: "rules/report.smk"


localrules:
    all,
    baseline,
    diagnose,
    tables,
    clean_workload,
    spec,


rule all:
    """Optimise: every verdict, and the tables."""
    default_target: True
    input:
        table("speedups", "txt"),
        final_verdicts(),


rule baseline:
    """Noise of the unmodified job: recorded values and time."""
    input:
        per_workload("noise.json"),
        per_workload("timing/aa.json"),


rule diagnose:
    """Where the time goes, and what that is worth."""
    input:
        per_workload("brief.md"),
        per_workload("findings.json"),


rule clean_workload:
    """Remove the results and logs of the selected workloads on this device."""
    log:
        f"logs/{DEVICE}/clean_workload.log",
    params:
        workloads=WORKLOADS,
        device=DEVICE,
    shell:
        "for workload in {params.workloads}; do"
        " python -m scripts.common.clean --device {params.device} --workload $workload; done > {log} 2>&1"


onsuccess:
    # `make demo` prints the tables itself, also where nothing was left to do.
    if (
        "WHOLEJOB_NO_TABLES" not in os.environ
        and Path(table("speedups", "txt")).is_file()
        and not workflow.dryrun
    ):
        shell(f"python -m scripts.report.show results/{DEVICE}/tables")


onerror:
    shell("python -m scripts.report.failures {log}")
