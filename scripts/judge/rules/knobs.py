"""The knobs file holds settings that the contract opens: each of them one of its declared values, all else as it was."""

from __future__ import annotations

import json

from scripts.common import knobs
from scripts.common.errors import InputError
from scripts.judge.change import Change, Hit

NAME = "knobs"
WHY = "J1, J2, J9: a file of settings is no way around the rules about settings"


def check(change: Change) -> list[Hit]:
    path = change.declared.get("knobs_file")
    hits = []
    for file in change.files:
        if path is None or file.path != path:
            continue
        if file.before_text is None or file.after_text is None:
            hits.append(Hit("refuse", path, None, "the knobs file comes or goes; only the values in it may change"))
            continue
        try:
            after = knobs.parsed(file.after_text, dict(change.declared))
        except InputError as error:
            hits.append(Hit("refuse", path, None, str(error).removeprefix(f"{path}: ")))
            continue
        before = json.loads(file.before_text)
        open_ = {knob["name"] for knob in change.declared.get("knobs") or ()}
        hits += [
            Hit("refuse", path, None, f"{name} is no declared knob and may not change")
            for name in sorted((before.keys() | after.keys()) - open_)
            if name not in before or name not in after or not knobs.same(before[name], after[name])
        ]
    return hits
