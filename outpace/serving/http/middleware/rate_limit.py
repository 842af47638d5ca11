"""Limits how many requests a client may send per minute."""

from __future__ import annotations

import math
from collections import deque
from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.serving.http.errors import ApiError

WINDOW = 60.0  # seconds


class RateLimit:
    """Answers 429 to a client's POST requests beyond `per_minute` in the last 60 seconds. Clients are told
    apart by their API key, or by address where no keys are used."""

    def __init__(self, app: ASGIApp, per_minute: int) -> None:
        self._app, self._per_minute = app, per_minute
        # client -> times of its last requests that passed; last the client of which one passed last
        self._times: dict[str, deque[float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            wait = self._pass(scope["state"]["client"], monotonic())
            if wait > 0:
                seconds = max(1, math.ceil(wait))
                sentence = f"more than {self._per_minute} requests in a minute: try again in {seconds} s"
                error = ApiError(
                    429, sentence, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)}
                )
                return await error.response(scope, receive, send)
        await self._app(scope, receive, send)

    def _pass(self, client: str, now: float) -> float:
        """Let a request of this client pass; returns 0, or the seconds after which it may."""
        while self._times and next(iter(self._times.values()))[-1] <= now - WINDOW:
            del self._times[next(iter(self._times))]
        times = self._times.get(client, deque[float](maxlen=self._per_minute))
        if len(times) == self._per_minute and times[0] > now - WINDOW:
            return times[0] + WINDOW - now
        times.append(now)
        self._times.pop(client, None)
        self._times[client] = times
        return 0.0
