"""The scanner: bytes of a trace's event array to rows of typed integers, in one pass.

One source at two speeds: imported as `scripts.trace.scan` it is plain Python, which `pure` uses for the events that
`json` refuses;
`scripts.trace.scan_compiled` runs the same text under numba. Both give the same rows and the same count of losses.

Cost model (compiled): 2-3 ns a byte; each byte of an event is looked at once, strings eight bytes at a time, each text
is hashed and
compared once and copied only when it is new. Memory is what the caller allocates; the bytes are never kept.

Nothing is dropped in silence: an event is stored, stored after a repair (counted), or counted as bad with its bytes,
and the scan goes on at
the next event. Repairs: unescaped quotes and raw backslashes in strings, bare words (inf, nan, N/A), keys without
their first quote, stray commas.
"""

# ruff: noqa: ARG001, E741, PLR0917, PLR1714, PLR1730, SIM102, SIM109, SIM114
# Compiled code: comparisons are spelled out because tuples cost; numba checks the types, mypy cannot.
# mypy: ignore-errors
from __future__ import annotations

import struct
from typing import Any

import numpy as np

from scripts.trace import dataset

COMPILED = __name__.endswith("_compiled")
NULL = -(2**63)
_ONES, _HIGH, _ALL = 0x0101010101010101, 0x8080808080808080, 0xFFFFFFFFFFFFFFFF
_SEED, _MULTIPLIER, _JSON_SALT = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA5A5A5A5DEADBEEF

if COMPILED:
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    U, I = np.uint64, np.int64
    # The scanner allocates nothing, so it is compiled without reference counts, whose atomic updates cost half its
    # time.
    jit = njit(cache=True, nogil=True, boundscheck=False, error_model="numpy", _nrt=False)
    allocating = njit(cache=True, nogil=True, error_model="numpy")
    # What runs several times an event goes into its caller: passing ten arrays costs more than the work.
    inlined = njit(cache=True, nogil=True, boundscheck=False, error_model="numpy", _nrt=False, forceinline=True)

    @intrinsic
    def load64(_: Any, data: Any, index: Any) -> Any:
        """Eight bytes at any place, little endian; the caller pads its arrays."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            pointer = builder.gep(array.data, [args[1]])
            pointer = builder.bitcast(pointer, ir.IntType(64).as_pointer())
            return builder.load(pointer, align=1)

        return types.uint64(data, types.int64), generate

    @intrinsic
    def lowest_byte(_: Any, word: Any) -> Any:
        """Index of the byte that holds the lowest set bit of a word that is not zero."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zeros = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
            return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

        return types.int64(types.uint64), generate

    @intrinsic
    def float_bits(_: Any, value: Any) -> Any:
        """The bits of a double as int64."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.IntType(64))

        return types.int64(types.float64), generate

    _strtod = types.ExternalFunction("strtod", types.float64(types.intp, types.intp))

    @intrinsic
    def address(_: Any, data: Any, index: Any) -> Any:
        """Where an element of a byte array is in memory."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            return builder.ptrtoint(builder.gep(array.data, [args[1]]), context.get_value_type(types.intp))

        return types.intp(data, types.int64), generate

    @jit
    def correct_float(buf: Any, start: int, stop: int) -> float:
        """The double nearest to the decimal text (libc, where the quick way is not exact)."""
        return _strtod(address(buf, start), 0)

else:
    U, I = int, int

    def jit(function: Any) -> Any:
        """Plain Python: no compilation."""
        return function

    allocating = inlined = jit

    def load64(data: Any, index: int) -> int:
        return int.from_bytes(data[index : index + 8], "little")

    def lowest_byte(word: int) -> int:
        return ((word & -word).bit_length() - 1) >> 3

    def float_bits(value: float) -> int:
        return struct.unpack("<q", struct.pack("<d", value))[0]

    def correct_float(buf: Any, start: int, stop: int) -> float:
        return float(bytes(buf[start:stop]))


# What a call of `scan` can end with.
DONE, END, FULL, UNFINISHED, LIMIT = 0, 1, 2, 3, 4
_UNFINISHED, _BROKEN = -1, -2
# Kinds of values. TEXT and JSON are also the kinds of interned strings: what stood between quotes (or a number), and
# raw JSON.
NONE, TEXT, INTEGER, NUMBER, TRUE, FALSE, NIL, JSON, BARE, DIRTY = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
# Counts that `scan` keeps.
EVENTS, BAD, REPAIRED, LOST_BYTES, TRUNCATED, NO_PHASE, NO_TIME, NO_DURATION, ROUNDED, NUL_BYTES, UNCLOSED = range(11)
STATISTICS = 16
# `cursor`: interned strings, bytes of their text, bytes of raw arguments, whether the last new string held a zero
# hole, and whether
# the last event was bad, so that the place may be inside one.
STRINGS, BLOB, RAW, HOLE, ADRIFT = range(5)

MAX_EVENT = 4 << 20
MAX_ARGUMENTS = 4096
REPAIR_REACH = 1 << 16
TABLE = 1 << 18
MAX_STRINGS = 1 << 17
BLOB_BYTES = (12 << 20) + MAX_EVENT
RAW_BYTES = 8 * MAX_EVENT
ROWS = 1 << 15

# Columns of every class, before the typed arguments.
TS, DUR, NAME, CAT, PID, TID, ID, ARGS, ARGS_LENGTH, FIRST = range(10)
_TYPES = {dataset.INT: 0, dataset.SMALL: 1, dataset.FLOAT: 2, dataset.TEXT: 3}
_INT, _SMALL, _FLOAT, _TEXT = 0, 1, 2, 3
CLASSES = dataset.CLASSES
GPU, RUNTIME, OP, PYTHON, ANNOTATION, FLOW, MEMORY, COUNTER, METADATA = range(9)
WIDTH = FIRST + max(len(columns) for columns in dataset.ARGUMENTS.values())


def column_index(cls: str, name: str) -> int:
    """Place of a typed argument column among a class's columns here."""
    return FIRST + [column.name for column in dataset.ARGUMENTS[cls]].index(name)


