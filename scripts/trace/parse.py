"""torch.profiler traces and Nsight Systems exports to Parquet tables, exactly and in bounded memory.

`python -m scripts.trace.parse TRACE... -o DIR [--jobs N] [--rank R]` writes `DIR/events/<class>.parquet` (`scripts.trace.dataset`) and
`DIR/quality.json`: what was read, repaired and lost.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.trace import dataset, scan
from scripts.trace.blocks import Parsed, Workers, parse_file
from scripts.trace.runs import Spool, merged, present


def parse(paths: Sequence[Path], out: Path, *, jobs: int = 2) -> Any:
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".events-", dir=out))
    spool = Spool(folder)
    try:
        from scripts.trace.scanner import Scanner

        workers = Workers(lambda: Scanner(spool), jobs)
        done = [parse_file(path, i, workers) for i, path in enumerate(paths)]
        workers.finish()
        runs = [run for parsed in done for run in parsed.runs]
        for c, cls in enumerate(dataset.CLASSES):
            mine = [run for run in runs if run.cls == c]
            columns = present(mine, cls)
            writer = dataset.Writer(folder / f"{cls}.parquet", cls, columns)
            for source in range(len(paths)):
                for table in merged([run for run in mine if run.source == source], cls, source, columns):
                    writer.write(table)
            writer.close()
        spool.close()
        shutil.rmtree(out / "events", ignore_errors=True)
        folder.chmod(0o755)
        folder.rename(out / "events")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return done


def main(argv: list[str] | None = None) -> int | None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    a = parser.parse_args(argv)
    for p in parse(a.traces, a.out, jobs=a.jobs):
        print(p.path.name, p.stats.tolist(), p.loss, p.found, p.closed, list(p.header), p.again)
    return 0


if __name__ == "__main__":
    run(main)
