"""Admits requests until the server shuts down, and knows when the admitted ones are complete."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.serving.http.errors import ApiError


class Admission:
    """Whether new requests are admitted, and how many are in progress."""

    def __init__(self) -> None:
        self.is_closed = False
        self.num_active = 0  # admitted requests whose responses are not complete
        self.idle = asyncio.Event()  # set while there is none
        self.idle.set()

    def enter(self) -> None:
        """Count a request that begins. ApiError if no more are admitted."""
        if self.is_closed:
            sentence = "the server is shutting down: send the request to another one"
            raise ApiError(503, sentence, headers={"Retry-After": "1", "Connection": "close"})
        self.num_active += 1
        self.idle.clear()

    def leave(self) -> None:
        """Count a request that is complete."""
        self.num_active -= 1
        if not self.num_active:
            self.idle.set()


class Admit:
    """Middleware that admits POST requests by an `Admission`."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            self._admission.enter()
        except ApiError as error:
            return await error.response(scope, receive, send)
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave()
