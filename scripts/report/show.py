"""Print the tables of a device in the terminal: the answer first, then each change, then where everything lies."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from scripts.common.errors import InputError, run


def rendered(folder: Path) -> str:
    """The tables under `results/<device>/tables` as text."""
    if not (folder / "speedups.txt").is_file():
        raise InputError(f"{folder}: holds no tables; run snakemake first")
    parts = [_headlines(folder / "speedups.csv"), (folder / "speedups.txt").read_text(encoding="utf-8")]
    for name, title in (
        ("changes", "Each change, alone and left out of the final patch"),
        ("candidates", "Every candidate"),
    ):
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        if len(text.splitlines()) > 2:
            parts.append(f"{title}\n{text}")
    parts.append("\n".join(f"{path.name:<16} {path.as_posix()}" for path in sorted(folder.glob("*.csv"))))
    return "\n".join(parts) + "\n"


def _headlines(path: Path) -> str:
    lines = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["ratio"]:
                what = (
                    f"{row['verdict']}: {float(row['ratio']):.2f}x the speed on the whole job, "
                    f"{100 * float(row['confidence'] or 0.95):.0f} % interval {float(row['low']):.2f} to {float(row['high']):.2f}, "
                    f"{row['pairs']} pairs; values {row['parity']}"
                )
            else:
                what = f"{row['verdict']}: {row['reason']}"
            lines.append(f"{row['workload']} by {row['proposer']}: {what}")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Program behind the last lines of `snakemake` and `make demo`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="results/<device>/tables; the only one when left out")
    args = parser.parse_args(argv)
    folder = args.folder
    if folder is None:
        found = sorted(Path("results").glob("*/tables"))
        if len(found) != 1:
            raise InputError(f"results: holds tables of {len(found)} devices; name one: results/<device>/tables")
        folder = found[0]
    print(rendered(folder), end="")
    return 0


if __name__ == "__main__":
    run(main)
