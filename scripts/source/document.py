"""Write the field tables of docs/workloads.md and config/README.md from the schemas, so that they cannot drift."""

from __future__ import annotations

import argparse
import json
from typing import Any

from scripts.common.errors import InputError, run
from scripts.common.files import ROOT, write_text
from scripts.common.schema import load_schema
from scripts.source.spec import CONFIG_SCHEMA, SCHEMA

PAGES = {ROOT / "docs" / "workloads.md": SCHEMA, ROOT / "config" / "README.md": CONFIG_SCHEMA}
BEGIN, END = "<!-- fields: begin (written by python -m scripts.source.document) -->", "<!-- fields: end -->"


def fields(schema: dict[str, Any], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """`(field, allowed, default, meaning)` of every field, nested ones with dots."""
    rows = []
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        label = f"{prefix}{name}"
        default = (
            "required"
            if name in required
            else json.dumps(part["default"], ensure_ascii=False)
            if "default" in part
            else ""
        )
        nested = part.get("properties")
        rows.append((label, _allowed(part), "" if nested and default == "{}" else default, part.get("description", "")))
        if nested:
            rows += fields(part, f"{label}.")
        items = part.get("items")
        if isinstance(items, dict) and items.get("properties"):
            rows += fields(items, f"{label}[].")
    return rows


def table(schema: dict[str, Any]) -> str:
    """A schema's fields as a Markdown table."""
    lines = ["| field | allowed | default | meaning |", "|---|---|---|---|"]
    for label, allowed, default, meaning in fields(schema):
        cells = [f"`{label}`", allowed, f"`{default}`" if default and default != "required" else default, meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def page(text: str, schema: dict[str, Any], name: str) -> str:
    """A page with its table replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise InputError(f"{name}: has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table(schema)}\n{END}{after}"


def _allowed(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    kind = part.get("type", "")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        items = part.get("items", {})
        kind = f"list of {_allowed(items) or 'values'}" if isinstance(items, dict) else "list"
    limits = [
        text.format(part[key])
        for key, text in (("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"))
        if key in part
    ]
    return " ".join([kind.replace("object", "fields" if part.get("properties") else "mapping"), *limits])


def main(argv: list[str] | None = None) -> int:
    """Rewrite the pages, or with --check say whether they are current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page is out of date")
    args = parser.parse_args(argv)
    stale = []
    for path, schema in PAGES.items():
        name = path.relative_to(ROOT).as_posix()
        old = path.read_text(encoding="utf-8")
        new = page(old, load_schema(schema), name)
        if new != old:
            stale.append(name)
            if not args.check:
                write_text(path, new)
    print("\n".join(f"{'out of date' if args.check else 'written'}: {name}" for name in stale) or "current")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    run(main)
