"""The ranks' clocks on one: offsets from the collectives that ranks share, with the residual.

A collective ends on all its ranks at nearly the same moment (the last to arrive lets all go), so the median difference
of the ends of matching
collectives is the difference of the clocks, and the spread around it says how well that is known. Matching is by what
was done (name,
group, size, type) and order; where the windows hold different numbers of them, the shift with the smallest spread
counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ENOUGH = 3


def offsets(
    bases: dict[int, int | None], collectives: dict[int, list[tuple[str, int, int]]]
) -> dict[int, dict[str, Any]]:
    """For each rank `{"base_ns", "offset_ns", "residual_ns", "shared", "method"}`; adding offset_ns puts its times on
    the first rank's clock.

    `bases`: the clock base that each trace names (baseTimeNanoseconds), None where it names none. The residual is the
    median absolute
    deviation of the matched ends; both are None where no collective is shared and no base tells.
    """
    if not bases:
        return {}
    first = min(bases)
    result = {}
    for rank, base in sorted(bases.items()):
        if rank == first:
            result[rank] = _entry(base, 0, 0 if len(bases) > 1 else None, 0, "reference")
            continue
        known = base is not None and bases[first] is not None
        shift = (base or 0) - (bases[first] or 0) if known else 0
        correction, residual, shared = _correction(collectives.get(first, []), collectives.get(rank, []), shift)
        if correction is not None:
            result[rank] = _entry(base, shift + correction, residual, shared, "collectives")
        elif known or base == bases[first]:
            result[rank] = _entry(base, shift, None, 0, "base" if known else "assumed")
        else:
            result[rank] = _entry(base, None, None, 0, "unknown")
    return result


def _entry(base: int | None, offset: int | None, residual: int | None, shared: int, method: str) -> dict[str, Any]:
    return {"base_ns": base, "offset_ns": offset, "residual_ns": residual, "shared": shared, "method": method}


def _correction(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]], shift: int
) -> tuple[int | None, int | None, int]:
    """(nanoseconds to add to the other's shifted clock, residual, collectives matched)."""
    by_key: dict[str, tuple[list[int], list[int]]] = {}
    for side, rows in enumerate((one, other)):
        for what, _, end in rows:
            by_key.setdefault(what, ([], []))[side].append(end + (shift if side else 0))
    pieces = []
    for mine, theirs in by_key.values():
        if mine and theirs:
            pieces.append(_matched(np.array(sorted(mine)), np.array(sorted(theirs))))
    differences = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if len(differences) < ENOUGH:
        return None, None, len(differences)
    middle = int(np.median(differences))
    return middle, int(np.median(np.abs(differences - middle))), len(differences)


def _matched(mine: Any, theirs: Any) -> Any:
    """Differences mine - theirs of events in order, under the shift of the order that spreads them least."""
    if len(mine) == len(theirs):
        return mine - theirs
    short = min(len(mine), len(theirs))
    best, spread = mine[:0], np.inf
    for start in range(abs(len(mine) - len(theirs)) + 1):
        if start > 64:
            break
        pair = mine[start : start + short] - theirs if len(mine) > short else mine - theirs[start : start + short]
        wide = float(np.median(np.abs(pair - np.median(pair))))
        if wide < spread:
            best, spread = pair, wide
    return best
