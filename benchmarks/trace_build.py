"""Large traces made of real ones: `python benchmarks/trace_build.py steps|stacks MEGABYTES OUT`, for the benchmarks of
parser and views.

A real trace is repeated until the size is reached, each copy later in time, with its own correlation, external, flow
and python ids and step
numbers, in the layout that torch writes. `steps`: many profiler steps, NCCL, no stacks (HTA's nccl_data, A100).
`stacks`: python frames and
shapes (YOLO11n training, H200). Copies compress better than real traces do, so sizes of .gz say nothing here.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
SOURCES = {
    "steps": TRACES / "hta" / "nccl_parser_config__nccl_data.json.gz",
    "stacks": TRACES / "h200" / "yolo11n_train_4steps_stacks.json.gz",
}
_SHIFTED = ("correlation", "External id", "Python id", "Python parent id", "Ev Idx", "id")
_STEP = re.compile(r"ProfilerStep#(\d+)")


def build(kind: str, megabytes: int, out: Path) -> int:
    """Write a trace of that many MB to `out`; the number of events."""
    source = SOURCES[kind]
    if not source.is_file():
        raise SystemExit(f"{source}: not here; this benchmark needs the shared traces")
    document = json.loads(gzip.decompress(source.read_bytes()), parse_float=Decimal)
    templates, span, ids, steps = _templates(document.pop("traceEvents"))
    header = {key: value for key, value in document.items() if key not in ("traceName", "INFO", "ERROR")}
    events = 0
    with out.open("w", encoding="utf-8", buffering=1 << 20) as file:
        head = json.dumps(header, default=float)[:-1] + ',\n  "traceEvents": [\n'
        size = file.write(head)
        for copy in range(1 << 20):
            for event in _events(templates, copy, span, ids, steps):
                text = event if events == 0 else ",\n" + event
                size += file.write(text)
                events += 1
                if size >= megabytes * 1_000_000:
                    break
            else:
                continue
            break
        file.write('\n  ],\n  "traceName": "built.json"\n}\n')
    return events


def _templates(events: list[dict]) -> tuple[list[tuple[str, tuple]], int, int, int]:
    """Each event as a format and its numbers: (kind, value), kind t for a time, i for an id, s for a step number."""
    templates, first, last, ids, steps = [], None, 0, 0, 1
    for event in events:
        if event.get("ph") == "X" and event["ts"] > 0:
            first = event["ts"] if first is None else min(first, event["ts"])
            last = max(last, event["ts"] + event.get("dur", 0))
    for event in events:
        numbers = []

        def hole(kind: str, value: int, numbers: list = numbers) -> str:
            numbers.append((kind, value))
            return f"\0{kind}\0"

        marked = dict(event)
        if event["ts"] > 0:
            marked["ts"] = hole("t", int(event["ts"] * 1000))
        step = _STEP.search(str(event.get("name")))
        if "id" in event and isinstance(event["id"], int):
            marked["id"] = hole("i", event["id"])
            ids = max(ids, event["id"])
        if step:
            marked["name"] = event["name"].replace(step[0], "ProfilerStep#" + hole("s", int(step[1])))
            steps = max(steps, int(step[1]) + 1)
        if isinstance(event.get("args"), dict):
            args = marked["args"] = dict(event["args"])
            for key in _SHIFTED:
                if isinstance(args.get(key), int) and args[key] > 0:
                    ids = max(ids, args[key])
                    args[key] = hole("i", args[key])
        text = _layout(marked).replace("%", "%%")
        order = []
        for kind in re.findall(r"\\u0000(\w)\\u0000", text):
            place = next(i for i, (k, _) in enumerate(numbers) if k == kind)
            order.append(numbers.pop(place))
        text = re.sub(r'"?\\u0000t\\u0000"?', "%d.%03d", text)
        text = re.sub(r'"\\u0000i\\u0000"', "%d", text)
        text = re.sub(r"\\u0000s\\u0000", "%d", text)
        templates.append((text, tuple(order)))
    return templates, int((last - (first or 0)) * 1000) + 1_000_000, ids + 1, steps


def _layout(event: dict) -> str:
    """One event as torch writes it."""
    own = {key: value for key, value in event.items() if key != "args"}
    first = {key: own.pop(key) for key in ("ph", "cat", "name", "pid", "tid") if key in own}
    text = "  {\n    " + json.dumps(first, default=float)[1:-1]
    if own:
        text += ",\n    " + json.dumps(own, default=float)[1:-1]
    if "args" in event:
        text += ',\n    "args": {\n      ' + json.dumps(event["args"], default=float)[1:-1] + "\n    }"
    return text + "\n  }"


def _events(templates: list, copy: int, span: int, ids: int, steps: int) -> Iterator[str]:
    time, number, step = copy * span, copy * ids, copy * steps
    for text, holes in templates:
        values: list[int] = []
        for kind, value in holes:
            if kind == "t":
                values += divmod(value + time, 1000)
            else:
                values.append(value + (number if kind == "i" else step))
        yield text % tuple(values)


def pack(path: Path) -> Path:
    """A gzip copy of a file, beside it."""
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
        while block := source.read(1 << 22):
            target.write(block)
    return packed


if __name__ == "__main__":
    print(build(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])), "events")
