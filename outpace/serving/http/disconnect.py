"""Ends the work for a response that is not streamed when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request

T = TypeVar("T")


class Disconnected(Exception):
    """The client has disconnected, so that nobody waits for the response."""


async def while_connected(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of `work`. If the client disconnects before, `work` is cancelled and Disconnected raised.
    The request's body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Disconnected
    finally:
        working.cancel()
        watching.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
