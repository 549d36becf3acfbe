"""Remove what the pipeline wrote: results and logs; stored trees are read-only, which `rm` would refuse."""

from __future__ import annotations

import argparse
import shutil

from scripts.common import tree
from scripts.common.errors import InputError, run
from scripts.common.files import ROOT


def clean(workload: str | None, device: str | None) -> list[str]:
    """Delete one workload's folders, or every result and log; returns what was deleted, relative to the root."""
    if workload is None:
        targets = [ROOT / "logs", *(path for path in (ROOT / "results").glob("*") if path.name != "README.md")]
    else:
        pattern = f"{device or '*'}/{workload}"
        targets = [*(ROOT / "results").glob(pattern), *(ROOT / "logs").glob(pattern)]
    for path in targets:
        if path.is_dir() and not path.is_symlink():
            tree.remove(path)
        else:
            path.unlink(missing_ok=True)
    return [path.relative_to(ROOT).as_posix() for path in targets]


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `clean_workload` and of `make clean`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", help="only this one")
    parser.add_argument("--device", help="only on this device")
    args = parser.parse_args(argv)
    if args.workload is not None and (not args.workload or "/" in args.workload or args.workload.startswith(".")):
        raise InputError(f"--workload: {args.workload!r} is no workload's name")
    deleted = clean(args.workload, args.device)
    print("\n".join(f"removed {name}" for name in deleted) or "nothing to remove")
    if args.workload is None:
        shutil.rmtree(ROOT / ".snakemake", ignore_errors=True)
    return 0


if __name__ == "__main__":
    run(main)
