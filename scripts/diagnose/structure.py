"""structure.json: what the job computes, when and where, and which places of its source take part.

    python -m scripts.diagnose.structure --run W/trace --source W/source.json -o W/structure.json

Built from the profiled run (modules.json, events, views) and from the stored source tree; every anchor is checked
against
the tree, and what cannot be verified is left out and counted. The same run and tree give the same file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json
from scripts.common.tree import stored
from scripts.diagnose import source as sources
from scripts.diagnose.measured import events, rows, views_document
from scripts.diagnose.source import Site, Source
from scripts.diagnose.timeline import Timeline, build, same_file

SMALL_TREE = 60  # files; in larger trees (packages) only functions that ran, and what they call, are kept
LINES_IN_DETAIL = ("softmax_line", "product_line", "loop_line")
SET_UP = {  # runs before any window
    "dataloader",
    "optimizer",
    "setting",
    "sdpa_backend",
    "compile",
    "channels_last",
    "odd_size",
}
STEP_KINDS = ("backward", "step")


def extract(
    source: Source, timeline: Timeline | None, modules: dict[str, Any], views: Path, identity: str | None
) -> dict[str, Any]:
    """The document without its schema line. `modules` is parity's modules.json or {}; `views` a folder, may be
    missing."""
    ran = _ran(source, timeline)
    kept = _kept(source, ran)
    sites = [s for s in source.sites if s.function == "<module>" or s.kind in SET_UP or (s.path, s.function) in kept]
    functions = [
        _function(source, number, timeline, ran)
        for number, f in enumerate(source.functions)
        if (f.path, f.qualname) in kept
    ]
    computed, dropped = _computed(modules, source, timeline, sites)
    return {
        "tree": identity,
        "computed": computed,
        "phases": _phases(views),
        "data_path": {
            "loaders": [_brief(s) for s in sites if s.kind == "dataloader"],
            "preparation": [_brief(s) for s in sites if s.kind in ("encoding", "reading", "tensor_from_host")],
            "transfers": [_brief(s) for s in sites if s.kind == "transfer"],
            "copies": _anchored(rows(views, "copies"), source),
            "recorded": {"loader": modules.get("loader"), "transfers": modules.get("transfers")},
        },
        "synchronisation": _synchronisation(sites, timeline, views, source),
        "collectives": {
            "sites": [_brief(s) for s in sites if s.kind == "collective"],
            "measured": rows(views, "overlap"),
        },
        "functions": functions,
        "sites": [s.as_dict() for s in sites],
        "lines": _lines(source, sites, ran),
        "unverified": {"anchors_dropped": dropped, "unreadable_files": source.unreadable},
    }


def _ran(source: Source, timeline: Timeline | None) -> dict[int, str]:
    """{function number: "seen" in the window's frames, or "reachable" from the loop that trains when there are no
    frames}."""
    if timeline is not None:
        seen = {int(n): "seen" for n in set(timeline.source.tolist()) if n >= 0}
        if seen:
            return seen
    loops = {(s.path, s.function) for s in source.sites if s.kind in STEP_KINDS and s.loops}
    names: dict[str, list[int]] = {}
    for number, function in enumerate(source.functions):
        names.setdefault(function.name, []).append(number)
    todo = [n for n, f in enumerate(source.functions) if (f.path, f.qualname) in loops]
    todo += [n for n in names.get("forward", []) if todo]
    reached: dict[int, str] = {}
    while todo:
        number = todo.pop()
        if number in reached:
            continue
        reached[number] = "reachable"
        for name in source.functions[number].calls:
            if len(names.get(name, [])) == 1:
                todo += names[name]
    return reached


def _kept(source: Source, ran: dict[int, str]) -> set[tuple[str, str]]:
    if len(source.texts) <= SMALL_TREE:
        return {(f.path, f.qualname) for f in source.functions}
    count = Counter(f.name for f in source.functions)
    called = {name for number in ran for name in source.functions[number].calls if count[name] == 1}
    return {(f.path, f.qualname) for n, f in enumerate(source.functions) if n in ran or f.name in called}


def _function(source: Source, number: int, timeline: Timeline | None, ran: dict[int, str]) -> dict[str, Any]:
    function = source.functions[number]
    frames = timeline.of_function(number) if timeline is not None else []
    own = [s for s in source.sites if (s.path, s.function) == (function.path, function.qualname)]
    whole = 0.95 * (timeline.window[1] - timeline.window[0]) if timeline is not None else math.inf
    spans = timeline is not None and any(timeline.end[i] - timeline.start[i] >= whole for i in frames)
    return {
        "path": function.path,
        "line": function.line,
        "first_line": function.first_line,
        "end_line": function.end_line,
        "name": function.name,
        "qualname": function.qualname,
        "calls": sorted(set(function.calls)),
        "ran": number in ran,
        "how": ran.get(number),
        "calls_in_window": len(frames),
        "share_of_window": _share(timeline, frames),
        "holds_step": any(s.kind in STEP_KINDS for s in own),
        "holds_loop": spans or any(s.kind in STEP_KINDS and s.loops for s in own),
    }


def _share(timeline: Timeline | None, frames: list[int]) -> float | None:
    if timeline is None or not frames:
        return None
    return round(min(1.0, timeline.total_ns(frames) / timeline.window_ns), 6)


def _computed(
    modules: dict[str, Any], source: Source, timeline: Timeline | None, sites: list[Site]
) -> tuple[dict[str, Any], int]:
    tree, dropped = _modules(modules, source)
    roots = [row for row in modules.get("modules", []) if row.get("parent") is None]
    parameters = sum(row.get("parameters") or 0 for row in roots) if roots else _parameters(timeline)
    loss = dict(modules["loss"]) if modules.get("loss") else None
    if loss is not None:
        loss["backward"], lost = _verified(loss.get("backward"), source)
        dropped += lost
    return {
        "modules": tree,
        "parameters": parameters,
        "loss": loss,
        "recorded_optimizer": modules.get("optimizers"),
        "optimizer": [_brief(s) for s in sites if s.kind == "optimizer"],
        "compile": {"sites": [_brief(s) for s in sites if s.kind == "compile"], "recorded": modules.get("compile")},
    }, dropped


def _modules(modules: dict[str, Any], source: Source) -> tuple[list[dict[str, Any]], int]:
    """parity's module rows; a place that the tree does not have is left out and counted."""
    dropped, out = 0, []
    for recorded in modules.get("modules", []):
        row = dict(recorded)
        for key in ("source", "forward", "call_site"):
            row[key], lost = _verified(row.get(key), source)
            dropped += lost
        out.append(row)
    return out, dropped


