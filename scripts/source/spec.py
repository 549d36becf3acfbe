"""Resolve workloads: YAML, variant, configuration and defaults become one document per workload.

The Snakefile resolves every selected workload when it is parsed, and hands each rule only the part that the rule reads
(`PARTS`), as content: a comment in a YAML file reruns nothing, and a changed field reruns what depends on it.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError, run, suggestion
from scripts.common.files import ROOT, write_json
from scripts.common.globs import matches, protected
from scripts.common.schema import coerced, load_schema, load_yaml, validated

WORKLOADS = ROOT / "workloads"
SCHEMA = ROOT / "config" / "workload.schema.yaml"
CONFIG_SCHEMA = ROOT / "config" / "config.schema.yaml"

JOB = ("kind", "launch", "parameters", "environment", "parity", "resources", "knobs", "knobs_file")
PARTS: dict[str, tuple[str, ...]] = {
    "source": ("source", "launch.prepare", "parameters", "environment"),
    "environment": ("environment",),
    "job": (*JOB, "source.editable", "source.protected", "measure.steps"),
    "profile": (*JOB, "source.editable", "source.protected", "measure.steps", "profile"),
    "aa": (
        *JOB,
        "source.editable",
        "source.protected",
        "measure.steps",
        "measure.aa_pairs",
        "measure.alpha",
        "measure.min_effect",
        "measure.horizon",
    ),
    "judge": (*JOB, "source.editable", "source.protected", "measure", "constraints"),
    "propose": (
        *JOB,
        "source.editable",
        "source.protected",
        "measure.horizon",
        "measure.steps",
        "measure.min_effect",
        "constraints",
        "domain",
        "title",
        "budget",
        "llm",
    ),
    "all": (),
}
"""Which fields each group of rules reads; `all` is the whole document, for people and tables."""


def resolve(name: str, variant: str | None, config: dict[str, Any]) -> dict[str, Any]:
    """The full specification of one workload, defaults filled in and validated.

    `variant` is a key of the workload's `variants` as `variants_of` lists them, or None. Raises InputError.
    """
    path = WORKLOADS / f"{name}.yaml"
    document = load(name)
    if variant is not None:
        document = _apply_variant(document, variant, path)
    document.pop("variants", None)
    for field, value in config.get("set", {}).items():
        _set(document, field, value, "--config set")
    for key in ("proposers", "rounds", "candidates"):
        if config.get(key) is not None:
            document[key] = config[key]
        else:
            document.setdefault(key, config["defaults"][key])
    for key in ("budget", "llm"):
        document[key] = {**config["defaults"][key], **document.get(key, {})}
    document = validated(document, SCHEMA, _where(path, variant))
    del document["variants"]
    _check(document, path)
    document["workload"] = f"{name}-{variant}" if variant else name
    return document


def load(name: str) -> dict[str, Any]:
    """The YAML document of a workload, validated as it stands."""
    path = WORKLOADS / f"{name}.yaml"
    if not path.is_file():
        known = names()
        raise InputError(f"workload: no workloads/{name}.yaml{suggestion(name, known)}; there are: {', '.join(known)}")
    document = load_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{_where(path)}: should be a mapping of fields")
    validated(document, SCHEMA, _where(path))
    if document["name"] != name:
        raise InputError(f"{_where(path)}: name is {document['name']!r}, should be {name!r}, the file's name")
    return document


def names() -> list[str]:
    """Names of all workloads, sorted."""
    return sorted(path.stem for path in WORKLOADS.glob("*.yaml"))


def variants_of(document: dict[str, Any]) -> list[str]:
    """Names of a workload's variants, grids expanded: `size_64`, `size_96`."""
    return [name for name, _ in _variants(document)]