A_PHASE, A_SCOPE = column_index("annotation", "phase"), column_index("annotation", "scope")
F_ID, F_TEXT = column_index("flow", "flow_id"), column_index("flow", "flow_text")
F_PHASE, F_BINDING = column_index("flow", "phase"), column_index("flow", "binding")
M_SCOPE = column_index("memory", "scope")
C_SERIES, C_VALUE = column_index("counter", "series"), column_index("counter", "value")

# Words: the event's own keys first, then `args`, then everything else that is known by name.
_OWN = ("name", "cat", "pid", "tid", "ts", "dur", "id", "ph", "bp", "s")
W_NAME, W_CAT, W_PID, W_TID, W_TS, W_DUR, W_ID, W_PH, W_BP, W_S, W_ARGS = range(11)
OWN = len(_OWN)
_DOCUMENT = (
    "traceName", "displayTimeUnit", "baseTimeNanoseconds", "schemaVersion", "deviceProperties",
    "distributedInfo", "INFO", "WARNING", "ERROR", "otherData", "metadata", "stackFrames", "samples",
    "systemTraceEvents", "record_shapes", "with_stack", "profile_memory", "trace_id", "cupti_version",
    "cuda_runtime_version", "cuda_driver_version", "with_flops", "with_modules",
)  # fmt: skip
_CATEGORIES = {
    **dict.fromkeys(dataset.GPU_CATEGORIES, GPU),
    **dict.fromkeys(dataset.RUNTIME_CATEGORIES, RUNTIME),
    **dict.fromkeys(dataset.OP_CATEGORIES, OP),
    "python_function": PYTHON,
    "cuda_profiler_range": COUNTER,
}


def hash_bytes(data: bytes) -> int:
    """`hash_span` for the tables that are built at import."""
    value = (_SEED ^ (len(data) * _MULTIPLIER)) & _ALL
    for start in range(0, len(data), 8):
        value = ((value ^ int.from_bytes(data[start : start + 8], "little")) * _MULTIPLIER) & _ALL
        value ^= value >> 29
    return value


def _words() -> tuple[list[str], Any, Any, Any]:
    keys = [key for columns in dataset.ARGUMENTS.values() for column in columns for key in column.keys]
    words = list(dict.fromkeys([*_OWN, "args", *_DOCUMENT, *_CATEGORIES, *keys]))
    table = np.full(2048, -1, np.int16)
    data, offsets = bytearray(), [0]
    for number, word in enumerate(words):
        data += word.encode()
        offsets.append(len(data))
        place = hash_bytes(word.encode()) & 2047
        while table[place] >= 0:
            place = (place + 1) & 2047
        table[place] = number
    return words, table, np.frombuffer(bytes(data) + b"\0" * 8, np.uint8), np.array(offsets, np.int64)


WORDS, WORD_TABLE, WORD_BYTES, WORD_OFFSETS = _words()
CLASS_OF_WORD = np.array([_CATEGORIES.get(word, -1) for word in WORDS], np.int64)
IN_DOCUMENT = np.array([word in _DOCUMENT for word in WORDS], np.bool_)
COLUMN_OF = np.full((len(CLASSES), len(WORDS)), -1, np.int64)
TYPE_OF = np.full((len(CLASSES), WIDTH), _TEXT, np.int64)
for _c, _cls in enumerate(CLASSES):
    for _k, _column in enumerate(dataset.ARGUMENTS[_cls]):
        TYPE_OF[_c, FIRST + _k] = _TYPES[_column.type]
        for _key in _column.keys:
            COLUMN_OF[_c, WORDS.index(_key)] = FIRST + _k
W_TASK_TYPE = WORDS.index("Task Type")
POWERS = np.array([10.0**power for power in range(23)])
RUNTIME_BYTES = np.frombuffer(b"_runtime", np.uint8)
DRIVER_BYTES = np.frombuffer(b"_driver\0", np.uint8)
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@inlined
def skip(buf, i, end):
    """The first place from `i` that holds no white space."""
    while i < end:
        c = buf[i]
        if c != 32 and c != 10 and c != 13 and c != 9:
            break
        i += 1
    return i


@inlined
def hash_span(buf, i, j):
    """64-bit hash of bytes, eight at a time."""
    h = (U(_SEED) ^ (U(j - i) * U(_MULTIPLIER))) & U(_ALL)
    while i + 8 <= j:
        h = ((h ^ load64(buf, i)) * U(_MULTIPLIER)) & U(_ALL)
        h ^= h >> U(29)
        i += 8
    if i < j:
        word = load64(buf, i) & ((U(1) << U(8 * (j - i))) - U(1))
        h = ((h ^ word) * U(_MULTIPLIER)) & U(_ALL)
        h ^= h >> U(29)
    return h


@inlined
def equal(one, i, other, j, count):
    """Whether `count` bytes are the same in both."""
    while count >= 8:
        if load64(one, i) != load64(other, j):
            return False
        i += 8
        j += 8
        count -= 8
    if count > 0:
        mask = (U(1) << U(8 * count)) - U(1)
        return (load64(one, i) & mask) == (load64(other, j) & mask)
    return True


@inlined
def word_of(buf, i, j):
    """Number of a known word, -1 for any other."""
    if j - i > 48:
        return -1
    place = I(hash_span(buf, i, j) & U(2047))
    while True:
        word = I(WORD_TABLE[place])
        if word < 0:
            return -1
        start = WORD_OFFSETS[word]
        if WORD_OFFSETS[word + 1] - start == j - i and equal(WORD_BYTES, start, buf, i, j - i):
            return word
        place = (place + 1) & 2047


@inlined
def string_end(buf, i, end):
    """Place of the quote that closes the string whose first byte is at `i`, or -1 where the bytes end first."""
    while i < end:
        word = load64(buf, i)
        quotes = word ^ U(0x2222222222222222)
        slashes = word ^ U(0x5C5C5C5C5C5C5C5C)
        found = (((quotes - U(_ONES)) & ~quotes) | ((slashes - U(_ONES)) & ~slashes)) & U(_HIGH)
        if found == U(0):
            i += 8
            continue
        i += lowest_byte(found)
        if i >= end:
            return -1
        if buf[i] == 34:
            return i
        i += 2
    return -1


