"""Brief, source and history in; one patch a candidate out.

A checkpoint by keyword only, never read with `.get()`: an edit of the comparer then proposes again from the tape and repeats
no measurement.
"""

from glob import glob


def brief_of(wildcards):
    """The brief of the round; the first round has that of the workload."""
    return (W if int(wildcards.round) == 0 else ROUND) + "/brief.md"




def given_files(wildcards):
    """The patches of `file:PATH` and the answers of `replay:DIR`, whose content decides what is proposed."""
    kind, _, place = proposers(wildcards.workload)[wildcards.proposer].partition(":")
    if kind == "file":
        return sorted(
            path
            for pattern in (place, place + "/*.diff", place + "/*.patch")
            for path in glob(pattern)
            if not path.endswith("/") and "." in path.rsplit("/", 1)[-1]
        )
    return sorted(glob(place + "/*.json")) if kind == "replay" else []


checkpoint propose:
    """One candidate of one proposer."""
    input:
        brief=brief_of,
        spec=spec_part("propose"),
        source=W + "/source.json",
        findings=W + "/findings.json",
        stack=earlier_stack,
        given=given_files,
        prompts=sorted(glob("scripts/propose/prompts/*.j2")),
        code=code("propose.propose"),
    output:
        proposal=C + "/proposal.json",
        patch=C + "/patch.diff",
        transcript=C + "/transcript.jsonl",
    params:
        proposer=lambda wildcards: proposers(wildcards.workload)[wildcards.proposer],
        stack=lambda wildcards, input: f"--stack {input.stack}" if input.stack else "",
        history=rounds_before,
        folder=C,
        trace=W + "/trace",
    resources:
        llm=1,
    log:
        LOGS + "/{proposer}/r{round}/c{candidate}/propose.log",
    shell:
        "python -m scripts.propose.propose --spec {input.spec} --source {input.source}"
        " --findings {input.findings} --brief {input.brief} {params.stack}"
        " --history {params.history} --trace {params.trace} --proposer {params.proposer:q}"
        " --round {wildcards.round} --candidate {wildcards.candidate} -o {params.folder} > {log} 2>&1"
