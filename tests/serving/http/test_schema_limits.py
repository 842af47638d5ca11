"""JSON schemas that are too large, or take too long to compile, are refused, and hold back nobody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from outpace.serving.http import service
from outpace.serving.http.preparation import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    NUM_SCHEMA_THREADS,
    Preparation,
)

CHAT_PATH, TEXT_PATH, RESPONSE_PATH = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CHAT = {"model": "zoo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def nested(levels: int) -> dict[str, Any]:
    """A schema of this many objects within one another."""
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels // 2):
        found = {"type": "object", "properties": {"a": found}}
    return found


def asked(schema: Any) -> dict[str, Any]:
    return CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


DEEP, LARGE = nested(MAX_SCHEMA_DEPTH + 2), {"enum": ["x" * 100] * (MAX_SCHEMA_BYTES // 100)}
TOOL = {"name": "f", "parameters": LARGE}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT_PATH, asked(DEEP), "response_format", f"more than {MAX_SCHEMA_DEPTH} levels"),
        (CHAT_PATH, asked(nested(600)), "response_format", "levels"),
        (CHAT_PATH, asked(LARGE), "response_format", f"at most {MAX_SCHEMA_BYTES} are compiled"),
        (
            CHAT_PATH,
            CHAT | {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
            "tools",
            "shorten it",
        ),
        (
            RESPONSE_PATH,
            {"model": "zoo", "input": "x", "text": {"format": {"type": "json_schema", "schema": DEEP}}},
            "text.format",
            "nest it less deeply",
        ),
    ],
)
def test_a_schema_beyond_the_limits_is_refused(
    running: Any, path: str, body: Any, param: str, words: str
) -> None:
    status, found, _ = running.call(path, body)
    assert status == 400 and found["error"]["param"] == param, found
    assert words in found["error"]["message"]


def test_a_schema_within_the_limits_is_compiled(running: Any) -> None:
    assert running.call(CHAT_PATH, asked(nested(MAX_SCHEMA_DEPTH - 4)))[0] == 200


def test_a_schema_that_takes_too_long_holds_back_nobody(running: Any, monkeypatch: Any, wait: Any) -> None:
    resolve, goes_on = service.resolve_settings, Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        if options.get("json_schema"):
            goes_on.wait(120)
        return resolve(*arguments, **options)

    monkeypatch.setattr(service, "resolve_settings", slow)
    monkeypatch.setattr(running.service, "preparation", Preparation(0.2))
    schema = asked({"type": "boolean"})
    with ThreadPoolExecutor(NUM_SCHEMA_THREADS) as pool:
        slow_ones = [pool.submit(running.call, CHAT_PATH, schema) for _ in range(NUM_SCHEMA_THREADS)]
        for each in slow_ones:
            status, found, _ = each.result(120)
            assert status == 400 and found["error"]["param"] == "response_format"
            assert "takes over 0.2 s to compile" in found["error"]["message"]
    status, found, headers = running.call(CHAT_PATH, schema)  # all threads are still taken
    assert status == 503 and "try again" in found["error"]["message"] and headers["retry-after"]
    assert running.call(CHAT_PATH, CHAT)[0] == 200
    goes_on.set()
    wait(lambda: running.call(CHAT_PATH, schema)[0] == 200)
