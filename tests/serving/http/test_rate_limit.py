"""The limit of requests per minute and client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outpace.serving.http.middleware import rate_limit
from outpace.serving.http.middleware.rate_limit import RateLimit


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(rate_limit, "monotonic", lambda: self.now)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def answer(limit: RateLimit, client: str, method: str = "POST") -> tuple[int, str | None]:
    """The status of the answer to a request, and after how many seconds to try again."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": method, "path": "/", "headers": [], "state": {"client": client}}
    asyncio.run(limit(scope, receive, send))
    headers = {name: value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers.get(b"retry-after")


def test_a_client_may_send_so_many_requests_in_any_60_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limit = Clock(monkeypatch), RateLimit(_app, 3)
    found = list[tuple[int, str | None]]()
    for seconds in (0, 20, 20, 10, 9, 1, 0.5, 19.5, 0):
        clock.now += seconds
        found.append(answer(limit, "one"))
    passed, refused = (200, None), 429
    assert found[:3] == [passed] * 3 and found[3:5] == [(refused, "10"), (refused, "1")]
    assert found[5:] == [passed, (refused, "20"), passed, (refused, "20")]
    assert answer(limit, "two") == passed and answer(limit, "one", "GET") == passed


def test_nothing_is_kept_of_clients_of_earlier_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limit = Clock(monkeypatch), RateLimit(_app, 2)
    for number in range(300):
        clock.now += 1
        assert answer(limit, f"client {number}") == (200, None)
        answer(limit, "always")
        assert len(limit._times) <= 61
