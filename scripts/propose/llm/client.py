"""Ask a model: from the tape, or within the budget with our own retries, and onto the tape.

One failed attempt is followed by another for 429, 5xx, time-outs, broken connections and cut bodies, after a jittered
back-off that honours Retry-After; for nothing else.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.propose.llm.budget import BudgetError, Ledger, Reservation
from scripts.propose.llm.provider import Provider, ProviderError, Reply, slot
from scripts.propose.llm.tape import Tape, key_of, redacted, source_key_of

ATTEMPTS = 4
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
LONGEST_RETRY_AFTER_S = 120.0
CONCURRENT = 4
CHARACTERS_PER_TOKEN = 2.5
"""Fewer than any tokenizer in use needs on code, so that a reservation is a worst case."""


class NotMeasured(Exception):
    """No answer could be had: a budget, a refused key, a provider that stays down. The message is the reason."""


@dataclass
class Spent:
    """What the calls of one proposal took, tape included. Unknown stays None and is never added as 0."""

    calls: int = 0
    input_tokens: int | None = 0
    cached_tokens: int | None = 0
    output_tokens: int | None = 0
    dollars: float | None = 0.0
    wall_s: float = 0.0
    estimated: bool = False

    def add(self, usage: Mapping[str, Any]) -> None:
        """Add one call's usage as the tape has it."""
        self.calls += 1
        self.wall_s = round(self.wall_s + float(usage["wall_s"]), 3)
        self.estimated = self.estimated or bool(usage["estimated"])
        for name in ("input_tokens", "cached_tokens", "output_tokens", "dollars"):
            mine, other = getattr(self, name), usage[name]
            setattr(self, name, None if mine is None or other is None else mine + other)

    def document(self) -> dict[str, Any]:
        """As `usage` of proposal.json."""
        return dict(vars(self))


