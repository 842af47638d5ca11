"""Server-sent events: a stream of JSON objects that ends at once when the client disconnects, with comments
while there is nothing to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may hold events back
KEEP_ALIVE = format_sse_event(comment="keep-alive")
KEEP_ALIVE_SECONDS = 15.0  # without an event, after which a comment is sent: proxies close idle connections
DONE = format_sse_event(data_str="[DONE]")
# for the OpenAPI description of a route that streams on request
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, as JSON or as events", "content": {"text/event-stream": {}}}
}


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event with JSON data; some protocols name their events."""
    return format_sse_event(data_str=json.dumps(data, ensure_ascii=False, separators=(",", ":")), event=name)


async def with_keep_alive(events: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """The events, and a comment whenever none has come for this time."""
    coming: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(events))
            if not (await asyncio.wait((coming,), timeout=seconds))[0]:
                yield KEEP_ALIVE
                continue
            item, coming = coming.result(), None
            if item is None:
                return
            yield item
    finally:
        if coming is not None:
            coming.cancel()


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    """The next event; None at the end. A task cannot pass on StopAsyncIteration."""
    return await anext(events, None)


class EventStream(StreamingResponse):
    """A response of events. `on_close` is called when it is complete or its client has disconnected."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(with_keep_alive(events, KEEP_ALIVE_SECONDS), headers=HEADERS)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
