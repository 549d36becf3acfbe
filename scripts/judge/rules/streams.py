"""Work on a side stream is waited for."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, called_name

NAME = "streams"
WHY = "K1, J12, J13: a stream that nobody waits for finishes after the clock has stopped, or gives half a result"

STREAMS = (
    "torch.cuda.Stream",
    "torch.cuda.stream",
    "torch.cuda.set_stream",
    "torch.cuda.ExternalStream",
    "torch.Stream",
    "torch.cuda.StreamContext",
)
WAITS = {"wait_stream", "wait_event", "synchronize", "record_stream"}


def check(change: Change) -> list[Hit]:
    hits = []
    for file, name, node in change.refer(*STREAMS):
        assert file.after is not None
        waits = {called_name(n) for n in file.after.nodes if isinstance(n, ast.Call)} & WAITS
        if waits:
            hits.append(file.hit("review", node, f"{name}, joined by {', '.join(sorted(waits))}"))
        else:
            hits.append(file.hit("refuse", node, f"{name} without wait_stream, wait_event or synchronize"))
    for file in change.both:
        assert file.before is not None and file.after is not None
        count = [len(m.sites(lambda c: called_name(c) in WAITS)) for m in (file.before, file.after)]
        if count[1] < count[0]:
            hits.append(
                Hit("review", file.path, None, f"{count[0]} waits for the device, {count[1]} left; the outputs decide")
            )
    return hits