@jit
def _closes(buf, quote, end):
    """1 where the quote at `quote` surely ends a value (`}`, `]`, or a comma and a key follow), 0 where not, -1 where
    the bytes end."""
    k = skip(buf, quote + 1, end)
    if k >= end:
        return -1
    if buf[k] == 125 or buf[k] == 93:
        return 1
    if buf[k] != 44:
        return 0
    k = skip(buf, k + 1, end)
    return -1 if k >= end else _key_follows(buf, k, end)


@jit
def _key_follows(buf, k, end):
    """1 where a key in quotes and its colon stand at `k`, 0 where not, -1 where the bytes end."""
    if buf[k] != 34:
        return 0
    stop = k + 128
    k += 1
    while k < end and k < stop and buf[k] != 34:
        if buf[k] < 32:
            return 0
        k += 1
    if k >= end:
        return -1
    if buf[k] != 34:
        return 0
    k = skip(buf, k + 1, end)
    if k >= end:
        return -1
    return 1 if buf[k] == 58 else 0


@jit
def repaired_end(buf, i, end, final):
    """Where a string ends whose quotes or backslashes are not escaped: the first quote after which a key or a closing
    bracket follows."""
    stop = i + REPAIR_REACH
    while i < end and i < stop:
        c = buf[i]
        if c == 0:
            return _BROKEN
        if c == 34:
            closes = _closes(buf, i, end)
            if closes == 1:
                return i
            if closes < 0 and not final:
                return _UNFINISHED
        i += 1
    return _BROKEN if final or i < end else _UNFINISHED


@inlined
def number_end(buf, i, end):
    """(place after a JSON number, whether it is an integer, its value or 0), place -1 where it is none. 18 digits at
    most count as integer."""
    negative = buf[i] == 45
    if negative:
        i += 1
    first = i
    value = 0
    while i < end and 48 <= buf[i] <= 57:
        if i - first < 18:
            value = value * 10 + (I(buf[i]) - 48)
        i += 1
    digits = i - first
    if digits == 0 or (digits > 1 and buf[first] == 48):
        return -1, False, 0
    integer = True
    if i < end and buf[i] == 46:
        integer = False
        i += 1
        fraction = i
        while i < end and 48 <= buf[i] <= 57:
            i += 1
        if i == fraction:
            return -1, False, 0
    if i < end and (buf[i] == 101 or buf[i] == 69):
        integer = False
        i += 1
        if i < end and (buf[i] == 43 or buf[i] == 45):
            i += 1
        exponent = i
        while i < end and 48 <= buf[i] <= 57:
            i += 1
        if i == exponent:
            return -1, False, 0
    if not integer:
        return i, False, 0
    if digits > 18:
        return _long_integer(buf, first, i, negative)
    return i, True, -value if negative else value


@jit
def _long_integer(buf, first, stop, negative):
    """19 digits and more: an integer where it fits int64, else a number."""
    if stop - first > 19:
        return stop, False, 0
    value = 0
    for i in range(first, stop):
        digit = I(buf[i]) - 48
        if value > 922337203685477580 or (value == 922337203685477580 and digit > 7):
            return stop, False, 0
        value = value * 10 + digit
    return stop, True, -value if negative else value


@jit
def bare_end(buf, i, end):
    """Place after a word without quotes (true, NaN, N/A), at most 64 bytes; -1 unfinished, -2 none."""
    start = i
    while i < end:
        c = buf[i]
        if c == 44 or c == 125 or c == 93 or c == 32 or c == 10 or c == 13 or c == 9:
            return i if i > start else _BROKEN
        if c < 32 or c == 34 or c == 58 or c == 123 or c == 91 or i - start > 64:
            return _BROKEN
        i += 1
    return _UNFINISHED


@jit
def _literal(buf, i, j):
    """TRUE, FALSE, NIL, or BARE."""
    if j - i == 4 and buf[i] == 116 and buf[i + 1] == 114 and buf[i + 2] == 117 and buf[i + 3] == 101:
        return TRUE
    if j - i == 4 and buf[i] == 110 and buf[i + 1] == 117 and buf[i + 2] == 108 and buf[i + 3] == 108:
        return NIL
    if (
        j - i == 5
        and buf[i] == 102
        and buf[i + 1] == 97
        and buf[i + 2] == 108
        and buf[i + 3] == 115
        and buf[i + 4] == 101
    ):
        return FALSE
    return BARE


@jit
def nested_end(buf, i, end):
    """Place after the list or object that opens at `i`: -1 unfinished, -2 where it is no JSON (bare words are let
    pass)."""
    objects, colons, depth = 0, 0, 0
    before = 2  # 0 after an opening bracket, 1 after a value, 2 after a comma or colon
    text = False  # whether the last value was a string: only that can be a key
    while i < end:
        c = buf[i]
        if c == 32 or c == 10 or c == 13 or c == 9:
            i += 1
        elif c == 34:
            if before == 1:
                return _BROKEN
            i = string_end(buf, i + 1, end)
            if i < 0:
                return _UNFINISHED
            i += 1
            before, text = 1, True
        elif c == 44:
            if before != 1 or (objects & 1) != (colons & 1):
                return _BROKEN
            colons = (colons >> 1) << 1
            before = 2
            i += 1
        elif c == 58:
            if before != 1 or not text or not (objects & 1) or colons & 1:
                return _BROKEN
            colons |= 1
            before = 2
            i += 1
        elif c == 91 or c == 123:
            if before == 1 or depth >= 60:
                return _BROKEN
            objects = (objects << 1) | (1 if c == 123 else 0)
            colons <<= 1
            depth += 1
            before = 0
            i += 1
        elif c == 93 or c == 125:
            if before == 2 or (objects & 1) != (1 if c == 125 else 0):
                return _BROKEN
            if before == 1 and (objects & 1) != (colons & 1):
                return _BROKEN
            objects >>= 1
            colons >>= 1
            depth -= 1
            before, text = 1, False
            i += 1
            if depth == 0:
                return i
        else:
            if before == 1:
                return _BROKEN
            i = bare_end(buf, i, end)
            if i < 0:
                return i
            before, text = 1, False
    return _UNFINISHED


