"""The program: what each proposer without a model proposes, in which order, and what it never proposes again."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.common import tree as trees
from scripts.common.errors import InputError
from scripts.propose import propose as program
from scripts.propose.proposal import Attempt, Task, patch_of

ROOT = Path(__file__).resolve().parents[2]
MINIGPT = ROOT / "workloads" / "minigpt"
SPEC = {"workload": "minigpt", "source": {"editable": ["*.py"], "protected": ["make_text.py"]},
        "constraints": {"classes": ["config", "backend", "python"]}, "measure": {"horizon": {"steps": 24}}}  # fmt: skip


def finding(identity: str, fraction: float | None, path: str, line: int = 1) -> dict[str, Any]:
    ceiling = (
        None if fraction is None else {"fraction": fraction, "speedup": 1 / (1 - fraction), "derivation": "measured"}
    )
    return {"id": identity, "title": identity, "evidence": [], "cause": "c",
            "anchors": [{"path": path, "line": line, "code": ""}],
            "ceiling": ceiling, "confidence": "high", "classes": ["python"], "fixes": []}  # fmt: skip


FINDINGS = [
    finding("attention_handwritten", 0.3, "model.py", 40),
    finding("work_in_step", 0.25, "data.py", 22),
    finding("optimizer_unfused", 0.1, "train.py", 50),
    finding("gradients_in_evaluation", 0.05, "train.py", 16),
]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(trees, "STORE", tmp_path / "trees")
    identity = trees.store(MINIGPT)
    return Task("playbook", 0, 0, SPEC, identity, trees.stored(identity), FINDINGS, "", [], [])


def with_(task: Task, **changes: Any) -> Task:
    import dataclasses

    return dataclasses.replace(task, **changes)


def attempt(fix: str, verdict: str, round_: int = 0, candidate: int = 0, ratio: float | None = None) -> Attempt:
    return Attempt(round_, candidate, {"status": "patch", "fix": fix, "title": fix}, verdict, None, ratio)


def fixes_of(task: Task, count: int = 8) -> list[str | None]:
    return [program.propose(with_(task, candidate=c)).fix for c in range(count)]


def test_candidates_are_the_fixes_in_order_of_what_their_findings_are_worth(task: Task) -> None:
    order = fixes_of(task)
    assert order[:3] == ["sdpa", "hoist_encoding", order[2]]
    assert order.index("fused_optimizer") < order.index("inference_mode")
    known = [fix for fix in order if fix]
    assert len(known) == len(set(known))  # one change a candidate, each once
    answer = program.propose(with_(task, candidate=len(known)))
    assert (
        (answer.status, answer.edits) == ("nothing", {})
        and answer.reason
        and "applicable fixes are left" in answer.reason
    )


def test_the_expected_gain_is_the_ceiling(task: Task) -> None:
    answer = program.propose(task)
    assert answer.expected_gain == {
        "fraction": 0.3,
        "speedup": 1 / 0.7,
        "derivation": "at most the ceiling of attention_handwritten: measured",
    }
    unknown = [finding("attention_handwritten", None, "model.py")]
    assert program.propose(with_(task, findings=unknown)).expected_gain is None


def test_what_cannot_make_a_difference_that_counts_is_not_proposed(task: Task) -> None:
    """No race of a change whose ceiling lies below the smallest effect that matters can end with `faster`."""

    def needing(effect: float) -> dict[str, Any]:
        return {**SPEC, "measure": {"min_effect": effect}}

    small = [
        finding("attention_handwritten", 0.3, "model.py", 40),
        finding("gradients_in_evaluation", 0.05, "train.py"),
    ]
    demanding = with_(task, findings=small, spec=needing(0.07))
    assert fixes_of(demanding, 2) == ["sdpa", None]
    answer = program.propose(with_(demanding, candidate=1))
    assert answer.status == "nothing"
    assert answer.reason == (
        "1 applicable fixes are left, this is candidate 1; "
        "not proposed: inference_mode (expected gain below min_effect)"
    )
    said = [entry for entry in answer.transcript if entry["event"] == "not_proposed"]
    assert [(e["finding"], e["fix"], e["ceiling"], e["min_effect"], e["reason"]) for e in said] == [
        ("gradients_in_evaluation", "inference_mode", 0.05, 0.07, "ceiling below min_effect")
    ]
    assert fixes_of(with_(demanding, spec=needing(0.05)), 2) == ["sdpa", "inference_mode"]
    unknown = [finding("attention_handwritten", None, "model.py")]  # unknown is not small
    assert program.propose(with_(demanding, findings=unknown)).fix == "sdpa"


def test_a_fix_elsewhere_than_its_finding_is_not_credited_with_the_ceiling(task: Task) -> None:
    """The demo's third candidate: tables in model.py, for a finding that is about data.py."""
    demo = with_(task, findings=[finding("work_in_step", 0.25, "data.py", 22)])
    for smallest, order in ((0.02, ["hoist_encoding", None]), (0.01, ["hoist_encoding", "cache_constant"])):
        spec = {**SPEC, "measure": {"min_effect": smallest}}
        assert fixes_of(with_(demo, spec=spec), 2) == order
    second = program.propose(with_(demo, candidate=1))
    assert second.expected_gain and second.expected_gain["fraction"] is None
    assert second.expected_gain["derivation"] == "unknown: none of the files that work_in_step points at is changed"


