"""How far the recorded values of the unmodified job move on their own, and whether they follow its seed at all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.derive import derive
from parity.records import BadInput, Run
from scripts.baseline.baseline_run import NAME
from scripts.common.errors import InputError, run
from scripts.common.files import read_json, write_json

SCHEMA = "wholejob/noise@1"


def measure(folders: Sequence[Path], seed: int, name: str, unprobed: bool = False) -> dict[str, Any]:
    """The noise document of baseline run folders `seed<seed>-...`; those of other seeds show that the seed counts.

    unprobed: the workload probes nothing on the way, as what is computed there may change; its outputs are compared.
    """
    visible = [folder for folder in folders if _seed(folder) == seed]
    others = [folder for folder in folders if _seed(folder) != seed]
    try:
        document = derive([folder / "records" for folder in visible], unprobed)
        plain = [folder for folder in visible if "-repeat" in folder.name]
        digest = _digest((plain or visible)[0], unprobed)
        same = [folder.name for folder in others if _digest(folder, unprobed) == digest]
    except BadInput as error:
        raise InputError(f"workload {name}: {error}") from None
    if same:
        raise InputError(
            f"workload {name}: the job ignores its seed: {same[0]} recorded exactly what {(plain or visible)[0].name}"
            " did; pass {seed} in launch.command and let the job seed itself with it"
        )
    return {
        "runs": [folder.name for folder in visible],
        "seed_matters": True if others else None,
        "summary": {key: document.get(key) for key in ("verdict", "warnings", "distinct", "threshold")},
        "tags": document["ranks"][next(iter(document["ranks"]))],
        "parity": document,
    }


def _digest(folder: Path, unprobed: bool) -> Any:
    """What a run computed: its records, or the hashes of its outputs where nothing is probed."""
    if unprobed:
        return [(entry["path"], entry["sha256"]) for entry in read_json(folder / "run.json", "run")["outputs"]]
    return Run(folder / "records").digest()


def _seed(folder: Path) -> int:
    found = NAME.match(folder.name)
    if found is None:
        raise InputError(f"{folder}: should be named seed<seed>-repeat<i> or seed<seed>-ulp<i>")
    return int(found[1])


def main(argv: list[str] | None = None) -> int:
    """Program of the rule `noise`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("runs", type=Path, nargs="+", help="run.json of every baseline run")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    spec = read_json(args.spec, "spec")
    folders = [path.parent for path in args.runs]
    name = spec.get("workload", spec["name"])
    unprobed = spec["parity"].get("probes") == []
    if unprobed and (spec["parity"].get("outputs") == "exists" or not (spec.get("launch") or {}).get("outputs")):
        raise InputError(
            f"workload {name}: parity.probes is empty and no output is compared: nothing would show what a patch changes;"
            " declare launch.outputs and parity.outputs, or probes"
        )
    document = measure(folders, spec["parity"]["seed"], name, unprobed)
    write_json(args.output, SCHEMA, document)
    return 0


if __name__ == "__main__":
    run(main)
