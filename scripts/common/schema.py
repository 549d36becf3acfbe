"""Validation against a JSON schema with defaults, and messages that a person can act on."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from scripts.common.errors import InputError, suggestion


def load_yaml(path: str | Path) -> Any:
    """Parse a YAML file. Raises InputError with line and column where it is malformed."""
    path = Path(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path}:{where}: {error.problem or 'malformed YAML'}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def validated(data: Any, schema_path: Path, name: str) -> Any:
    """A copy of `data` with strings coerced to the schema's types and defaults filled in.

    Raises InputError with `name`, the field and what would be right, in one line.
    """
    schema = load_schema(schema_path)
    data = coerced(copy.deepcopy(data), schema)
    error = best_match(Draft202012Validator(schema).iter_errors(data), key=_depth)
    if error is not None:
        raise InputError(f"{name}: {_message(error)}")
    return filled(data, schema)


@cache
def load_schema(path: Path) -> dict[str, Any]:
    """The schema at `path`, checked once to be one."""
    schema = load_yaml(path)
    Draft202012Validator.check_schema(schema)
    return schema


def coerced(data: Any, schema: dict[str, Any]) -> Any:
    """Read strings as YAML where the schema wants another type: `--config` gives every nested value as text."""
    wanted = schema.get("type")
    types = {wanted} if isinstance(wanted, str) else set(wanted or ())
    if isinstance(data, str) and types and "string" not in types:
        try:
            data = yaml.safe_load(data)
        except yaml.YAMLError:
            return data
    if isinstance(data, str) and types == {"array"}:
        data = [data]
    if isinstance(data, (int, float)) and not isinstance(data, bool) and types == {"string"}:
        data = str(data)
    if isinstance(data, dict):
        known = schema.get("properties", {})
        return {key: coerced(value, known.get(key, {})) for key, value in data.items()}
    if isinstance(data, list) and isinstance(schema.get("items"), dict):
        return [coerced(value, schema["items"]) for value in data]
    return data


def filled(data: Any, schema: dict[str, Any]) -> Any:
    """`data` with the schema's defaults, nested ones too."""
    if isinstance(data, dict):
        for key, part in schema.get("properties", {}).items():
            if key not in data and "default" in part:
                data[key] = copy.deepcopy(part["default"])
            if key in data:
                data[key] = filled(data[key], part)
    elif isinstance(data, list) and isinstance(schema.get("items"), dict):
        data = [filled(value, schema["items"]) for value in data]
    return data


def _depth(error: Any) -> tuple[int, int]:
    # An unknown key explains more than the missing one that its misspelling causes.
    return (error.validator == "additionalProperties", len(error.absolute_path))


def _message(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{where}: " if where else ""
    schema = error.schema
    if error.validator == "additionalProperties" and isinstance(schema.get("additionalProperties"), bool):
        known = schema.get("properties", {})
        extra = next(key for key in error.instance if key not in known)
        hint = suggestion(extra, known) or f"; known are {', '.join(known)}"
        return f"{prefix}unknown field {extra!r}{hint}"
    if error.validator == "required":
        missing = next(key for key in schema["required"] if key not in error.instance)
        text = schema.get("properties", {}).get(missing, {}).get("description", "")
        return f"{prefix}field {missing!r} is missing{': ' + text if text else ''}"
    if error.validator == "oneOf" and schema.get("type") != "string":
        names = [" and ".join(option["required"]) for option in schema["oneOf"] if "required" in option]
        if names:
            given = [name for name in names if name in error.instance]
            return f"{prefix}give exactly one of {', '.join(names)} (given: {', '.join(given) or 'none'})"
    if error.validator == "enum":
        hint = suggestion(str(error.instance), map(str, error.validator_value))
        return f"{prefix}{error.instance!r} is not one of {', '.join(map(str, error.validator_value))}{hint}"
    text = schema.get("description", "") if isinstance(schema, dict) else ""
    return f"{prefix}{error.message}{' (' + text + ')' if text else ''}"


class _LOADER(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML forbids and PyYAML lets the last one win."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)  # type: ignore[no-untyped-call]
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"field {key!r} is given twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_LOADER.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
