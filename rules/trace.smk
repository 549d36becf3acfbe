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
        " -o {output.run} 2> {log}"


rule parse:
    """The raw traces as Parquet tables by event class."""
    input:
        run=W + "/trace/run.json",
        code=code("trace.parse"),
    output:
        quality=W + "/trace/events/quality.json",
    params:
        raw=W + "/trace/raw",
        events=W + "/trace/events",
    log:
        LOGS + "/parse.log",
    shell:
        "python -m scripts.trace.parse {params.raw}/*.json.gz -o {params.events} 2> {log}"


rule summarise:
    """The views: where the time went."""
    input:
        quality=W + "/trace/events/quality.json",
        code=code("trace.summarise"),
    output:
        views=W + "/trace/views/views.json",
    params:
        events=W + "/trace/events",
        views=W + "/trace/views",
    log:
        LOGS + "/summarise.log",
    shell:
        "python -m scripts.trace.summarise {params.events} -o {params.views} 2> {log}"
