"""Stack and attribution: changes that apply together or not, useless ones dropped, and a series that `git am` takes."""

import json
import subprocess
from pathlib import Path

import pytest

from scripts.common import tree
from scripts.judge import attribution, stack

BASE_FILES = {"a.py": "one = 1\n" * 3 + "x = 0\n" + "two = 2\n" * 3, "b.py": "y = 0\n", "run.sh": "echo\n"}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A pristine tree in a store of its own; `store.change(name, file, old, new)` makes a candidate folder."""
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")
    source = tmp_path / "source"
    source.mkdir()
    for name, text in BASE_FILES.items():
        (source / name).write_text(text)
    made = Store(tmp_path, tree.store(source))
    return made


class Store:
    def __init__(self, place: Path, base: str) -> None:
        self.place, self.base = place, base

    def change(self, name, file, old, new, *, verdict="faster", ratio=1.2):
        work = tree.copy(tree.stored(self.base), self.place / f"work-{name}")
        (work / file).write_text((work / file).read_text().replace(old, new, 1))
        folder = self.place / name
        folder.mkdir()
        (folder / "patch.diff").write_text(tree.diff(tree.stored(self.base), work))
        quoted = {"ratio": ratio, "low": ratio - 0.05, "high": ratio + 0.05, "confidence": 0.97, "pairs": 6, "race": {}}
        if verdict not in ("faster", "slower", "no_difference"):
            quoted = dict.fromkeys(quoted)
        document = {"verdict": verdict, "reason": None, "gates": [], "tree": "t", "classes": ["python"], **quoted}
        self.json(folder / "verdict.json", "verdict", {**document, "side_effects": ["threads: 2"], "review": []})
        self.json(
            folder / "proposal.json",
            "proposal",
            {
                "status": "patch",
                "reason": None,
                "proposer": "playbook",
                "model": None,
                "round": 0,
                "candidate": 0,
                "base_tree": self.base,
                "findings_used": [],
                "fix": None,
                "title": f"Change {name}",
                "hypothesis": "It helps",
                "expected_gain": None,
                "risk": None,
                "classes": [],
                "needs_flag": None,
                "untested": ["CUDA"],
                "usage": {},
                "prompt_hash": None,
            },
        )
        return folder

    @staticmethod
    def json(path, kind, document):
        path.write_text(json.dumps({"schema": f"wholejob/{kind}@1", **document}))


@pytest.fixture(autouse=True)
def unvalidated(monkeypatch):
    """The proposal's and verdict's own schemas are other tests' business."""
    from scripts.common import files

    monkeypatch.setattr(files, "_validator", lambda kind: None)


PLACE = {"proposer": "playbook", "round": 0}


def test_all_confirmed_changes_that_apply_together_join_best_first(store):
    folders = [
        store.change("c0", "a.py", "x = 0", "x = 1", ratio=1.1),
        store.change("c1", "b.py", "y = 0", "y = 1", ratio=1.3),
        store.change("c2", "a.py", "x = 0", "x = 2", ratio=1.05),
        store.change("c3", "b.py", "y = 0", "y = 3", verdict="invalid_parity"),
    ]
    found = stack.build(store.base, None, folders, PLACE, "all")
    assert [entry["candidate"] for entry in found["accepted"]] == ["c1", "c0"]
    reasons = {entry["candidate"]: entry["reason"] for entry in found["rejected"]}
    assert "does not apply together" in reasons["c2"]
    assert reasons["c3"] == "invalid_parity"
    assert (tree.stored(found["tree"]) / "a.py").read_text().count("x = 1") == 1
    best = stack.build(store.base, None, folders, PLACE, "best")
    assert [entry["candidate"] for entry in best["accepted"]] == ["c1"]