@inlined
def value_at(buf, i, end, final):
    """(kind, first byte, place after the last, place to go on, integer value) of the value at `i`; kind < 0:
    unfinished, broken."""
    c = buf[i]
    if c == 34:
        j = string_end(buf, i + 1, end)
        if j >= 0:
            k = skip(buf, j + 1, end)
            if k >= end:
                return _UNFINISHED, i, i, i, 0
            if buf[k] == 44 or buf[k] == 125 or buf[k] == 93 or _key_follows(buf, k, end) == 1:
                return TEXT, i + 1, j, j + 1, 0
        elif not final:
            return _UNFINISHED, i, i, i, 0
        j = repaired_end(buf, i + 1, end, final)
        if j < 0:
            return j, i, i, i, 0
        return DIRTY, i + 1, j, j + 1, 0
    if c == 91 or c == 123:
        j = nested_end(buf, i, end)
        if j < 0:
            return j, i, i, i, 0
        return JSON, i, j, j, 0
    if c == 45 or 48 <= c <= 57:
        j, integer, value = number_end(buf, i, end)
        if j >= end:
            return _UNFINISHED, i, i, i, 0
        if j > 0:
            c = buf[j]
            if c == 44 or c == 125 or c == 93 or c == 32 or c == 10 or c == 13 or c == 9:
                return INTEGER if integer else NUMBER, i, j, j, value
    j = bare_end(buf, i, end)
    if j < 0:
        return j, i, i, i, 0
    return _literal(buf, i, j), i, j, j, 0


@jit
def _holed(buf, i, j):
    """Whether eight zero bytes in a row stand in [i, j): a lost page joined two events, which shows as a key that
    comes twice."""
    zeros = 0
    while i < j:
        zeros = zeros + 1 if buf[i] == 0 else 0
        if zeros >= 8:
            return True
        i += 1
    return False


@jit
def _without_arguments(entry, entries):
    """Drop the arguments found so far: `args` comes twice, and the last one counts."""
    kept = 0
    for n in range(entries):
        if entry[n, 7] and entry[n, 2] != W_ARGS:
            for part in range(8):
                entry[kept, part] = entry[n, part]
            kept += 1
    return kept


@inlined
def _place_of(buf, entry, entries, key, key_end, word, own):
    """Entry of the same key (JSON: a key that comes twice keeps its place and gets the last value), else `entries`."""
    for n in range(entries):
        if entry[n, 2] == word and entry[n, 7] == own:
            length = entry[n, 1] - entry[n, 0]
            if word >= 0 or (length == key_end - key and equal(buf, entry[n, 0], buf, key, length)):
                return n
    return entries


@jit
def event_at(buf, pos, end, final, top, entry):
    """Find the parts of the event whose `{` is at `pos`: (place after it or < 0, entries, whether it needed a repair).

    `top[key] = (kind, first, after, value)` for the event's own keys; `entry[n] = (key first, after, word, kind,
    first, after, value,
    own)` for each argument, and for the event's other keys (own 1).
    """
    for key in range(OWN):
        top[key, 0] = NONE
    i, entries, level, comma, repaired = pos + 1, 0, 0, False, False
    while True:
        i = skip(buf, i, end)
        if i >= end:
            return _UNFINISHED, 0, False
        c = buf[i]
        if c == 125:
            repaired |= comma
            comma = False
            i += 1
            if level == 0:
                return i, entries, repaired
            level = 0
        else:
            if c == 44:
                repaired = True
                i += 1
                continue
            if c == 34:
                key = i + 1
                key_end = string_end(buf, key, end)
                if key_end < 0:
                    return _UNFINISHED, 0, False
                i = key_end + 1
            elif 65 <= c <= 90 or 97 <= c <= 122 or c == 95:
                key = i
                while i < end and buf[i] != 34 and buf[i] != 58 and buf[i] > 31 and buf[i] != 44 and i - key < 64:
                    i += 1
                if i >= end:
                    return _UNFINISHED, 0, False
                key_end = i
                if buf[i] == 34:
                    i += 1
                repaired = True
            else:
                return _BROKEN, 0, False
            i = skip(buf, i, end)
            if i >= end:
                return _UNFINISHED, 0, False
            if buf[i] != 58:
                return _BROKEN, 0, False
            i = skip(buf, i + 1, end)
            if i >= end:
                return _UNFINISHED, 0, False
            word = word_of(buf, key, key_end)
            if level == 0 and word == W_ARGS:
                entries = _without_arguments(entry, entries)
            if level == 0 and word == W_ARGS and buf[i] == 123:
                level = 1
                comma = False
                i += 1
                continue
            kind, first, after, i, value = value_at(buf, i, end, final)
            if kind < 0:
                return kind, 0, False
            repaired |= kind >= BARE
            if level == 0 and 0 <= word < OWN:
                if top[word, 0] != NONE and _holed(buf, pos, i):
                    return _BROKEN, 0, False
                top[word, 0], top[word, 1], top[word, 2], top[word, 3] = kind, first, after, value
            else:
                if entries >= MAX_ARGUMENTS:
                    return _BROKEN, 0, False
                n = _place_of(buf, entry, entries, key, key_end, word, 1 - level)
                if n == entries:
                    entry[n, 0], entry[n, 1], entry[n, 2], entry[n, 7] = key, key_end, word, 1 - level
                    entries += 1
                entry[n, 3], entry[n, 4], entry[n, 5], entry[n, 6] = kind, first, after, value
        i = skip(buf, i, end)
        if i >= end:
            return _UNFINISHED, 0, False
        comma = buf[i] == 44
        if comma:
            i += 1
        elif buf[i] != 125:
            if _key_follows(buf, i, end) != 1:
                return _BROKEN, 0, False
            repaired = True


