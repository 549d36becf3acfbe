"""A model's edits apply where they are meant or not at all."""

import pytest

from scripts.propose.llm.edits import EditError, apply_edits

TEXT = """def f(x):
    total = 0
    for i in x:
        total += i
    return total


def g(x):
    return x
"""


def edit(search: str, replace: str, text: str = TEXT, path: str = "m.py") -> str:
    return apply_edits({path: text}.get, [{"path": path, "search": search, "replace": replace}])[path]


def test_a_unique_match_is_replaced() -> None:
    assert edit("    total = 0\n", "    total = 1\n") == TEXT.replace("= 0", "= 1")


@pytest.mark.parametrize(
    ("search", "replace"),
    [
        (
            "for i in x:  \n    total += i  ",
            "for i in x:\n    total -= i",
        ),  # common indentation lost, blanks at the ends
        ("        for i in x:\n            total += i", "        for i in x:\n            total -= i"),
        ("\n    for i in x:\n        total += i\n\n", "    for i in x:\n        total -= i\n"),
        ("    for i in x:\r\n        total += i", "    for i in x:\r\n        total -= i"),
    ],
    ids=["less", "more", "blank_lines", "crlf"],
)
def test_white_space_is_repaired_on_both_sides(search: str, replace: str) -> None:
    assert edit(search, replace) == TEXT.replace("+=", "-=")


def test_windows_line_ends_of_the_file_are_kept() -> None:
    assert edit("    total = 0", "    total = 1\n    n = 2", TEXT.replace("\n", "\r\n")) == TEXT.replace(
        "    total = 0\n", "    total = 1\n    n = 2\n"
    ).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("search", "replace", "why"),
    [
        ("x", "y", "found 4 times, on lines 1, 3"),
        ("total = 1", "total = 2", "first line 'total = 1' is nowhere"),
        (
            "    total = 0\n    for j in x:",
            "",
            r"line 2 of `search` is '    for j in x:', the file has '    for i in x:' on line 3",
        ),
        ("otal = 0", "otal = 1", "inside a word on line 2"),
        ("total = 0\n    for i", "z = 0\n    for i", "several lines and begins or ends inside one"),
        ("", "x", "empty"),
        ("    total = 0", "    total = 0", "changes nothing"),
        ("    total = 0", "    # ... existing code ...", "leaves code out"),
        ("1: def f(x):\n2:     total = 0", "def f(y):", "line numbers"),
        ("    total = 0", "    total = (", "does not parse"),
        ("    total = 0", "    total = 1\n    for i in x:\n        total += i", "ends with 2 lines that follow"),
        ("for i in x:\ntotal += i", "for i in x:\ntotal -= i", "indentation differs from line to line"),
    ],
)
def test_anything_else_is_refused_with_what_would_repair_it(search: str, replace: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        edit(search, replace)


def test_one_bad_edit_applies_none_and_names_itself() -> None:
    edits = [
        {"path": "m.py", "search": "    total = 0", "replace": "    total = 1"},
        {"path": "m.py", "search": "nothing here", "replace": "x"},
        {"path": "gone.py", "search": "a", "replace": "b"},
    ]
    with pytest.raises(EditError) as error:
        apply_edits({"m.py": TEXT}.get, edits)
    assert (
        "edit 2: m.py" in str(error.value)
        and "edit 3: gone.py: no such file" in str(error.value)
        and "edit 1" not in str(error.value)
    )


def test_edits_are_matched_against_the_file_as_it_was_and_may_not_overlap() -> None:
    both = [
        {"path": "m.py", "search": "    total = 0", "replace": "    return x"},
        {"path": "m.py", "search": "    return x\n", "replace": "    return 2 * x\n"},  # unique before the first edit
    ]
    assert apply_edits({"m.py": TEXT}.get, both)["m.py"].count("return x") == 1
    overlap = [
        {"path": "m.py", "search": "    total = 0\n    for i in x:", "replace": "a"},
        {"path": "m.py", "search": "    for i in x:", "replace": "b"},
    ]
    with pytest.raises(EditError, match="overlap"):
        apply_edits({"m.py": TEXT}.get, overlap)


def test_whole_files_are_for_small_or_new_ones() -> None:
    assert apply_edits({}.get, [], [{"path": "new.py", "content": "x = 1"}]) == {"new.py": "x = 1\n"}
    with pytest.raises(EditError, match="has 200 lines"):
        apply_edits({"big.py": "x = 1\n" * 200}.get, [], [{"path": "big.py", "content": "x = 2"}])
    with pytest.raises(EditError, match="leaves code out"):
        apply_edits({}.get, [], [{"path": "new.py", "content": "x = 1\n# rest of the code unchanged\n"}])


def test_deleting_lines_takes_their_line_break() -> None:
    assert edit("  total = 0  ", "", "if 1:\n    total = 0\n    a = 1\n") == "if 1:\n    a = 1\n"
