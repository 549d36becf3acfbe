"""The graph as it is planned: rules and scripts match, what reruns what, and messages before anything runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.pipeline.conftest import ROOT

NO_SCRIPT = {"all", "baseline", "diagnose", "clean_workload"}
# Rules that run another rule's script on other files.
SAME_SCRIPT = {
    "round_brief": "brief",
    "final_guard": "guard",
    "final_run": "candidate_run",
    "final_compare": "compare",
    "final_race": "race",
    "final_verdict": "verdict",
}


def jobs(output: str) -> dict[str, int]:
    """`{rule: count}` of a dry run's table."""
    return {name: int(count) for name, count in re.findall(r"^([a-z_]+) +(\d+)$", output, re.MULTILINE)}


def rule_names() -> dict[str, str]:
    """`{rule: room}` as the rule files declare them."""
    return {
        name: path.stem
        for path in sorted((ROOT / "rules").glob("*.smk"))
        for name in re.findall(r"^(?:rule|checkpoint) (\w+):", path.read_text(), re.MULTILINE)
    }


def test_each_rule_runs_the_script_of_its_name_in_its_room():
    for rule, room in rule_names().items():
        name = SAME_SCRIPT.get(rule, rule)
        assert (ROOT / "scripts" / room / f"{name}.py").is_file(), rule
        text = (ROOT / "rules" / f"{room}.smk").read_text()
        assert f"python -m scripts.{room}.{name} " in text, rule


def test_what_snakemake_does_badly_is_not_used():
    for path in [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]:
        text = path.read_text()
        for banned in ("script:", "    run:", "ancient(", "temp(", "checkpoints.", "directory(", "benchmark:"):
            assert banned not in text, f"{path.name} uses {banned}"


def test_the_whole_graph_is_visible_before_anything_runs(checkout):
    done = checkout.snakemake(
        "all", "-n", "-q", "rules", config=("workload=tiny", "device=test", "rounds=2", "candidates=3")
    )
    assert done.returncode == 0, done.stdout
    planned = jobs(done.stdout)
    assert planned["propose"] == planned["guard"] == planned["verdict"] == 6
    assert planned["screen"] == planned["race"] == planned["stack"] == 2
    assert planned["final_verdict"] == planned["tables"] == 1


@pytest.mark.parametrize("target", ["baseline", "diagnose", "tables", "clean_workload"])
def test_targets_that_a_person_types(checkout, target):
    done = checkout.snakemake(target, "-n")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (("workload=nosuch",), "no workloads/nosuch.yaml; there are: tiny"),
        (("workload=tinny",), "did you mean 'tiny'?"),
        (("workload=tiny", "variant=gpu"), "no variant 'gpu'"),
        (("workload=tiny", "roundz=3"), "unknown field 'roundz'; did you mean 'rounds'?"),
        (("workload=tiny", "rounds=0"), "rounds: 0 is less than the minimum of 1"),
        (("workload=tiny", "set={measure.pears: 6}"), "measure: unknown field 'pears'; did you mean 'pairs'?"),
    ],
)
def test_bad_configuration_is_one_line_and_not_success(checkout, config, message):
    done = checkout.snakemake("-n", config=config)
    assert done.returncode != 0
    lines = [line for line in done.stdout.splitlines() if message in line]
    assert len(lines) == 1, done.stdout
    assert "Traceback" not in done.stdout


def test_misspelt_field_of_a_workload_names_file_and_field(checkout):
    path = checkout.root / "workloads" / "tiny.yaml"
    path.write_text(path.read_text().replace("launch:", "lanch:"))
    done = checkout.snakemake("-n")
    assert done.returncode != 0
    assert "workloads/tiny.yaml: unknown field 'lanch'; did you mean 'launch'?" in done.stdout


def test_snakefmt_and_lint_are_clean(checkout):
    done = subprocess.run(
        ["snakefmt", "--check", "Snakefile", "rules"],
        cwd=checkout.root,
        capture_output=True,
        text=True,
        check=False,
        env={**checkout.environment(), "PATH": f"{sys.prefix}/bin:{checkout.environment()['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    lint = checkout.snakemake("--lint")
    # Snakemake asks every rule for a conda environment or container and has no switch for it; ours is the workload's own.
    titles = re.findall(r"^    \* (.*):$", lint.stdout, re.MULTILINE)
    assert [title for title in titles if not title.startswith("Specify a conda environment")] == [], lint.stdout
