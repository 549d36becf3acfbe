"""A ledger of what language models may cost, shared between parallel jobs through a lock.

The worst case of a call is reserved before it and settled after it, so that processes that ask at the same moment
cannot overspend together. What a call really took is not known when its answer has no usage: then the reservation is
charged. A job that dies between the two leaves its reservation charged.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError
from scripts.common.files import replacing

UNITS = ("dollars", "tokens", "calls", "seconds")
Amount = Mapping[str, float | None]


class BudgetError(Exception):
    """A limit would be passed; the message says which. What was done so far is kept."""


@dataclass(frozen=True)
class Reservation:
    """A worst case that is held until it is settled."""

    identity: str
    amount: dict[str, float | None]


class Ledger:
    """The ledger file. `limits` maps a scope (`minigpt/model`, `sweep`) to its limits; null or missing is no limit."""

    def __init__(self, path: Path, limits: Mapping[str, Mapping[str, float | None]]) -> None:
        self.path, self.limits = path, limits

    def reserve(self, amount: Amount) -> Reservation:
        """Hold the worst case of one call in every scope. Raises BudgetError where it does not fit; then nothing is
        held.
        """
        held = {unit: amount.get(unit) for unit in UNITS}
        with self._locked() as ledger:
            for scope, limits in self.limits.items():
                used = _used(ledger, scope)
                for unit in UNITS:
                    limit, wanted = limits.get(unit), held[unit]
                    if limit is None or wanted is None:
                        continue
                    if used[unit] + wanted > limit * (1 + 1e-9):
                        raise BudgetError(
                            f"budget: {scope}: {unit}: {used[unit]:.6g} of {limit:.6g} are used or reserved, "
                            f"the next call may take {wanted:.6g}"
                        )
            identity = secrets.token_hex(8)
            ledger["reserved"][identity] = {"scopes": list(self.limits), "amount": held, "pid": os.getpid()}
        return Reservation(identity, held)

    def settle(self, reservation: Reservation, spent: Amount | None) -> None:
        """Charge what a call took; None charges the reservation. A null unit (unknown price) is counted as unknown."""
        with self._locked() as ledger:
            entry = ledger["reserved"].pop(reservation.identity, None)
            if entry is None:
                return
            amount = reservation.amount if spent is None else {unit: spent.get(unit) for unit in UNITS}
            for scope in entry["scopes"]:
                total = ledger["spent"].setdefault(
                    scope, {**dict.fromkeys(UNITS, 0.0), "unpriced_calls": 0, "unmetered_calls": 0}
                )
                for unit in UNITS:
                    total[unit] += amount[unit] or 0.0
                total["unpriced_calls"] += amount["dollars"] is None
                total["unmetered_calls"] += spent is None

    def used(self, scope: str) -> dict[str, float]:
        """Spent plus reserved of a scope."""
        with self._locked() as ledger:
            return _used(ledger, scope)

    def _locked(self) -> _Locked:
        return _Locked(self.path)


class _Locked:
    """The ledger's content under its lock, written back when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock

        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.lock = path, FileLock(str(path) + ".lock", timeout=120)

    def __enter__(self) -> dict[str, Any]:
        self.lock.acquire()
        try:
            self.ledger: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.ledger = {"schema": "wholejob/budget@1", "spent": {}, "reserved": {}}
        except ValueError as error:
            self.lock.release()
            raise InputError(
                f"{self.path}: not JSON ({error}); it holds what models have cost, repair it or move it away"
            ) from None
        return self.ledger

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            if kind is None:
                with replacing(self.path) as temporary:
                    temporary.write_text(json.dumps(self.ledger, indent=1) + "\n", encoding="utf-8")
        finally:
            self.lock.release()


def _used(ledger: Mapping[str, Any], scope: str) -> dict[str, float]:
    total = {unit: float(ledger["spent"].get(scope, {}).get(unit) or 0.0) for unit in UNITS}
    for entry in ledger["reserved"].values():
        if scope in entry["scopes"]:
            for unit in UNITS:
                total[unit] += entry["amount"].get(unit) or 0.0
    return total
