"""The tables of a parsed trace: one Parquet file an event class, their columns, and how they are written and read.

`docs/formats.md` ("Trace tables") is the contract; this module is the one place that knows the columns.
A file holds only the columns that have a value somewhere; `read` gives every column of the class, null where absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scripts.common.errors import InputError, suggestion
from scripts.common.files import read_json, replacing

if TYPE_CHECKING:
    import pyarrow as pa

INT, SMALL, FLOAT, TEXT, PLAIN = "int64", "int32", "float64", "dictionary", "string"


class Column(NamedTuple):
    """A column: its name, its type, and the keys of the trace's `args` that fill it (the first that is there)."""

    name: str
    type: str
    keys: tuple[str, ...] = ()


COMMON = (
    Column("rank", SMALL),
    Column("ts_ns", INT),
    Column("dur_ns", INT),
    Column("name", TEXT),
    Column("cat", TEXT),
    Column("pid", TEXT),
    Column("tid", TEXT),
    Column("id", TEXT),
    Column("args", PLAIN),
)

_CORRELATION = Column("correlation", INT, ("correlation",))
_EXTERNAL = Column("external_id", INT, ("External id", "external id"))
_EVENT_INDEX = Column("event_index", INT, ("Ev Idx", "Profiler Event Index"))
_COLLECTIVE = (
    Column("collective", TEXT, ("Collective name",)),
    Column("group", TEXT, ("Process Group Name",)),
    Column("group_description", TEXT, ("Process Group Description",)),
    Column("group_ranks", TEXT, ("Process Group Ranks",)),
    Column("group_size", INT, ("Group size",)),
    Column("in_nelems", INT, ("In msg nelems",)),
    Column("out_nelems", INT, ("Out msg nelems",)),
    Column("dtype", TEXT, ("dtype",)),
)
_DEVICE = (Column("device", SMALL, ("device", "Device Id")), Column("stream", INT, ("stream", "Stream Id")))

ARGUMENTS: dict[str, tuple[Column, ...]] = {
    "gpu": (
        _CORRELATION,
        _EXTERNAL,
        *_DEVICE,
        Column("context", INT, ("context",)),
        Column("queued", INT, ("queued",)),
        Column("bytes", INT, ("bytes", "Bytes")),
        Column("bandwidth", FLOAT, ("memory bandwidth (GB/s)",)),
        Column("grid", TEXT, ("grid",)),
        Column("block", TEXT, ("block",)),
        Column("registers", INT, ("registers per thread",)),
        Column("shared_memory", INT, ("shared memory",)),
        Column("blocks_per_sm", FLOAT, ("blocks per SM",)),
        Column("warps_per_sm", FLOAT, ("warps per SM",)),
        Column("occupancy", FLOAT, ("est. achieved occupancy %",)),
        Column("graph", INT, ("graph id",)),
        Column("graph_node", INT, ("graph node id",)),
        Column("kind", TEXT, ("kind", "Task Type")),
        Column("range", TEXT),  # nsys: the innermost NVTX range around the launch
        *_COLLECTIVE,
    ),
    "runtime": (
        _CORRELATION,
        _EXTERNAL,
        *_DEVICE,
        Column("cbid", INT, ("cbid",)),
        Column("context", INT, ("context",)),
        Column("sync_kind", TEXT, ("cuda_sync_kind",)),
        Column("wait_on_stream", INT, ("wait_on_stream",)),
        Column("wait_on_event", INT, ("wait_on_cuda_event_id",)),
        Column("wait_on_correlation", INT, ("wait_on_cuda_event_record_corr_id",)),
    ),
    "cpu_op": (
        _EXTERNAL,
        _EVENT_INDEX,
        Column("record_function", INT, ("Record function id",)),
        Column("sequence", INT, ("Sequence number",)),
        Column("forward_thread", INT, ("Fwd thread id",)),
        Column("input_dims", TEXT, ("Input Dims", "Input dims")),
        Column("input_types", TEXT, ("Input type",)),
        Column("input_strides", TEXT, ("Input Strides",)),
        Column("concrete_inputs", TEXT, ("Concrete Inputs",)),
        Column("call_stack", TEXT, ("Call stack",)),
        Column("module_hierarchy", TEXT, ("Module Hierarchy",)),
        *_COLLECTIVE,
    ),
    "python": (
        Column("python_id", INT, ("Python id",)),
        Column("python_parent_id", INT, ("Python parent id",)),
        Column("python_module_id", INT, ("Python module id",)),
        _EVENT_INDEX,
    ),
    "annotation": (
        Column("phase", TEXT),
        _EXTERNAL,
        _EVENT_INDEX,
        Column("record_function", INT, ("Record function id",)),
        Column("input_dims", TEXT, ("Input Dims", "Input dims")),
        Column("input_types", TEXT, ("Input type",)),
        Column("call_stack", TEXT, ("Call stack",)),
        Column("scope", TEXT),
    ),
    "flow": (
        Column("flow_id", INT),
        Column("flow_text", TEXT),
        Column("phase", TEXT),
        Column("binding", TEXT),
    ),
    "memory": (
        Column("address", INT, ("Addr",)),
        Column("bytes", INT, ("Bytes", "bytes")),
        Column("total_allocated", INT, ("Total Allocated",)),
        Column("total_reserved", INT, ("Total Reserved",)),
        Column("device", SMALL, ("Device Id", "device")),
        Column("device_type", INT, ("Device Type",)),
        _EVENT_INDEX,
        Column("scope", TEXT),
    ),
    "counter": (Column("series", TEXT), Column("value", FLOAT)),
    "metadata": (Column("label", TEXT, ("name", "labels")), Column("sort_index", INT, ("sort_index",))),
}
CLASSES = tuple(ARGUMENTS)
COLUMNS: dict[str, tuple[Column, ...]] = {cls: (*COMMON, *columns) for cls, columns in ARGUMENTS.items()}

