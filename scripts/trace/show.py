"""Print the views of a trace as text.

    python -m scripts.trace.show DIR [VIEW] [--rows N] [--where COLUMN=VALUE]
    python -m scripts.trace.show diff BEFORE AFTER [--rows N]

DIR is a folder of views (scripts.trace.summarise) or a parsed trace (scripts.trace.parse), whose views are then
computed. Without VIEW: the headline numbers, the notes and the first rows of the views that matter most.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.common.errors import InputError, run, suggestion
from scripts.common.files import read_json

if TYPE_CHECKING:
    import pyarrow as pa

FIRST = {
    "runtime": 12,
    "phases": 6,
    "lost_time": 8,
    "critical_path": 8,
    "kernels": 10,
    "cpu": 10,
    "steps": 8,
    "overlap": 6,
    "copies": 6,
    "synchronisations": 6,
    "memory": 4,
}
# Of these the overview shows the whole capture only.
TOTALS = ("phases", "critical_path", "memory")
# What a terminal has room for; the Parquet files have every column.
SHOWN = {
    "runtime": ("rank", "step", "wall_ns", "busy_ns", "idle_ns", "communication_ns", "kernels", "op_ns", "python_ns",
                "data_ns", "blocked_ns", "slow", "straggler"),
    "lost_time": ("rank", "kind", "lost_ns", "share", "gaps", "annotation", "op", "call", "path", "line", "function"),
    "critical_path": ("rank", "step", "kind", "critical_ns", "share", "count", "name", "op", "path", "line"),
    "gaps": ("rank", "step", "kind", "dur_ns", "before", "after", "op", "path", "line"),
    "kernels": ("rank", "class", "name", "op", "module", "shapes", "path", "line", "count", "total_ns", "share",
                "roofline", "bound"),
    "cpu": ("rank", "role", "kind", "name", "count", "total_ns", "self_ns", "source_ns", "share"),
    "callers": ("rank", "op", "module", "phase", "path", "line", "function", "count", "total_ns"),
    "copies": ("rank", "kind", "source", "destination", "bytes", "op", "path", "line", "count", "total_ns",
               "bytes_per_s", "exposed_ns", "repeated"),
    "overlap": ("rank", "group", "collective", "count", "total_ns", "exposed_ns", "hidden_compute_ns", "wait_ns",
                "transfer_ns", "algorithm_bytes_per_s"),
    "steps": ("rank", "step", "wall_ns", "excess_ns", "slow", "new_shapes", "new_kernels", "compile_ns", "cause_kind",
              "cause", "cause_ns", "path", "line"),
    "diff": ("level", "name", "status", "before_count", "after_count", "before_wall_ns", "after_wall_ns",
             "wall_delta_ns"),
}  # fmt: skip


def load(folder: Path) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Views and `views.json` of a folder of views, or of a parsed trace (computed).

    Raises InputError for anything else.
    """
    import pyarrow.parquet as pq

    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; give one that scripts.trace.summarise or scripts.trace.parse wrote"
        )
    if (folder / "views.json").is_file():
        document = read_json(folder / "views.json", "views")
        return {path.stem: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}, document
    from scripts.trace.capture import Capture
    from scripts.trace.summarise import summarise

    return summarise(Capture.open(folder))


