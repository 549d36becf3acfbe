"""From a patch to a verdict: guard, checked runs, parity, screen, race, stack, attribution, and the final race.

Inputs: a round's patches. Outputs: guard.json, parity.json, verdict.json for each candidate; screen, race and stack for each
round; attribution and final/ for each proposer. A refused candidate has all its files, and they say so.
"""


rule guard:
    """Refuse a patch before anything of it runs."""
    input:
        spec=spec_part("judge"),
        source="results/{device}/{workload}/source.json",
        stack=earlier_stack,
        patch="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/patch.diff",
        code=code("judge.guard"),
    output:
        "results/{device}/{workload}/{proposer}/r{round}/c{candidate}/guard.json",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/c{candidate}/guard.log",
    resources:
        tmpdir=TMPDIR,
    params:
        stack=option("--stack"),
    shell:
        "python -m scripts.judge.guard --spec {input.spec} --source {input.source} {params.stack}"
        " --patch {input.patch} -o {output} > {log} 2>&1"


rule candidate_run:
    """One checked run of a patched job; whatever it does is a result."""
    input:
        spec=spec_part("judge"),
        env="results/{device}/{workload}/env.json",
        guard="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/guard.json",
        code=code("judge.candidate_run"),
    output:
        "results/{device}/{workload}/{proposer}/r{round}/c{candidate}/checked/{seed}/run.json",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/c{candidate}/checked-{seed}.log",
    threads: needs("cpus")
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.judge.candidate_run --spec {input.spec} --env {input.env} --guard {input.guard}"
        " --seed {wildcards.seed} -o {output} > {log} 2>&1"


rule compare:
    """Does the patched job compute the same, on the visible and the held-out seeds?"""
    input:
        spec=spec_part("judge"),
        noise="results/{device}/{workload}/noise.json",
        guard="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/guard.json",
        candidate=checked_candidate,
        code=code("judge.compare"),
    output:
        "results/{device}/{workload}/{proposer}/r{round}/c{candidate}/parity.json",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/c{candidate}/compare.log",
    resources:
        tmpdir=TMPDIR,
    params:
        # noise.json stands for them as input: an edge to each from every candidate is a seventh of the graph.
        baseline=checked_baseline,
    shell:
        "python -m scripts.judge.compare --spec {input.spec} --noise {input.noise} --guard {input.guard}"
        " --baseline {params.baseline} --candidate {input.candidate} -o {output} > {log} 2>&1"


rule screen:
    """A few pairs of every fit candidate of a round, to choose which are confirmed; never quoted."""
    input:
        spec=spec_part("judge"),
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        stack=earlier_stack,
        aa="results/{device}/{workload}/timing/aa.json",
        guard=of_round("guard.json"),
        parity=of_round("parity.json"),
        code=code("judge.screen"),
    output:
        document="results/{device}/{workload}/{proposer}/r{round}/screen.json",
        table="results/{device}/{workload}/{proposer}/r{round}/screen.parquet",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/screen.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
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
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        screen="results/{device}/{workload}/{proposer}/r{round}/screen.json",
        code=code("judge.race"),
    output:
        document="results/{device}/{workload}/{proposer}/r{round}/race.json",
        table="results/{device}/{workload}/{proposer}/r{round}/race.parquet",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/race.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
    params:
        compose=compose,
    shell:
        "python -m scripts.judge.race --spec {input.spec} --source {input.source} --env {input.env}"
        " --screen {input.screen} {params.compose} -o {output.document} > {log} 2>&1"


rule verdict:
    """The verdict on a candidate, from measured files only."""
    input:
        spec=spec_part("judge"),
        guard="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/guard.json",
        parity="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/parity.json",
        screen="results/{device}/{workload}/{proposer}/r{round}/screen.json",
        race="results/{device}/{workload}/{proposer}/r{round}/race.json",
        aa="results/{device}/{workload}/timing/aa.json",
        code=code("judge.verdict"),
    output:
        "results/{device}/{workload}/{proposer}/r{round}/c{candidate}/verdict.json",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/c{candidate}/verdict.log",
    resources:
        tmpdir=TMPDIR,
    shell:
        "python -m scripts.judge.verdict --spec {input.spec} --guard {input.guard} --parity {input.parity}"
        " --screen {input.screen} --race {input.race} --aa {input.aa} --arm c{wildcards.candidate}"
        " -o {output} > {log} 2>&1"