@inlined
def nanoseconds(buf, i, j):
    """(whether it is a time, int64 nanoseconds, whether digits were rounded) of decimal microseconds; half to even."""
    while i < j and buf[i] == 32:
        i += 1
    negative = i < j and buf[i] == 45
    if i < j and (buf[i] == 45 or buf[i] == 43):
        i += 1
    mantissa, scale, seen, point, half, rest = 0, 3, False, False, -1, False
    while i < j:
        c = buf[i]
        if 48 <= c <= 57:
            seen = True
            digit = I(c) - 48
            if half < 0 and (mantissa <= 922337203685477579 or (mantissa == 922337203685477580 and digit <= 7)):
                mantissa = mantissa * 10 + digit
                scale -= 1 if point else 0
            else:
                if half < 0:
                    half = digit
                else:
                    rest |= digit > 0
                scale += 0 if point else 1
        elif c == 46 and not point:
            point = True
        else:
            break
        i += 1
    if not seen:
        return False, 0, False
    if i < j and (buf[i] == 101 or buf[i] == 69):
        i += 1
        minus = i < j and buf[i] == 45
        if i < j and (buf[i] == 45 or buf[i] == 43):
            i += 1
        exponent, seen = 0, False
        while i < j and 48 <= buf[i] <= 57:
            seen = True
            exponent = min(exponent * 10 + I(buf[i]) - 48, 9999)
            i += 1
        if not seen:
            return False, 0, False
        scale += -exponent if minus else exponent
    while i < j and (buf[i] == 32 or buf[i] == 9):
        i += 1
    if i < j:
        return False, 0, False
    inexact = half > 0 or rest
    if scale > 0 and half >= 0:
        return False, 0, False  # past int64
    while scale > 0 and mantissa != 0:
        if mantissa > 922337203685477580:
            return False, 0, False
        mantissa *= 10
        scale -= 1
    if scale < 0:
        if scale < -18:
            up = scale == -19 and (mantissa > 5 * 10**18 or (mantissa == 5 * 10**18 and (half > 0 or rest)))
            time = 1 if up else 0
            return True, -time if negative else time, mantissa > 0
        power = 1
        for _ in range(-scale):
            power *= 10
        remainder = mantissa % power
        tail = half > 0 or rest
        inexact = remainder > 0 or tail
        mantissa //= power
        twice = remainder * 2
        if twice > power or (twice == power and (tail or mantissa & 1)):
            mantissa += 1
    elif half >= 0:
        if half > 5 or (half == 5 and (rest or mantissa & 1)):
            mantissa += 1
    return True, -mantissa if negative else mantissa, inexact


@jit
def real(buf, i, j, kind, value):
    """The double of a JSON number, correctly rounded; -0.0 as 0.0, because its bits mean null here."""
    if kind == INTEGER:
        return float(value)
    start, negative, mantissa, digits, scale, point, plain = i, buf[i] == 45, 0, 0, 0, False, True
    if negative:
        i += 1
    while i < j:
        c = buf[i]
        if c == 46:
            point = True
        elif 48 <= c <= 57:
            if digits >= 18:
                plain = False
                break
            mantissa = mantissa * 10 + I(c) - 48
            digits += 1 if mantissa > 0 else 0
            scale += 1 if point else 0
        else:
            plain = False
            break
        i += 1
    if plain and mantissa < (1 << 53) and scale < 23:
        result = float(mantissa) / POWERS[scale]  # both exact, so the quotient is correctly rounded
        return -result if negative and mantissa > 0 else result
    result = correct_float(buf, start, j)
    return result if result != 0.0 else 0.0


@inlined
def intern(buf, i, j, kind, cursor, table, hashes, offsets, kinds, blob):
    """Number of the text [i, j) among the strings seen; new ones are copied once."""
    h = hash_span(buf, i, j)
    if kind == JSON:
        h ^= U(_JSON_SALT)
    place = I(h & U(TABLE - 1))
    length = j - i
    while True:
        number = I(table[place]) - 1
        if number < 0:
            return _add(buf, i, length, h, kind, place, cursor, table, hashes, offsets, kinds, blob)
        if hashes[number] == h and kinds[number] == kind:
            start = offsets[number]
            if offsets[number + 1] - start == length and equal(blob, start, buf, i, length):
                return number
        place = (place + 1) & (TABLE - 1)


@jit
def _add(buf, i, length, h, kind, place, cursor, table, hashes, offsets, kinds, blob):
    """Copy a new text and give it a number."""
    number, at, zeros = cursor[STRINGS], cursor[BLOB], 0
    for k in range(length):
        c = buf[i + k]
        blob[at + k] = c
        zeros = zeros + 1 if c == 0 else 0
        if zeros >= 8:
            cursor[HOLE] = 1
    table[place] = number + 1
    hashes[number] = h
    kinds[number] = kind
    offsets[number + 1] = at + length
    cursor[STRINGS] = number + 1
    cursor[BLOB] = at + length
    return number


@jit
def copy_string(buf, i, j, out, o):
    """Copy what stands between quotes so that it is valid JSON: stray quotes, backslashes and control characters
    escaped."""
    while i < j:
        c = buf[i]
        if c == 92:
            d = buf[i + 1] if i + 1 < j else 0
            valid = d == 34 or d == 92 or d == 47 or d == 98 or d == 102 or d == 110 or d == 114 or d == 116
            if d == 117 and i + 5 < j:
                valid = True
                for k in range(i + 2, i + 6):
                    e = buf[k]
                    valid = valid and (48 <= e <= 57 or 65 <= e <= 70 or 97 <= e <= 102)
            out[o] = 92
            out[o + 1] = d if valid else 92
            o += 2
            i += 2 if valid else 1
        elif c == 34:
            out[o] = 92
            out[o + 1] = 34
            o += 2
            i += 1
        elif c < 32:
            out[o], out[o + 1], out[o + 2], out[o + 3] = 92, 117, 48, 48
            out[o + 4] = HEX[c >> 4]
            out[o + 5] = HEX[c & 15]
            o += 6
            i += 1
        else:
            out[o] = c
            o += 1
            i += 1
    return o


@jit
def copy_json(buf, i, j, out, o):
    """Copy a list or object without white space, bare words as strings."""
    while i < j:
        c = buf[i]
        if c == 34:
            k = string_end(buf, i + 1, j)
            if k < 0:
                k = j
            out[o] = 34
            o = copy_string(buf, i + 1, k, out, o + 1)
            out[o] = 34
            o += 1
            i = k + 1
        elif c == 44 or c == 58 or c == 91 or c == 93 or c == 123 or c == 125:
            out[o] = c
            o += 1
            i += 1
        elif c == 32 or c == 10 or c == 13 or c == 9:
            i += 1
        else:
            k = bare_end(buf, i, j)
            if k < 0:
                k = j
            o = copy_bare(buf, i, k, out, o)
            i = k
    return o


