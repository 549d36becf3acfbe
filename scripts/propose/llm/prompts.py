"""Prompts from the Jinja2 templates in `scripts/propose/prompts/`; their hash is part of every experiment."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scripts.common.files import canonical_json, sha256_bytes, sha256_file

FOLDER = Path(__file__).resolve().parents[1] / "prompts"


def render(name: str, **values: Any) -> str:
    """A template with values; a value that is missing is an error."""
    return str(_environment().get_template(f"{name}.md.j2").render(**values)).strip() + "\n"


@cache
def prompt_hash() -> str:
    """SHA-256 over names and contents of all templates."""
    return sha256_bytes(canonical_json({path.name: sha256_file(path) for path in sorted(FOLDER.glob("*.j2"))}))


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
