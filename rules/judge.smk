"""From a patch to a verdict: guard, checked runs, parity, screen, race, stack, attribution, and the final race.

Inputs: a round's patches. Outputs: guard.json, parity.json, verdict.json for each candidate; screen, race and stack for each
round; attribution and final/ for each proposer. A refused candidate has all its files, and they say so.
"""


def checked_candidate(wildcards):
    """A candidate's checked runs, the visible seed first."""
    return [
        f"{C}/checked/{seed}/run.json".format(**wildcards)
        for seed in checked_seeds(wildcards.workload)
    ]


def checked_final(wildcards):
    """The composed patch's checked runs, the visible seed first."""
    return [
        f"{FINAL}/checked/{seed}/run.json".format(**wildcards)
        for seed in checked_seeds(wildcards.workload)
    ]


def of_round(name):
    """An input function: the file `name` of every candidate of the round."""

    def files(wildcards):
        return [
            f"{ROUND}/c{candidate}/{name}".format(**wildcards)
            for candidate in candidates(wildcards.workload)
        ]

    return files


def folders_of_round(wildcards):
    """The candidates' folders of a round."""
    return [
        f"{ROUND}/c{candidate}".format(**wildcards)
        for candidate in candidates(wildcards.workload)
    ]


def last_stack(wildcards):
    """The stack of the last round."""
    last = last_round(wildcards.workload)
    return f"{W}/{{proposer}}/r{last}/stack.json".format(**wildcards)


def option(flag):
    """A params function: `flag path` where there is an earlier stack, nothing in the first round."""

    def words(wildcards):
        stack = earlier_stack(wildcards)
        return f"{flag} {stack}" if stack else ""

    return words


FINAL = W + "/{proposer}/final"


rule guard:
    """Refuse a patch before anything of it runs."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        stack=earlier_stack,
        patch=C + "/patch.diff",
        code=code("judge.guard"),
    output:
        C + "/guard.json",
    log:
        LOGS + "/{proposer}/r{round}/c{candidate}/guard.log",
    params:
        stack=option("--stack"),
    shell:
        "python -m scripts.judge.guard --spec {input.spec} --source {input.source} {params.stack}"
        " --patch {input.patch} -o {output} > {log} 2>&1"


rule candidate_run:
    """One checked run of a patched job; whatever it does is a result."""
    input:
        spec=spec_part("judge"),
        env=W + "/env.json",
        guard=C + "/guard.json",
        code=code("judge.candidate_run"),
    output:
        C + "/checked/{seed}/run.json",
    log:
        LOGS + "/{proposer}/r{round}/c{candidate}/checked-{seed}.log",
    threads: lambda wildcards: SPECS[wildcards.workload]["resources"]["cpus"]
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.judge.candidate_run --spec {input.spec} --env {input.env} --guard {input.guard}"
        " --seed {wildcards.seed} -o {output} > {log} 2>&1"


rule compare:
    """Does the patched job compute the same, on the visible and the held-out seeds?"""
    input:
        spec=spec_part("judge"),
        noise=W + "/noise.json",
        guard=C + "/guard.json",
        baseline=checked_baseline,
        candidate=checked_candidate,
        code=code("judge.compare"),
    output:
        C + "/parity.json",
    log:
        LOGS + "/{proposer}/r{round}/c{candidate}/compare.log",
    shell:
        "python -m scripts.judge.compare --spec {input.spec} --noise {input.noise} --guard {input.guard}"
        " --baseline {input.baseline} --candidate {input.candidate} -o {output} > {log} 2>&1"


rule screen:
    """A few pairs of every fit candidate of a round, to choose which are confirmed; never quoted."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        env=W + "/env.json",
        stack=earlier_stack,
        aa=W + "/timing/aa.json",
        guard=of_round("guard.json"),
        parity=of_round("parity.json"),
        code=code("judge.screen"),
    output:
        document=ROUND + "/screen.json",
        table=ROUND + "/screen.parquet",
    log:
        LOGS + "/{proposer}/r{round}/screen.log",
    threads: ALL_CORES
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    params:
        stack=option("--stack"),
        candidates=folders_of_round,
    shell:
        "python -m scripts.judge.screen --spec {input.spec} --source {input.source} --env {input.env} {params.stack}"
        " --candidates {params.candidates} -o {output.document} > {log} 2>&1"


