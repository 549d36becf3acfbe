"""One profiled run, its trace as Parquet, and the views over it.

Inputs: spec, source, env. Outputs: trace/run.json, trace/events/*.parquet, trace/views/*.parquet.
"""


rule profile:
    """One run under the profiler, in a window of steps; never a timed one."""
    input:
        spec=spec_part("profile"),
        source=W + "/source.json",
        env=W + "/env.json",
        code=code("trace.profile"),
    output:
        run=W + "/trace/run.json",
        modules=W + "/trace/modules.json",
    log:
        LOGS + "/profile.log",
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.trace.profile --spec {input.spec} --source {input.source} --env {input.env}"
        " -o {output.run} > {log} 2>&1"


rule parse:
    """The raw traces as Parquet tables by event class."""
    input:
        run=W + "/trace/run.json",
        code=code("trace.parse"),
    output:
        quality=W + "/trace/quality.json",
    params:
        raw=W + "/trace/raw",
        folder=W + "/trace",
    log:
        LOGS + "/parse.log",
    shell:
        "python -m scripts.trace.parse {params.raw}/*.json.gz -o {params.folder} > {log} 2>&1"


rule summarise:
    """The views: where the time went."""
    input:
        quality=W + "/trace/quality.json",
        code=code("trace.summarise"),
    output:
        views=W + "/trace/views/views.json",
    params:
        events=W + "/trace/events",
        views=W + "/trace/views",
    log:
        LOGS + "/summarise.log",
    shell:
        "python -m scripts.trace.summarise {params.events} -o {params.views} > {log} 2>&1"
