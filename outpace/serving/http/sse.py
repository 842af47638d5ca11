"""Server-sent events: a stream of JSON objects that ends at once when the client disconnects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may hold events back
DONE = format_sse_event(data_str="[DONE]")


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event with JSON data; some protocols name their events."""
    return format_sse_event(data_str=json.dumps(data, ensure_ascii=False, separators=(",", ":")), event=name)


class EventStream(StreamingResponse):
    """A response of events. `on_close` is called when it is complete or its client has disconnected."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(events, headers=HEADERS)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
