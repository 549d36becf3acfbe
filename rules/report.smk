"""Tables of every selected experiment on this device.

Inputs: the verdicts, races and proposals. Outputs: tables/*.csv, .md, .tex and .txt.
"""

TABLES = ["speedups", "changes", "candidates", "noise", "costs"]


rule tables:
    """Speedups, changes, candidates, noise and costs."""
    input:
        spec=per_workload("spec/all.json"),
        noise=per_workload("noise.json"),
        aa=per_workload("timing/aa.json"),
        final=final_verdicts(),
        parity=[f"results/{DEVICE}/{e}/final/parity.json" for e in experiments()],
        attribution=[f"results/{DEVICE}/{e}/attribution.json" for e in experiments()],
        verdicts=candidate_files("verdict.json"),
        proposals=candidate_files("proposal.json"),
        code=code("report.tables"),
    output:
        expand(
            "results/{device}/tables/{table}.{suffix}",
            device=DEVICE,
            table=TABLES,
            suffix=["csv", "md", "tex", "txt"],
        ),
    log:
        f"logs/{DEVICE}/tables.log",
    params:
        experiments=experiments(),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m scripts.report.tables {params.experiments} -o {params.folder} > {log} 2>&1"