@dataclass
class Client:
    """Asks one model. `sleep` and `now` can be replaced in tests."""

    provider: Provider
    tape: Tape
    ledger: Ledger
    slots: Path
    timeout_s: float = 300.0
    attempts: int = ATTEMPTS
    label: str | None = None
    context: dict[str, Any] = field(default_factory=dict)
    """What the messages were made for: the tree, the finding, the kind of change."""
    by_source: bool = False
    """Whether an answer was taken that was recorded with other messages."""
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    spent: Spent = field(default_factory=Spent)
    transcript: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, request: dict[str, Any], sample: int) -> dict[str, Any]:
        """The raw response to a request. Raises NotMeasured, and InputError on a tape's miss in replay."""
        key, context = key_of(request, sample), {**self.context, "turn": self.spent.calls}
        source_key = source_key_of(request, sample, context)
        entry = self.tape.play(key, source_key)
        if entry is None:
            told = {**self._live(request, sample), "context": context, "source_key": source_key}
            entry = self.tape.record(key, told)
        self.spent.add(entry["usage"])
        said = {
            "event": "call",
            "key": key,
            "model": request["model"],
            "sample": sample,
            "attempts": entry["attempts"],
            "usage": entry["usage"],
            "messages": redacted(request["messages"]),
            "response": entry["response"],
        }
        if entry["key"] != key:
            self.by_source = True
            said |= {"matched": "source", "recorded_key": entry["key"], "recorded": entry["recorded"]}
        self.transcript.append(said)
        return dict(entry["response"])

    def _live(self, request: dict[str, Any], sample: int) -> dict[str, Any]:
        attempts: list[dict[str, Any]] = []
        for number in range(1, self.attempts + 1):
            reservation = self._reserve(request)
            began = time.monotonic()
            try:
                with slot(request["provider"], self.slots, CONCURRENT):
                    began = time.monotonic()
                    reply = self.provider.complete(request, self.timeout_s)
            except ProviderError as error:
                latency = time.monotonic() - began
                self.ledger.settle(
                    reservation,
                    None
                    if error.billed
                    else {**dict.fromkeys(("dollars", "tokens"), 0.0), "calls": 1, "seconds": latency},
                )
                wait = self._wait(error, number)
                attempts.append(
                    {
                        "error": error.kind,
                        "status": error.status,
                        "message": redacted(str(error)),
                        "latency_s": round(latency, 3),
                        "wait_s": None if wait is None else round(wait, 3),
                    }
                )
                if wait is None:
                    self.transcript.append({"event": "failed", "model": request["model"], "attempts": attempts})
                    raise NotMeasured(
                        f"{error.kind}: {redacted(str(error))} ({number} request{'s' if number > 1 else ''})"
                    ) from None
                self.sleep(wait)
                continue
            except BaseException:
                self.ledger.settle(reservation, None)
                raise
            latency = time.monotonic() - began
            attempts.append(
                {"error": None, "status": 200, "message": None, "latency_s": round(latency, 3), "wait_s": None}
            )
            usage = self._settle(reservation, reply, latency)
            return {
                "request": request,
                "sample": sample,
                "response": _numbered(reply.raw),
                "attempts": attempts,
                "usage": usage,
                "client": {**self.provider.versions(), "python": platform.python_version()},
                "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
                "label": self.label,
            }
        raise AssertionError("the last attempt returns or raises")

    def _reserve(self, request: dict[str, Any]) -> Reservation:
        size = (
            len(str(request["messages"]))
            + len(str(request.get("tools") or ""))
            + len(str(request.get("response_format") or ""))
        )
        inputs, outputs = size / CHARACTERS_PER_TOKEN, float(request["parameters"]["max_tokens"])
        try:
            price = self.provider.price(request["model"])
        except ProviderError as error:
            raise NotMeasured(f"{error.kind}: {error}") from None
        dollars = None if price is None else inputs * price[0] + outputs * price[1]
        try:
            return self.ledger.reserve(
                {"dollars": dollars, "tokens": inputs + outputs, "calls": 1, "seconds": self.timeout_s}
            )
        except BudgetError as error:
            self.transcript.append({"event": "budget", "reason": str(error)})
            raise NotMeasured(str(error)) from None

    def _settle(self, reservation: Reservation, reply: Reply, latency: float) -> dict[str, Any]:
        """Charge what the answer says it took; without that the reservation is charged and shown as an estimate."""
        if reply.input_tokens is None or reply.output_tokens is None:
            self.ledger.settle(reservation, {**reservation.amount, "seconds": latency})
            tokens = reservation.amount["tokens"]
            outputs = None if tokens is None else int(tokens)
            return {
                "input_tokens": None,
                "cached_tokens": None,
                "output_tokens": None,
                "reserved_tokens": outputs,
                "dollars": reservation.amount["dollars"],
                "wall_s": round(latency, 3),
                "estimated": True,
            }
        self.ledger.settle(
            reservation,
            {
                "dollars": reply.dollars,
                "tokens": reply.input_tokens + reply.output_tokens,
                "calls": 1,
                "seconds": latency,
            },
        )
        return {
            "input_tokens": reply.input_tokens,
            "cached_tokens": reply.cached_tokens,
            "output_tokens": reply.output_tokens,
            "dollars": reply.dollars,
            "wall_s": round(latency, 3),
            "estimated": False,
        }

    def _wait(self, error: ProviderError, number: int) -> float | None:
        """Seconds until the next attempt; None where there is none."""
        if not error.retry or number >= self.attempts:
            return None
        if error.retry_after_s is not None:
            return None if error.retry_after_s > LONGEST_RETRY_AFTER_S else error.retry_after_s + self.jitter() * 0.25
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (number - 1)) * (0.5 + self.jitter() / 2)


def _numbered(raw: dict[str, Any]) -> dict[str, Any]:
    """The response with tool calls numbered in order: servers give them random names, which would spoil a replay."""
    number = 0
    for choice in raw.get("choices") or []:
        for call in (choice.get("message") or {}).get("tool_calls") or []:
            number += 1
            call["id"] = f"call_{number}"
    return raw
