"""One request to a language model, once: litellm behind a small protocol, without its retries, caches, callbacks or
telemetry.

litellm takes seconds to import, so only a call that really goes out imports it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

LARGEST_BODY = 8_000_000
"""Bytes of an answer's text; more is refused, not read on."""


@dataclass(frozen=True)
class Reply:
    """A raw response and what it took. Tokens are None where the provider said nothing, dollars where no price is
    known.
    """

    raw: dict[str, Any]
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    dollars: float | None


class ProviderError(Exception):
    """A call that failed. `retry` says whether asking again can help, `billed` whether it may have been charged."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int | None = None,
        retry: bool = False,
        billed: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.retry, self.billed, self.retry_after_s = kind, status, retry, billed, retry_after_s


class Provider(Protocol):
    """What the client needs of a provider."""

    def versions(self) -> dict[str, str]:
        """Versions of the libraries and of the price table."""

    def price(self, model: str) -> tuple[float, float] | None:
        """Dollars per input and per output token; None where unknown."""

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """Send exactly one request. Raises ProviderError."""


class LiteLLM:
    """Any model that litellm knows, or an OpenAI-compatible server at `api_base`."""

    def __init__(self, api_base: str | None = None) -> None:
        self.api_base = api_base

    def versions(self) -> dict[str, str]:
        """litellm's version; its price table is the one inside the package."""
        from importlib.metadata import version

        return {"litellm": version("litellm"), "prices": f"litellm {version('litellm')}, local table"}

    def price(self, model: str) -> tuple[float, float] | None:
        """From litellm's own table. A server at `api_base` has no known price, whatever name its model has."""
        if self.api_base is not None:
            return None
        table = _litellm().model_cost
        entry = table.get(model) or table.get(model.partition("/")[2])
        if not entry or entry.get("input_cost_per_token") is None or entry.get("output_cost_per_token") is None:
            return None
        return float(entry["input_cost_per_token"]), float(entry["output_cost_per_token"])

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """One HTTP request with a deadline for the whole answer, slow drips included."""
        litellm = _litellm()
        arguments: dict[str, Any] = {
            "model": request["model"],
            "messages": request["messages"],
            **request["parameters"],
            "max_retries": 0,
            "num_retries": 0,
            "timeout": timeout_s,
            "drop_params": True,
            "caching": False,
        }
        if request.get("tools"):
            arguments["tools"] = request["tools"]
        if request.get("response_format"):
            arguments["response_format"] = request["response_format"]
        if self.api_base is not None:
            arguments["api_base"] = self.api_base
            arguments["api_key"] = os.environ.get("WHOLEJOB_API_KEY") or os.environ.get("OPENAI_API_KEY") or "none"
        response = _within(timeout_s, lambda: _translated(litellm, arguments))
        raw = _plain(response)
        size = sum(len(str((choice.get("message") or {}).get("content") or "")) for choice in raw.get("choices") or [])
        if size > LARGEST_BODY:
            raise ProviderError(
                "too_large", f"the answer has {size} characters, at most {LARGEST_BODY} are taken", billed=True
            )
        return self._reply(raw, request["model"])

    def _reply(self, raw: dict[str, Any], model: str) -> Reply:
        usage = raw.get("usage") or {}
        # litellm fills a missing usage block with zeros; a request without input tokens does not exist.
        if not usage.get("prompt_tokens"):
            return Reply(raw, None, None, None, None)
        inputs, outputs = int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        price = self.price(model)
        return Reply(
            raw,
            inputs,
            int(cached) if cached else 0,
            outputs,
            None if price is None else inputs * price[0] + outputs * price[1],
        )


def _litellm() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its price table, not one from the network
    os.environ["LITELLM_TELEMETRY"] = "False"
    try:
        import litellm
    except ImportError:
        raise ProviderError("no_litellm", "litellm is not installed; install the extra `llm`") from None
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.callbacks, litellm.success_callback, litellm.failure_callback = [], [], []
    litellm.cache = None
    return litellm


def _translated(litellm: Any, arguments: dict[str, Any]) -> Any:
    """litellm's exceptions as ProviderError."""
    try:
        return litellm.completion(**arguments)
    except ProviderError:
        raise
    except Exception as error:
        raise _error(error) from None


def _error(error: Exception) -> ProviderError:
    status = getattr(error, "status_code", None)
    message = " ".join(str(error).split())[:300]
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    name = type(error).__name__
    if (
        "Received response - <APIResponse [200" in str(error)
        or "Unterminated" in message
        or "Expecting value" in message
    ):
        return ProviderError(
            "cut_body", "the answer's body is no JSON: cut, or not from the model", status=200, retry=True, billed=True
        )
    if name == "Timeout" or status == 408:
        return ProviderError("timeout", "no answer in time", status=status, retry=True, billed=True)
    if status == 429:
        return ProviderError(
            "rate_limit", message, status=429, retry=True, retry_after_s=_seconds(headers.get("retry-after"))
        )
    if name in ("APIConnectionError", "ServiceUnavailableError", "BadGatewayError") or status in (
        500,
        502,
        503,
        504,
        529,
    ):
        connection = name == "APIConnectionError" or ("Connection error" in message)
        return ProviderError(
            "connection" if connection else "server_error",
            message,
            status=status,
            retry=True,
            billed=connection,
            retry_after_s=_seconds(headers.get("retry-after")),
        )
    if status in (401, 403):
        return ProviderError("key", "the provider refuses the key: it is missing, wrong or expired", status=status)
    if isinstance(status, int) and 400 <= status < 500:
        return ProviderError("request", message, status=status)
    return ProviderError("other", f"{name}: {message}", status=status)


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; a date is read as well."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return None


def _within(timeout_s: float, ask: Any) -> Any:
    """`ask()` in a thread that is given up at the deadline: a time-out between bytes does not stop a slow drip."""
    result: list[Any] = []

    def work() -> None:
        try:
            result.append((True, ask()))
        except BaseException as error:
            result.append((False, error))

    thread = threading.Thread(target=work, daemon=True, name="wholejob-llm")
    thread.start()
    thread.join(timeout_s + 1.0)
    if not result:
        raise ProviderError("timeout", f"no complete answer in {timeout_s:.0f} s", retry=True, billed=True)
    good, value = result[0]
    if not good:
        raise value
    return value


def _plain(response: Any) -> dict[str, Any]:
    value = response.model_dump() if hasattr(response, "model_dump") else dict(response)
    return dict(value)


@contextlib.contextmanager
def slot(provider: str, folder: Path, limit: int) -> Iterator[None]:
    """At most `limit` calls of one provider at a time, over all processes that share the folder."""
    import time

    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in provider)
    locks = [FileLock(str(folder / f"{name}.{index}.lock")) for index in range(limit)]
    while True:
        for lock in locks:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield
            finally:
                lock.release()
            return
        time.sleep(0.1)