# Where the kinds of activity go. What the device did is `gpu`; `cuda_sync` (waits, no work) is `runtime`.
GPU_CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel", "collective_comm",
    "mtia_ccp_events", "mtia_insight", "hpu_op", "privateuse1_kernel",
)  # fmt: skip
RUNTIME_CATEGORIES = ("cuda_sync", "cuda_event", "Runtime")  # and every `*_runtime`, `*_driver`
BLOCKING_COPY_NS = 100_000  # a memcpy call that takes so long waited for the device: queueing one takes 5 to 20 us
OP_CATEGORIES = ("cpu_op", "Operator")


def schema(cls: str) -> pa.Schema:
    """The Arrow schema of a class with every column."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in _columns(cls)])


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a column type."""
    import pyarrow as pa

    if name == TEXT:
        return pa.dictionary(pa.int32(), pa.string())
    return {INT: pa.int64(), SMALL: pa.int32(), FLOAT: pa.float64(), PLAIN: pa.string()}[name]


def read(
    folder: str | Path,
    cls: str,
    columns: Sequence[str] | None = None,
    *,
    rank: int | None = None,
    aligned: bool = False,
) -> pa.Table:
    """One class of a parsed trace, sorted by (rank, ts_ns): every column of the class, or `columns` in their order.

    `folder` holds `events/` (what `scripts.trace.parse -o` was given) or is that folder itself. Times are those of the
    trace; with `aligned=True` each rank's clock offset of `quality.json` is added, which puts all ranks on one clock.
    Raises InputError where the file is missing or a column is unknown.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = [column for column in _columns(cls) if columns is None or column.name in columns]
    if columns is not None:
        known = {column.name: column for column in _columns(cls)}
        for name in columns:
            if name not in known:
                raise InputError(f"no column {name!r} in the {cls} table{suggestion(name, known)}")
        wanted = [known[name] for name in columns]
    path = _path(folder, cls)
    if not path.is_file():
        raise InputError(f"{path}: no such table; run: python -m scripts.trace.parse TRACE... -o {Path(folder)}")
    file = pq.ParquetFile(path)
    present = set(file.schema_arrow.names)
    needed = [column.name for column in wanted if column.name in present]
    hidden = [name for name in ("rank",) if (aligned or rank is not None) and name not in needed]
    table = file.read(columns=[*needed, *hidden], use_threads=False)
    if rank is not None:
        table = table.filter(pc.equal(table["rank"], rank))
    arrays = []
    for column in wanted:
        kind = arrow_type(column.type)
        if column.name not in present:
            arrays.append(pa.nulls(len(table), kind))
            continue
        array = table[column.name]
        if column.name == "ts_ns" and aligned:
            array = _aligned(folder, table)
        if array.type != kind:
            array = array.cast(kind)
        arrays.append(array)
    result = pa.table(arrays, schema=pa.schema([pa.field(c.name, arrow_type(c.type)) for c in wanted]))
    return result.unify_dictionaries().combine_chunks()


def table(cls: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of the class from rows as dictionaries; what a row does not name is null. For tests and tools."""
    import pyarrow as pa

    columns = _columns(cls)
    rows = list(rows)
    unknown = {key for row in rows for key in row} - {column.name for column in columns}
    if unknown:
        raise InputError(f"the {cls} table has no column {sorted(unknown)[0]!r}")
    arrays = []
    for column in columns:
        values = [row.get(column.name, 0 if column.name == "rank" else None) for row in rows]
        if column.type == TEXT:
            arrays.append(pa.array(values, pa.string()).dictionary_encode().cast(arrow_type(TEXT)))
        else:
            arrays.append(pa.array(values, arrow_type(column.type)))
    return pa.table(arrays, schema=schema(cls))


