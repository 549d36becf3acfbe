"""Reads what a run recorded: rank files, headers, ledgers, and the JSON lists of the older tool of the same name.

Everything streams: a run of ten million records is never held in memory. `align` pairs the records of several runs by
(tag, step, occurrence), whatever order they were written in.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

SCHEMA = "parity/records@1"
KINDS = ("bool", "int", "float", "str", "tensor", "error")
SCALARS = {"bool": bool, "int": int, "str": str}
SUMMARY = {"shape", "dtype", "numel", "nonfinite", "sum", "l2", "abs_mean", "min", "max", "sketch"}
# How much may wait for its partner from the other run: bounds the memory of `align`.
PENDING_BYTES = 96 * 2**20
# Header fields that differ between two honest runs of the same job; all others describe where and how it ran.
IDENTITY = {
    "schema", "run_id", "rank", "local_rank", "started_ns", "started", "pid", "host", "hostname", "cwd", "out", "argv",
    "perturb", "perturb_seed", "source", "tree", "program", "probes", "mode",
}  # fmt: skip

Record = dict[str, Any]
Key = tuple[str, Optional[int], int]


class BadInput(ValueError):
    """What cannot be read or compared. The message is one line: the file, what is wrong, what would be right."""


class Run:
    """One recorded run: a folder of `rank<r>.jsonl`, one such file, or the older tool's JSON.

    `ranks` holds the names of its rank files in order ("0", "1", ...; file names for the older format), `headers` one
    header a rank, `torn` the ranks whose last line was cut off (filled while `records` is read), `legacy` whether it
    is the older format.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.name = str(path)
        self.torn: list[str] = []
        self.headers: dict[str, Record] = {}
        self.files: dict[str, Path] = {}
        self.legacy = False
        if self.path.is_file():
            self._open_file()
        elif self.path.is_dir():
            self._open_folder()
        else:
            raise BadInput(f"{self.name}: no such file or folder; give the --out folder of `parity run`")
        self.ranks = list(self.files)
        if not self.legacy:
            for rank in self.ranks:
                self.headers[rank] = _read_header(self.files[rank])
            self._check_world()

    def records(self, rank: str) -> Iterator[tuple[str, Record | None]]:
        """(raw line, None) for each record of a rank in program order; the older format gives (raw, parsed).

        A cut-off last line is noted in `torn`. Raises BadInput for a damaged line elsewhere. The lines are not parsed
        here, so that `align` can skip the parsing of lines that are the same in all runs.
        """
        if self.legacy:
            for record in _legacy_records(self.files[rank]):
                yield json.dumps(record), record
            return
        with self.files[rank].open("rb") as file:
            file.readline()
            for line in file:
                if not line.endswith(b"\n") and not _parses(line):
                    self.torn += [rank] if rank not in self.torn else []
                    return
                if line != b"\n":
                    yield line.decode("utf-8", "replace"), None

    def digest(self) -> str:
        """SHA-256 over the record lines of all ranks without headers: equal digests mean bit-identical records."""
        total = hashlib.sha256()
        for rank in self.ranks:
            total.update(rank.encode() + b"\0")
            with self.files[rank].open("rb") as file:
                if not self.legacy:
                    file.readline()
                for block in iter(lambda: file.read(1 << 20), b""):
                    total.update(block)
        return total.hexdigest()

    def ledger(self, rank: str) -> Record | None:
        """The ledger of a rank, or None where there is none. Raises BadInput where it is damaged."""
        if self.legacy:
            return None
        suffix = "" if rank == "0" else f".rank{rank}"
        path = self.files[rank].parent / f"ledger{suffix}.json"
        if not path.is_file():
            return None
        try:
            ledger = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise BadInput(f"{path}: damaged ({error}); record the run again") from None
        if not isinstance(ledger, dict) or ledger.get("schema") != "parity/ledger@1":
            raise BadInput(f"{path}: schema is {_schema_of(ledger)!r}, should be 'parity/ledger@1'")
        return ledger

    @property
    def run_ids(self) -> set[str]:
        """The random identities of the launch (one a rank), empty for formats without headers."""
        return {str(header["run_id"]) for header in self.headers.values() if header.get("run_id")}

    @property
    def summary(self) -> int:
        """The version of the algorithms behind sketches and hashes; headers before version 2 do not name it."""
        return int(next(iter(self.headers.values()), {}).get("summary") or 1)

    @property
    def perturb(self) -> Any:
        """How the run was perturbed: None, or `{"kind": "ulp", "seed": n}`."""
        header = next(iter(self.headers.values()), {})
        found = header.get("perturb")
        return {"kind": found, "seed": header.get("perturb_seed")} if isinstance(found, str) else found

    def environment(self) -> Record:
        """The header fields of the first rank that say where and how the run was made (versions, GPUs, flags)."""
        header = next(iter(self.headers.values()), {})
        return {name: value for name, value in header.items() if name not in IDENTITY}

    def _open_file(self) -> None:
        if self.path.suffix == ".jsonl":
            match = re.fullmatch(r"rank(\d+)\.jsonl", self.path.name)
            self.files = {match.group(1) if match else "0": self.path}
        else:
            self.legacy = True
            self.files = {"0": self.path}

    def _open_folder(self) -> None:
        found: dict[int, Path] = {}
        for path in self.path.glob("rank*.jsonl"):
            match = re.fullmatch(r"rank(\d+)\.jsonl", path.name)
            if match:
                found[int(match.group(1))] = path
        if found:
            self.files = {str(rank): found[rank] for rank in sorted(found)}
            return
        lists = sorted(path for path in self.path.glob("*.json") if _is_list(path))
        if not lists:
            inner = self.path / "records"
            hint = f"; did you mean {inner}?" if inner.is_dir() else "; record one with `parity run --out DIR -- ...`"
            raise BadInput(f"{self.name}: holds no rank0.jsonl{hint}")
        self.legacy = True
        self.files = {path.name: path for path in lists}

    def _check_world(self) -> None:
        schemas = {str(header["schema"]) for header in self.headers.values()}
        if len(schemas) > 1:
            raise BadInput(f"{self.name}: its ranks have different schema versions ({', '.join(sorted(schemas))})")
        if self.path.is_file():
            return
        sizes = {int(header["world_size"]) for header in self.headers.values() if header.get("world_size")}
        if len(sizes) > 1:
            raise BadInput(f"{self.name}: its ranks disagree on the world size ({sorted(sizes)}); files of two runs?")
        world = sizes.pop() if sizes else len(self.ranks)
        missing = [str(rank) for rank in range(world) if str(rank) not in self.files]
        if missing:
            raise BadInput(
                f"{self.name}: of {world} ranks, rank {', '.join(missing[:8])} left no file; record the run again"
            )