def _verified(place: dict[str, Any] | None, source: Source) -> tuple[dict[str, Any] | None, int]:
    """A recorded place and 0, or None and 1 where it says that it is in the tree and the tree has no such line."""
    if not place:
        return None, 0
    if not place.get("in_tree", True):
        return place, 0
    text = source.line(str(place["path"]), int(place["line"]))
    return ({**place, "code": text}, 0) if text is not None else (None, 1)


def _in_tree(file: str, line: int | None, source: Source) -> str | None:
    """The tree's own path of a traced file, where that file has the line."""
    for path in source.texts:
        if same_file(file, path) and (line is None or source.line(path, int(line)) is not None):
            return path
    return None


def _parameters(timeline: Timeline | None) -> int | None:
    """Parameters as the optimizer touched them in one step: first inputs of the operator that it calls once for
    each."""
    if timeline is None:
        return None
    steps = timeline.named("Optimizer.step#")
    for name in ("aten::addcdiv_", "aten::lerp_", "aten::add_"):
        dims = [timeline.dims[i] for i in timeline.under(steps[0]) if timeline.name[i] == name] if steps else []
        sizes = [
            math.prod(json.loads(d)[0] or [1])
            for d in dims
            if d and isinstance(json.loads(d)[0], list) and all(isinstance(n, int) for n in json.loads(d)[0])
        ]
        if sizes:
            return sum(sizes)
    return None


def _phases(views: Path) -> list[dict[str, Any]]:
    whole = [r for r in rows(views, "phases") if r.get("step") is None]
    return [
        {k: r.get(k) for k in ("rank", "phase", "wall_ns", "share", "op_ns", "blocked_ns", "gpu_ns", "kernels")}
        for r in whole
    ]


def _synchronisation(sites: list[Site], timeline: Timeline | None, views: Path, source: Source) -> dict[str, Any]:
    numbers = {(f.path, f.qualname): n for n, f in enumerate(source.functions)}
    places = []
    for site in sites:
        if site.kind != "synchronisation":
            continue
        calls = timeline.calls(site.callee, numbers.get((site.path, site.function), -2)) if timeline is not None else []
        cost = timeline.total_ns(calls) / 1e6 if timeline is not None else None
        places.append(
            {**_brief(site), "calls_in_window": len(calls), "ms_in_window": None if cost is None else round(cost, 6)}
        )
    return {"sites": places, "measured": _anchored(rows(views, "synchronisations"), source)}


def _anchored(found: list[dict[str, Any]], source: Source) -> list[dict[str, Any]]:
    """View rows whose place, where they have one, is verified against the tree and named as the tree names it."""
    out = []
    for row in found:
        row = dict(row)
        if row.get("path"):
            row["path"] = _in_tree(str(row["path"]), row.get("line"), source)
        out.append(row)
    return out


def _brief(site: Site) -> dict[str, Any]:
    return {
        "path": site.path,
        "line": site.line,
        "code": site.code,
        "function": site.function,
        "guard": site.guard,
        **site.detail,
    }


def _lines(source: Source, sites: list[Site], ran: dict[int, str]) -> dict[str, dict[str, str]]:
    kept: dict[str, dict[str, str]] = {}
    for site in sites:
        wanted = {site.line, *(site.detail[k] for k in LINES_IN_DETAIL if k in site.detail)}
        for number in wanted:
            text = source.line(site.path, number)
            if text is not None:
                kept.setdefault(site.path, {})[str(number)] = text
    for number in ran:  # the places that views name are the first lines of functions
        function = source.functions[number]
        for line in {function.first_line, function.line}:
            text = source.line(function.path, line)
            if text is not None:
                kept.setdefault(function.path, {})[str(line)] = text
    return {path: dict(sorted(lines.items(), key=lambda item: int(item[0]))) for path, lines in sorted(kept.items())}


def _read(place: Path | None) -> tuple[str | None, Source]:
    """Hash of the tree (None for a plain folder) and the tree as read. Raises InputError where it holds no Python."""
    if place is None:
        return None, Source()
    identity = None if place.is_dir() else str(read_json(place, "source")["tree"])
    source = sources.read(place if identity is None else stored(identity))
    if not source.texts:
        raise InputError(f"{place}: the tree has no Python file that parses")
    return identity, source


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `structure`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, required=True, help="folder of the profiled run: modules.json, events/, views/"
    )
    parser.add_argument("--source", type=Path, help="source.json, or a folder with the source; without it no anchors")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    identity, source = _read(args.source)
    path = args.run / "modules.json"
    if not path.is_file():
        path = args.run / "records" / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    timeline = build(events(args.run / "events", ("python", "cpu_op", "annotation")), source.functions)
    views_document(args.run / "views")
    write_json(args.output, "wholejob/structure@1", extract(source, timeline, modules, args.run / "views", identity))
    return 0


if __name__ == "__main__":
    run(main)
