"""The structured answer of a model: its schema with named fields only, and its validation, whatever the provider
promised.
"""

from __future__ import annotations

import json
import re
from typing import Any

CLASSES = ["config", "backend", "python", "kernel"]
LARGEST_ANSWER = 400_000
"""Characters; a longer answer is no patch of this pipeline."""


class AnswerError(Exception):
    """The answer cannot be used; the message says what would be right."""


def schema(region: tuple[str, str] | None = None) -> dict[str, Any]:
    """JSON schema of an answer. With `region` = (path, lines) the place is given, and a small model writes the
    replacement only.
    """
    replace = {"type": "string", "maxLength": 6000}
    if region is not None:
        return _object({"replace": replace})
    text = {"type": "string", "maxLength": 600}
    edit = _object({"path": {"type": "string", "maxLength": 300}, "search": {"type": "string"}, "replace": replace})
    whole = _object({"path": {"type": "string", "maxLength": 300}, "content": {"type": "string", "maxLength": 12000}})
    names = {"type": "array", "items": {"type": "string", "maxLength": 100}, "maxItems": 8}
    return _object(
        {
            "title": {"type": "string", "maxLength": 100},
            "findings_used": names,
            "hypothesis": text,
            "expected_gain": {"type": "string", "maxLength": 200},
            "risk": text,
            "classes": {"type": "array", "items": {"type": "string", "enum": CLASSES}, "maxItems": 4},
            "edits": {"type": "array", "items": edit},
            "files": {"type": "array", "items": whole, "maxItems": 8},
            "needs_flag": {"type": ["string", "null"], "maxLength": 200},
            "untested": {**names, "items": {"type": "string", "maxLength": 300}},
        }
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def response_format(region: tuple[str, str] | None = None) -> dict[str, Any]:
    """The `response_format` of an OpenAI-compatible request."""
    return {"type": "json_schema", "json_schema": {"name": "patch", "strict": True, "schema": schema(region)}}


def parse(content: str | None, finish_reason: str | None, region: tuple[str, str] | None = None) -> dict[str, Any]:
    """The validated answer. One fence around the whole of it is taken off; nothing else is guessed.

    Raises AnswerError.
    """
    if finish_reason == "length":
        raise AnswerError("the answer was cut at the token limit; answer shorter")
    if not content or not content.strip():
        raise AnswerError("the answer is empty; should be one JSON object")
    if len(content) > LARGEST_ANSWER:
        raise AnswerError(f"the answer has {len(content)} characters, at most {LARGEST_ANSWER} are read")
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", content, re.S)
    try:
        value = json.loads(fenced.group(1) if fenced else content)
    except ValueError as error:
        raise AnswerError(f"the answer is no JSON ({error}); should be one JSON object and nothing else") from None
    return validated(value, region)


def validated(value: Any, region: tuple[str, str] | None = None) -> dict[str, Any]:
    """The value, if it has the schema of an answer. Raises AnswerError with the first field that does not."""
    from jsonschema import Draft202012Validator

    errors = sorted(
        Draft202012Validator(schema(region)).iter_errors(value), key=lambda error: list(map(str, error.absolute_path))
    )
    if errors:
        where = ".".join(str(part) for part in errors[0].absolute_path) or "(top level)"
        raise AnswerError(f"{where}: {errors[0].message[:300]}")
    if region is None:
        return dict(value)
    edit = {"path": region[0], "search": region[1], "replace": value["replace"]}
    return {
        "title": "",
        "findings_used": [],
        "hypothesis": "",
        "expected_gain": "nothing",
        "risk": "",
        "classes": [],
        "edits": [edit],
        "files": [],
        "needs_flag": None,
        "untested": [],
    }