def parse(line: str, where: str) -> Record:
    """One record line as a dictionary, checked. `where` names file and line for the message of BadInput."""
    try:
        record = json.loads(line)
    except ValueError:
        raise BadInput(f"{where}: damaged line {line[:40]!r}...; the file was cut or edited, record again") from None
    if not isinstance(record, dict) or not isinstance(record.get("tag"), str):
        raise BadInput(f"{where}: a record needs a 'tag'; found {line[:40]!r}")
    tag = record["tag"]
    if tag.split() != [tag]:
        raise BadInput(f"{where}: tag {tag!r} is empty or has white space; write it like 'my_loss' and record again")
    if record.get("kind") not in KINDS:
        raise BadInput(f"{where}: kind is {record.get('kind')!r}, should be one of {', '.join(KINDS)}")
    step = record.get("step")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise BadInput(f"{where}: step is {step!r}, should be a whole number or null")
    kind, value = record["kind"], record.get("value")
    if kind == "float":
        record["value"] = number(value, where)
    elif kind in SCALARS and type(value) is not SCALARS[kind]:
        raise BadInput(f"{where}: value is {value!r}, should be of kind {kind}")
    elif kind == "tensor" and not record.keys() >= SUMMARY:
        raise BadInput(f"{where}: the tensor lacks {', '.join(sorted(SUMMARY - record.keys()))}")
    return record