def test_what_was_tried_is_not_tried_again_but_an_unused_winner_is(task: Task) -> None:
    history = [
        attempt("sdpa", "faster"),
        attempt("hoist_encoding", "faster", candidate=1),
        attempt("fused_optimizer", "no_difference", candidate=2),
    ]
    later = with_(task, round=1, history=history, accepted=[{"round": 0, "candidate": 0}])
    order = fixes_of(later)
    assert order[0] == "hoist_encoding"  # faster, and not in the stack
    assert "sdpa" not in order and "fused_optimizer" not in order


def test_forbidden_classes_are_not_proposed(task: Task) -> None:
    assert set(fixes_of(with_(task, spec={**SPEC, "constraints": {"classes": ["backend"]}}))) == {
        "fused_optimizer",
        "inference_mode",
        None,
    }


def test_the_same_edits_count_once(task: Task) -> None:
    twice = [finding("attention_handwritten", 0.3, "model.py"), finding("attention_math_path", 0.4, "model.py")]
    answers = [program.propose(with_(task, findings=twice, candidate=c)) for c in range(2)]
    assert answers[0].findings_used == ["attention_math_path"] and answers[1].status == "nothing"


def write_inputs(folder: Path, task: Task) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    horizon = {"steps": 24, "total_s": 5.0, "startup_s": 2.0, "step_s": 0.1, "slow_steps_s": 0.0, "tail_s": 0.0,
               "measured_steps": 24,
               "runs": 1, "source": "test"}  # fmt: skip
    for name, document in {
        "spec.json": {"schema": "wholejob/spec@1", **task.spec},
        "source.json": {"schema": "wholejob/source@1", "tree": task.base_tree, "files": []},
        "findings.json": {
            "schema": "wholejob/findings@1",
            "horizon": horizon,
            "findings": task.findings,
            "looked_for": [],
        },
    }.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "brief.md").write_text("# brief\n")
    return ["--spec", f"{folder}/spec.json", "--source", f"{folder}/source.json",
            "--findings", f"{folder}/findings.json",
            "--brief", f"{folder}/brief.md", "--history"]  # fmt: skip


