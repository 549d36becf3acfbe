"""`parity`: prove that two runs of a job compute the same. Subcommands: run, derive, compare, show."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Optional

COMMANDS = {
    "run": "record a job, unedited: parity run --out base -- python train.py",
    "derive": "learn how far its values move on their own, from three or more runs",
    "compare": "say whether two runs compute the same, and where they part",
    "show": "print what a run recorded",
}

HELP = f"""usage: parity COMMAND ...

Proves that a change did not alter what a training or inference job computes.

{chr(10).join(f"  {name:<9} {what}" for name, what in COMMANDS.items())}

First time:
  parity run --out base -- python train.py
  parity run --out n1 --perturb ulp --seed 1 -- python train.py        (again with n2, n3 and seeds 2, 3)
  parity derive base n1 n2 n3 -o noise.json
  ... change the job ...
  parity run --out cand -- python train.py
  parity compare base cand --noise noise.json

Exit codes of compare: 0 equivalent, 1 different, 2 undecided, 3 cannot compare.
`parity COMMAND --help` says more.
"""


def main(argv: Optional[list[str]] = None) -> int:
    """Runs one subcommand and returns its exit code; bad input gets one line on standard error and code 3."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        print(f"parity: no command {command!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 3
    from parity.records import BadInput

    try:
        module = importlib.import_module(f"parity.{command}")
        return int(module.main(arguments[1:]) or 0)
    except BadInput as error:
        print(f"parity {command}: {error}", file=sys.stderr)
        return 3
    except SystemExit as error:
        # argparse leaves with 2 for a wrong option, which here would read as "undecided".
        return 3 if command != "run" and error.code == 2 else _code(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception:  # a fault of ours: a bare 1 would read as "different"
        traceback.print_exc()
        print(
            f"parity {command}: an error of parity itself, not an answer; please report the lines above",
            file=sys.stderr,
        )
        return 3


def _code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
