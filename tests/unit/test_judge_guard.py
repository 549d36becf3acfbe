"""The guard: strict reading of patches, scope, classes, inert patches; a program that never raises for a bad patch."""
# ruff: noqa: E501 (a case reads best as one line)

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.common import tree
from scripts.common.files import read_json, write_json
from scripts.common.globs import matches, protected
from scripts.judge import guard as module
from scripts.judge.guard import guard
from scripts.judge.patchfile import PatchError, apply_text, parse

JOB = {
    "job.py": """\
import torch


def compute(x):
    scale = 2.0
    y = torch.relu(x) * scale
    return y


def main(steps=4):
    for step in range(steps):
        print(step, compute(torch.ones(2)).sum().item())


main()
""",
    "notes.txt": "one\ntwo\nthree\n",
    "data/input.txt": "abc\n",
}
SPEC = {
    "source": {"editable": ["*.py", "conf/**"], "protected": ["data/"]},
    "constraints": {"classes": ["config", "backend", "python"]},
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", JOB)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def patch(base: Path, **edits: tuple[str, str]) -> str:
    """A canonical diff of search-and-replace edits, by file name without its suffix."""
    with tree.tempfile.TemporaryDirectory() as folder:
        work = tree.copy(base, Path(folder) / "tree")
        for stem, (old, new) in edits.items():
            path = next(work.glob(f"{stem}.*"))
            text = path.read_text(encoding="utf-8")
            assert old in text
            path.write_text(text.replace(old, new), encoding="utf-8")
        return tree.diff(base, work)


def rules_of(result: dict) -> set[str]:
    return {hit["rule"] for hit in result["hits"] if hit["action"] == "refuse"}


def decide(base: Path, text: str | bytes, **constraints: object) -> dict:
    spec = {**SPEC, "constraints": {**SPEC["constraints"], **constraints}}
    return guard(text if isinstance(text, bytes) else text.encode(), base, spec)


HONEST = ("torch.relu(x) * scale", "torch.relu(x).mul(scale)")


# --- reading a diff ----------------------------------------------------------------------------------------------------
def test_an_ordinary_diff_is_read_with_line_numbers_of_both_sides(base: Path) -> None:
    (file,) = parse(
        patch(base, job=("    scale = 2.0\n    y = torch.relu(x) * scale\n", "    y = torch.relu(x) * 2.0\n"))
    )
    assert file.path == "job.py" and file.status == "modified"
    assert file.removed == {5: "    scale = 2.0", 6: "    y = torch.relu(x) * scale"}
    assert file.added == {5: "    y = torch.relu(x) * 2.0"}


def test_a_pure_deletion_names_the_line_after_the_cut(base: Path) -> None:
    (file,) = parse(patch(base, job=("    scale = 2.0\n", "")))
    assert file.added == {} and file.cuts == [5]


def test_two_cuts_in_one_hunk_are_two_places(base: Path) -> None:
    (file,) = parse(patch(base, notes=("one\ntwo\nthree\n", "two\n")))
    assert file.cuts == [1, 2]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("diff --git a/job.py b/job.py", "From: someone\ndiff --git a/job.py b/job.py", "where 'diff --git"),
        ("diff --git a/job.py b/job.py", "diff --git a/job.py b/other.py", "names differ"),
        ("+++ b/job.py", "+++ b/data/input.txt", r"should be '\+\+\+ b/job.py'"),
        ("--- a/job.py", "--- /dev/null", "should be '--- a/job.py'"),
        ("@@ -3,7 +3,7 @@", "@@ -3,6 +3,7 @@", "more lines than its header|behind the hunk"),
        ("@@ -3,7 +3,7 @@", "@@ -3,8 +3,8 @@", "ends inside a hunk|no line of a hunk"),
        ("index ", "similarity index 90%\nindex ", "not canonical"),
        ("index ", "rename from a\nindex ", "not canonical"),
        ("index ", "surprise 1\nindex ", "no header line"),
        (" def compute(x):\n", "def compute(x):\n", "no line of a hunk"),
    ],
)
def test_what_is_not_canonical_is_refused_with_the_place(base: Path, old: str, new: str, says: str) -> None:
    text = patch(base, job=HONEST)
    assert old in text
    with pytest.raises(PatchError, match=says):
        parse(text.replace(old, new, 1))


def test_text_behind_the_last_hunk_is_refused(base: Path) -> None:
    with pytest.raises(PatchError, match="behind the hunk"):
        parse(patch(base, job=HONEST) + "-- \n2.39\n")


