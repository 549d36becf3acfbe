"""Workload in; resolved specification, pristine source tree and environment out.

Inputs: workloads/<name>.yaml as the Snakefile resolved it. Outputs: spec/*.json, source.json, env.json.
"""

import json

from scripts.source.source import identity as source_identity
from scripts.source.environment import identity as environment_identity


rule spec:
    """The part of a specification that a group of rules reads."""
    input:
        code=code("source.spec"),
    output:
        "results/{device}/{workload}/spec/{part}.json",
    log:
        "logs/{device}/{workload}/spec-{part}.log",
    params:
        content=lambda wildcards: json.dumps(
            specs.part(SPECS[wildcards.workload], wildcards.part), sort_keys=True
        ),
    shell:
        "python -m scripts.source.spec {wildcards.workload} --content {params.content:q} -o {output} > {log} 2>&1"


rule source:
    """The pristine source tree, in the store under its hash."""
    input:
        spec=spec_part("source"),
        env="results/{device}/{workload}/env.json",
        code=code("source.source"),
    output:
        "results/{device}/{workload}/source.json",
    log:
        "logs/{device}/{workload}/source.log",
    params:
        # The content of a local folder; a published source is identified by its specification.
        identity=lambda wildcards: source_identity(SPECS[wildcards.workload]),
    shell:
        "python -m scripts.source.source --spec {input.spec} --env {input.env} -o {output} > {log} 2>&1"


rule environment:
    """The interpreter that the job runs in, and a lock of its packages."""
    input:
        spec=spec_part("environment"),
        code=code("source.environment"),
    output:
        "results/{device}/{workload}/env.json",
    log:
        "logs/{device}/{workload}/environment.log",
    params:
        identity=lambda wildcards: environment_identity(SPECS[wildcards.workload]),
    shell:
        "python -m scripts.source.environment --spec {input.spec} -o {output} > {log} 2>&1"
