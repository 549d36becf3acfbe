"""What the job does, where its time goes, and what that is worth, without any model.

Inputs: the profiled run with its events and views, the source, the timed baseline. Outputs: structure.json, findings.json, brief.md.
"""

from pathlib import Path as _Path




# The brief's words and the names of the known fixes are read from folders, so that adding a file reruns what shows them.
TEMPLATES = sorted(str(path) for path in _Path("scripts/diagnose/templates").glob("*.j2"))
FIXES = sorted(str(path) for path in _Path("scripts/propose/playbook").glob("*.py"))


rule structure:
    """What is computed, when and where, and which places of the source take part."""
    input:
        run=W + "/trace/run.json",
        modules=W + "/trace/modules.json",
        quality=W + "/trace/quality.json",
        views=W + "/trace/views/views.json",
        source=W + "/source.json",
        code=code("diagnose.structure"),
    output:
        W + "/structure.json",
    params:
        run=W + "/trace",
    log:
        LOGS + "/structure.log",
    shell:
        "python -m scripts.diagnose.structure --run {params.run} --source {input.source} -o {output} 2> {log}"


rule findings:
    """Losses of time with evidence, places in the source and ceilings, ranked."""
    input:
        spec=spec_part("propose"),
        structure=W + "/structure.json",
        quality=W + "/trace/quality.json",
        views=W + "/trace/views/views.json",
        aa=W + "/timing/aa.json",
        fixes=FIXES,
        code=code("diagnose.findings"),
    output:
        W + "/findings.json",
    params:
        events=W + "/trace/events",
        views=W + "/trace/views",
    log:
        LOGS + "/findings.log",
    shell:
        "python -m scripts.diagnose.findings --spec {input.spec} --structure {input.structure} --views {params.views}"
        " --events {params.events} --runs {input.aa} -o {output} 2> {log}"


rule brief:
    """What a proposer, or a person, reads about the job."""
    input:
        spec=spec_part("propose"),
        structure=W + "/structure.json",
        findings=W + "/findings.json",
        source=W + "/source.json",
        views=W + "/trace/views/views.json",
        templates=TEMPLATES,
        code=code("diagnose.brief"),
    output:
        W + "/brief.md",
    params:
        views=W + "/trace/views",
    log:
        LOGS + "/brief.log",
    shell:
        "python -m scripts.diagnose.brief --spec {input.spec} --structure {input.structure} --findings {input.findings}"
        " --source {input.source} --views {params.views} -o {output} 2> {log}"


rule round_brief:
    """The brief of a round: the same job, and what the rounds before tried."""
    input:
        spec=spec_part("propose"),
        structure=W + "/structure.json",
        findings=W + "/findings.json",
        source=W + "/source.json",
        views=W + "/trace/views/views.json",
        stack=earlier_stack,
        templates=TEMPLATES,
        code=code("diagnose.brief"),
    output:
        ROUND + "/brief.md",
    params:
        views=W + "/trace/views",
        history=rounds_before,
    log:
        LOGS + "/{proposer}/r{round}/brief.log",
    shell:
        "python -m scripts.diagnose.brief --spec {input.spec} --structure {input.structure} --findings {input.findings}"
        " --source {input.source} --views {params.views} --history {params.history} -o {output} 2> {log}"