def test_a_file_twice_is_refused(base: Path) -> None:
    with pytest.raises(PatchError, match="appears twice"):
        parse(patch(base, job=HONEST) * 2)


def test_a_missing_end_of_line_survives_both_ways(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a", {"x.py": "a = 1\nb = 2"}), write(tmp_path / "b", {"x.py": "a = 1\nb = 3"})
    (file,) = parse(tree.diff(before, after))
    assert apply_text(file, "a = 1\nb = 2") == "a = 1\nb = 3"


LINES = st.lists(
    st.sampled_from(
        ["a", "b", "c", "    d", "", "+e", "-f", " g", "@@ -1 +1 @@", "\\ No newline", "--- a/x", "diff --git a/x b/x"]
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=LINES, after=LINES, ends=st.tuples(st.booleans(), st.booleans()))
def test_our_reading_of_a_patch_is_gits(before: list[str], after: list[str], ends: tuple[bool, bool]) -> None:
    """Lines that look like parts of a diff included, and last lines without an end."""
    old = "\n".join(before) + ("\n" if ends[0] and before else "")
    new = "\n".join(after) + ("\n" if ends[1] and after else "")
    with tree.tempfile.TemporaryDirectory() as folder:
        one, two = (
            write(Path(folder) / "1", {"x.txt": old, "y": "y"}),
            write(Path(folder) / "2", {"x.txt": new, "y": "y"}),
        )
        text = tree.diff(one, two)
        files = parse(text)
        if old == new:
            assert files == []
            return
        assert apply_text(files[0], old) == new
        work = tree.copy(one, Path(folder) / "3")
        (Path(folder) / "p").write_text(text, encoding="utf-8", newline="")
        tree.apply(Path(folder) / "p", work)
        assert (work / "x.txt").read_bytes().decode() == new


def test_added_and_deleted_files_are_read(base: Path, tmp_path: Path) -> None:
    work = tree.copy(base, tmp_path / "work")
    (work / "new.py").write_text("x = 1\n")
    (work / "notes.txt").unlink()
    files = {file.path: file for file in parse(tree.diff(base, work))}
    assert files["new.py"].status == "added" and files["new.py"].added == {1: "x = 1"}
    assert files["notes.txt"].status == "deleted" and apply_text(files["notes.txt"], JOB["notes.txt"]) is None


# --- scope -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("train.py", "*.py", True),
        ("a/b/train.py", "*.py", True),
        ("train.pyc", "*.py", False),
        ("a/train.py", "/*.py", False),
        ("src/a/b.py", "src/**", True),
        ("src/a/b.py", "src/**/*.py", True),
        ("src/b.py", "src/**/*.py", True),
        ("src/a/b.py", "src/*.py", False),
        ("data/x/y", "data/", True),
        ("deep/data/y", "data/", True),
        ("data", "data/", False),
        ("model_v2.py", "model_v?.py", True),
        ("model_v2.py", "model_v[0-9].py", True),
        ("model_vx.py", "model_v[!0-9].py", True),
        ("a.py\nb", "*.py", False),
    ],
)
def test_patterns_are_those_of_gitignore(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, [pattern]) is expected


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_x.py",
        "requirements.txt",
        "uv.lock",
        "pyproject.toml",
        "parity/run.py",
        ".github/w.yml",
        "sitecustomize.py",
    ],
)
def test_some_files_are_protected_whatever_the_workload_says(path: str) -> None:
    assert protected(path, []) is not None


# --- the guard ---------------------------------------------------------------------------------------------------------
def test_an_honest_change_passes_and_says_which_lines_to_watch(base: Path) -> None:
    result = decide(base, patch(base, job=HONEST))
    assert result["status"] == "pass" and result["hits"] == []
    assert result["classes"] == ["python"] and result["files"] == ["job.py"]
    assert (result["lines_added"], result["lines_removed"], result["changed_lines"]) == (1, 1, {"job.py": [6]})


