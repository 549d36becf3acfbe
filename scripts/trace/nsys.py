"""Nsight Systems exports (`nsys export --type sqlite`, schemas 3.11 to 3.25) as the same tables as a torch.profiler
trace.

Tables and columns that an export lacks are done without. Columns that have no place in our tables stand in `args` as
JSON, under their own names; tables that have none are named, with their rows, in quality.json (`not_carried`), and so
are such columns of tables of more than a million rows, unless `--all-columns` asks for them (a third more CPU time). The other
names of a kernel (`shortName`, `mangledName`) are long and follow from the first: they are rows of `metadata`, once a
name. Batches come through ADBC as Arrow, so no row becomes a Python object: 0.7 us a row.
Each kernel, copy and memset gets the innermost NVTX range around its launch (`range`): one sweep over ranges and
calls, linear after a sort.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.trace import dataset, leftover, scan
from scripts.trace.blocks import Parsed
from scripts.trace.grouping import Groups
from scripts.trace.runs import Dictionary, Run, Spool, make_run

BATCH = 1 << 16
ALL_COLUMNS_BELOW = 1 << 20  # rows of a table: columns without a place of more are counted, unless all are asked for
MAGIC = b"SQLite format 3\0"
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_PUSH_POP, _START_END, _MARK = 59, 60, 34
_RANGES = "(59, 60, 34, 70, 71)"
_REFERENCE = re.compile(r"(?:^name|Name|^text|Text)(?:Id)?$")  # integer columns that name rows of StringIds
_VERSION = re.compile(r"_v\d+$")
_COUNTED = "select count(*) from "


def is_export(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parse_file(path: Path, source: int, spool: Spool, kernel: Any, *, all_columns: bool = False) -> Parsed:
    """Read an export into runs. `all_columns`: keep columns without a place however large their table is.

    `Parsed.found` is False where the database holds none of the event tables, or is damaged.
    """
    parsed = Parsed(
        path, source, stats=np.zeros(scan.STATISTICS, np.int64), file_bytes=path.stat().st_size, kind="nsys"
    )
    parsed.bytes_read = parsed.file_bytes
    try:
        export = _Export(path, source, spool, kernel)
        export.all_columns = all_columns
        try:
            _read_all(export)
        finally:
            export.close()
    except _errors() as error:
        parsed.refusal = f"the SQLite file cannot be read ({str(error).splitlines()[0][:120]})"
        return parsed
    parsed.runs, parsed.header = export.runs, export.header
    parsed.stats[scan.EVENTS] = sum(run.rows for run in export.runs)
    parsed.stats[scan.NO_TIME] = export.untimed
    parsed.found = parsed.closed = bool(export.runs) or any(table in export.columns for table in _READERS)
    parsed.refusal = "" if parsed.found else "it is an SQLite database without the event tables of an nsys export"
    return parsed


class _Export:
    """One database: its tables, its strings, and the runs made of it."""

    def __init__(self, path: Path, source: int, spool: Spool, kernel: Any) -> None:
        self.path, self.source, self.spool, self.kernel = path, source, spool, kernel
        self.connection = sqlite3.connect(f"file:{_quoted(path)}?mode=ro&immutable=1", uri=True)
        tables = [row[0] for row in self.connection.execute("select name from sqlite_master where type = 'table'")]
        information = {t: self.connection.execute(f'pragma table_info("{t}")').fetchall() for t in tables}
        self.columns = {table: [row[1] for row in rows] for table, rows in information.items()}
        self.integers = {
            (table, row[1]) for table, rows in information.items() for row in rows if "INT" in row[2].upper()
        }
        self.not_carried: dict[str, int] = {}
        self.all_columns = False
        self.arrow = _adbc(path)
        self.texts: dict[str, int] = {}
        self.dictionary = Dictionary()
        self.strings: Any = np.full(0, -1, np.int32)
        self.calls: dict[str, list[Any]] = {"track": [], "time": [], "key": []}
        self.ranges: dict[str, list[Any]] = {"track": [], "start": [], "end": [], "text": []}
        self.threads: dict[int, int] = {}
        self.runs: list[Run] = []
        self.header: dict[str, Any] = {}
        self.untimed = 0
        self.sought: Callable[[Any], Any] | None = None
        self._load_strings()

    def close(self) -> None:
        texts = list(self.texts)

        self.dictionary.freeze(lambda: ([text.encode("utf-8", errors="replace") for text in texts], 0))
        self.connection.close()
        if self.arrow is not None:
            self.arrow.close()

    def batches(
        self, table: str, wanted: list[str], where: str = "", aside: tuple[str, ...] = ()
    ) -> Iterator[dict[str, Any]]:
        """The wanted columns of a table in batches, as int64 arrays with `scan.NULL`; None for a column that it lacks.

        `args` holds the other columns (`leftover.texts`), except those in `aside`.
        """
        there = [name for name in wanted if name in self.columns.get(table, ())]
        if wanted[0] not in there:
            self._count(table, "")
            return
        others = [name for name in self.columns[table] if name not in wanted and name not in aside]
        if others and not self.all_columns and (rows := self._rows(table)) > ALL_COLUMNS_BELOW:
            self.not_carried |= {f"{table}.{name}": rows for name in others}
            others = []
        numbers = [name for name in others if (table, name) in self.integers]
        written = [name for name in others if name not in numbers and self._any(table, name, where)]
        query = f'select {", ".join(map(_name, [*there, *numbers]))} from "{table}" {where}'
        texts = f'select {", ".join(map(_name, written))} from "{table}" {where}' if written else ""
        cursor = self.connection.execute(texts) if texts else None
        for columns in (
            _arrow_batches(self.arrow, query) if self.arrow is not None else _row_batches(self.connection, query)
        ):
            rows = len(columns[0])
            rest: dict[str, Any] = {name: self._resolved(name, c) for name, c in zip(numbers, columns[len(there) :])}
            if cursor is not None:
                rest |= dict(zip(written, map(list, zip(*cursor.fetchmany(rows)))))
            yield {**dict.fromkeys(wanted), **dict(zip(there, columns)), "args": leftover.texts(rest, rows)}

    def _any(self, table: str, column: str, where: str) -> bool:
        """Whether a column holds anything."""
        condition = f"{where} and" if where else "where"
        found = self.connection.execute(f'select 1 from "{table}" {condition} {_name(column)} is not null limit 1')
        return found.fetchone() is not None

    def _resolved(self, column: str, values: Any) -> Any:
        """Numbers of StringIds as their texts; any other column as it is."""
        if not _REFERENCE.search(column) or not len(self.strings):
            return values
        said, texts = self.named(values), self.said()
        return [
            texts[one] if one >= 0 else (None if value == scan.NULL else value)
            for one, value in zip(said.tolist(), values.tolist())
        ]

    def said(self) -> list[str]:
        """The texts by number."""
        return list(self.texts)

    def _rows(self, table: str, where: str = "") -> int:
        return int(self.connection.execute(f'{_COUNTED} "{table}" {where}').fetchone()[0])

    def _count(self, table: str, where: str, name: str = "") -> None:
        """Name rows that have no place in our tables."""
        count = self._rows(table, where)
        if count:
            self.not_carried[name or table] = count

    def text(self, value: str) -> int:
        """Number of a text."""
        return self.texts.setdefault(value, len(self.texts))

    def texts_of(self, numbers: Any, say: Callable[[int], str]) -> Any:
        """Text numbers for integers, each distinct one said once; null stays null."""
        distinct, places = np.unique(numbers, return_inverse=True)
        said = [-1 if number == scan.NULL else self.text(say(number)) for number in distinct.tolist()]
        return np.array(said, np.int32)[places]

    def named(self, ids: Any) -> Any:
        """Text numbers for ids of StringIds."""
        if not len(self.strings):
            return np.full(len(ids), -1, np.int32)
        known = (ids >= 0) & (ids < len(self.strings))
        return np.where(known, self.strings[np.where(known, ids, 0)], -1).astype(np.int32)

    def add(self, cls: str, columns: dict[Any, Any]) -> None:
        """Rows as a run; keys are the scanner's numbers or the names of argument columns; None is left out."""
        c, rows = dataset.CLASSES.index(cls), len(columns[scan.TS])
        if not rows:
            return
        kept: dict[int, Any] = {}
        raw = None
        others = columns.pop("args", None)
        if others is not None and len(others[1]) <= max(rows // 4, 64):  # few texts: numbers of them
            numbers = [self.text(text.decode()) if text else -1 for text in others[1]]
            kept[scan.ARGS] = np.array(numbers, np.int32)[others[0]]
        elif others is not None:
            raw, kept[scan.ARGS], kept[scan.ARGS_LENGTH] = leftover.raw(others)
        for key, values in columns.items():
            number = key if isinstance(key, int) else scan.column_index(cls, key)
            if values is None:
                continue
            if np.isscalar(values):
                values = np.full(rows, values, np.int32)
            if number == scan.TS or (values != (-1 if values.dtype == np.int32 else scan.NULL)).any():
                kept[number] = values
        self.untimed += int((kept[scan.TS] == scan.NULL).sum())
        self.runs.append(make_run(self.spool, c, self.source, kept, self.dictionary, raw, self.kernel.gather))

    def add_names(self, name: str, pid: Any, tid: Any, labels: Any, others: dict[str, Any]) -> None:
        """Metadata rows of one name; `others` become `args`."""
        rows = len(labels)
        columns: dict[Any, Any] = {
            scan.TS: np.full(rows, scan.NULL),
            scan.NAME: self.text(name),
            scan.PID: pid,
            scan.TID: tid,
            "label": labels,
            "args": leftover.texts(others, rows),
        }
        self.add("metadata", columns)
        self.untimed -= rows

    def process_and_thread(self, ids: Any) -> tuple[Any, Any]:
        """Text numbers of pid and tid of globalTid."""
        pids, tids = (ids >> 24) & 0xFFFFFF, ids & 0xFFFFFF
        return self.texts_of(pids, str), self.texts_of(tids, str)

    def _load_strings(self) -> None:
        if "StringIds" not in self.columns:
            return
        rows = self.connection.execute("select id, value from StringIds where value is not null").fetchall()
        self.strings = np.full(max((row[0] for row in rows), default=-1) + 1, -1, np.int32)
        for number, value in rows:
            text = value if isinstance(value, str) else bytes(value).decode("utf-8", errors="backslashreplace")
            self.strings[number] = self.text(text)


def _read_all(export: _Export) -> None:
    for table, read in _READERS.items():
        if table in export.columns:
            read(export, table)
    _read_names(export)
    _read_header(export)


def _length(batch: dict[str, Any]) -> Any:
    start, end = batch["start"], batch["end"]
    if end is None:
        return np.full(len(start), scan.NULL)
    return np.where((start == scan.NULL) | (end == scan.NULL), scan.NULL, end - start)


def _read_ranges(export: _Export, table: str) -> None:
    """NVTX: push/pop and start/end ranges, and marks, as annotations. Read first: the device rows ask for them."""
    has_text, has_id = ("text" in export.columns[table], "textId" in export.columns[table])
    where = f"where eventType in {_RANGES}" if "eventType" in export.columns[table] else ""
    if where:
        others = export.connection.execute(f"select distinct eventType from {table} where eventType not in {_RANGES}")
        for (kind,) in others.fetchall():
            export._count(table, f"where eventType = {kind}", f"{table} eventType {kind}")
    wanted = ["start", "end", "eventType", "globalTid", *(["textId"] if has_id else [])]
    number = "case when text is not null then rowid end as inline" if has_text else ""
    texts = _inline_texts(export, table) if number else {}
    for batch in export.batches(table, [*wanted, *(["rowid"] if texts else [])], where, aside=("text",)):
        kinds = batch["eventType"] if batch["eventType"] is not None else np.full(len(batch["start"]), _PUSH_POP)
        names = export.named(batch["textId"]) if has_id else np.full(len(kinds), -1, np.int32)
        if texts:
            inline = np.array([texts.get(row, -1) for row in batch["rowid"].tolist()], np.int32)
            names = np.where(inline >= 0, inline, names)
        tids = batch["globalTid"] if batch["globalTid"] is not None else np.zeros(len(kinds), np.int64)
        pid, tid = export.process_and_thread(tids)
        mark = np.isin(kinds, (_MARK, 34))
        phase = np.where(mark, export.text("i"), export.text("X")).astype(np.int32)
        export.add(
            "annotation",
            {
                scan.TS: batch["start"],
                scan.DUR: np.where(mark, scan.NULL, _length(batch)),
                scan.NAME: names,
                scan.CAT: export.text("user_annotation"),
                scan.PID: pid,
                scan.TID: tid,
                "phase": phase,
                "args": batch["args"],
            },
        )
        if batch["end"] is not None:
            nested = np.isin(kinds, (_PUSH_POP, 70)) & (batch["end"] != scan.NULL) & (batch["start"] != scan.NULL)
            for key, values in (("track", tids), ("start", batch["start"]), ("end", batch["end"]), ("text", names)):
                export.ranges[key].append(values[nested])


def _inline_texts(export: _Export, table: str) -> dict[int, int]:
    """Texts that stand in the NVTX table itself, by rowid."""
    export.columns[table].append("rowid")
    rows = export.connection.execute(f"select rowid, text from {table} where text is not null")
    return {row: export.text(str(text)) for row, text in rows}


def _read_calls(export: _Export, table: str) -> None:
    """CUDA API calls."""
    driver = np.zeros(0, np.bool_)
    renamed = np.full(len(export.strings), -1, np.int32)
    if "StringIds" in export.columns:
        texts = list(export.texts)
        driver = np.zeros(len(export.strings), np.bool_)
        for number in np.flatnonzero(export.strings >= 0).tolist():
            text = _VERSION.sub("", texts[export.strings[number]])
            if text.startswith(("cu", "hip")):
                renamed[number] = export.text(text)
                driver[number] = text.startswith("cu") and not text.startswith("cuda")
            else:
                renamed[number] = export.strings[number]
    for batch in export.batches(table, ["start", "end", "globalTid", "correlationId", "nameId"]):
        ids = batch["nameId"] if batch["nameId"] is not None else np.full(len(batch["start"]), -1)
        known = (ids >= 0) & (ids < len(renamed))
        places = np.where(known, ids, 0)
        names = (
            np.where(known, renamed[places], -1).astype(np.int32) if len(renamed) else np.full(len(ids), -1, np.int32)
        )
        low = known & driver[places] if len(driver) else np.zeros(len(ids), np.bool_)
        category = np.where(low, export.text("cuda_driver"), export.text("cuda_runtime")).astype(np.int32)
        tids = batch["globalTid"] if batch["globalTid"] is not None else np.zeros(len(ids), np.int64)
        pid, tid = export.process_and_thread(tids)
        export.add(
            "runtime",
            {
                scan.TS: batch["start"],
                scan.DUR: _length(batch),
                scan.NAME: names,
                scan.CAT: category,
                scan.PID: pid,
                scan.TID: tid,
                "correlation": batch["correlationId"],
                "args": batch["args"],
            },
        )
        if batch["correlationId"] is not None:
            timed = batch["start"] != scan.NULL
            for key, values in (
                ("track", tids),
                ("time", batch["start"]),
                ("key", _process_key(tids, batch["correlationId"])),
            ):
                export.calls[key].append(values[timed])


def _process_key(ids: Any, correlations: Any) -> Any:
    """One integer for (process, correlation id): correlation ids count anew in every process."""
    return (((ids >> 24) & 0xFFFFFF) << 36) | (correlations & ((1 << 36) - 1))


def _range_finder(export: _Export) -> Callable[[Any], Any]:
    """A function from (process, correlation) keys to the text number of the innermost range around the launch, -1 for
    none."""
    if export.sought is not None:
        return export.sought
    if not export.ranges["track"] or not export.calls["track"]:
        export.sought = lambda keys: np.full(len(keys), -1, np.int32)
        return export.sought
    ranges = {key: np.concatenate(pieces) for key, pieces in export.ranges.items()}
    calls = {key: np.concatenate(pieces) for key, pieces in export.calls.items()}
    for pieces in (*export.ranges.values(), *export.calls.values()):
        pieces.clear()
    innermost = enclosing(
        ranges["track"], ranges["start"], ranges["end"], calls["track"], calls["time"], kernel=export.kernel
    )
    texts = np.append(ranges["text"], -1)[innermost].astype(np.int32)
    order = np.argsort(calls["key"], kind="stable")
    keys = calls["key"][order]
    texts = texts[order]

    def find(wanted: Any) -> Any:
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, texts[places], -1).astype(np.int32)

    export.sought = find
    return find


