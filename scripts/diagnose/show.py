"""Print a workload's findings and brief in a terminal.

python -m scripts.diagnose.show results/<device>/<workload>
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json


def lines(findings: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(at most, id, title, first place) of each finding, largest first."""
    rows = []
    for finding in findings["findings"]:
        ceiling, anchors = finding["ceiling"], finding["anchors"]
        share = f"{100 * ceiling['fraction']:.1f} %" if ceiling else "unknown"
        rows.append(
            (share, finding["id"], finding["title"], f"{anchors[0]['path']}:{anchors[0]['line']}" if anchors else "")
        )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Print findings.json as a table, then brief.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Path, help="folder of the workload's results")
    parser.add_argument("--brief", action="store_true", help="the brief alone, as it is given to a model")
    args = parser.parse_args(argv)
    text = args.workload / "brief.md"
    if not text.is_file():
        raise InputError(
            f"{text}: no such file; run: snakemake diagnose --config workload={args.workload.name.partition('-')[0]}"
        )
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table

    console = Console()
    if not args.brief:
        findings = read_json(args.workload / "findings.json", "findings")
        failed = [entry for entry in findings["looked_for"] if entry["result"] == "failed"]
        table = Table(
            "at most", "finding", "what", "where", title=f"{len(findings['findings'])} findings, share of the whole job"
        )
        for row in lines(findings):
            table.add_row(*row)
        console.print(table)
        for entry in failed:
            console.print(f"detector failed: {entry['id']}: {entry['why']}", style="bold red")
    console.print(Markdown(text.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    run(main)
