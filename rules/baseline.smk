"""The unmodified job: what it computes, how far that moves on its own, and how long it takes against itself.

Inputs: spec, source, env. Outputs: baseline/checked/*/run.json, noise.json, timing/aa.json.
"""


rule baseline_run:
    """One checked run of the unmodified job, its weights nudged in the last place where the run's name says ulp."""
    input:
        spec=spec_part("job"),
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        code=code("baseline.baseline_run"),
    output:
        "results/{device}/{workload}/baseline/checked/{run}/run.json",
    log:
        "logs/{device}/{workload}/baseline_run-{run}.log",
    threads: needs("cpus")
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.baseline.baseline_run --spec {input.spec} --source {input.source} --env {input.env}"
        " -o {output} > {log} 2>&1"


rule noise:
    """How far recorded values move without any change, and whether they follow the seed."""
    input:
        spec=spec_part("job"),
        runs=checked_baseline,
        code=code("baseline.noise"),
    output:
        "results/{device}/{workload}/noise.json",
    log:
        "logs/{device}/{workload}/noise.log",
    shell:
        "python -m scripts.baseline.noise --spec {input.spec} {input.runs} -o {output} > {log} 2>&1"


rule aa:
    """The job against itself: the noise of its time. Takes the whole machine."""
    input:
        spec=spec_part("aa"),
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        code=code("baseline.aa"),
    output:
        document="results/{device}/{workload}/timing/aa.json",
        table="results/{device}/{workload}/timing/aa.parquet",
    log:
        "logs/{device}/{workload}/aa.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.baseline.aa --spec {input.spec} --source {input.source} --env {input.env}"
        " -o {output.document} > {log} 2>&1"