def enclosing(tracks: Any, starts: Any, ends: Any, call_tracks: Any, call_times: Any, *, kernel: Any = scan) -> Any:
    """Index of the innermost range of its track that each call lies in, -1 for none. Linear after two sorts.

    All int64; ranges [start, end) that nest on their track (push/pop); they need not be sorted. Where they do not
    nest, the latest to
    begin counts.
    """
    by_range = np.lexsort((-ends, starts, tracks))
    by_call = np.lexsort((call_times, call_tracks))
    found = np.full(len(call_tracks), -1, np.int64)
    kernel.innermost(
        tracks[by_range], starts[by_range], ends[by_range], call_tracks[by_call], call_times[by_call], found
    )
    result = np.full(len(call_tracks), -1, np.int64)
    result[by_call] = np.append(by_range, -1)[found]
    return result


def _device_columns(export: _Export, batch: dict[str, Any]) -> dict[Any, Any]:
    """What every device row has."""
    rows = len(batch["start"])
    device = batch["deviceId"] if batch["deviceId"] is not None else np.full(rows, scan.NULL)
    stream = batch["streamId"] if batch["streamId"] is not None else np.full(rows, scan.NULL)
    columns: dict[Any, Any] = {
        scan.TS: batch["start"],
        scan.DUR: _length(batch),
        scan.PID: export.texts_of(device, str),
        scan.TID: export.texts_of(stream, str),
        "correlation": batch["correlationId"],
        "device": device,
        "stream": stream,
        "context": batch["contextId"],
        "graph_node": batch["graphNodeId"],
        "args": batch["args"],
    }
    if batch["correlationId"] is not None and batch["globalPid"] is not None:
        columns["range"] = _range_finder(export)(_process_key(batch["globalPid"], batch["correlationId"]))
    return columns


