"""Write every view of a parsed trace, and `views.json` with the headline numbers and what the trace could not say.

    python -m scripts.trace.summarise EVENTS_DIR -o VIEWS_DIR [--against EVENTS_DIR]

EVENTS_DIR is what `python -m scripts.trace.parse` wrote. `--against` names the trace of an earlier run: `diff.parquet`
compares it with this one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.common.errors import run
from scripts.common.files import replacing, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from scripts.trace.capture import Capture


def summarise(capture: Capture) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """All views by name, and the content of `views.json`."""
    from scripts.trace.views import modules

    tables, headline = {}, {}
    for name, module in modules().items():
        table = tables[name] = module.view(capture)
        if hasattr(module, "headline"):
            headline.update(module.headline(table, capture))
    listing = {name: {"rows": table.num_rows, "columns": table.column_names} for name, table in tables.items()}
    return tables, {"device": device(capture), "headline": headline, "notes": notes(capture), "views": listing}


def device(capture: Capture) -> dict[str, Any] | None:
    """The device that the trace names, with its peak rates and their source where known."""
    from collections import Counter
    from dataclasses import asdict

    from scripts.trace.roofline import peaks

    used = Counter(capture.gpu.device.tolist())
    named = {one.get("id"): one for one in capture.devices if one.get("name")}
    if not named:
        return None
    main = next((named[one] for one, _ in used.most_common() if one in named), next(iter(named.values())))
    known, capacity = peaks(str(main["name"])), main.get("totalGlobalMem")
    pairs = {*zip(capture.gpu.rank.tolist(), capture.gpu.device.tolist())}
    return {
        "name": str(main["name"]),
        "count": len(pairs),
        "capacity_bytes": int(capacity) if capacity else None,
        "peaks": asdict(known) if known else None,
    }


def notes(capture: Capture) -> list[str]:
    """What the reader must know before the numbers: what is missing, and what stands in for it."""
    from scripts.trace.capture import KERNEL, OP, PYTHON, codes

    gpu, host = capture.gpu, capture.host
    found = list(capture.losses)
    if not len(gpu):
        found.append("no GPU events: times are those of the host")
    if not len(host):
        found.append("no host events: kernels have no launching operator, and lost time no cause")
    sources = {one.source for one in capture.steps.values()}
    if "capture" in sources:
        found.append("no step marks: the whole capture is one window")
    if "optimizer_step" in sources:
        found.append("no step marks of the profiler: a step ends where Optimizer.step ends")
    if len(host) and not (host.kind == PYTHON).any():
        found.append("no python stacks: time has operators, but no file and line")
    if (host.kind == OP).any() and not any(codes(capture.op_columns, "input_dims")[1]):
        found.append("no input shapes: kernels have no rates, steps no new shapes")
    if len(gpu):
        orphans, kernels = int(((capture.launch < 0) & (gpu.kind == KERNEL)).sum()), int((gpu.kind == KERNEL).sum())
        if orphans:
            found.append(
                f"{orphans} of {kernels} kernels have no launch record: they count as busy time, "
                "and are attributed by external id or not at all"
            )
        outside = int((capture.gpu_step < 0).sum())
        if outside:
            found.append(f"{outside} of {len(gpu)} GPU events lie outside every step")
    if not capture.table("memory", ["ts_ns"]).num_rows:
        found.append("no memory events: no peaks")
    return found


def write(views: Path, tables: dict[str, pa.Table], document: dict[str, Any]) -> None:
    """Each view as Parquet, `views.json` last: its presence says that all are there."""
    import pyarrow.parquet as pq

    for name, table in tables.items():
        with replacing(views / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
    write_json(views / "views.json", "wholejob/views@1", document)


def main(argv: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.trace.summarise", description=__doc__.split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("events", type=Path, help="folder that scripts.trace.parse wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the views")
    parser.add_argument("--against", type=Path, help="parsed trace of an earlier run, for diff.parquet")
    options = parser.parse_args(argv)
    from scripts.trace.capture import Capture

    capture = Capture.open(options.events)
    tables, document = summarise(capture)
    if options.against:
        from scripts.trace.views.diff import diff

        tables["diff"] = diff(Capture.open(options.against), capture)
    write(options.output, tables, document)
    headline = document["headline"]
    print(f"{len(tables)} views of {headline['steps']} steps, {headline['capture_ns'] / 1e9:.3f} s: {options.output}")
    for note in document["notes"]:
        print(f"note: {note}")
    return 0


if __name__ == "__main__":
    run(main)
