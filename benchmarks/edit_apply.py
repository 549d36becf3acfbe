"""Edits with the slips that models make: right or refused, never silently wrong.

    python benchmarks/edit_apply.py

True edits are made on real files (this repository's and the standard library's): a run of lines, quoted, and its
replacement. Each is then applied with its quotation or replacement spoilt in one of the ways seen in the field. The
right result is known, so every outcome is one of three.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.propose.llm.edits import EditError, apply_edits  # noqa: E402

PER_SLIP = 40
Pair = tuple[str, str]


def true_edits(count: int, rng: random.Random) -> list[tuple[str, str, str]]:
    """(file text, quoted lines, replacement): one to eight whole lines of a real file, one of them changed."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = (
        sorted(library.glob("*.py"))
        + sorted((ROOT / "scripts").rglob("*.py"))
        + sorted((ROOT / "workloads").rglob("*.py"))
    )
    found: list[tuple[str, str, str]] = []
    while len(found) < count:
        path = rng.choice(paths)
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")
        if not 30 <= len(lines) <= 3000:
            continue
        start = rng.randrange(len(lines) - 10)
        quoted = lines[start : start + rng.randint(1, 8)]
        changeable = [i for i, line in enumerate(quoted) if re.search(r"[a-z_]{3,}\s*=\s*\S", line)]
        if not changeable or not quoted[0].strip() or not quoted[-1].strip():
            continue
        new = list(quoted)
        at = rng.choice(changeable)
        new.insert(at, re.sub(r"\S.*", "changed = True", quoted[at], count=1))
        search, replace = "\n".join(quoted), "\n".join(new)
        if text.count(search) != 1 or not _parses(text) or not _parses(text.replace(search, replace)):
            continue
        found.append((text, search, replace))
    return found


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _lines(change: Callable[[str], str]) -> Callable[[str, str, random.Random], Pair]:
    """The same slip on every line of quotation and replacement."""
    return lambda s, r, _: ("\n".join(map(change, s.split("\n"))), "\n".join(map(change, r.split("\n"))))


def _dedented(search: str, replace: str, _: random.Random) -> Pair:
    """The common indentation is lost, on both sides."""
    both = [line for line in (search + "\n" + replace).split("\n") if line.strip()]
    depth = min(len(line) - len(line.lstrip()) for line in both)
    return "\n".join(x[depth:] for x in search.split("\n")), "\n".join(x[depth:] for x in replace.split("\n"))


def _misquoted(search: str, replace: str, rng: random.Random) -> Pair:
    """One word of the quotation is another word of it."""
    words = list(re.finditer(r"[A-Za-z_]{3,}", search))
    first, second = rng.choice(words), rng.choice(words)
    return search[: first.start()] + second.group() + search[first.end() :], replace


def _dropped(search: str, replace: str, rng: random.Random) -> Pair:
    """A line of the quotation is missing."""
    lines = search.split("\n")
    if len(lines) > 2:
        del lines[rng.randrange(1, len(lines) - 1)]
    return "\n".join(lines), replace


def _swapped(search: str, replace: str, rng: random.Random) -> Pair:
    lines = search.split("\n")
    if len(lines) > 1:
        at = rng.randrange(len(lines) - 1)
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return "\n".join(lines), replace


def _elided(search: str, replace: str, _: random.Random) -> Pair:
    lines = search.split("\n")
    return ("\n".join([lines[0], "...", lines[-1]]) if len(lines) > 2 else search), replace


def _elided_answer(search: str, replace: str, _: random.Random) -> Pair:
    lines = replace.split("\n")
    indent = re.match(r"\s*", lines[0]).group()  # type: ignore[union-attr]
    return search, "\n".join([*lines[:1], f"{indent}# ... existing code ...", *lines[-1:]])


def _shortened(search: str, _: str, rng: random.Random) -> Pair:
    """Only a piece of one line is quoted, and replaced by a piece."""
    line = rng.choice([x for x in search.split("\n") if len(x.strip()) > 8])
    middle = line.strip()[2:-2]
    return middle, middle + "_x"