_DEVICE = ["start", "end", "deviceId", "streamId", "contextId", "correlationId", "globalPid", "graphNodeId"]


def _read_kernels(export: _Export, table: str) -> None:
    grid, block = ["gridX", "gridY", "gridZ"], ["blockX", "blockY", "blockZ"]
    shared = ["staticSharedMemory", "dynamicSharedMemory"]
    names = ["demangledName", "shortName", "mangledName"]
    wanted = [*_DEVICE, *names, "registersPerThread", *grid, *block, *shared]
    known: set[tuple[int, ...]] = set()
    for batch in export.batches(table, wanted):
        if batch["demangledName"] is not None:
            pairs = [batch[key] for key in names if batch[key] is not None]
            known.update(zip(*(column[Groups(*pairs).first].tolist() for column in pairs)))
        name = batch["demangledName"] if batch["demangledName"] is not None else batch["shortName"]
        columns = _device_columns(export, batch)
        columns |= {scan.CAT: export.text("kernel"), "registers": batch["registersPerThread"]}
        columns[scan.NAME] = None if name is None else export.named(name)
        for key, parts in (("grid", grid), ("block", block)):
            if all(batch[part] is not None for part in parts):
                x, y, z = (batch[part] for part in parts)
                columns[key] = export.texts_of((x << 32) | (y << 16) | z, _three)
        if all(batch[part] is not None for part in shared):
            columns["shared_memory"] = batch[shared[0]] + batch[shared[1]]
        export.add("gpu", columns)
    _add_kernel_names(export, sorted(known), [key for key in names[1:] if key in export.columns[table]])


