"""Malformed traces as they occur in the wild: each kind makes a file from good events and says what must be kept of it.

The kinds are those of public issues: truncated by a killed job, unescaped names (kineto PR 1459, 1508), raw
backslashes (pytorch 98432), control
characters (pytorch 130622), bare inf and N/A (kineto 105, 131), bytes that are no UTF-8 (kineto 80), a key without its
first quote
(pytorch 33961), times as strings (Ascend), and so on.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COUNT = 400


@dataclass
class Case:
    """A file, and what must come of it. `kept`: events at least; None: the file is refused. `lost`: whether quality
    must count a loss."""

    data: bytes
    kept: int | None = COUNT
    lost: bool = False
    repaired: int | None = 0  # None: some or none
    name: str = "trace.json"


KINDS: dict[str, Callable[[], Case]] = {}


def kind(make: Callable[[], Case]) -> Callable[[], Case]:
    KINDS[make.__name__] = make
    return make


def events(count: int = COUNT) -> list[dict[str, Any]]:
    """A small job: ops, launches, kernels, flows, python frames and memory marks, of every class."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        ts = 5119840434626.766 + i
        common = {"pid": 7, "tid": 7 + i % 2, "ts": round(ts, 3), "dur": round(0.5 + i / 1000, 3)}
        choice = i % 8
        if choice == 0:
            args: dict[str, Any] = {
                "External id": i,
                "Input Dims": [[8, 4], []],
                "Input type": ["float", ""],
                "odd one": [1, {"a": 2}],
            }
            made.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", **common, "args": args})
        elif choice == 1:
            args = {"External id": i, "cbid": 211, "correlation": i}
            made.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **common, "args": args})
        elif choice == 2:
            args = {
                "device": 0,
                "stream": 7,
                "correlation": i - 1,
                "grid": [1, 2, 3],
                "blocks per SM": 0.25,
                "queued": 0,
            }
            row = {**common, "pid": 0, "tid": "stream 7"}
            made.append({"ph": "X", "cat": "kernel", "name": "void gemm<4, float>(int)", **row, "args": args})
        elif choice == 3:
            row = {key: common[key] for key in ("pid", "tid", "ts")}
            made.append({"ph": "s", "id": i, **row, "cat": "ac2g", "name": "ac2g"})
        elif choice == 4:
            row = {key: common[key] for key in ("pid", "tid", "ts")}
            made.append({"ph": "f", "id": i - 1, **row, "cat": "ac2g", "name": "ac2g", "bp": "e"})
        elif choice == 5:
            args = {"Python id": i, "Python parent id": i - 1 if i > 5 else None}
            made.append({"ph": "X", "cat": "python_function", "name": f"train.py({i}): step", **common, "args": args})
        elif choice == 6:
            args = {"Addr": 1 << 40, "Bytes": -512 * i, "Device Id": 0, "Device Type": 1}
            row = {key: common[key] for key in ("pid", "tid", "ts")}
            made.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", **row, "args": args})
        else:
            args = {"External id": i}
            made.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i // 8}", **common, "args": args})
    return made


def written(some: list[dict[str, Any]], **header: Any) -> str:
    """A trace as torch writes it: one event a few lines, keys before and after the events."""
    body = ",\n".join("  " + json.dumps(event) for event in some)
    before = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, **header})[1:-1]
    return "{" + before + ',\n"traceEvents": [\n' + body + '\n],\n"traceName": "t.json"}\n'


def plain() -> bytes:
    return written(events()).encode()


def _replace(place: int, old: str, new: str) -> bytes:
    """The trace with a change in the event at `place`."""
    lines = plain().decode().split("\n")
    line = next(i for i, text in enumerate(lines) if text.startswith("  {")) + place
    assert old in lines[line], (old, lines[line])
    lines[line] = lines[line].replace(old, new, 1)
    return "\n".join(lines).encode("utf-8", errors="surrogateescape")


@kind
def good() -> Case:
    return Case(plain())


@kind
def truncated_in_event() -> Case:
    data = plain()
    return Case(data[: data.rindex(b'"pid"')], COUNT - 1, lost=True)


@kind
def truncated_in_string() -> Case:
    data = plain()
    return Case(data[: data.rindex(b"ProfilerStep") + 5], COUNT - 1, lost=True)


@kind
def truncated_after_event() -> Case:
    data = plain()
    return Case(data[: data.rindex(b"\n],")], COUNT, lost=True)


@kind
def empty() -> Case:
    return Case(b"", None)


@kind
def only_white_space() -> Case:
    return Case(b" \n\n", None)