def test_next_round_builds_on_the_stack_below(store):
    below = stack.build(store.base, None, [store.change("c0", "a.py", "x = 0", "x = 1")], PLACE, "all")
    above = stack.build(store.base, below, [store.change("d0", "b.py", "y = 0", "y = 1")], {**PLACE, "round": 1}, "all")
    assert [(entry["round"], entry["candidate"]) for entry in above["accepted"]] == [(0, "c0"), (1, "d0")]
    assert above["base"] == store.base


def test_arms_of_two_changes_are_four_trees(store):
    folders = [store.change("c0", "a.py", "x = 0", "x = 1"), store.change("c1", "b.py", "y = 0", "y = 1")]
    accepted = stack.build(store.base, None, folders, PLACE, "all")["accepted"]
    arms = attribution.arms(store.base, accepted)
    assert arms["alone0"] == arms["without1"] and arms["alone1"] == arms["without0"]
    assert len({store.base, *arms.values()}) == 4


def rows(*walls):
    return [{"wall_s": wall, "status": "ok"} for wall in walls]


def test_change_that_adds_nothing_is_dropped_and_one_that_may_is_kept():
    full = rows(10.0, 10.1, 9.9, 10.0, 10.05, 9.95)
    same = attribution.effect(rows(10.02, 10.0, 9.97, 10.03, 9.98, 10.01), full, 0.05, 0.02)
    slow = attribution.effect(rows(11.0, 11.2, 10.9, 11.1, 11.0, 11.05), full, 0.05, 0.02)
    noisy = attribution.effect(rows(11.5, 10.1, 9.7, 12.0, 10.8, 11.2), full, 0.05, 0.02)
    assert attribution.useless(same, 0.02)
    assert slow["answer"] == "faster" and not attribution.useless(slow, 0.02)
    assert noisy["low"] < 1 and not attribution.useless(noisy, 0.02)
    crashed = attribution.effect([{"wall_s": 1, "status": "crashed"}] * 6, full, 0.05, 0.02)
    assert crashed["ratio"] is None and not attribution.useless(crashed, 0.02)


def test_series_is_one_commit_a_change_and_git_am_gives_the_final_tree(store, tmp_path):
    folders = [store.change("c0", "a.py", "x = 0", "x = 1"), store.change("c1", "b.py", "y = 0", "y = 1", ratio=1.5)]
    accepted = stack.build(store.base, None, folders, PLACE, "all")["accepted"]
    effect = {"ratio": 1.2, "low": 1.1, "high": 1.3, "answer": "faster"}
    changes = [{**entry, "alone": effect, "left_out": effect, "kept": True} for entry in accepted]
    final = attribution.series(store.base, changes, tmp_path / "patches")
    again = attribution.series(store.base, changes, tmp_path / "again")
    patches = sorted((tmp_path / "patches").glob("*.patch"))
    assert len(patches) == 2 and final == again
    assert [p.read_bytes() for p in patches] == [p.read_bytes() for p in sorted((tmp_path / "again").glob("*.patch"))]
    text = patches[0].read_text()
    for words in (
        "Change c1",
        "1.500 times as fast (1.450 to 1.550) over 6 pairs",
        "Not tested: CUDA",
        "Side effects: threads: 2",
    ):
        assert words in text
    fresh = tree.copy(tree.stored(store.base), tmp_path / "fresh")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"], ["am", "-q", *map(str, patches)]):
        subprocess.run([*git, *command], cwd=fresh, check=True, capture_output=True)
    assert tree.tree_hash(fresh) == final


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def added(work):
    (work / "pkg").mkdir()
    (work / "pkg" / "new.py").write_text("diff --git a/x b/x\n--- a/x\n" + "z = 0\n" * 5)
    (work / "pkg" / "empty.py").write_text("")


def deleted(work):
    (work / "b.py").unlink()


def renamed(work):
    (work / "a.py").rename(work / "pkg" / "a.py")


def edited_program(work):
    (work / "run.sh").write_text("echo 2\n")  # stays executable


