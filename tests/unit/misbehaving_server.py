"""A real HTTP server on loopback that answers like an OpenAI-compatible one, or misbehaves as it is told, request by
request.
"""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Behaviour = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """One request: takes the next behaviour of the server; the last one stays."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.server.lock:
            self.server.requests.append(json.loads(body))
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            behaviours = self.server.behaviours
            behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        behaviour(self)

    def log_message(self, *_: Any) -> None:
        pass

    def reply(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.behaviours: list[Behaviour] = []
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: Any) -> None:
        pass  # a client that gave up is what some tests are about


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    server = Server()
    server.behaviours = list(behaviours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def completion(
    content: Any,
    *,
    finish: str = "stop",
    usage: dict[str, int] | None = None,
    calls: list[Any] | None = None,
    **more: Any,
) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls is not None:
        message["tool_calls"] = calls
    document: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        **more,
    }
    document["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120} if usage is None else usage
    if usage == {}:
        del document["usage"]
    return json.dumps(document).encode()


def say(content: Any, **options: Any) -> Behaviour:
    return lambda handler: handler.reply(200, completion(content, **options))


def call_tool(name: str, arguments: Any, identity: str = "x9f3-random") -> Behaviour:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return say(
        None,
        finish="tool_calls",
        calls=[{"id": identity, "type": "function", "function": {"name": name, "arguments": text}}],
    )


def status(code: int, headers: dict[str, str] | None = None) -> Behaviour:
    return lambda handler: handler.reply(code, json.dumps({"error": {"message": f"scripted {code}"}}).encode(), headers)


def raw(body: bytes, kind: str = "application/json") -> Behaviour:
    return lambda handler: handler.reply(200, body, kind=kind)


def hang(seconds: float) -> Behaviour:
    return lambda handler: time.sleep(seconds)


def drip(total_s: float) -> Behaviour:
    """A byte now and then: each read succeeds, the answer never ends."""

    def behave(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", "100000")
        handler.end_headers()
        end = time.monotonic() + total_s
        while time.monotonic() < end:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)

    return behave


def reset(handler: Handler) -> None:
    """Close with a TCP reset before any answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def cut(body: bytes) -> Behaviour:
    """Promise the whole body, send half, close."""

    def behave(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)

    return behave
