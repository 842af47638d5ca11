"""The requests of the soak test that a server must refuse, as bytes on a connection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.soak_questions import CHAT, COMPLETIONS, PATHS, RESPONSES


@dataclass(frozen=True)
class Malformed:
    """A request that is refused: what is sent, and the status of the response."""

    sent: bytes
    status: int


def http_request(path: str, body: bytes, *, method: str = "POST", length: int | None = None) -> bytes:
    """The bytes of a request of HTTP/1.0, whose response ends with the connection and is not divided into
    chunks; `length`: a wrong Content-Length."""
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.0\r\nHost: soak\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + body


def malformed_requests(model: str) -> list[Malformed]:
    """One of each way in which a request is wrong."""
    chat, completions = PATHS[CHAT], PATHS[COMPLETIONS]
    hello = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}

    def wrong(path: str, value: Any, status: int = 400) -> Malformed:
        return Malformed(http_request(path, json.dumps(value).encode()), status)

    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}
    return [
        Malformed(http_request(chat, b'{"model": '), 400),
        Malformed(http_request(chat, b"\xff\xfe"), 400),
        Malformed(http_request(completions, b'{"prompt": ' + b"[" * 100_000), 400),
        Malformed(http_request(chat, b"{", length=1 << 30), 413),
        Malformed(http_request("/v1/nothing", b"{}"), 404),
        Malformed(http_request(chat, b"", method="GET"), 405),
        Malformed(b"hello\r\n\r\n", 400),
        wrong(chat, [1]),
        wrong(chat, {"model": model}),
        wrong(chat, hello | {"model": "another"}, 404),
        wrong(chat, hello | {"temperature": "hot"}),
        wrong(chat, hello | {"n": 0}),
        wrong(chat, hello | {"stream": "yes"}),
        wrong(chat, hello | {"messages": "Hello"}),
        wrong(chat, hello | {"tools": [{"type": "function"}]}),
        wrong(chat, hello | {"response_format": schema}),
        wrong(chat, hello | {"speculation": {"method": "magic"}}),
        wrong(completions, {"model": model, "prompt": "x " * 4000}),
        wrong(completions, {"model": model, "prompt": [1 << 40]}),
        wrong(PATHS[RESPONSES], {"model": model, "input": []}),
    ]
