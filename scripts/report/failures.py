"""After a failure: the last lines of each failed node's own log, and where it lies."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from scripts.common.errors import run
from scripts.common.launch import last_lines

# What a rule's command redirects into; Snakemake prints the command of a failed job.
REDIRECT = re.compile(r"Command '.*?> (logs/\S+\.log) 2>&1' (?:returned|died)", re.DOTALL)


def failed_logs(text: str) -> list[Path]:
    """Log files of the jobs that Snakemake's own log reports as failed, in order, each once."""
    return list(dict.fromkeys(Path(match) for match in REDIRECT.findall(text)))


def rendered(path: Path) -> str:
    """A log's last lines under its path."""
    return f"--- {path}\n{last_lines(path) or '(empty)'}"


def main(argv: list[str] | None = None) -> int:
    """Called by the Snakefile's `onerror`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, help=".snakemake/log/<time>.snakemake.log")
    args = parser.parse_args(argv)
    for path in failed_logs(args.log.read_text(encoding="utf-8", errors="replace")):
        print(rendered(path), file=sys.stderr)
    return 0


if __name__ == "__main__":
    run(main)
