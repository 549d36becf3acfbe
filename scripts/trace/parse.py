"""torch.profiler traces and Nsight Systems exports to Parquet tables, exactly and in bounded memory.

`python -m scripts.trace.parse TRACE... -o DIR [--jobs N] [--rank R] [--all-columns]` writes `DIR/events/<class>.parquet` (columns:
`scripts.trace.dataset`)
and `DIR/quality.json`: what was read, repaired and lost. One trace a rank; the rank is the trace's own
(distributedInfo), else the file
name's (rank3, worker3), else R for the first file, R+1 for the next. An input that is no trace is refused: alone, with
exit 2 and nothing written;
among others, it is left out, named on stderr and in quality.json, whose status is then `partial`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import write_json
from scripts.trace import clocks, compiled, dataset, document, nsys, quality, scan
from scripts.trace.blocks import Parsed, Workers, parse_file
from scripts.trace.pure import PlainScanner
from scripts.trace.runs import Run, Spool, merged, present
from scripts.trace.scanner import Scanner

# Below this many bytes of JSON the plain scanner is done before numba is loaded.
PLAIN_BELOW = 6 << 20
_WORKING = re.compile(r"\.events-[a-z0-9_]{8}")  # as tempfile.mkdtemp names them
_RANK = re.compile(r"(?:rank|worker)[-_ ]?(\d+)", re.IGNORECASE)
_LOSSES = (
    ("events", scan.EVENTS),
    ("repaired", scan.REPAIRED),
    ("bad", scan.BAD),
    ("truncated", scan.TRUNCATED),
    ("lost_bytes", scan.LOST_BYTES),
    ("without_phase", scan.NO_PHASE),
    ("without_time", scan.NO_TIME),
    ("without_duration", scan.NO_DURATION),
    ("rounded_times", scan.ROUNDED),
    ("nul_bytes", scan.NUL_BYTES),
)


def parse(
    paths: Sequence[Path],
    out: Path,
    *,
    jobs: int = 2,
    rank: int | None = None,
    plain: bool | None = None,
    all_columns: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Parse traces into `out`; returns the contents of `quality.json`.

    `all_columns`: of nsys exports, also the columns without a place of tables of more than a million rows.

    `plain` chooses the scanner without numba (None: by size and by what is installed). Raises InputError where a file
    is missing or
    none is a trace; then `out` is as it was.
    """
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    if plain is None:
        plain = not compiled.available() or sum(map(_estimate, paths)) < PLAIN_BELOW
    existed = out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    folder, lock = _working_folder(out)
    spool = Spool(folder)
    try:
        inputs = _scan(paths, spool, jobs, plain, all_columns, progress)
        good = [parsed for parsed in inputs if parsed.found]
        if not good:
            refused = inputs[0]
            raise InputError(
                f"{refused.path}: not a trace: {refused.refusal}; give a torch.profiler or nsys .sqlite export"
            )
        ranks = _ranks(good, rank)
        surveys = _write(good, ranks, folder, jobs, scan if plain else compiled.module("scan_compiled"))
        report = _report(inputs, ranks, surveys, "plain" if plain else "compiled")
        (out / "quality.json").unlink(missing_ok=True)
        shutil.rmtree(out / "events", ignore_errors=True)
        folder.chmod(0o755)
        folder.rename(out / "events")
        write_json(out / "quality.json", "wholejob/quality@1", report)
    finally:
        spool.close()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        if not existed and not any(out.iterdir()):
            out.rmdir()
    return report


def _working_folder(out: Path) -> tuple[Path, int]:
    """A new hidden folder in `out`, and a descriptor that locks it; those that killed processes left are removed.

    The lock goes with its process, however that ends: a folder whose lock is free is nobody's.
    """
    for stale in out.iterdir():
        if _WORKING.fullmatch(stale.name) and stale.is_dir() and not stale.is_symlink():
            lock = _locked(stale)
            if lock is not None:
                shutil.rmtree(stale, ignore_errors=True)
                os.close(lock)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=".events-", dir=out))
        lock = _locked(folder)
        if lock is None:  # no locks on this file system: then nothing is ever removed
            return folder, os.open(folder, os.O_RDONLY)
        if folder.is_dir():
            return folder, lock
        os.close(lock)  # another process began at the same time, and found it free


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, None where another process does."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _scan(  # noqa: PLR0917
    paths: Sequence[Path],
    spool: Spool,
    jobs: int,
    plain: bool,
    all_columns: bool,
    progress: Callable[[str], None] | None,
) -> list[Parsed]:
    """Every input's runs, in order. Small files go side by side, the blocks of a large one do."""
    workers = Workers((lambda: PlainScanner(spool)) if plain else (lambda: Scanner(spool)), jobs, inline=plain)

    def one(number: int) -> Parsed:
        path = paths[number]
        if nsys.is_export(path):
            kernel = scan if plain else compiled.module("scan_compiled")
            return nsys.parse_file(path, number, spool, kernel, all_columns=all_columns)
        show = _shown(path, progress) if progress else None
        parsed = parse_file(path, number, workers, show)
        if (
            parsed.found
            and not parsed.stats[scan.EVENTS]
            and (parsed.stats[scan.BAD] or parsed.start.lstrip()[:1] == b"[")
        ):
            parsed.found = False
        parsed.refusal = "" if parsed.found else document.complaint(parsed.start)
        if not parsed.found:
            parsed.runs = []
        return parsed

    inputs = [one(number) for number in range(len(paths))]
    workers.finish()
    return inputs