@jit
def copy_bare(buf, i, j, out, o):
    """Copy a number or literal as it is, any other word as a string."""
    plain = _literal(buf, i, j) != BARE
    if not plain and (buf[i] == 45 or 48 <= buf[i] <= 57):
        plain = number_end(buf, i, j)[0] == j
    if not plain:
        out[o] = 34
        o = copy_string(buf, i, j, out, o + 1)
        out[o] = 34
        return o + 1
    for k in range(i, j):
        out[o] = buf[k]
        o += 1
    return o


@inlined
def copy_value(buf, kind, i, j, raw, o):
    """Copy a value of any kind as JSON; the place behind it."""
    if kind == TEXT or kind == DIRTY:
        raw[o] = 34
        o = copy_string(buf, i, j, raw, o + 1)
        raw[o] = 34
        return o + 1
    if kind == JSON:
        return copy_json(buf, i, j, raw, o)
    return copy_bare(buf, i, j, raw, o)


@jit
def copy_entry(buf, entry, n, raw, o, start):
    """Append `"key":value` to the raw arguments that began at `start`."""
    raw[o] = 123 if o == start else 44
    raw[o + 1] = 34
    o += 2
    if entry[n, 7]:
        raw[o], raw[o + 1], raw[o + 2], raw[o + 3], raw[o + 4], raw[o + 5] = 101, 118, 101, 110, 116, 46  # "event."
        o += 6
    o = copy_string(buf, entry[n, 0], entry[n, 1], raw, o)
    raw[o] = 34
    raw[o + 1] = 58
    o += 2
    return copy_value(buf, entry[n, 3], entry[n, 4], entry[n, 5], raw, o)


@jit
def _is_memory(buf, i, j):
    """Whether the name is `[memory]`."""
    return (
        j - i == 8
        and buf[i] == 91
        and buf[i + 1] == 109
        and buf[i + 2] == 101
        and buf[i + 3] == 109
        and buf[i + 4] == 111
        and buf[i + 5] == 114
        and buf[i + 6] == 121
        and buf[i + 7] == 93
    )


@inlined
def class_of(buf, phase, top, entry, entries):
    """The class of an event, by its phase, then its category."""
    if phase == 77:  # M
        return METADATA
    if phase == 115 or phase == 116 or phase == 102:  # s t f
        return FLOW
    if phase == 67:  # C
        return COUNTER
    if phase == 105 or phase == 73 or phase == 82 or phase == 110:  # i I R n
        if top[W_NAME, 0] == TEXT and _is_memory(buf, top[W_NAME, 1], top[W_NAME, 2]):
            return MEMORY
        return ANNOTATION
    if top[W_CAT, 0] == TEXT:
        i, j = top[W_CAT, 1], top[W_CAT, 2]
        word = word_of(buf, i, j)
        if word >= 0 and CLASS_OF_WORD[word] >= 0:
            return CLASS_OF_WORD[word]
        if (j - i >= 8 and equal(buf, j - 8, RUNTIME_BYTES, 0, 8)) or (
            j - i >= 7 and equal(buf, j - 7, DRIVER_BYTES, 0, 7)
        ):
            return RUNTIME
        return ANNOTATION
    for n in range(entries):  # Ascend's device rows carry no category
        if entry[n, 2] == W_TASK_TYPE:
            return GPU
    return ANNOTATION


@inlined
def put(cols, fill, c, k, row, value):
    """Set a cell; cells of the column that were passed over become null."""
    for missing in range(fill[c, k], row):
        cols[c, k, missing] = NULL
    cols[c, k, row] = value
    fill[c, k] = row + 1


@jit
def copy_own(buf, top, key, raw, o, start):
    """Append `"event.<key>":value` of one of the event's own keys to the raw arguments."""
    raw[o] = 123 if o == start else 44
    raw[o + 1], raw[o + 2], raw[o + 3], raw[o + 4], raw[o + 5], raw[o + 6], raw[o + 7] = 34, 101, 118, 101, 110, 116, 46
    o += 8
    for k in range(WORD_OFFSETS[key], WORD_OFFSETS[key + 1]):
        raw[o] = WORD_BYTES[k]
        o += 1
    raw[o], raw[o + 1] = 34, 58
    o += 2
    return copy_value(buf, top[key, 0], top[key, 1], top[key, 2], raw, o)


@inlined
def _textual(kind):
    """How a value is interned: as text, as JSON, or not at all (0)."""
    if kind == TEXT or kind == DIRTY or kind == INTEGER or kind == NUMBER or kind == TRUE or kind == FALSE:
        return TEXT
    if kind == JSON:
        return JSON
    return NONE


@inlined
def fits(column_type, kind, value):
    """Whether a value of this kind goes into a column of this type."""
    if column_type == _INT:
        return kind == INTEGER
    if column_type == _SMALL:
        return kind == INTEGER and -2147483648 <= value <= 2147483647
    if column_type == _FLOAT:
        return kind == INTEGER or kind == NUMBER
    return _textual(kind) != NONE