@pytest.mark.parametrize("empty", [b"", b"\n", b"  \n"])
def test_an_empty_patch_is_nothing(base: Path, empty: bytes) -> None:
    assert decide(base, empty)["status"] == "nothing"


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({"notes": ("two", "2")}, "editable"),
        ({"job": ("import torch", "import torch  # quick")}, "inert"),
        ({"job": ("    return y", '    "a text that nothing reads"\n    return y')}, "inert"),
        ({"job": ("def compute(x):\n", 'def compute(x):\n    """Now with a docstring."""\n')}, "inert"),
        ({"job": ("range(steps)", "range((steps))")}, "inert"),
        ({"job": ("return y", "return y y")}, "parses"),
        ({"job": ("return y", "return y\n    \x00")}, "modes"),
        ({"job": ("return y", "return y\n\treturn y")}, "parses"),
    ],
)
def test_shape(base: Path, edits: dict[str, tuple[str, str]], rule: str) -> None:
    result = decide(base, patch(base, **edits))
    assert result["status"] == "refused" and rules_of(result) & {rule}


def test_a_patch_over_the_declared_size_is_refused(base: Path) -> None:
    text = patch(base, job=HONEST)
    assert decide(base, text, max_lines=2)["status"] == "pass"
    assert rules_of(decide(base, text, max_lines=1)) == {"size"}


def test_a_patch_of_several_accepted_changes_may_have_as_many_times_the_size_of_one(base: Path) -> None:
    text = patch(base, job=HONEST).encode()
    spec = {**SPEC, "constraints": {**SPEC["constraints"], "max_lines": 1}}
    one, two = (module.guard(text, base, spec, changes=count) for count in (1, 2))
    assert (rules_of(one), two["status"]) == ({"size"}, "pass")


def test_the_composed_patch_is_measured_by_the_changes_that_attribution_kept(workplace: Path) -> None:
    tight = {**SPEC, "constraints": {**SPEC["constraints"], "max_lines": 1}}
    (workplace / "spec.json").write_text(json.dumps({"schema": "wholejob/spec@1", **tight}))
    assert call(workplace) == 0 and rules_of(read_json(workplace / "guard.json", "guard")) == {"size"}
    for kept, status in (((True, False), "refused"), ((True, True), "pass")):
        whole = {"reason": None, "machine": None, "together": None, "base": "b", "full": "b", "final": "b"}
        entry = {"alone": None, "left_out": None, "reason": None, "patch": "p", "title": "t", "verdict": "faster"}
        entries = [{**entry, "kept": one, "candidate": "c0", "round": 0, "proposer": "p"} for one in kept]
        changes = {"schema": "wholejob/attribution@1", "status": "ok", **whole, "changes": entries}
        (workplace / "attribution.json").write_text(json.dumps(changes))
        assert call(workplace, "--attribution", str(workplace / "attribution.json")) == 0
        assert read_json(workplace / "guard.json", "guard")["status"] == status


def test_a_patch_against_another_tree_is_refused(base: Path) -> None:
    text = patch(base, job=HONEST)
    (base / "job.py").write_text(JOB["job.py"].replace("scale = 2.0", "scale = 3.0"), encoding="utf-8")
    assert rules_of(decide(base, text)) == {"applies"}


def test_no_fuzz_lets_a_patch_land_elsewhere(base: Path) -> None:
    text = patch(base, job=HONEST).replace("@@ -3,7 +3,7 @@", "@@ -4,7 +4,7 @@")
    assert decide(base, text)["status"] == "refused"


def test_bytes_that_are_no_text_are_refused(base: Path) -> None:
    assert rules_of(decide(base, patch(base, job=HONEST).encode() + b"\xff\n")) == {"canonical"}


def test_a_symbolic_link_in_the_tree_cannot_be_written_through(base: Path) -> None:
    text = patch(base, job=HONEST)
    (base / "job.py").rename(base / "real.py")
    (base / "job.py").symlink_to("real.py")
    assert decide(base, text)["status"] == "refused"


