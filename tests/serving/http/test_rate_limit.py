"""The limit of requests per minute and client."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from limits.storage import memory

from outpace.serving.http.middleware.rate_limit import RateLimit


def test_nothing_is_kept_of_clients_of_earlier_minutes(clock: SimpleNamespace) -> None:
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["state"]["client"])

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        pass

    limit = RateLimit(app, 2)

    def request(client: str) -> None:
        scope = {"type": "http", "method": "POST", "state": {"client": client}}
        asyncio.run(limit(scope, receive, send))

    def num_kept() -> int:
        storage = limit._limiter.storage
        assert isinstance(storage, memory.MemoryStorage)
        return len(storage.expirations) + len(storage.events)

    for number in range(50):
        request(f"client {number}")
    assert len(passed) == 50 <= num_kept()
    clock.now += 200
    for _ in range(100):  # a thread of the storage drops expired counters some time after a request
        request("late")
        if num_kept() < 50:
            break
        time.sleep(0.02)
    assert num_kept() < 50