@jit
def store(buf, top, entry, entries, cols, fill, rows, cursor, table, hashes, offsets, kinds, blob, raw, stats):
    """Write an event's row (a counter's rows): 1 stored, 0 no phase, -1 a zero hole runs through one of its strings."""
    if top[W_PH, 0] != TEXT or top[W_PH, 2] <= top[W_PH, 1]:
        return 0
    phase = buf[top[W_PH, 1]]
    c = class_of(buf, phase, top, entry, entries)
    row = rows[c]
    start = cursor[RAW]
    o = start
    cursor[HOLE] = 0
    for key, column in ((W_NAME, NAME), (W_CAT, CAT), (W_PID, PID), (W_TID, TID)):
        kind = _textual(top[key, 0])
        if kind:
            text = intern(buf, top[key, 1], top[key, 2], kind, cursor, table, hashes, offsets, kinds, blob)
            put(cols, fill, c, column, row, text)
        elif top[key, 0] == BARE:
            o = copy_own(buf, top, key, raw, o, start)
    timed, duration = False, False
    for key, column in ((W_TS, TS), (W_DUR, DUR)):
        kind = top[key, 0]
        if kind == NONE:
            continue
        good = False
        if kind == INTEGER or kind == NUMBER or kind == TEXT:
            good, value, inexact = nanoseconds(buf, top[key, 1], top[key, 2])
            if good:
                put(cols, fill, c, column, row, value)
                stats[ROUNDED] += 1 if inexact else 0
        if not good and kind != NIL:
            o = copy_own(buf, top, key, raw, o, start)
        if key == W_TS:
            timed = good
        else:
            duration = good
    stats[NO_TIME] += 1 if not timed and phase != 77 else 0
    stats[NO_DURATION] += 1 if not duration and phase == 88 else 0
    kind = top[W_ID, 0]
    if kind != NONE and kind != NIL:
        i, j = top[W_ID, 1], top[W_ID, 2]
        if c == FLOW and kind == INTEGER:
            put(cols, fill, c, F_ID, row, top[W_ID, 3])
        elif _textual(kind):
            text = intern(buf, i, j, _textual(kind), cursor, table, hashes, offsets, kinds, blob)
            put(cols, fill, c, F_TEXT if c == FLOW else ID, row, text)
        else:
            o = copy_own(buf, top, W_ID, raw, o, start)
    if c == FLOW or c == ANNOTATION:
        text = intern(buf, top[W_PH, 1], top[W_PH, 2], TEXT, cursor, table, hashes, offsets, kinds, blob)
        put(cols, fill, c, F_PHASE if c == FLOW else A_PHASE, row, text)
    for key in (W_BP, W_S):
        kind = top[key, 0]
        if kind == NONE or kind == NIL:
            continue
        column = -1
        if key == W_BP:
            column = F_BINDING if c == FLOW else -1
        elif c == ANNOTATION:
            column = A_SCOPE
        elif c == MEMORY:
            column = M_SCOPE
        if column >= 0 and _textual(kind):
            text = intern(buf, top[key, 1], top[key, 2], _textual(kind), cursor, table, hashes, offsets, kinds, blob)
            put(cols, fill, c, column, row, text)
        else:
            o = copy_own(buf, top, key, raw, o, start)
    series = 0
    for n in range(entries):
        kind, i, j, value = entry[n, 3], entry[n, 4], entry[n, 5], entry[n, 6]
        if c == COUNTER and not entry[n, 7] and (kind == INTEGER or kind == NUMBER):
            entry[series, 0], entry[series, 1], entry[series, 3] = entry[n, 0], entry[n, 1], kind
            entry[series, 4], entry[series, 5], entry[series, 6] = i, j, value
            series += 1
            continue
        word = entry[n, 2]
        column = COLUMN_OF[c, word] if word >= 0 and not entry[n, 7] else -1
        if column >= 0 and fill[c, column] <= row:
            column_type = TYPE_OF[c, column]
            if fits(column_type, kind, value):
                if column_type == _TEXT:
                    cell = intern(buf, i, j, _textual(kind), cursor, table, hashes, offsets, kinds, blob)
                elif column_type == _FLOAT:
                    cell = float_bits(real(buf, i, j, kind, value))
                else:
                    cell = value
                put(cols, fill, c, column, row, cell)
                continue
            if kind == NIL:
                continue
        o = copy_entry(buf, entry, n, raw, o, start)
    if cursor[HOLE]:
        for k in range(WIDTH):
            fill[c, k] = min(fill[c, k], row)
        return -1
    if o > start:
        raw[o] = 125
        put(cols, fill, c, ARGS, row, start)
        put(cols, fill, c, ARGS_LENGTH, row, o + 1 - start)
        cursor[RAW] = o + 1
    rows[c] = row + 1
    if c == COUNTER:
        for n in range(series):
            if n > 0:
                for k in range(ARGS):
                    if fill[c, k] == row + n:
                        put(cols, fill, c, k, row + n, cols[c, k, row])
                rows[c] = row + n + 1
            text = intern(buf, entry[n, 0], entry[n, 1], TEXT, cursor, table, hashes, offsets, kinds, blob)
            put(cols, fill, c, C_SERIES, row + n, text)
            number = float_bits(real(buf, entry[n, 4], entry[n, 5], entry[n, 3], entry[n, 6]))
            put(cols, fill, c, C_VALUE, row + n, number)
    return 1


@jit
def _document_key(buf, i, end):
    """Whether a string at `i` is a key of the document around the events (whose list was then not closed)."""
    if buf[i] != 34:
        return False
    j = string_end(buf, i + 1, end)
    if j < 0:
        return False
    word = word_of(buf, i + 1, j)
    if word < 0 or not IN_DOCUMENT[word]:
        return False
    j = skip(buf, j + 1, end)
    return j < end and buf[j] == 58


@jit
def resync(buf, i, end, final):
    """The next place from `i` where an event may begin, or the list may end; `end` where there is none."""
    before = 0
    while i < end:
        c = buf[i]
        if c == 123 and (before == 44 or before == 125):
            return i
        if c == 93 and before == 125:
            k = skip(buf, i + 1, end)
            if k < end and buf[k] == 44:
                k = skip(buf, k + 1, end)
                if k < end and _document_key(buf, k, end):
                    return i
            elif k < end and buf[k] == 125 and final and skip(buf, k + 1, end) >= end:
                return i
        if c != 32 and c != 10 and c != 13 and c != 9:
            before = c
        i += 1
    return end


@jit
def ends_list(buf, i, end, final, adrift):
    """Whether the `]` before `i` ends the list of events: 1, 0, or -1 where the bytes end. `adrift`: it may as well
    end an argument."""
    while i < end and (buf[i] == 125 or buf[i] == 93 or buf[i] <= 32):
        i += 1
    if i >= end:
        return 1 if final else -1
    if buf[i] != 44:
        return 0 if adrift else 1
    i = skip(buf, i + 1, end)
    if i >= end:
        return 1 if final else -1
    if adrift:
        return 1 if _document_key(buf, i, end) else 0
    return 0 if buf[i] == 123 else 1