def test_nothing_of_a_patch_runs(base: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    decide(base, patch(base, job=("import torch\n", f"import torch\n\nopen({str(witness)!r}, 'w').close()\n")))
    assert not witness.exists()


def test_a_rule_that_crashes_refuses(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(change: object) -> list:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(module, "rules", lambda: (SimpleNamespace(NAME="planted", check=crash),))
    result = decide(base, patch(base, job=HONEST))
    assert result["status"] == "refused" and rules_of(result) == {"planted"}
    assert "ZeroDivisionError" in result["hits"][0]["reason"]


def test_a_rule_that_finds_something_for_review_does_not_refuse(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hit = module.Hit("review", "job.py", 6, "planted")
    monkeypatch.setattr(module, "rules", lambda: (SimpleNamespace(NAME="planted", check=lambda change: [hit, hit]),))
    result = decide(base, patch(base, job=HONEST))
    assert result["status"] == "pass" and len(result["hits"]) == 1


def test_deep_nesting_is_refused_not_crashed_on(base: Path) -> None:
    for expression in (
        "(" * 300 + "x" + ")" * 300,
        "\n    ".join(["(x", *["+ x"] * 40, ")"]),
        "x" + " + x" * 3000,
        "-" * 5000 + "x",
    ):
        result = decide(base, patch(base, job=("torch.relu(x) * scale", expression)))
        assert result["status"] == ("pass" if expression.startswith("(x\n") else "refused")


# --- classes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "classes"),
    [
        ("scale = 2.0", "scale = 3.0", ["config"]),
        ("import torch\n", "import torch\n\ntorch.backends.cudnn.benchmark = True\n", ["backend"]),
        ("def compute(x)", "@torch.compile\ndef compute(x)", ["backend"]),
        ("torch.relu(x) * scale", "scale * torch.relu(x)", ["python"]),
        (
            "import torch\n",
            "import torch\nimport triton\n\n\n@triton.jit\ndef k(x):\n    return\n\n\nk[(1,)](1)\n",
            ["kernel", "python"],
        ),
    ],
)
def test_classes_of_a_change(base: Path, old: str, new: str, classes: list[str]) -> None:
    result = decide(base, patch(base, job=(old, new)), classes=["config", "backend", "python", "kernel"])
    assert set(result["classes"]) == set(classes) or set(result["classes"]) == {"kernel"} == set(classes) - {"python"}


def test_a_class_that_the_contract_does_not_allow_is_refused(base: Path) -> None:
    assert "classes" in rules_of(decide(base, patch(base, job=HONEST), classes=["config"]))


# --- lines to watch ----------------------------------------------------------------------------------------------------
def test_a_definition_alone_is_no_evidence_but_its_body_is(base: Path) -> None:
    new = "def helper(x):\n    return x + 1\n\n\ndef compute(x):\n    x = helper(x)\n"
    result = decide(base, patch(base, job=("def compute(x):\n", new)))
    assert result["changed_lines"] == {"job.py": [5, 9]}


def test_a_changed_default_is_watched_where_it_stands(base: Path) -> None:
    result = decide(base, patch(base, job=("def compute(x):\n", "def compute(x, y=None):\n")))
    assert result["changed_lines"] == {"job.py": [4]}


def test_a_cut_is_watched_at_the_line_after_it(base: Path) -> None:
    result = decide(
        base, patch(base, job=("    y = torch.relu(x) * scale\n    return y\n", "    return torch.relu(x) * scale\n"))
    )
    assert result["changed_lines"] == {"job.py": [6]}
    result = decide(base, patch(base, job=("    scale = 2.0\n", "")))
    assert result["changed_lines"] == {"job.py": [5]}


# --- the program -------------------------------------------------------------------------------------------------------
@pytest.fixture
def workplace(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tree, "STORE", tmp_path / "store")
    (tmp_path / "spec.json").write_text(json.dumps({"schema": "wholejob/spec@1", **SPEC}))
    (tmp_path / "source.json").write_text(
        json.dumps({"schema": "wholejob/source@1", "tree": tree.store(base), "files": {}})
    )
    (tmp_path / "patch.diff").write_text(patch(base, job=HONEST))
    return tmp_path


def call(place: Path, *more: str) -> int:
    common = [
        "--spec",
        str(place / "spec.json"),
        "--source",
        str(place / "source.json"),
        "--patch",
        str(place / "patch.diff"),
    ]
    return module.main([*common, *more, "-o", str(place / "guard.json")])


def test_a_pass_stores_the_patched_tree_and_names_it(workplace: Path) -> None:
    assert call(workplace) == 0
    document = read_json(workplace / "guard.json", "guard")
    assert document["status"] == "pass"
    assert "mul(scale)" in (tree.stored(document["tree"]) / "job.py").read_text()


def test_a_refusal_is_a_result_and_stores_nothing(workplace: Path) -> None:
    (workplace / "patch.diff").write_text("nonsense\n")
    before = sorted((workplace / "store").iterdir())
    assert call(workplace) == 0
    document = read_json(workplace / "guard.json", "guard")
    assert document["status"] == "refused" and document["tree"] is None
    assert sorted((workplace / "store").iterdir()) == before


def test_the_base_is_the_stack_where_there_is_one(workplace: Path, base: Path) -> None:
    (base / "job.py").write_text(JOB["job.py"].replace("range(steps)", "range(0, steps)"), encoding="utf-8")
    stacked = tree.store(base)
    (workplace / "patch.diff").write_text(patch(base, job=HONEST))
    (workplace / "stack.json").write_text(
        json.dumps({"schema": "wholejob/stack@1", "tree": stacked, "accepted": [], "rejected": []})
    )
    assert call(workplace, "--base-tree", stacked) == 0
    by_hash = read_json(workplace / "guard.json", "guard")
    assert by_hash["status"] == "pass"
    assert "range(0, steps)" in (tree.stored(by_hash["tree"]) / "job.py").read_text()


def test_a_guard_file_that_contradicts_itself_cannot_be_written(tmp_path: Path) -> None:
    whole = {
        "status": "pass",
        "tree": None,
        "classes": [],
        "files": [],
        "lines_added": 0,
        "lines_removed": 0,
        "changed_lines": {},
    }
    hit = {"rule": "x", "action": "refuse", "path": None, "line": None, "reason": "y"}
    with pytest.raises(Exception, match="hits"):
        write_json(tmp_path / "guard.json", "wholejob/guard@1", {**whole, "hits": [hit]})


def test_bad_arguments_get_one_line_and_no_file(workplace: Path) -> None:
    done = subprocess.run(
        [".venv/bin/python" if Path(".venv/bin/python").exists() else "python", "-m", "scripts.judge.guard", "--spec", "nowhere.json", "--source", "s",
         "--patch", "p", "-o", str(workplace / "out.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nowhere.json" in done.stderr
    assert not (workplace / "out.json").exists()


def test_settings_in_the_knobs_file_are_open(base: Path) -> None:
    (base / "conf").mkdir()
    (base / "conf" / "knobs.json").write_text('{\n "batch_size": 8\n}\n')
    work = tree.copy(base, base.parent / "work")
    (work / "conf" / "knobs.json").write_text('{\n "batch_size": 16\n}\n')
    text = tree.diff(base, work).encode()
    assert rules_of(guard(text, base, SPEC)) == {"work_amount"}
    knobs = {"knobs_file": "conf/knobs.json", "knobs": [{"name": "batch_size", "values": [8, 16]}]}
    result = guard(text, base, {**SPEC, **knobs})
    assert result["status"] == "pass" and result["classes"] == ["config"]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ('{"batch_size": 4, "steps": 9}', "batch_size: is 4; the workload declares 8, 16"),
        ('{"batch_size": "16", "steps": 9}', "the workload declares 8, 16"),
        ('{"batch_size": 16, "steps": 3}', "steps is no declared knob"),
        ('{"batch_size": 16, "steps": 9, "more": 1}', "more is no declared knob"),
        ('{"batch_size": 16}', "steps is no declared knob"),
        ('{"steps": 9}', "batch_size: is declared as a knob and has no value"),
        ("[16]", "should be an object"),
        ("batch_size = 16", "not JSON"),
    ],
)
def test_the_knobs_file_is_open_to_declared_values_only(base: Path, after: str, why: str) -> None:
    write(base, {"conf/knobs.json": '{"batch_size": 8, "steps": 9}'})
    work = write(tree.copy(base, base.parent / "work"), {"conf/knobs.json": after})
    knobs = {"knobs_file": "conf/knobs.json", "knobs": [{"name": "batch_size", "values": [8, 16]}]}
    result = guard(tree.diff(base, work).encode(), base, {**SPEC, **knobs})
    assert [hit["rule"] for hit in result["hits"]] == ["knobs"] and why in result["hits"][0]["reason"]


def test_a_knobs_file_may_not_go(base: Path) -> None:
    write(base, {"conf/knobs.json": '{"batch_size": 8}'})
    work = tree.copy(base, base.parent / "work")
    (work / "conf" / "knobs.json").unlink()
    knobs = {"knobs_file": "conf/knobs.json", "knobs": [{"name": "batch_size", "values": [8, 16]}]}
    assert "knobs" in rules_of(guard(tree.diff(base, work).encode(), base, {**SPEC, **knobs}))


def test_a_script_in_another_language_cannot_be_read_and_is_refused(base: Path) -> None:
    write(base, {"conf/run.sh": "echo 1\n"})
    work = write(tree.copy(base, base.parent / "work"), {"conf/run.sh": "echo 2\n"})
    assert rules_of(guard(tree.diff(base, work).encode(), base, SPEC)) == {"file_type"}
