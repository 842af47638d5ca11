"""Counts the error responses of the server."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ErrorCount:
    """Calls `on_error` with the status of each response of 400 or more."""

    def __init__(self, app: ASGIApp, on_error: Callable[[int], None]) -> None:
        self._app, self._on_error = app, on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._on_error(message["status"])
            await send(message)

        await self._app(scope, receive, counting)
