"""What the job does, where its time goes, and what that is worth, without any model.

Inputs: the profiled run with its events and views, the source, the timed baseline. Outputs: structure.json, findings.json, brief.md.
"""


rule structure:
    """What is computed, when and where, and which places of the source take part."""
    input:
        run="results/{device}/{workload}/trace/run.json",
        modules="results/{device}/{workload}/trace/modules.json",
        quality="results/{device}/{workload}/trace/quality.json",
        views="results/{device}/{workload}/trace/views/views.json",
        source="results/{device}/{workload}/source.json",
        code=code("diagnose.structure"),
    output:
        "results/{device}/{workload}/structure.json",
    log:
        "logs/{device}/{workload}/structure.log",
    params:
        run=subpath(input.run, parent=True),
    shell:
        "python -m scripts.diagnose.structure --run {params.run} --source {input.source} -o {output} 2> {log}"


rule findings:
    """Losses of time with evidence, places in the source and ceilings, ranked."""
    input:
        spec=spec_part("propose"),
        structure="results/{device}/{workload}/structure.json",
        quality="results/{device}/{workload}/trace/quality.json",
        views="results/{device}/{workload}/trace/views/views.json",
        aa="results/{device}/{workload}/timing/aa.json",
        env="results/{device}/{workload}/env.json",
        checked=checked_once,
        code=code("diagnose.findings", FIXES),
    output:
        "results/{device}/{workload}/findings.json",
    log:
        "logs/{device}/{workload}/findings.log",
    params:
        events="results/{device}/{workload}/trace/events",
        views=subpath(input.views, parent=True),
    shell:
        "python -m scripts.diagnose.findings --spec {input.spec} --structure {input.structure} --views {params.views}"
        " --events {params.events} --runs {input.aa} --environment {input.env}"
        " --checked {input.checked} -o {output} 2> {log}"


rule brief:
    """What a proposer, or a person, reads about the job."""
    input:
        spec=spec_part("propose"),
        structure="results/{device}/{workload}/structure.json",
        findings="results/{device}/{workload}/findings.json",
        source="results/{device}/{workload}/source.json",
        views="results/{device}/{workload}/trace/views/views.json",
        code=code("diagnose.brief", TEMPLATES),
    output:
        "results/{device}/{workload}/brief.md",
    log:
        "logs/{device}/{workload}/brief.log",
    params:
        views=subpath(input.views, parent=True),
    shell:
        "python -m scripts.diagnose.brief --spec {input.spec} --structure {input.structure} --findings {input.findings}"
        " --source {input.source} --views {params.views} -o {output} 2> {log}"


rule round_brief:
    """The brief of a round: the same job, and what the rounds before tried."""
    input:
        spec=spec_part("propose"),
        structure="results/{device}/{workload}/structure.json",
        findings="results/{device}/{workload}/findings.json",
        source="results/{device}/{workload}/source.json",
        views="results/{device}/{workload}/trace/views/views.json",
        stack=earlier_stack,
        code=code("diagnose.brief", TEMPLATES),
    output:
        "results/{device}/{workload}/{proposer}/r{round}/brief.md",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/brief.log",
    params:
        views=subpath(input.views, parent=True),
        history=rounds_before,
    shell:
        "python -m scripts.diagnose.brief --spec {input.spec} --structure {input.structure} --findings {input.findings}"
        " --source {input.source} --views {params.views} --history {params.history} -o {output} 2> {log}"
