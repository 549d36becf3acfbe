"""The settings that a workload declares: their values in the job's tree, and what the launcher makes of them.

A setting is a key of `knobs_file`, a JSON object in the tree, so that a change of one is a patch like any other. An
`env` becomes an environment variable, a `flag` an option of the command, a `parameter` is read by the job itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, suggestion

Values = dict[str, Any]


def read(tree: Path, spec: dict[str, Any]) -> tuple[str, Values]:
    """(text, object) of the tree's knobs file. Raises InputError where it does not fit the declaration."""
    path = spec["knobs_file"]
    try:
        text = (tree / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file in the workload's tree; knobs_file should name a JSON file with the knobs' values"
        ) from None
    return text, parsed(text, spec)


def parsed(text: str, spec: dict[str, Any]) -> Values:
    """The object in the text of a knobs file; every knob has one of its declared values. Raises InputError."""
    path = spec["knobs_file"]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); should be an object of the knobs' values") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: should be an object of the knobs' values")
    for knob in spec.get("knobs") or []:
        name = knob["name"]
        if name not in values:
            raise InputError(f"{path}: {name}: is declared as a knob and has no value here{suggestion(name, values)}")
        if not any(same(values[name], value) for value in knob["values"]):
            listed = ", ".join(json.dumps(value) for value in knob["values"])
            raise InputError(f"{path}: {name}: is {json.dumps(values[name])}; the workload declares {listed}")
    return values


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1, 1.0 and true are three values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def variables(spec: dict[str, Any], values: Values) -> dict[str, str | None]:
    """Environment variables of the `env` knobs; None is one that the job does not have."""
    chosen = {knob["name"]: values[knob["name"]] for knob in _of(spec, "env")}
    return {name: None if value is None else str(value) for name, value in chosen.items()}


def options(spec: dict[str, Any], values: Values) -> list[str]:
    """Words that the `flag` knobs add to the command: `--name value`, `--name` for true, nothing for false and null."""
    words: list[str] = []
    for knob in _of(spec, "flag"):
        value = values[knob["name"]]
        if value is True:
            words.append(knob["name"])
        elif value is not None and value is not False:
            words += [knob["name"], str(value)]
    return words


def _of(spec: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [knob for knob in spec.get("knobs") or [] if knob.get("kind", "parameter") == kind]
