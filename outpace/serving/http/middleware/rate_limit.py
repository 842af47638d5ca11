"""Limits how many requests a client may send per minute."""

from __future__ import annotations

import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.serving.http.errors import ApiError


class RateLimit:
    """Answers 429 to the POST requests of a client that has sent more than `per_minute` in the last 60
    seconds. Clients are told apart by their API key, or by address where no keys are used.

    The number of requests in the last 60 seconds is estimated from two counters, of the current minute and of
    the one before, and rounded down: one request more may pass as a minute begins. The library's exact
    limiter, MovingWindowRateLimiter, never removes its entry of a client, so that memory would grow with
    every new address."""

    def __init__(self, app: ASGIApp, per_minute: int) -> None:
        self._app, self._item = app, RateLimitItemPerMinute(per_minute)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            client = scope["state"]["client"]
            if not self._limiter.hit(self._item, client):
                reset = self._limiter.get_window_stats(self._item, client).reset_time
                seconds = max(1, math.ceil(reset - time.time()))
                sentence = f"more than {self._item.amount} requests in a minute: try again in {seconds} s"
                error = ApiError(
                    429, sentence, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)}
                )
                return await error.response(scope, receive, send)
        await self._app(scope, receive, send)