@kind
def truncated_gzip() -> Case:
    packed = gzip.compress(plain(), 1)
    return Case(packed[: len(packed) * 9 // 10], COUNT * 8 // 10, lost=True, name="trace.json.gz")


@kind
def corrupt_gzip() -> Case:
    packed = bytearray(gzip.compress(plain(), 1))
    packed[len(packed) * 9 // 10] ^= 0xFF
    return Case(bytes(packed), COUNT * 8 // 10, lost=True, repaired=None, name="trace.json.gz")


@kind
def gzip_of_two_members() -> Case:
    data = plain()
    return Case(gzip.compress(data[:30_000]) + gzip.compress(data[30_000:]), name="trace.json.gz")


@kind
def gzip_with_trailing_garbage() -> Case:
    return Case(gzip.compress(plain()) + b"garbage", lost=True, name="trace.json.gz")


@kind
def gzip_named_json() -> Case:
    return Case(gzip.compress(plain()))


@kind
def gzip_twice() -> Case:
    return Case(gzip.compress(gzip.compress(plain())), name="trace.json.gz")


@kind
def plain_named_gz() -> Case:
    return Case(plain(), name="trace.json.gz")


@kind
def unescaped_quotes() -> Case:
    return Case(_replace(80, "aten::mm", 'call "f" of <"x">'), repaired=1)


@kind
def unescaped_quotes_before_comma() -> Case:
    return Case(_replace(80, "aten::mm", 'say "a", "b" now'), repaired=1)


@kind
def raw_backslashes() -> Case:
    return Case(_replace(85, "train.py", "C:\\Users\\new\\train.py"))


@kind
def backslash_before_the_quote() -> Case:
    return Case(_replace(80, '"aten::mm"', '"C:\\dir\\"'), repaired=1)


@kind
def control_characters() -> Case:
    return Case(_replace(80, "aten::mm", "a\x01b\tc\x7f"))


@kind
def line_break_in_name() -> Case:
    return Case(_replace(80, "aten::mm", "first\nsecond"))


@kind
def bare_inf() -> Case:
    return Case(_replace(82, "0.25", "inf"), repaired=1)


@kind
def bare_nan() -> Case:
    return Case(_replace(82, "0.25", "-nan"), repaired=1)


@kind
def bare_not_available() -> Case:
    return Case(_replace(82, "0.25", "N/A"), repaired=1)


@kind
def javascript_constants() -> Case:
    return Case(_replace(82, "0.25", "Infinity"), repaired=1)


@kind
def no_utf8() -> Case:
    return Case(_replace(80, "aten::mm", "caf\udce9 \udcff\udcfe"))


@kind
def quote_missing_before_key() -> Case:
    return Case(_replace(80, '"tid":', 'tid":'), repaired=1)


@kind
def key_without_quotes() -> Case:
    return Case(_replace(80, '"tid":', "tid:"), repaired=1)


@kind
def comma_missing_between_keys() -> Case:
    return Case(_replace(80, '"cat": "cpu_op",', '"cat": "cpu_op"'), repaired=1)


@kind
def comma_missing_between_events() -> Case:
    return Case(plain().replace(b"},\n  {", b"}\n  {", 1))


@kind
def two_commas_between_events() -> Case:
    return Case(plain().replace(b"},\n  {", b"},,\n  {", 1))


@kind
def trailing_comma_in_list() -> Case:
    return Case(plain().replace(b"\n],", b",\n],"))


@kind
def trailing_comma_in_event() -> Case:
    return Case(_replace(83, '"name": "ac2g"}', '"name": "ac2g",}'), repaired=1)


@kind
def list_not_closed() -> Case:
    return Case(plain().replace(b'\n],\n"traceName"', b',\n"traceName"'))


@kind
def nothing_closed() -> Case:
    data = plain()
    return Case(data[: data.rindex(b"]")], lost=True)


@kind
def list_alone() -> Case:
    return Case(json.dumps(events()).encode())


@kind
def list_alone_not_closed() -> Case:
    return Case(json.dumps(events()).encode()[:-1] + b",", lost=True)


@kind
def nested_document() -> Case:
    return Case(b'{"result": {"data": ' + plain().strip() + b"}}")


@kind
def keys_after_events() -> Case:
    return Case(json.dumps({"traceEvents": events(), "distributedInfo": {"rank": 3}}).encode())


@kind
def other_key_order() -> Case:
    return Case(json.dumps({"traceEvents": [dict(sorted(e.items())) for e in events()]}, sort_keys=True).encode())


@kind
def indented() -> Case:
    return Case(json.dumps({"traceEvents": events()}, indent=8).encode())


@kind
def compact() -> Case:
    return Case(json.dumps({"traceEvents": events()}, separators=(",", ":")).encode())


@kind
def windows_line_ends() -> Case:
    return Case(plain().replace(b"\n", b"\r\n"))


@kind
def zero_times() -> Case:
    some = events()
    for event in some[::10]:
        event["ts"] = 0
        event["dur"] = 0
    return Case(written(some).encode())


@kind
def negative_durations() -> Case:
    some = events()
    some[2]["dur"] = -1.5
    return Case(written(some).encode())


@kind
def no_times() -> Case:
    some = events()
    del some[2]["ts"], some[10]["dur"]
    some[18]["ts"] = "soon"
    return Case(written(some).encode())


@kind
def times_as_strings() -> Case:
    some = events()
    for event in some:
        event["ts"] = f"{event['ts']:.3f}"
        if "dur" in event:
            event["dur"] = str(event["dur"])
    return Case(written(some).encode())


@kind
def times_beyond_double() -> Case:
    return Case(_replace(80, "5119840434706.766", "9223372036854775.806"))


@kind
def times_beyond_int64() -> Case:
    return Case(_replace(80, "5119840434706.766", "99223372036854775.806"))


@kind
def times_with_exponent() -> Case:
    return Case(_replace(80, "5119840434706.766", "5.119840434706766e12"))


@kind
def integers_beyond_int64() -> Case:
    return Case(_replace(81, '"correlation": 81', '"correlation": 18446744073709551615'))


@kind
def flow_ids_beyond_int64() -> Case:
    return Case(_replace(83, '"id": 83', '"id": 18446744073709551615'))


@kind
def keys_that_differ_in_case() -> Case:
    return Case(_replace(86, '"Bytes"', '"bytes": 3, "Bytes"'))


@kind
def double_key() -> Case:
    return Case(_replace(80, '"pid": 7', '"pid": 8, "pid": 7'))


@kind
def arguments_twice() -> Case:
    return Case(_replace(80, '"args": {', '"args": 7, "args": {"a": 1, "External id": 1}, "args": {'))


@kind
def double_argument() -> Case:
    return Case(_replace(81, '"cbid": 211', '"cbid": 1, "odd": 1, "cbid": 211, "odd": {"b": 2}'))


@kind
def category_that_looks_like_runtime() -> Case:
    return Case(_replace(81, "cuda_runtime", "cuda_runtim3"))


@kind
def byte_order_mark() -> Case:
    return Case(b"\xef\xbb\xbf" + plain())


@kind
def utf16() -> Case:
    return Case(plain().decode().encode("utf-16"))


@kind
def utf16_without_mark() -> Case:
    return Case(plain().decode().encode("utf-16-le"))


@kind
def nul_padding() -> Case:
    return Case(plain() + b"\0" * 4096)


@kind
def trailing_garbage() -> Case:
    return Case(plain() + b"Killed\n")


@kind
def zero_hole() -> Case:
    data = bytearray(plain())
    middle = data.index(b'"name"', len(data) // 2) + 9
    data[middle : middle + 1024] = b"\0" * 1024
    return Case(bytes(data), COUNT - 12, lost=True, repaired=None)


@kind
def garbage_hole() -> Case:
    data = bytearray(plain())
    middle = len(data) // 2
    data[middle : middle + 512] = bytes(zlib.crc32(bytes([i % 256, i // 256])) & 0xFF for i in range(512))
    return Case(bytes(data), COUNT - 12, lost=True, repaired=None)


@kind
def string_not_closed() -> Case:
    return Case(_replace(80, '"cat": "cpu_op",', '"cat": "cpu_op,'), repaired=1)


@kind
def brackets_do_not_match() -> Case:
    return Case(_replace(80, "[[8, 4], []]", "[[8, 4], [}]"), COUNT - 1, lost=True)


@kind
def event_without_phase() -> Case:
    return Case(_replace(80, '"ph": "X"', '"hp": "X"'), COUNT - 1, lost=True)


@kind
def elements_that_are_no_events() -> Case:
    return Case(plain().replace(b'"traceEvents": [', b'"traceEvents": [null, 17, '), COUNT, lost=True)


@kind
def malformed_header() -> Case:
    return Case(plain().replace(b'"schemaVersion": 1', b'"schemaVersion": N/A, "user": "a"b"'))


@kind
def huge_argument() -> Case:
    some = events()
    some[80]["args"]["Concrete Inputs"] = ["x" * 300_000]
    return Case(written(some).encode())


@kind
def deep_argument() -> Case:
    return Case(_replace(80, '"odd one": ', '"odd one": ' + "[" * 40 + "]" * 40 + ', "b": '))


@kind
def arguments_that_are_no_object() -> Case:
    return Case(_replace(83, '"id": 83', '"args": [1, 2], "id": 83'))


@kind
def looks_like_split_in_string() -> Case:
    return Case(_replace(80, "aten::mm", '}, {\\"ph\\": \\"X\\"}, {'))


@kind
def old_schema() -> Case:
    some = events()
    names = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "ac2g": "async"}
    for event in some:
        event["cat"] = names.get(event["cat"], event["cat"])
        if "External id" in event.get("args", {}):
            event["args"]["external id"] = event["args"].pop("External id")
    return Case(written(some).encode())


@kind
def random_json() -> Case:
    return Case(b'{"a": [1, 2, {"b": null}]}', None)


@kind
def random_list() -> Case:
    return Case(b'[{"a": 1}, {"b": 2}]', None)


@kind
def execution_trace() -> Case:
    return Case(b'{"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm", "ctrl_deps": 0}]}', None)


@kind
def picture() -> Case:
    return Case(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8, None)


@kind
def number_alone() -> Case:
    return Case(b"42", None)


@kind
def not_sqlite_after_all() -> Case:
    return Case(b"SQLite format 3\0" + b"\xff" * 4096, None, name="x.sqlite")