def _add_kernel_names(export: _Export, known: list[tuple[int, ...]], others: list[str]) -> None:
    """A metadata row a kernel: its name, and the other names that the export has for it in `args`."""
    if not known or not others:
        return
    columns = [np.array(column, np.int64) for column in zip(*known)]
    export.add_names(
        "kernel_name",
        np.full(len(known), -1, np.int32),
        np.full(len(known), -1, np.int32),
        export.named(columns[0]),
        {key: export._resolved(key, column) for key, column in zip(others, columns[1:])},
    )


def _three(packed: int) -> str:
    return f"[{packed >> 32},{(packed >> 16) & 0xFFFF},{packed & 0xFFFF}]"


def _read_copies(export: _Export, table: str) -> None:
    for batch in export.batches(table, [*_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"]):
        columns = _device_columns(export, batch)
        rows = len(batch["start"])
        kind, source, target = (
            batch[key] if batch[key] is not None else np.full(rows, 255) for key in ("copyKind", "srcKind", "dstKind")
        )
        columns |= {scan.CAT: export.text("gpu_memcpy"), "bytes": batch["bytes"]}
        columns["kind"] = export.texts_of(kind, lambda number: _COPIES.get(number, str(number)))
        columns[scan.NAME] = export.texts_of((kind & 255) << 16 | (source & 255) << 8 | (target & 255), _copy_name)
        export.add("gpu", columns)


def _copy_name(packed: int) -> str:
    kind = _COPIES.get(packed >> 16, "")
    source, target = (_MEMORIES.get(number) for number in ((packed >> 8) & 255, packed & 255))
    return f"Memcpy {kind} ({source} -> {target})" if source and target else f"Memcpy {kind}".strip()


def _read_sets(export: _Export, table: str) -> None:
    for batch in export.batches(table, [*_DEVICE, "bytes", "memKind"]):
        columns = _device_columns(export, batch)
        columns |= {scan.CAT: export.text("gpu_memset"), "bytes": batch["bytes"]}
        kind = batch["memKind"] if batch["memKind"] is not None else np.full(len(batch["start"]), 2)
        columns[scan.NAME] = export.texts_of(kind, lambda number: f"Memset ({_MEMORIES.get(number, 'Unknown')})")
        export.add("gpu", columns)


def _read_graphs(export: _Export, table: str) -> None:
    """Whole graph launches, where the recording did not go down to their nodes."""
    for batch in export.batches(table, [*_DEVICE, "graphId"]):
        columns = _device_columns(export, batch)
        graph = batch["graphId"] if batch["graphId"] is not None else np.zeros(len(batch["start"]), np.int64)
        columns |= {scan.CAT: export.text("graph"), "graph": graph}
        columns[scan.NAME] = export.texts_of(graph, lambda number: f"CUDA graph {number}")
        export.add("gpu", columns)


def _read_syncs(export: _Export, table: str) -> None:
    for batch in export.batches(table, [*_DEVICE, "syncType"]):
        columns = _device_columns(export, batch)
        columns.pop("range", None)
        columns.pop("graph_node", None)
        kind = batch["syncType"] if batch["syncType"] is not None else np.zeros(len(batch["start"]), np.int64)
        columns |= {scan.CAT: export.text("cuda_sync")}
        columns[scan.NAME] = columns["sync_kind"] = export.texts_of(
            kind, lambda number: _SYNCS.get(number, str(number))
        )
        export.add("runtime", columns)


def _read_host(export: _Export, table: str) -> None:
    """Library and operating system calls: name, start, end, thread."""
    cls = "runtime" if table == "OSRT_API" else "annotation"
    category = export.text(
        {"OSRT_API": "osrt", "PROFILER_OVERHEAD": "overhead"}.get(table, table.partition("_")[0].lower())
    )
    for batch in export.batches(table, ["start", "end", "globalTid", "nameId"]):
        tids = batch["globalTid"] if batch["globalTid"] is not None else np.zeros(len(batch["start"]), np.int64)
        pid, tid = export.process_and_thread(tids)
        columns: dict[Any, Any] = {
            scan.TS: batch["start"],
            scan.DUR: _length(batch),
            scan.CAT: category,
            scan.PID: pid,
            scan.TID: tid,
            "args": batch["args"],
        }
        columns[scan.NAME] = None if batch["nameId"] is None else export.named(batch["nameId"])
        if cls == "annotation":
            columns["phase"] = export.text("X")
        export.add(cls, columns)


def _read_memory(export: _Export, table: str) -> None:
    wanted = ["start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"]
    for batch in export.batches(table, wanted):
        size, kind = batch["bytes"], batch["memoryOperationType"]
        if size is not None and kind is not None:
            size = np.where((kind == 1) & (size != scan.NULL), -size, size)  # 1 is the release
        columns: dict[Any, Any] = {
            scan.TS: batch["start"],
            scan.CAT: export.text("cuda_memory"),
            scan.NAME: export.text("[memory]"),
        }
        columns |= {"address": batch["address"], "bytes": size, "device": batch["deviceId"], "args": batch["args"]}
        export.add("memory", columns)


# NVTX and calls first: the device's rows look their ranges up.
_READERS: dict[str, Callable[[_Export, str], None]] = {
    "NVTX_EVENTS": _read_ranges,
    "CUPTI_ACTIVITY_KIND_RUNTIME": _read_calls,
    "CUPTI_ACTIVITY_KIND_KERNEL": _read_kernels,
    "CUPTI_ACTIVITY_KIND_MEMCPY": _read_copies,
    "CUPTI_ACTIVITY_KIND_MEMSET": _read_sets,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _read_graphs,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _read_syncs,
    "CUDA_GPU_MEMORY_USAGE_EVENTS": _read_memory,
    "OSRT_API": _read_host,
    "CUDNN_EVENTS": _read_host,
    "CUBLAS_EVENTS": _read_host,
    "PROFILER_OVERHEAD": _read_host,
}


_READ = {*_READERS, "StringIds", "ThreadNames", "PROCESSES", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME",
         "TARGET_INFO_GPU", "DIAGNOSTIC_EVENT"}  # fmt: skip
_GPU = {"totalMemory": "totalGlobalMem", "smCount": "numSms"}  # as torch.profiler calls them


def _read_names(export: _Export) -> None:
    """Names of processes and threads as metadata rows."""
    for table, name, key, label in (
        ("ThreadNames", "thread_name", "globalTid", "nameId"),
        ("PROCESSES", "process_name", "globalPid", "name"),
    ):
        if not {key, label} <= set(export.columns.get(table, ())):
            continue
        others = [column for column in export.columns[table] if column not in (key, label)]
        query = f"select {', '.join(map(_name, [key, label, *others]))} from {table}"
        rows = export.connection.execute(query).fetchall()
        ids = np.array([row[0] or 0 for row in rows], np.int64)
        if label == "nameId":
            labels = export.named(np.array([-1 if row[1] is None else row[1] for row in rows], np.int64))
        else:
            labels = np.array([-1 if row[1] is None else export.text(str(row[1])) for row in rows], np.int32)
        pid, tid = export.process_and_thread(ids)
        export.add_names(
            name, pid, tid, labels, {column: [row[2 + k] for row in rows] for k, column in enumerate(others)}
        )


def _read_header(export: _Export) -> None:
    """The recording's own data, under the names that a torch.profiler trace uses where it has them."""
    header = export.header
    meta = (
        dict(export.connection.execute("select name, value from META_DATA_EXPORT"))
        if _has(export, "META_DATA_EXPORT")
        else {}
    )
    header["nsys"] = {key.removeprefix("EXPORT_").lower(): value for key, value in meta.items()}
    if "utcEpochNs" in export.columns.get("TARGET_INFO_SESSION_START_TIME", ()):
        row = export.connection.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
        if row and isinstance(row[0], int):
            header["baseTimeNanoseconds"] = row[0]
    if _has(export, "TARGET_INFO_GPU"):
        keys = export.columns["TARGET_INFO_GPU"]
        rows = export.connection.execute("select * from TARGET_INFO_GPU").fetchall()
        header["deviceProperties"] = [{_GPU.get(key, key): value for key, value in zip(keys, row)} for row in rows]
    if {"severity", "text"} <= set(export.columns.get("DIAGNOSTIC_EVENT", ())):
        rows = export.connection.execute("select text from DIAGNOSTIC_EVENT where severity >= 2 limit 1000").fetchall()
        header["WARNING"] = [str(row[0]) for row in rows]
        export._count("DIAGNOSTIC_EVENT", "where severity < 2 or severity is null")
    for table in export.columns:
        if table not in _READ and not table.startswith(("ENUM_", "sqlite_")):  # ENUM_*: what nsys' own codes mean
            export._count(table, "")
    header["not_carried"] = export.not_carried


def _name(column: str) -> str:
    """A column's name in a query."""
    return '"' + column.replace('"', '""') + '"'


def _has(export: _Export, table: str) -> bool:
    return table in export.columns


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.resolve()))