@jit
def scan(
    buf, pos, end, final, limit, cols, fill, rows, cursor, table, hashes, offsets, kinds, blob, raw, top, entry, stats
):
    """Store the events of `buf[pos:end]`, at most `limit` of them: (how it ended, the place to go on).

    DONE: all of it. END: the list's `]` came. UNFINISHED: the event at the place reaches past the end; call again with
    more bytes. FULL:
    take the rows first. LIMIT: that many were stored. With `final` nothing follows, and what is unfinished is counted
    as truncated.
    """
    while True:
        while pos < end:
            c = buf[pos]
            if c != 44 and c != 32 and c != 10 and c != 13 and c != 9:
                break
            pos += 1
        if pos >= end:
            return DONE, end
        if c == 93:
            ends = ends_list(buf, pos + 1, end, final, cursor[ADRIFT] != 0)
            if ends == 1:
                return END, pos + 1
            if ends < 0:
                return UNFINISHED, pos
        if limit == 0:
            return LIMIT, pos
        if c == 0:
            stats[NUL_BYTES] += 1
            pos += 1
            continue
        if c == 123:
            after, entries, repaired = event_at(buf, pos, end, final, top, entry)
            stored = -1
            if after >= 0:
                length = after - pos
                full = (
                    cursor[STRINGS] + 2 * entries + 16 >= MAX_STRINGS
                    or cursor[BLOB] + 2 * length + 64 > BLOB_BYTES
                    or cursor[RAW] + 6 * length + 16 * entries + 256 > RAW_BYTES
                )
                for k in range(len(rows)):
                    full = full or rows[k] + entries + 2 >= ROWS
                if full and length <= MAX_EVENT:
                    return FULL, pos
                if not full:
                    stored = store(
                        buf,
                        top,
                        entry,
                        entries,
                        cols,
                        fill,
                        rows,
                        cursor,
                        table,
                        hashes,
                        offsets,
                        kinds,
                        blob,
                        raw,
                        stats,
                    )
                if stored == 1:
                    stats[EVENTS] += 1
                    stats[REPAIRED] += 1 if repaired else 0
                    cursor[ADRIFT] = 0
                    pos = after
                    limit -= 1
                    continue
                if stored == 0:
                    stats[NO_PHASE] += 1
                    stats[BAD] += 1
                    stats[LOST_BYTES] += length
                    pos = after
                    limit -= 1
                    continue
            elif after == _UNFINISHED and not final and end - pos <= MAX_EVENT:
                return UNFINISHED, pos
            go_on = resync(buf, pos + 1, end, final)
            if after == _UNFINISHED and go_on >= end:
                stats[TRUNCATED] += 1
            else:
                stats[BAD] += 1
        elif c == 34 and _document_key(buf, pos, end):
            stats[UNCLOSED] += 1
            return END, pos
        elif c == 125 and final and skip(buf, pos + 1, end) >= end:
            stats[UNCLOSED] += 1
            return END, pos
        else:
            go_on = resync(buf, pos, end, final)
            stats[BAD] += 1
        stats[LOST_BYTES] += go_on - pos
        cursor[ADRIFT] = 1
        pos = go_on
        limit -= 1


@allocating
def narrow(values):
    """Text numbers as int32, null as -1."""
    out = np.empty(len(values), np.int32)
    for i in range(len(values)):
        out[i] = values[i] if values[i] != NULL else -1
    return out


@allocating
def gather(raw, starts, lengths):
    """The raw arguments of rows one after the other; length -1 is null."""
    size = 0
    for i in range(len(lengths)):
        size += max(lengths[i], 0)
    out, o = np.empty(size, np.uint8), 0
    for i in range(len(lengths)):
        if lengths[i] > 0:
            out[o : o + lengths[i]] = raw[starts[i] : starts[i] + lengths[i]]
            o += lengths[i]
    return out


@jit
def normalise(blob, offsets, kinds, out, starts, care):
    """Write interned texts to `out`, JSON without white space; `care[i]`: it has escapes or bytes beyond ASCII. Bytes
    written."""
    o = 0
    for n in range(len(kinds)):
        i, j = offsets[n], offsets[n + 1]
        first = o
        if kinds[n] == JSON:
            o = copy_json(blob, i, j, out, o)
        else:
            for k in range(i, j):
                out[o] = blob[k]
                o += 1
        for k in range(first, o):
            if out[k] >= 128 or (out[k] == 92 and kinds[n] != JSON):
                care[n] = True
                break
        starts[n + 1] = o
    return o


@jit
def overlapping(tracks, starts, ends, last):
    """Events that start before an earlier one of their track ended. `last[track]` carries the latest end between
    calls."""
    count = 0
    for i in range(len(tracks)):
        track = tracks[i]
        if starts[i] < last[track] and ends[i] > starts[i]:
            count += 1
        if ends[i] > last[track]:
            last[track] = ends[i]
    return count


@jit
def crossing(tracks, starts, ends, open_starts, open_ends, depth):
    """Events that start inside another of their track and end after it. The `open_*[track, level]` stacks carry on
    between calls."""
    count = 0
    for i in range(len(tracks)):
        track = tracks[i]
        level = depth[track]
        while level > 0 and open_ends[track, level - 1] <= starts[i]:
            level -= 1
        if level > 0 and ends[i] > open_ends[track, level - 1] and starts[i] > open_starts[track, level - 1]:
            count += 1
        if level < open_ends.shape[1] and ends[i] > starts[i]:
            open_starts[track, level] = starts[i]
            open_ends[track, level] = ends[i]
            level += 1
        depth[track] = level
    return count


@allocating
def innermost(tracks, starts, ends, call_tracks, call_times, found):
    """Innermost range around each call. Ranges sorted by (track, start, longest first), calls by (track, time);
    `found` starts as -1."""
    stack = np.empty(len(tracks) + 1, np.int64)
    depth, following = 0, 0
    for call in range(len(call_tracks)):
        track, time = call_tracks[call], call_times[call]
        while following < len(tracks) and tracks[following] < track:
            following += 1
        if call == 0 or call_tracks[call - 1] != track:
            depth = 0
        while following < len(tracks) and tracks[following] == track and starts[following] <= time:
            while depth > 0 and ends[stack[depth - 1]] <= starts[following]:
                depth -= 1
            stack[depth] = following
            depth += 1
            following += 1
        while depth > 0 and ends[stack[depth - 1]] <= time:
            depth -= 1
        if depth > 0:
            found[call] = stack[depth - 1]