rule race:
    """The finalists of a round against its stack: fresh pairs, planned looks."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        env=W + "/env.json",
        screen=ROUND + "/screen.json",
        code=code("judge.race"),
    output:
        document=ROUND + "/race.json",
        table=ROUND + "/race.parquet",
    log:
        LOGS + "/{proposer}/r{round}/race.log",
    threads: ALL_CORES
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.judge.race --spec {input.spec} --source {input.source} --env {input.env}"
        " --screen {input.screen} -o {output.document} > {log} 2>&1"


rule verdict:
    """The verdict on a candidate, from measured files only."""
    input:
        spec=spec_part("judge"),
        guard=C + "/guard.json",
        parity=C + "/parity.json",
        screen=ROUND + "/screen.json",
        race=ROUND + "/race.json",
        aa=W + "/timing/aa.json",
        code=code("judge.verdict"),
    output:
        C + "/verdict.json",
    log:
        LOGS + "/{proposer}/r{round}/c{candidate}/verdict.log",
    shell:
        "python -m scripts.judge.verdict --spec {input.spec} --guard {input.guard} --parity {input.parity}"
        " --screen {input.screen} --race {input.race} --aa {input.aa} --arm c{wildcards.candidate}"
        " -o {output} > {log} 2>&1"


rule stack:
    """The confirmed candidates of a round, on top of those before."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        stack=earlier_stack,
        verdicts=of_round("verdict.json"),
        proposals=of_round("proposal.json"),
        patches=of_round("patch.diff"),
        code=code("judge.stack"),
    output:
        document=ROUND + "/stack.json",
        patch=ROUND + "/stack.diff",
    log:
        LOGS + "/{proposer}/r{round}/stack.log",
    params:
        below=option("--below"),
        candidates=folders_of_round,
    shell:
        "python -m scripts.judge.stack --spec {input.spec} --source {input.source} {params.below}"
        " --proposer {wildcards.proposer} --round {wildcards.round} --candidates {params.candidates}"
        " -o {output.document} > {log} 2>&1"


rule attribution:
    """What each accepted change is worth, alone and left out; the composed patch and its series of commits."""
    input:
        spec=spec_part("judge"),
        env=W + "/env.json",
        stack=last_stack,
        code=code("judge.attribution"),
    output:
        document=W + "/{proposer}/attribution.json",
        table=W + "/{proposer}/attribution.parquet",
        patch=FINAL + "/patch.diff",
    log:
        LOGS + "/{proposer}/attribution.log",
    threads: ALL_CORES
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.judge.attribution --spec {input.spec} --env {input.env} --stack {input.stack}"
        " --patch {output.patch} -o {output.document} > {log} 2>&1"


rule final_guard:
    """The guard, on the composed patch against the untouched source."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        patch=FINAL + "/patch.diff",
        code=code("judge.guard"),
    output:
        FINAL + "/guard.json",
    log:
        LOGS + "/{proposer}/final-guard.log",
    shell:
        "python -m scripts.judge.guard --spec {input.spec} --source {input.source} --patch {input.patch}"
        " -o {output} > {log} 2>&1"


rule final_run:
    """One checked run with the composed patch."""
    input:
        spec=spec_part("judge"),
        env=W + "/env.json",
        guard=FINAL + "/guard.json",
        code=code("judge.candidate_run"),
    output:
        FINAL + "/checked/{seed}/run.json",
    log:
        LOGS + "/{proposer}/final-checked-{seed}.log",
    threads: lambda wildcards: SPECS[wildcards.workload]["resources"]["cpus"]
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.judge.candidate_run --spec {input.spec} --env {input.env} --guard {input.guard}"
        " --seed {wildcards.seed} -o {output} > {log} 2>&1"


rule final_compare:
    """Parity of the composed patch with the untouched job."""
    input:
        spec=spec_part("judge"),
        noise=W + "/noise.json",
        guard=FINAL + "/guard.json",
        baseline=checked_baseline,
        candidate=checked_final,
        code=code("judge.compare"),
    output:
        FINAL + "/parity.json",
    log:
        LOGS + "/{proposer}/final-compare.log",
    shell:
        "python -m scripts.judge.compare --spec {input.spec} --noise {input.noise} --guard {input.guard}"
        " --baseline {input.baseline} --candidate {input.candidate} -o {output} > {log} 2>&1"


rule final_race:
    """The composed patch against the untouched job, fresh: the only times that a table quotes."""
    input:
        spec=spec_part("judge"),
        source=W + "/source.json",
        env=W + "/env.json",
        guard=FINAL + "/guard.json",
        parity=FINAL + "/parity.json",
        code=code("judge.race"),
    output:
        document=FINAL + "/race.json",
        table=FINAL + "/race.parquet",
    log:
        LOGS + "/{proposer}/final-race.log",
    threads: ALL_CORES
    resources:
        gpu=lambda wildcards: SPECS[wildcards.workload]["resources"]["gpus"],
    shell:
        "python -m scripts.judge.race --spec {input.spec} --source {input.source} --env {input.env}"
        " --guard {input.guard} --parity {input.parity} -o {output.document} > {log} 2>&1"


rule final_verdict:
    """The verdict on the composed patch."""
    input:
        spec=spec_part("judge"),
        guard=FINAL + "/guard.json",
        parity=FINAL + "/parity.json",
        race=FINAL + "/race.json",
        aa=W + "/timing/aa.json",
        code=code("judge.verdict"),
    output:
        FINAL + "/verdict.json",
    log:
        LOGS + "/{proposer}/final-verdict.log",
    shell:
        "python -m scripts.judge.verdict --spec {input.spec} --guard {input.guard} --parity {input.parity}"
        " --race {input.race} --aa {input.aa} --arm final -o {output} > {log} 2>&1"