def edited_line_ends(work):
    (work / "dos.py").write_bytes(b"one = 1\r\ntwo = 3")  # and loses its last line end


@pytest.fixture
def kinds(tmp_path, monkeypatch):
    """A source and a series of one change of each kind, as attribution composes them."""
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")
    source = tmp_path / "source"
    source.mkdir()
    for name, text in BASE_FILES.items():
        (source / name).write_text(text)
    (source / "run.sh").chmod(0o755)
    (source / "dos.py").write_bytes(b"one = 1\r\ntwo = 2\r\n")
    base = tree.store(source)
    said = {"candidate": "c0", "ratio": 1.2, "low": 1.1, "high": 1.3, "pairs": 6, "alone": None, "left_out": None,
            "memory": None, "side_effects": [], "untested": []}  # fmt: skip
    hypothesis = "Subject: another\n\ndiff -u of it\n--- a/b.py\n---\nFrom me to you\nIndex: x"
    current, changes = base, []
    for number, edit in enumerate((added, deleted, renamed, edited_program, edited_line_ends)):
        work = tree.copy(tree.stored(current), tmp_path / f"work{number}")
        edit(work)
        patch = tmp_path / f"{number}.diff"
        patch.write_bytes(tree.diff(tree.stored(current), work).encode())
        current = tree.patched(current, patch)
        changes.append({**said, "title": f"Change {edit.__name__}", "hypothesis": hypothesis, "patch": str(patch)})
    final = attribution.series(base, changes, tmp_path / "patches")
    assert final == current
    origin = tree.copy(tree.stored(base), tmp_path / "origin")
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A", "-f")
    git(origin, "commit", "-qm", "base")
    git(tmp_path, "clone", "-q", str(origin), "clone")
    return tmp_path / "clone", sorted((tmp_path / "patches").glob("*.patch")), base, final


def test_every_kind_of_change_comes_through_git_am_in_a_clone(kinds):
    clone, patches, base, final = kinds
    assert tree.tree_hash(clone) == base and len(patches) == 5
    git(clone, "am", "-q", "--keep-cr", *map(str, patches))
    assert tree.tree_hash(clone) == final
    assert git(clone, "status", "--porcelain") == ""
    subjects = git(clone, "log", "--reverse", "--format=%s").splitlines()[1:]
    kinds = ("added", "deleted", "renamed", "edited_program", "edited_line_ends")
    assert subjects == [f"Change {kind}" for kind in kinds]
    assert git(clone, "log", "--format=%b").count("Not tested") == 5, "a part of the message was taken for the patch"


def test_every_kind_of_change_comes_through_git_apply_one_by_one_and_composed(kinds, tmp_path):
    clone, patches, base, final = kinds
    for patch in patches:
        git(clone, "apply", "--index", str(patch))
    assert tree.tree_hash(clone) == final
    git(clone, "reset", "-q", "--hard")
    composed = tmp_path / "composed.diff"
    composed.write_bytes(tree.diff(tree.stored(base), tree.stored(final)).encode())
    git(clone, "apply", "--index", str(composed))
    assert tree.tree_hash(clone) == final == tree.patched(base, composed)


def test_no_change_and_one_change_measure_nothing(store, tmp_path):
    spec = {"name": "toy", "measure": {"alpha": 0.05, "min_effect": 0.02, "pairs": 6}}
    none = stack.build(store.base, None, [], PLACE, "all")
    found = attribution.attribute(spec, {}, none, tmp_path / "attribution.parquet")
    assert (found["status"], found["reason"], found["changes"]) == ("not_measured", "no candidate was accepted", [])
    one = stack.build(store.base, None, [store.change("c0", "a.py", "x = 0", "x = 1")], PLACE, "all")
    found = attribution.attribute(spec, {}, one, tmp_path / "attribution.parquet")
    assert found["status"] == "not_measured" and "nothing to leave out" in found["reason"]
    assert found["changes"][0]["kept"] is True