SLIPS: dict[str, Callable[[str, str, random.Random], Pair]] = {
    "clean": lambda s, r, _: (s, r),
    "trailing blanks": _lines(lambda line: line + "  "),
    "line break at the end": lambda s, r, _: (s + "\n", r),
    "blank lines around": lambda s, r, _: ("\n\n" + s + "\n\n", "\n\n" + r + "\n\n"),
    "Windows line ends": _lines(lambda line: line + "\r"),
    "indentation lost": _dedented,
    "indentation added": _lines(lambda line: "    " + line if line.strip() else line),
    "tabs for blanks": _lines(lambda line: re.sub(r"^( {4})+", lambda m: "\t" * (len(m.group()) // 4), line)),
    "every indentation lost": _lines(str.lstrip),
    "quotes changed": lambda s, r, _: (s.translate(str.maketrans("\"'", "'\"")), r),
    "a word misquoted": _misquoted,
    "case changed": lambda s, r, _: (s.swapcase(), r),
    "a line dropped": _dropped,
    "two lines swapped": _swapped,
    '"..." in the quotation': _elided,
    '"..." in the answer': _elided_answer,
    "line numbers quoted": lambda s, r, _: ("\n".join(f"{n}: {x}" for n, x in enumerate(s.split("\n"), 10)), r),
    "diff signs quoted": lambda s, r, _: (
        "\n".join("-" + x for x in s.split("\n")),
        "\n".join("+" + x for x in r.split("\n")),
    ),
    "comments dropped": lambda s, r, _: (re.sub(r"\s*#.*", "", s), r),
    "one line only": lambda s, r, _: (s.split("\n")[0], r.split("\n")[0] + "  # seen"),
    "a piece of a line": _shortened,
}


def expected(text: str, edit: tuple[str, str], slip: str, spoilt: Pair) -> set[str]:
    """Texts that are right. Where the slip spoils the intention as well, only what was quoted may change."""
    search, replace = edit
    right = {text.replace(search, replace)}
    if slip == "comments dropped" and spoilt[0] == search:
        return right
    # A quotation that stands once as it is was applied to the letter: a comment that the answer repeats is its own.
    if slip in ("one line only", "a piece of a line", "comments dropped") and text.count(spoilt[0]) == 1:
        right.add(text.replace(spoilt[0], spoilt[1]))
    return right


def outcome(text: str, edit: Pair, slip: str, spoilt: Pair) -> str:
    """right, refused or wrong. Blanks at line ends, which no program sees, are no difference."""
    try:
        got = apply_edits({"f.py": text}.get, [{"path": "f.py", "search": spoilt[0], "replace": spoilt[1]}])["f.py"]
    except EditError:
        return "refused"
    return "right" if _plain(got) in {_plain(x) for x in expected(text, edit, slip, spoilt)} else "wrong"


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").split("\n"))


def main() -> int:
    rng = random.Random(0)
    edits = true_edits(PER_SLIP, rng)
    metrics: dict[str, dict[str, int]] = {}
    print(f"{'slip':<26}{'right':>7}{'refused':>9}{'wrong':>7}")
    for slip, spoil in SLIPS.items():
        count = {"right": 0, "refused": 0, "wrong": 0}
        for text, search, replace in edits:
            try:
                spoilt = spoil(search, replace, rng)
            except IndexError:  # the slip needs a longer quotation
                spoilt = (search, replace)
            count[outcome(text, (search, replace), slip, spoilt)] += 1
        metrics[slip] = count
        print(f"{slip:<26}{count['right']:>7}{count['refused']:>9}{count['wrong']:>7}")
    total = sum(sum(count.values()) for count in metrics.values())
    wrong = sum(count["wrong"] for count in metrics.values())
    repaired = [
        metrics[s]["right"] / PER_SLIP
        for s in ("clean", "trailing blanks", "indentation lost", "Windows line ends", "blank lines around")
    ]
    print(f"\n{total} edits, {wrong} silently wrong")
    bars = {"edits": 300, "wrong": 0, "repaired_share": 0.9}
    good = total >= bars["edits"] and wrong == 0 and min(repaired) >= bars["repaired_share"]
    result = {"edits": total, "wrong": wrong, "repaired_share": min(repaired), "by_slip": metrics}
    print(json.dumps({"bench": "edit_apply", "metrics": result, "bars": bars, "ok": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