rule stack:
    """The confirmed candidates of a round, on top of those before."""
    input:
        spec=spec_part("judge"),
        source="results/{device}/{workload}/source.json",
        stack=earlier_stack,
        verdicts=of_round("verdict.json"),
        proposals=of_round("proposal.json"),
        patches=of_round("patch.diff"),
        code=code("judge.stack"),
    output:
        document="results/{device}/{workload}/{proposer}/r{round}/stack.json",
        patch="results/{device}/{workload}/{proposer}/r{round}/stack.diff",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/stack.log",
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
        env="results/{device}/{workload}/env.json",
        stack=last_stack,
        race=only_race,
        code=code("judge.attribution"),
    output:
        document="results/{device}/{workload}/{proposer}/attribution.json",
        table="results/{device}/{workload}/{proposer}/attribution.parquet",
        patch="results/{device}/{workload}/{proposer}/final/patch.diff",
    log:
        "logs/{device}/{workload}/{proposer}/attribution.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
    params:
        race=lambda wildcards, input: f"--race {input.race}" if input.race else "",
    shell:
        "python -m scripts.judge.attribution --spec {input.spec} --env {input.env} --stack {input.stack} {params.race}"
        " --patch {output.patch} -o {output.document} > {log} 2>&1"


rule final_guard:
    """The guard, on the composed patch against the untouched source."""
    input:
        spec=spec_part("judge"),
        source="results/{device}/{workload}/source.json",
        patch="results/{device}/{workload}/{proposer}/final/patch.diff",
        attribution="results/{device}/{workload}/{proposer}/attribution.json",
        code=code("judge.guard"),
    output:
        "results/{device}/{workload}/{proposer}/final/guard.json",
    log:
        "logs/{device}/{workload}/{proposer}/final-guard.log",
    shell:
        "python -m scripts.judge.guard --spec {input.spec} --source {input.source} --patch {input.patch}"
        " --attribution {input.attribution} -o {output} > {log} 2>&1"


rule final_run:
    """One checked run with the composed patch."""
    input:
        spec=spec_part("judge"),
        env="results/{device}/{workload}/env.json",
        guard="results/{device}/{workload}/{proposer}/final/guard.json",
        code=code("judge.candidate_run"),
    output:
        "results/{device}/{workload}/{proposer}/final/checked/{seed}/run.json",
    log:
        "logs/{device}/{workload}/{proposer}/final-checked-{seed}.log",
    threads: needs("cpus")
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.judge.candidate_run --spec {input.spec} --env {input.env} --guard {input.guard}"
        " --seed {wildcards.seed} -o {output} > {log} 2>&1"


rule final_compare:
    """Parity of the composed patch with the untouched job."""
    input:
        spec=spec_part("judge"),
        noise="results/{device}/{workload}/noise.json",
        guard="results/{device}/{workload}/{proposer}/final/guard.json",
        baseline=checked_baseline,
        candidate=checked_final,
        code=code("judge.compare"),
    output:
        "results/{device}/{workload}/{proposer}/final/parity.json",
    log:
        "logs/{device}/{workload}/{proposer}/final-compare.log",
    shell:
        "python -m scripts.judge.compare --spec {input.spec} --noise {input.noise} --guard {input.guard}"
        " --baseline {input.baseline} --candidate {input.candidate} -o {output} > {log} 2>&1"


rule final_race:
    """The composed patch against the untouched job, fresh: the only times that a table quotes."""
    input:
        spec=spec_part("judge"),
        source="results/{device}/{workload}/source.json",
        env="results/{device}/{workload}/env.json",
        guard="results/{device}/{workload}/{proposer}/final/guard.json",
        parity="results/{device}/{workload}/{proposer}/final/parity.json",
        code=code("judge.race"),
    output:
        document="results/{device}/{workload}/{proposer}/final/race.json",
        table="results/{device}/{workload}/{proposer}/final/race.parquet",
    log:
        "logs/{device}/{workload}/{proposer}/final-race.log",
    threads: ALL_CORES
    resources:
        gpu=needs("gpus"),
    shell:
        "python -m scripts.judge.race --spec {input.spec} --source {input.source} --env {input.env}"
        " --guard {input.guard} --parity {input.parity} -o {output.document} > {log} 2>&1"


rule final_verdict:
    """The verdict on the composed patch."""
    input:
        spec=spec_part("judge"),
        guard="results/{device}/{workload}/{proposer}/final/guard.json",
        parity="results/{device}/{workload}/{proposer}/final/parity.json",
        race="results/{device}/{workload}/{proposer}/final/race.json",
        aa="results/{device}/{workload}/timing/aa.json",
        code=code("judge.verdict"),
    output:
        "results/{device}/{workload}/{proposer}/final/verdict.json",
    log:
        "logs/{device}/{workload}/{proposer}/final-verdict.log",
    shell:
        "python -m scripts.judge.verdict --spec {input.spec} --guard {input.guard} --parity {input.parity}"
        " --race {input.race} --aa {input.aa} --arm final -o {output} > {log} 2>&1"
