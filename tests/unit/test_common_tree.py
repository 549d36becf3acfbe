"""Trees: identity by content, the store, canonical diffs."""

from __future__ import annotations

import os

import pytest

from scripts.common import tree
from scripts.common.errors import InputError


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "STORE", tmp_path / "store")
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "a.py").write_text("x = 1\ny = 2\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def test_identity_depends_on_content_and_mode_and_nothing_else(project, tmp_path):
    before = tree.tree_hash(project)
    copied = tree.copy(project, tmp_path / "elsewhere")
    os.utime(copied / "run.sh", (0, 0))
    (copied / "__pycache__").mkdir()
    (copied / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert tree.tree_hash(copied) == before
    (copied / "run.sh").chmod(0o644)
    assert tree.tree_hash(copied) != before


def test_a_stored_tree_is_read_only_and_verified(project):
    identity = tree.store(project)
    assert tree.store(project) == identity
    place = tree.stored(identity)
    assert not place.joinpath("pkg", "a.py").stat().st_mode & 0o222
    place.joinpath("pkg", "a.py").chmod(0o644)
    place.joinpath("pkg", "a.py").write_text("x = 3\n")
    with pytest.raises(InputError, match="was changed"):
        tree.stored(identity)
    tree.remove(place)
    with pytest.raises(InputError, match="is gone"):
        tree.stored(identity)


def test_a_submodules_git_file_is_no_part_of_a_tree(project):
    # gsplat's wheel holds one; it was hashed but not copied, so that the stored tree looked changed.
    (project / "pkg" / ".git").write_text("gitdir: ../.git/modules/pkg")
    assert tree.stored(tree.store(project)).is_dir()


def test_a_diff_applied_gives_the_other_tree(project, tmp_path):
    after = tree.copy(project, tmp_path / "after")
    (after / "pkg" / "a.py").write_text("x = 1\ny = 3\n")
    (after / "new.py").write_text("z = 0")
    (after / "run.sh").unlink()
    text = tree.diff(project, after)
    assert text == tree.diff(project, after)
    headers = [line for line in text.splitlines() if line.startswith("diff --git ")]
    assert headers == [f"diff --git a/{name} b/{name}" for name in ("new.py", "pkg/a.py", "run.sh")]
    patch = tmp_path / "p.diff"
    patch.write_text(text)
    identity = tree.patched(tree.store(project), patch)
    assert identity == tree.tree_hash(after)


def test_headers_are_a_repositorys_whatever_the_name_and_the_content(project, tmp_path):
    after = tree.copy(project, tmp_path / "after")
    for name in ("a b/a b.py", "tab\t.py", "b/b/b", "empty"):
        (after / name).parent.mkdir(parents=True, exist_ok=True)
        (after / name).write_text("diff --git b/x b/x\n" if name != "empty" else "")
    (after / "raw.bin").write_bytes(bytes(range(256)) * 20)
    for before, later in ((project, after), (after, project)):
        text = tree.diff(before, later)
        headers = [line for line in text.splitlines() if line.startswith("diff --git ")]
        expected = ("a b/a b.py", "b/b/b", "empty", "raw.bin")
        assert headers == [*(f"diff --git a/{n} b/{n}" for n in expected), 'diff --git "a/tab\\t.py" "b/tab\\t.py"']
        (tmp_path / "p.diff").write_text(text)
        assert tree.patched(tree.store(before), tmp_path / "p.diff") == tree.tree_hash(later)


def test_a_patch_that_does_not_apply_changes_nothing_and_says_where(project, tmp_path):
    patch = tmp_path / "p.diff"
    patch.write_text("--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,2 +1,2 @@\n x = 9\n-y = 2\n+y = 3\n")
    before = tree.tree_hash(project)
    with pytest.raises(InputError, match=r"does not apply: patch failed: pkg/a\.py:1"):
        tree.apply(patch, project)
    assert tree.tree_hash(project) == before


def test_an_empty_patch_is_the_base(project, tmp_path):
    patch = tmp_path / "p.diff"
    patch.write_text("")
    identity = tree.store(project)
    assert tree.patched(identity, patch) == identity
