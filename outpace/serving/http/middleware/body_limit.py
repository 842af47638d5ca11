"""Limits the size of request bodies before they are parsed."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outpace.serving.http.errors import ApiError

# A connection that is closed while the client still sends is reset, and the client may lose the answer with
# it: the rest of a body without an announced length is read first, up to these bytes and seconds.
REST_BYTES, REST_SECONDS = 1 << 20, 1.0


class BodyLimit:
    """Reads the whole body, at most `max_bytes` of it, and passes it on in one piece; answers 413 to a larger
    one, whether its length is announced or it comes in chunks.

    Starlette's own middleware answers in plain text, not in the error format of the API.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        is_too_large = announced.isdigit() and int(announced) > self._max_bytes
        is_complete, body = False, bytearray()
        while not is_too_large and not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)
            is_too_large = len(body) > self._max_bytes
        if is_too_large:
            if body and not is_complete:
                await _discard_rest(receive)
            limit = f"the server reads at most {self._max_bytes} bytes"
            error = ApiError(413, f"the request is too large: {limit}", headers={"Connection": "close"})
            return await error.response(scope, receive, send)
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return message or await receive()

        await self._app(scope, replay, send)


async def _discard_rest(receive: Receive) -> None:
    """Read the rest of a body until its end, or until REST_BYTES or REST_SECONDS are used up."""
    num_bytes, more = 0, True
    try:
        async with asyncio.timeout(REST_SECONDS):
            while more and num_bytes < REST_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                more = message.get("more_body", False)  # absent after a disconnect
    except TimeoutError:
        pass  # the client is slow: it gets its answer now
