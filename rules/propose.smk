"""Brief, source and history in; one patch a candidate out.

A checkpoint by keyword only, never read with `.get()`: an edit of the comparer then proposes again from the tape and repeats
no measurement.
"""


checkpoint propose:
    """One candidate of one proposer."""
    input:
        brief=brief_of,
        spec=spec_part("propose"),
        source="results/{device}/{workload}/source.json",
        findings="results/{device}/{workload}/findings.json",
        stack=earlier_stack,
        given=given_files,
        code=code("propose.propose", PROMPTS),
    output:
        proposal="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/proposal.json",
        patch="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/patch.diff",
        transcript="results/{device}/{workload}/{proposer}/r{round}/c{candidate}/transcript.jsonl",
    log:
        "logs/{device}/{workload}/{proposer}/r{round}/c{candidate}/propose.log",
    resources:
        tmpdir=TMPDIR,
        llm=1,
    params:
        proposer=proposer_of,
        stack=option("--stack"),
        history=rounds_before,
        folder=subpath(output.proposal, parent=True),
        trace="results/{device}/{workload}/trace",
    shell:
        "python -m scripts.propose.propose --spec {input.spec} --source {input.source}"
        " --findings {input.findings} --brief {input.brief} {params.stack}"
        " --history {params.history} --trace {params.trace} --proposer {params.proposer:q}"
        " --round {wildcards.round} --candidate {wildcards.candidate} -o {params.folder} > {log} 2>&1"