def _write(
    inputs: list[Parsed], ranks: dict[int, int], folder: Path, jobs: int, kernel: Any
) -> dict[int, dict[str, quality.Survey]]:
    """One Parquet file a class, rank after rank; the survey of each rank's classes."""
    order = sorted(inputs, key=lambda parsed: ranks[parsed.source])
    surveys = {parsed.source: {cls: quality.Survey(cls, kernel) for cls in dataset.CLASSES} for parsed in inputs}

    def one(number: int) -> None:
        cls = dataset.CLASSES[number]
        runs: dict[int, list[Run]] = {p.source: [r for r in p.runs if r.cls == number] for p in order}
        columns = present([r for mine in runs.values() for r in mine], cls)
        repeated = all(parsed.kind == "nsys" for parsed in order)
        writer = dataset.Writer(folder / f"{cls}.parquet", cls, columns, repeated=repeated)
        for source, mine in runs.items():
            for table in merged(mine, cls, ranks[source], columns):
                writer.write(table)
                surveys[source][cls].look(table)
        writer.close()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(len(dataset.CLASSES))))
    return surveys


def _ranks(inputs: list[Parsed], first: int | None) -> dict[int, int]:
    """Input number -> rank. No two inputs get the same; `Parsed.rank_from` says where each came from."""
    taken: dict[int, int] = {}
    for parsed in inputs:
        information = parsed.header.get("distributedInfo")
        own = information.get("rank") if isinstance(information, dict) else None
        named = _RANK.findall(parsed.path.name)
        wanted: int | None
        if isinstance(own, int) and not isinstance(own, bool) and 0 <= own < 2**31:
            wanted, parsed.rank_from = own, "distributedInfo"
        elif named and int(named[-1]) < 2**31:
            wanted, parsed.rank_from = int(named[-1]), "file name"
        elif first is not None:
            wanted, parsed.rank_from = first + parsed.source, "argument"
        else:
            wanted, parsed.rank_from = None, "order"
        if wanted is None or wanted in taken.values():
            if wanted is not None:
                parsed.loss.append(f"rank {wanted} ({parsed.rank_from}) was taken by another input")
                parsed.rank_from = "order"
            wanted = next(number for number in range(len(inputs) + len(taken) + 1) if number not in taken.values())
        taken[parsed.source] = wanted
    return taken


def _report(
    inputs: list[Parsed], ranks: dict[int, int], surveys: dict[int, dict[str, quality.Survey]], scanner: str
) -> dict[str, Any]:
    bases = {ranks[p.source]: _base(p.header) for p in inputs if p.found}
    shared = {ranks[source]: found["gpu"].collectives for source, found in surveys.items()}
    aligned = clocks.offsets(bases, shared)
    reports = [_input(parsed, ranks.get(parsed.source)) for parsed in inputs]
    rows = {cls: sum(found[cls].rows for found in surveys.values()) for cls in dataset.CLASSES}
    statuses = {report["status"] for report in reports}
    status = "partial" if "refused" in statuses else "lossy" if "lossy" in statuses else "ok"
    notes = []
    if not rows["gpu"]:
        notes.append("no GPU events: the views of the device are empty")
    return {
        "status": status,
        "scanner": scanner,
        "notes": notes,
        "classes": rows,
        "ranks": [
            {"rank": rank, "input": source, "clock": aligned[rank], **quality.rank_report(surveys[source])}
            for source, rank in sorted(ranks.items(), key=lambda item: item[1])
        ],
        "inputs": reports,
    }