def test_the_files_of_a_proposal(task: Task, tmp_path: Path) -> None:
    arguments = [*write_inputs(tmp_path / "W", task), "--proposer", "playbook", "--round", "0"]
    for candidate in ("0", "90"):
        out = tmp_path / candidate
        assert program.main([*arguments, "--candidate", candidate, "-o", str(out)]) == 0
        proposal = json.loads((out / "proposal.json").read_text())
        patch = (out / "patch.diff").read_text()
        if candidate == "0":
            assert proposal["status"] == "patch" and patch.startswith("diff --git a/model.py b/model.py\n")
            patched = trees.patched(task.base_tree, out / "patch.diff")
            assert "scaled_dot_product_attention" in (trees.stored(patched) / "model.py").read_text()
        else:
            assert proposal["status"] == "nothing" and patch == ""
        assert all(json.loads(line)["event"] for line in (out / "transcript.jsonl").read_text().splitlines())
    again = tmp_path / "again"
    program.main([*arguments, "--candidate", "0", "-o", str(again)])
    for name in ("proposal.json", "patch.diff", "transcript.jsonl"):
        assert (again / name).read_bytes() == (tmp_path / "0" / name).read_bytes()


@pytest.mark.parametrize(
    ("proposer", "why"),
    [
        ("playbok", "is none; should be playbook, knobs"),
        ("file:/nowhere.diff", "no such patch"),
        ("git:nothing", "should be git:URL@REV"),
        ("replay:/nowhere", "no such folder"),
    ],
)
def test_an_unknown_proposer_is_one_clear_line(task: Task, proposer: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        program.propose(with_(task, proposer=proposer))


# Patches of other people


def diff_of(
    task: Task, tmp_path: Path, name: str = "train.py", old: str = "lr=args.lr", new: str = "lr=args.lr, fused=True"
) -> str:
    work = trees.copy(task.tree, tmp_path / f"work-{name}-{len(new)}")
    text = (work / name).read_text()
    assert text.count(old) == 1
    (work / name).write_text(text.replace(old, new))
    return trees.diff(task.tree, work)


def test_a_file_a_folder_and_a_patch_of_a_whole_repository(task: Task, tmp_path: Path) -> None:
    patch = diff_of(task, tmp_path)
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "a.diff").write_text(patch)
    nested = patch.replace("a/train.py", "a/workloads/minigpt/train.py").replace(
        "b/train.py", "b/workloads/minigpt/train.py"
    )
    (tmp_path / "patches" / "b.patch").write_text(f"From 1\nSubject: [PATCH 1/2] Fuse it\n\n---\n{nested}")
    folder = with_(task, proposer=f"file:{tmp_path}/patches")
    answers = [program.propose(with_(folder, candidate=c)) for c in range(3)]
    assert [a.status for a in answers] == ["patch", "patch", "nothing"]
    assert answers[0].patch == patch and answers[1].title == "Fuse it"
    assert answers[1].patch and "a/train.py b/train.py" in answers[1].patch
    tried = with_(folder, round=1, history=[attempt("a.diff", "no_difference")])
    assert program.propose(tried).fix == "b.patch"


def test_a_patch_that_does_not_apply_goes_to_the_guard_as_it_is(task: Task, tmp_path: Path) -> None:
    from scripts.judge.guard import guard
    from scripts.propose.proposal import write

    (tmp_path / "old.diff").write_text(diff_of(task, tmp_path).replace("AdamW(", "RMSprop("))
    old = with_(task, proposer=f"file:{tmp_path}/old.diff")
    write(old, program.propose(old), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "proposal.json").read_text())["status"] == "patch"
    assert guard((tmp_path / "out" / "patch.diff").read_bytes(), task.tree, SPEC)["status"] == "refused"