def write(folder: str | Path, cls: str, data: pa.Table) -> Path:
    """Write a whole class at once into `folder`/events, sorted by (rank, ts_ns). The parser streams with `Writer`."""
    data = data.sort_by([("rank", "ascending"), ("ts_ns", "ascending")])
    present = [name for name in data.column_names if data[name].null_count < len(data)]
    path = _path(folder, cls, writing=True)
    with replacing(path) as temporary:
        writer = Writer(temporary, cls, present)
        writer.write(data.unify_dictionaries().combine_chunks())
        writer.close()
    return path


class Writer:
    """A class's Parquet file, one row group a `write`: zstd, delta-packed integers, dictionary strings.

    `present` are the columns that have a value somewhere; a column that is null throughout costs a fifth of the
    writing and is left out. Statistics only where a reader filters (ts_ns, rank). `repeated`: many rows share their
    `args`.
    """

    def __init__(self, path: str | Path, cls: str, present: Iterable[str], *, repeated: bool = False) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kept = {*present, "rank", "ts_ns", "dur_ns", "name", "cat", "pid", "tid"}
        self.columns = [column for column in _columns(cls) if column.name in kept]
        self.schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in self.columns])
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[c.name for c in self.columns if c.type == TEXT or (repeated and c.type == PLAIN)],
            column_encoding={c.name: "DELTA_BINARY_PACKED" for c in self.columns if c.type in (INT, SMALL)},
            write_statistics=["ts_ns", "rank"],
            data_page_version="2.0",
        )

    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Append rows as one row group; `data` has at least the columns of the file, in any order."""
        import pyarrow as pa

        if len(data):
            there = set(data.schema.names)
            arrays = [
                data.column(c.name) if c.name in there else pa.nulls(len(data), arrow_type(c.type))
                for c in self.columns
            ]
            self._writer.write_table(pa.table(arrays, schema=self.schema), row_group_size=max(1, len(data)))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def ranks(folder: str | Path) -> list[int]:
    """The ranks that the parsed trace holds, sorted."""
    return sorted(entry["rank"] for entry in quality(folder)["ranks"])


def quality(folder: str | Path) -> dict[str, Any]:
    """`quality.json` of a parsed trace; `config/schemas/quality.schema.json` describes it."""
    path = Path(folder) / "quality.json"
    if Path(folder).name == "events" and not path.is_file():
        path = Path(folder).parent / "quality.json"
    return read_json(path, "quality")


def _aligned(folder: str | Path, table: pa.Table) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = {entry["rank"]: entry["clock"]["offset_ns"] or 0 for entry in quality(folder)["ranks"]}
    values, order = list(offsets.values()), list(offsets)
    places = pc.index_in(table["rank"], pa.array(order, pa.int32()))
    return pc.add(table["ts_ns"], pc.take(pa.array(values, pa.int64()), places))


def _columns(cls: str) -> tuple[Column, ...]:
    if cls not in COLUMNS:
        raise InputError(f"no event class {cls!r}{suggestion(cls, COLUMNS)}; there are {', '.join(CLASSES)}")
    return COLUMNS[cls]


def _path(folder: str | Path, cls: str, *, writing: bool = False) -> Path:
    folder = Path(folder)
    _columns(cls)
    if (folder.name == "events" or (folder / f"{cls}.parquet").is_file()) and not writing:
        return folder / f"{cls}.parquet"
    return (folder if folder.name == "events" else folder / "events") / f"{cls}.parquet"