def _input(parsed: Parsed, rank: int | None) -> dict[str, Any]:
    """What was read and lost of one file."""
    counts = {name: int(parsed.stats[place]) for name, place in _LOSSES}
    notes = list(parsed.loss)
    if not parsed.found:
        notes = []
    elif not parsed.closed:
        notes.append("the file ends inside the list of events")
    if parsed.stats[scan.UNCLOSED]:
        notes.append("the list of events has no closing bracket")
    if parsed.trailing_bytes:
        notes.append(f"{parsed.trailing_bytes} bytes of something else follow the trace")
    left = parsed.header.get("not_carried") if parsed.kind == "nsys" else None
    if left and parsed.found:
        notes.append(
            f"{sum(left.values())} rows of {len(left)} tables and columns have no place here (header.not_carried)"
        )
    lost = counts["bad"] or counts["truncated"] or parsed.loss or not parsed.closed
    return {
        "file": parsed.path.name,
        "status": "refused" if not parsed.found else "lossy" if lost else "ok",
        "reason": parsed.refusal or None,
        "kind": parsed.kind,
        "rank": rank,
        "rank_from": parsed.rank_from if parsed.found else None,
        "file_bytes": parsed.file_bytes,
        "bytes": parsed.bytes_read,
        "compressed": parsed.compressed,
        "encoding": parsed.encoding,
        **counts,
        "blocks_scanned_again": parsed.again,
        "dropped_by_profiler": quality.dropped_by_profiler(parsed.header),
        "notes": notes,
        "header": _finite(parsed.header),
    }


def _base(header: dict[str, Any]) -> int | None:
    base = header.get("baseTimeNanoseconds")
    return base if isinstance(base, int) and not isinstance(base, bool) else None


def _finite(value: Any) -> Any:
    """A JSON value without NaN and infinity, which quality.json may not hold: they become their names."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.encode("utf-8", errors="replace").decode() if isinstance(value, str) else value


def _estimate(path: Path) -> int:
    """About how many bytes of JSON a file holds."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return path.stat().st_size * (14 if packed else 1)


def _shown(path: Path, progress: Callable[[str], None]) -> Callable[[int, int], None]:
    last = [time.monotonic()]

    def show(done: int, size: int) -> None:
        if time.monotonic() - last[0] > 0.5:
            last[0] = time.monotonic()
            progress(f"{path.name}: {100 * done // max(size, 1)} % of {size / 1e6:.0f} MB read")

    return show


def summary(report: dict[str, Any]) -> str:
    """The report for people: what came in, then what is wrong with it."""
    lines = []
    total = sum(report["classes"].values())
    counts = ", ".join(f"{rows} {cls}" for cls, rows in report["classes"].items() if rows)
    ranks = len(report["ranks"])
    lines.append(f"{total} rows from {ranks} rank{'s' * (ranks != 1)}: {counts or 'none'}")
    for entry in report["inputs"]:
        bad = [f"{entry[name]} {name}" for name in ("bad", "truncated", "repaired") if entry[name]]
        words = [f"refused: {entry['reason']}"] if entry["status"] == "refused" else [*bad, *entry["notes"]]
        if words:
            lines.append(f"{entry['file']}: {'; '.join(words)}")
    return "\n".join([*lines, *report["notes"]])


def _reuse_memory() -> None:
    """Have the C library keep freed memory instead of giving it back: first touches of pages were a sixth of the CPU time.

    One arena, so that two threads do not each keep their own. glibc only; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in (
            (-3, 32 << 20),
            (-1, 128 << 20),
            (-8, 1),
        ):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX
            mallopt(option, value)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help=".json, .json.gz (one a rank), nsys .sqlite"
    )
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="threads (default: %(default)s)")
    parser.add_argument("--rank", type=int, help="rank of the first trace that does not name its own")
    parser.add_argument("--plain", action="store_true", help="use the scanner without numba")
    parser.add_argument("--all-columns", action="store_true", help="nsys: unknown columns of very large tables too")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=sys.stderr.isatty())
    arguments = parser.parse_args(argv)
    if arguments.jobs < 1:
        raise InputError(f"--jobs {arguments.jobs}: must be at least 1")

    _reuse_memory()

    def progress(line: str) -> None:
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    report = parse(
        arguments.traces,
        arguments.out,
        jobs=arguments.jobs,
        rank=arguments.rank,
        plain=arguments.plain or None,
        all_columns=arguments.all_columns,
        progress=progress if arguments.progress else None,
    )
    if arguments.progress:
        print("\r\033[K", end="", file=sys.stderr)
    print(summary(report), file=sys.stderr if report["status"] != "ok" else sys.stdout)
    return 0


if __name__ == "__main__":
    run(main)