def test_a_commit_of_a_repository(task: Task, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    trees.copy(task.tree, repository)

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Start")
    (repository / "train.py").write_text(
        (repository / "train.py").read_text().replace("lr=args.lr", "lr=args.lr, fused=True")
    )
    git("commit", "-q", "-a", "-m", "Fuse the optimizer (#12)")
    upstream = with_(task, proposer=f"git:{repository}@{git('rev-parse', 'HEAD')}")
    answer = program.propose(upstream)
    assert answer.status == "patch" and answer.title == "Fuse the optimizer (#12)"
    assert program.propose(with_(upstream, candidate=1)).status == "nothing"
    with pytest.raises(InputError, match="git:"):
        program.propose(with_(task, proposer=f"git:{repository}@nosuchrevision"))


# Knobs


@pytest.fixture
def knobs(task: Task, tmp_path: Path) -> Task:
    work = trees.copy(task.tree, tmp_path / "knobs")
    (work / "knobs.json").write_text('{\n  "threads": 1,\n  "fused": false,\n  "other": "kept"\n}\n')
    identity = trees.store(work)
    spec = {
        **SPEC,
        "knobs_file": "knobs.json",
        "knobs": [{"name": "threads", "values": [1, 2, 4]}, {"name": "fused", "values": [False, True]}],
    }
    return with_(task, proposer="knobs", base_tree=identity, tree=trees.stored(identity), spec=spec)


def test_knobs_try_every_point_once_and_nothing_else(knobs: Task) -> None:
    answers = [program.propose(with_(knobs, candidate=c)) for c in range(6)]
    points = [json.loads(a.edits["knobs.json"]) for a in answers if a.status == "patch"]
    assert len(points) == 5  # 3 x 2 less the baseline
    assert len({json.dumps(p) for p in points}) == 5 and all(p["other"] == "kept" for p in points)
    assert answers[5].status == "nothing" and answers[5].reason == "all 6 points of the search were tried"
    assert answers[0].edits["knobs.json"].startswith('{\n  "threads"')


def test_knobs_do_not_repeat_earlier_rounds(knobs: Task) -> None:
    first = program.propose(knobs)
    assert first.fix
    later = with_(knobs, round=1, history=[attempt(first.fix, "slower", ratio=0.9)])
    seen = {program.propose(with_(later, candidate=c)).fix for c in range(4)}
    assert len(seen) == 4 and first.fix not in seen


def test_knobs_use_tpe_when_there_is_optuna(knobs: Task) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: the TPE sampler cannot be tested, random search is")
    spec = {
        **knobs.spec,
        "knobs": [{"name": "threads", "values": list(range(1, 30))}, {"name": "fused", "values": [False, True]}],
    }
    history = [
        attempt(json.dumps({"threads": n, "fused": False}), "faster", candidate=n, ratio=0.5 + n / 20)
        for n in range(2, 29, 3)
    ]
    answer = program.propose(with_(knobs, spec=spec, round=1, history=history))
    assert answer.transcript[0]["how"] == "TPE" and answer.status == "patch"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"knobs_file": "gone.json"}, "gone.json: no such file"),
        ({"knobs_file": "train.py"}, "train.py: not JSON"),
        ({"knobs": [{"name": "thread", "values": [1, 2]}]}, "thread: is declared as a knob .* did you mean 'threads'"),
        ({"knobs": [{"name": "threads", "values": [2, 4]}]}, "threads: is 1; the workload declares 2, 4"),
    ],
)
def test_knobs_that_do_not_fit_their_file(knobs: Task, change: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        program.propose(with_(knobs, spec={**knobs.spec, **change}))


def test_without_knobs_there_is_nothing_to_propose(task: Task) -> None:
    assert program.propose(with_(task, proposer="knobs")).status == "nothing"


def test_the_example_patch_fits_the_demo_and_passes_the_guard(task: Task) -> None:
    """`proposers=["file:tests/data/minigpt_encode_once.diff"]`: where the demo's data.py changes, it is made again."""
    from scripts.judge.guard import guard

    mailed = with_(task, proposer=f"file:{ROOT}/tests/data/minigpt_encode_once.diff")
    answer = program.propose(mailed)
    assert (answer.status, answer.as_given, answer.title) == ("patch", False, "Encode the text once")
    result = guard(patch_of(mailed, answer).encode(), task.tree, SPEC)
    assert (result["status"], result["files"]) == ("pass", ["data.py"]), result["hits"]