def number(value: Any, where: str = "") -> float:
    """A recorded number as a float; NaN and the infinities are written as strings."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise BadInput(f"{where}: value is {value!r}, should be a number, 'nan', 'inf' or '-inf'")


def key(record: Record) -> Key:
    """The identity of a record within a rank: (tag, step, occurrence)."""
    return record["tag"], record.get("step"), record.get("occurrence") or 0


def selector(only: Sequence[str], exclude: Sequence[str]) -> Any:
    """A function that says whether a tag is compared, by glob patterns; answers are remembered per tag."""
    answers: dict[str, bool] = {}

    def selected(tag: str) -> bool:
        answer = answers.get(tag)
        if answer is None:
            answer = (not only or any(fnmatch.fnmatchcase(tag, glob) for glob in only)) and not any(
                fnmatch.fnmatchcase(tag, glob) for glob in exclude
            )
            if len(answers) < 200_000:
                answers[tag] = answer
        return answer

    return selected


def align(runs: Sequence[Run], rank: str) -> Iterator[tuple[int, Key, list[Record | None], bool]]:
    """Pairs the records of one rank of several runs: (index, key, one record a run or None, all equal).

    `index` is the position in program order of the first run that holds the key. Records that stand in the same order
    in all runs cost no memory; others wait for their partners, up to PENDING_BYTES, after which the oldest is given
    out incomplete. `all equal` means that the lines are the same byte for byte. O(records of all runs).
    """
    streams = [run.records(rank) for run in runs]
    names = [f"{run.files[rank]}" for run in runs]
    width = len(runs)
    pending: dict[Key, list[Any]] = {}  # key -> [index, records, how many, bytes, first line, whether all are equal]
    lines: dict[str, list[Any]] = {}  # the same by their first line
    waiting = 0
    live = list(range(width))
    index = 0
    while live:
        row: list[tuple[int, str, Record | None]] = []
        for which in list(live):
            item = next(streams[which], None)
            if item is None:
                live.remove(which)
            else:
                row.append((which, item[0], item[1]))
        if not row:
            break
        index += 1
        raw = row[0][1]
        if len(row) == width and not pending and all(line == raw for _, line, _ in row):
            record = row[0][2] or parse(raw, f"{names[0]} line {index + 1}")
            yield index, key(record), [record] * width, True
            continue
        parsed: list[tuple[Key, int, str, Record]] = []
        for which, line, found in row:
            entry = lines.get(line)  # its partner waits with the same line: no need to parse it again
            record = next(filter(None, entry[1])) if entry else found or parse(line, f"{names[which]} line {index + 1}")
            parsed.append((key(record), which, line, record))
        if not pending and len(row) == width and all(identity == parsed[0][0] for identity, *_ in parsed):
            yield index, parsed[0][0], [record for *_, record in parsed], False
            continue
        for identity, which, line, record in parsed:
            entry = pending.get(identity)
            if entry is None:
                entry = pending[identity] = lines[line] = [index, [None] * width, 0, 0, line, True]
            partners = entry[1]
            if partners[which] is not None:
                raise BadInput(f"{names[which]} line {index + 1}: {describe_key(identity)} is recorded twice")
            partners[which] = record
            entry[2] += 1
            entry[3] += len(line)
            waiting += len(line)
            entry[5] = entry[5] and entry[4] == line
            if entry[2] == width:
                del pending[identity]
                del lines[entry[4]]
                waiting -= entry[3]
                yield entry[0], identity, partners, entry[5]
        # A tensor, parsed, takes some four times its line, which waits beside it.
        while waiting * 5 > PENDING_BYTES:
            identity = next(iter(pending))
            entry = pending.pop(identity)
            del lines[entry[4]]
            waiting -= entry[3]
            yield entry[0], identity, entry[1], False
    for identity, entry in pending.items():
        yield entry[0], identity, entry[1], False


def describe_key(identity: Key) -> str:
    """`loss at step 3` or `loss at step 3 (2nd)`, for messages."""
    tag, step, occurrence = identity
    where = "" if step is None else f" at step {step}"
    return f"{tag}{where}" + (f" (occurrence {occurrence})" if occurrence else "")


def has_nan(record: Record) -> bool:
    """Whether a record holds a NaN anywhere."""
    if record["kind"] == "float":
        return math.isnan(record["value"])
    if record["kind"] == "tensor":
        return bool((record.get("nonfinite") or {}).get("nan"))
    return False


def check_same_world(runs: Iterable[Run]) -> None:
    """Raises BadInput where the runs do not have the same ranks, or summarise tensors in different ways."""
    first, *others = list(runs)
    for other in others:
        if other.summary != first.summary:
            raise BadInput(
                f"{other.name}: its tensors are summarised by version {other.summary}, those of {first.name} by "
                f"{first.summary}; record the older run again"
            )
        if other.ranks != first.ranks:
            raise BadInput(
                f"{other.name}: has ranks {_short(other.ranks)}, {first.name} has {_short(first.ranks)}; "
                "compare runs of the same number of processes"
            )


def _short(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} ... {names[-1]} ({len(names)})"


def _read_header(path: Path) -> Record:
    with path.open("rb") as file:
        line = file.readline()
    if not line:
        raise BadInput(f"{path}: empty; the job ended before it recorded anything")
    try:
        header = json.loads(line)
    except ValueError:
        raise BadInput(f"{path}: line 1 is no JSON; it should be a header with schema {SCHEMA!r}") from None
    schema = _schema_of(header)
    if schema != SCHEMA:
        raise BadInput(f"{path}: schema is {schema!r}, this parity reads {SCHEMA!r}; use the version that recorded it")
    return header


def _schema_of(document: Any) -> Any:
    return document.get("schema") if isinstance(document, dict) else None


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"["


def _legacy_records(path: Path) -> Iterator[Record]:
    """The older tool's list of {tag, value, error_tolerance} as records without steps.

    Its rules stay: a tag stands once, the default tolerance is rtol 0 and atol 1e-12, an empty list is an error.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: not JSON ({error}); give a run folder or the older tool's record file") from None
    if not isinstance(entries, list):
        raise BadInput(f"{path}: neither a run folder nor a list of {{tag, value, error_tolerance}}")
    if not entries:
        raise BadInput(f"{path}: no records; a comparison of nothing would always pass")
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        where = f"{path} entry {position + 1}"
        if not isinstance(entry, dict) or not isinstance(entry.get("tag"), str) or "value" not in entry:
            raise BadInput(f"{where}: needs 'tag' and 'value'")
        if entry["tag"] in seen:
            raise BadInput(f"{where}: tag {entry['tag']!r} is recorded twice")
        seen.add(entry["tag"])
        value = entry["value"]
        kind = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(value))
        if value in ("nan", "inf", "-inf", "NaN", "Infinity", "-Infinity") and kind == "str":
            kind, value = "float", float(value)
        if kind is None:
            raise BadInput(f"{where}: value is {value!r}, should be a bool, number or text")
        tolerance = entry.get("error_tolerance") or {}
        yield {
            "tag": entry["tag"],
            "step": None,
            "occurrence": 0,
            "kind": kind,
            "value": value,
            "rtol": float(tolerance.get("rtol") or 0.0),
            "atol": float(tolerance.get("atol", 1e-12)),
        }