def select(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`{workload id: specification}` of what the configuration asks for. Raises InputError."""
    wanted = config["workload"]
    everything = wanted == "all"
    chosen = names() if everything else [wanted] if isinstance(wanted, str) else wanted
    variant = config.get("variant") or None
    specs = {}
    for name in chosen:
        document = load(str(name))
        if everything and document.get("status", "runs_here") != "runs_here":
            continue
        known = variants_of(document)
        if variant == "all":
            picked: list[str | None] = [None, *known]
        elif variant is None:
            picked = [None]
        else:
            picked = [v for v in known if v == variant or v.startswith(f"{variant}_")]
            if not picked and not everything:
                listed = ", ".join(known) or "none"
                raise InputError(
                    f"workloads/{name}.yaml: no variant {variant!r}{suggestion(str(variant), known)}; there are: {listed}"
                )
        for one in picked:
            spec = resolve(str(name), one, config)
            specs[spec["workload"]] = spec
    return specs


def validated_config(config: dict[str, Any]) -> dict[str, Any]:
    """Snakemake's configuration, coerced, validated, defaults filled in. Raises InputError."""
    return validated(dict(config), CONFIG_SCHEMA, "config")


def part(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of a specification that the rules of part `name` read."""
    if name == "all":
        return spec
    chosen: dict[str, Any] = {"name": spec["name"], "workload": spec["workload"]}
    for field in PARTS[name]:
        value: Any = spec
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        place = chosen
        *parents, last = field.split(".")
        for key in parents:
            place = place.setdefault(key, {})
        if value is not None or field in spec:
            place[last] = value
    return chosen


def slug(proposer: str) -> str:
    """Folder name of a proposer: `playbook`, `file_faster_attention`, `anthropic_some_model`."""
    kind, _, rest = proposer.partition(":")
    text = (
        f"{kind}_{Path(rest.partition('@')[0]).stem}_{rest.partition('@')[2][:8]}"
        if kind in ("file", "git", "replay")
        else proposer
    )
    return "".join(c if c.isalnum() else "_" for c in text.lower()).strip("_")


def _variants(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, fields in document.get("variants", {}).items():
        fields = dict(fields)
        grid = fields.pop("grid", None)
        if not grid:
            found.append((name, fields))
            continue
        for values in itertools.product(*grid.values()):
            label = "_".join("".join(c if c.isalnum() else "_" for c in str(value).lower()) for value in values)
            expanded = copy.deepcopy(fields)
            for field, value in zip(grid, values, strict=True):
                _set(expanded, field, value, f"variants.{name}.grid")
            found.append((f"{name}_{label}", expanded))
    return found


def _apply_variant(document: dict[str, Any], variant: str, path: Path) -> dict[str, Any]:
    for name, fields in _variants(document):
        if name == variant:
            return _merged(document, fields)
    known = variants_of(document)
    raise InputError(
        f"{_where(path)}: no variant {variant!r}{suggestion(variant, known)}; there are: {', '.join(known) or 'none'}"
    )


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return copy.deepcopy(over)


def _set(document: dict[str, Any], field: str, value: Any, where: str) -> None:
    schema: dict[str, Any] = load_schema(SCHEMA)
    place = document
    *parents, last = field.split(".")
    for key in parents:
        schema = schema.get("properties", {}).get(key, {})
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise InputError(f"{where}: {field}: {key!r} is not a group of fields")
    place[last] = coerced(value, schema.get("properties", {}).get(last, {}))


def _check(spec: dict[str, Any], path: Path) -> None:
    """What a schema cannot say."""
    where = _where(path)
    source = spec["source"].get("path")
    if source is not None and not (ROOT / source).is_dir():
        raise InputError(f"{where}: source.path: no folder {source!r} in the repository")
    if spec["environment"]["kind"] == "venv" and "requirements" not in spec["environment"]:
        raise InputError(f"{where}: environment.requirements: is missing; kind venv is built from that file")
    if spec["parity"]["seed"] in spec["parity"]["held_out_seeds"]:
        raise InputError(
            f"{where}: parity.held_out_seeds: holds the visible seed {spec['parity']['seed']}; held-out seeds must differ"
        )
    first, last = spec["profile"]["steps"]
    # A step of an inference job is a call of the model, of which a request may take many.
    if not first < last or (spec["kind"] == "training" and last > spec["measure"]["steps"]):
        raise InputError(
            f"{where}: profile.steps: [{first}, {last}] is not a window within measure.steps = {spec['measure']['steps']}"
        )
    if spec["parity"]["repeats"] + spec["parity"]["perturbed"] < 3:
        raise InputError(
            f"{where}: parity.repeats + parity.perturbed: is below 3; the noise of a job takes three runs at least"
        )
    _check_knobs(spec, where)
    slugs = [slug(proposer) for proposer in spec["proposers"]]
    if len(set(slugs)) != len(slugs):
        raise InputError(f"{where}: proposers: two of them share the folder name {max(slugs, key=slugs.count)!r}")
    given = {"tree", "python", *spec["parameters"]}
    for field, known in (("command", {"seed", "out", "steps", *given}), ("prepare", given)):
        for word in spec["launch"][field]:
            for name in _placeholders(word):
                if name not in known:
                    hint = suggestion(name, known) or f"; known are {', '.join(sorted(known))}"
                    raise InputError(f"{where}: launch.{field}: no value for {{{name}}}{hint}")


def _check_knobs(spec: dict[str, Any], where: str) -> None:
    """Knobs need a file that a patch may touch, and each of them one place where it is said."""
    knobs, path = spec["knobs"], spec["knobs_file"]
    if bool(knobs) != bool(path):
        field, other = ("knobs_file", "knobs") if knobs else ("knobs", "knobs_file")
        raise InputError(f"{where}: {field}: is missing; {other} has no effect without it")
    if not knobs:
        return
    if not matches(path, spec["source"]["editable"]) or protected(path, spec["source"]["protected"]):
        raise InputError(f"{where}: knobs_file: {path!r} is not editable; add it to source.editable")
    names = [knob["name"] for knob in knobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: knobs: {name!r} is declared twice")
        if name in spec["environment"]["variables"]:
            raise InputError(
                f"{where}: environment.variables: {name} is a knob too; its value belongs into {path} alone"
            )


def _placeholders(word: str) -> list[str]:
    from string import Formatter

    try:
        return [field for _, field, _, _ in Formatter().parse(word) if field]
    except ValueError:
        return []  # a lone brace is text


def _where(path: Path, variant: str | None = None) -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"{name} (variant {variant})" if variant else name


def main(argv: list[str] | None = None) -> int:
    """Write one part of a resolved specification, or print what a workload resolves to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", help="name, or name-variant")
    parser.add_argument("--content", help="the part as JSON, as the Snakefile resolved it")
    parser.add_argument("--part", default="all", choices=sorted(PARTS))
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args(argv)
    if args.content is not None:
        content = json.loads(args.content)
    else:
        name, _, variant = args.workload.partition("-")
        config = validated_config(load_yaml(ROOT / "config" / "config.yaml"))
        content = part(resolve(name, variant or None, config), args.part)
    if args.output is None:
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        write_json(args.output, "wholejob/spec@1", content)
    return 0


if __name__ == "__main__":
    run(main)
