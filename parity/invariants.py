"""What may not move at all between two runs: the invariants of their ledgers, and what surrounds them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, Optional

from parity.records import BadInput, Run

Difference = dict[str, Any]


def compare_invariants(base: Run, cand: Run, allow: Sequence[str] = ()) -> dict[str, Any]:
    """`{"equal", "differing": [{name, base, cand}], "allowed", "compared", "unseen", "context", "same_source"}`.

    `equal` is None where neither run has a ledger; names that match a glob of `allow` go to `allowed`. Values must have
    the same type; a name that only one run has differs. Raises BadInput where only one run has a ledger.
    """
    differing: list[Difference] = []
    allowed: list[Difference] = []
    context: list[Difference] = []
    unseen: set[str] = set()
    compared = 0
    sources: list[bool] = []
    for rank in base.ranks:
        one, two = base.ledger(rank), cand.ledger(rank)
        if (one is None) != (two is None):
            without = base.name if one is None else cand.name
            raise BadInput(
                f"{without}: rank {rank} left no ledger.json, so its job did not end by itself; record it again"
            )
        if one is None or two is None:
            continue
        prefix = f"rank{rank}." if len(base.ranks) > 1 else ""
        compared += len({*flatten(one.get("invariants") or {}), *flatten(two.get("invariants") or {})})
        for entry in differences(one.get("invariants") or {}, two.get("invariants") or {}, prefix):
            names = (entry["name"], entry["name"][len(prefix) :])
            permitted = any(fnmatch.fnmatchcase(name, glob) for name in names for glob in allow)
            (allowed if permitted else differing).append(entry)
        context += differences(one.get("context") or {}, two.get("context") or {}, prefix)
        unseen.update(str(item) for ledger in (one, two) for item in ledger.get("unseen") or [])
        if one.get("source_files") and two.get("source_files"):
            sources.append(one["source_files"] == two["source_files"])
    return {
        "equal": not differing if compared else None,
        "differing": differing,
        "allowed": allowed,
        "compared": compared,
        "unseen": sorted(unseen),
        "context": context,
        "same_source": all(sources) if sources else None,
    }


def environment(base: Run, cand: Run) -> list[Difference]:
    """How the headers differ in what says where and how the runs were made: versions, GPUs, backend flags, seed."""
    return differences(base.environment(), cand.environment())


def differences(one: dict[str, Any], two: dict[str, Any], prefix: str = "") -> list[Difference]:
    """Names, dotted, whose values or types differ between two nested dictionaries."""
    flat, other = flatten(one), flatten(two)
    missing = object()
    found = []
    for name in sorted({*flat, *other}):
        a, b = flat.get(name, missing), other.get(name, missing)
        if not _equal(a, b):
            found.append({"name": prefix + name, "base": _shown(a, missing), "cand": _shown(b, missing)})
    return found


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dots; lists stay whole, since their order counts."""
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat.update(flatten(inner, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = inner
    return flat


def _equal(a: Any, b: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, inside lists and dictionaries too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return bool(a == b)


def _shown(value: Any, missing: Any) -> Optional[Any]:
    return None if value is missing else value