def _errors() -> tuple[type[Exception], ...]:
    try:
        import adbc_driver_manager

        return (sqlite3.Error, adbc_driver_manager.Error)
    except ImportError:
        return (sqlite3.Error,)


class _Adbc:
    """An ADBC connection by the driver manager's own classes: its DB-API would import pyarrow.dataset, and that pandas,
    0.6 s of the 4 that three million rows take."""

    def __init__(self, path: Path) -> None:
        import adbc_driver_manager
        import adbc_driver_sqlite

        self.manager = adbc_driver_manager
        self.database = adbc_driver_sqlite.connect(f"file:{_quoted(path)}?mode=ro&immutable=1")
        self.connection = adbc_driver_manager.AdbcConnection(self.database)

    def close(self) -> None:
        self.connection.close()
        self.database.close()


def _adbc(path: Path) -> _Adbc | None:
    """None where the driver is not installed: then rows go through sqlite3, three times slower."""
    try:
        return _Adbc(path)
    except ImportError:
        return None


def _arrow_batches(adbc: _Adbc, query: str) -> Iterator[list[Any]]:
    import pyarrow as pa

    with adbc.manager.AdbcStatement(adbc.connection) as statement:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH)})
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(stream) as batches:
            for batch in batches:
                yield [_integers(column) for column in batch.columns]


def _integers(column: Any) -> Any:
    import pyarrow as pa

    from scripts.trace import arrow

    if column.type != pa.int64():
        column = column.cast(pa.int64(), safe=False)
    return arrow.numbers(column, scan.NULL)


def _row_batches(connection: sqlite3.Connection, query: str) -> Iterator[list[Any]]:
    cursor = connection.execute(query)
    while rows := cursor.fetchmany(BATCH):
        yield [np.array([scan.NULL if value is None else value for value in column], np.int64) for column in zip(*rows)]
