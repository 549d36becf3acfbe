"""One profiled run, its trace as Parquet, and the views over it.

Inputs: spec, source, env. Outputs: trace/run.json, trace/events/*.parquet, trace/views/*.parquet.
"""


rule profile:
    """One run under the profiler, in a window of steps; never a timed one."""
    input:
        spec=spec_part("profile"),
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        code=code("trace.profile"),
    output:
        run="results/{device}/{workload}/trace/run.json",
        modules="results/{device}/{workload}/trace/modules.json",
    log:
        "logs/{device}/{workload}/profile.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.trace.profile --spec {input.spec} --source {input.source} --env {input.env}"
        " -o {output.run} > {log} 2>&1"


rule parse:
    """The raw traces as Parquet tables by event class."""
    input:
        run="results/{device}/{workload}/trace/run.json",
        code=code("trace.parse"),
    output:
        quality="results/{device}/{workload}/trace/quality.json",
    log:
        "logs/{device}/{workload}/parse.log",
    params:
        raw="results/{device}/{workload}/trace/raw",
        folder=subpath(output.quality, parent=True),
    shell:
        "python -m scripts.trace.parse {params.raw}/*.json.gz -o {params.folder} > {log} 2>&1"


rule summarise:
    """The views: where the time went."""
    input:
        quality="results/{device}/{workload}/trace/quality.json",
        code=code("trace.summarise"),
    output:
        views="results/{device}/{workload}/trace/views/views.json",
    log:
        "logs/{device}/{workload}/summarise.log",
    params:
        events="results/{device}/{workload}/trace/events",
        views=subpath(output.views, parent=True),
    shell:
        "python -m scripts.trace.summarise {params.events} -o {params.views} > {log} 2>&1"