def cell(name: str, value: Any) -> str:
    """A value as text: times in the unit that fits, shares in percent, rates and sizes with a prefix.

    Unknown is a dash.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ns") and name not in ("start_ns", "end_ns", "ts_ns", "peak_ts_ns"):
        return duration(value)
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:,.1f} GB/s"
    if name.endswith("flops_per_s"):
        return f"{value / 1e12:,.2f} TFLOP/s"
    if name.endswith("bytes"):
        return size(value)
    if isinstance(value, float):
        return (
            f"{value:.1%}"
            if name in ("share", "roofline") or (0 <= value <= 1 and name not in _COUNTS)
            else f"{value:,.1f}"
        )
    return (
        f"{value:,}"
        if isinstance(value, int) and name not in ("line", "step", "rank", "start_ns", "end_ns", "ts_ns")
        else str(value)
    )


_COUNTS = ("before_count", "after_count", "ratio_to_median", "kernels_per_step", "fill_kernels_per_step",
           "synchronisations_per_step",
           "pageable_copy_bytes_per_step", "repeated_copy_bytes_per_step")  # fmt: skip


def duration(nanoseconds: float) -> str:
    """`1.234 ms`, with a sign where negative."""
    for unit, length in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= length:
            return f"{nanoseconds / length:.3f} {unit}"
    return f"{nanoseconds:.0f} ns"


def size(count: float) -> str:
    """`10.4 GB`, decimal."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def main(argv: list[str] | None = None) -> int:
    """The program."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["diff"]:
        return _diff(argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m scripts.trace.show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("view", nargs="?")
    parser.add_argument("--rows", type=int, help="rows of each view (default: 40 of one view, a few of each otherwise)")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only rows with that value; may be repeated",
    )
    options = parser.parse_args(argv)
    tables, document = load(options.folder)
    if options.view:
        if options.view not in tables:
            near = suggestion(options.view, tables)
            raise InputError(f"{options.folder}: no view {options.view!r}{near}; there are {', '.join(tables)}")
        _print(options.view, _where(tables[options.view], options.view, options.where), options.rows or 40)
        return 0
    _headline(document)
    for name, rows in FIRST.items():
        if name in tables and tables[name].num_rows:
            table = tables[name].filter(_whole(tables[name])) if name in TOTALS else tables[name]
            _print(name, _where(table, name, options.where), options.rows or rows)
    return 0


def _whole(table: pa.Table) -> Any:
    """Rows for the whole capture."""
    return table["step"].is_null()


def _diff(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.trace.show diff", description="Compare two parsed traces, before and after."
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rows", type=int, default=12, help="rows of each level")
    options = parser.parse_args(argv)
    from scripts.trace.capture import Capture
    from scripts.trace.views.diff import LEVELS, diff

    table = diff(Capture.open(options.before), Capture.open(options.after))
    import pyarrow.compute as pc

    for level in LEVELS:
        part = table.filter(pc.equal(table["level"], level))
        if part.num_rows:
            _print("diff", part, options.rows,
                   title=f"{level}: {duration(sum(part['before_wall_ns'].to_pylist()))} a step before, "
                   f"{duration(sum(part['after_wall_ns'].to_pylist()))} after")  # fmt: skip
    return 0


def _where(table: pa.Table, view: str, conditions: list[str]) -> pa.Table:
    for condition in conditions:
        column, found, value = condition.partition("=")
        if not found or column not in table.column_names:
            raise InputError(
                f"--where {condition}: view {view} has no column {column!r}{suggestion(column, table.column_names)}"
            )
        import pyarrow as pa

        kept = [str(one) == value or (one is None and value == "null") for one in table[column].to_pylist()]
        table = table.filter(pa.array(kept, pa.bool_()))
    return table


def _headline(document: dict[str, Any]) -> None:
    from rich.table import Table

    device = document["device"]
    if device:
        known = device["peaks"]
        _console().print(
            f"{device['count']} x {device['name']}"
            + (f"; peaks from: {known['source']}" if known else "; no peak rates known")
        )
    for note in document["notes"]:
        _console().print(f"note: {note}", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in document["headline"].items():
        if value is not None and not isinstance(value, dict):
            table.add_row(name.removesuffix("_ns"), cell(name, value))
    _console().print(table)


def _print(view: str, table: pa.Table, rows: int, title: str | None = None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    data = table.slice(0, rows).to_pylist()
    wanted = [name for name in SHOWN.get(view, table.column_names) if name in table.column_names]
    columns = [name for name in wanted if any(row[name] is not None for row in data)] or wanted
    console = _console()
    numeric = {name: any(isinstance(row[name], (int, float)) for row in data) for name in columns}
    need = {name: max([len(cell(name, row[name])) for row in data] + [len(_title(name))]) for name in columns}
    # Numbers are never cut; the texts share what is left of the line.
    left = console.width - 3 * len(columns) - sum(need[name] for name in columns if numeric[name])
    width = _share({name: need[name] for name in columns if not numeric[name]}, left)
    shown = Table(
        title=Text(f"{title or view} ({table.num_rows:,} rows)"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in columns:
        size_ = need[name] if numeric[name] else width[name]
        justify: Any = "right" if numeric[name] else "left"
        shown.add_column(_title(name), justify=justify, no_wrap=True, overflow="ellipsis", width=size_)
    for row in data:
        shown.add_row(*(Text(cell(name, row[name])) for name in columns))
    console.print(shown)


def _title(name: str) -> str:
    return name.removesuffix("_ns")


def _share(need: dict[str, int], budget: int) -> dict[str, int]:
    """Widths within the budget: short columns get what they need, the long ones equal parts of the rest."""
    widths: dict[str, int] = {}
    for index, (name, length) in enumerate(sorted(need.items(), key=lambda item: item[1])):
        widths[name] = max(min(length, budget // (len(need) - index)), 6)
        budget -= widths[name]
    return widths


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    return Console(width=width, soft_wrap=False, highlight=False)


if __name__ == "__main__":
    run(main)
