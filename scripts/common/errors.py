"""One line for bad input: every program of the pipeline fails through here."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class InputError(Exception):
    """Bad input. The message names the file, the field and what would be right, in one line."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'steps'?`, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def run(main: Callable[[list[str] | None], int | None]) -> NoReturn:
    """Call a script's `main` as a program: exit 2 and one line for an `InputError`, 130 for Ctrl-C."""
    try:
        code = main(None)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code or 0)
