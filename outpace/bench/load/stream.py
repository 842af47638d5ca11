"""Send one request and record when each event of its stream arrives, without reading what is in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import Any

import httpx2

# Below the 5 s after which uvicorn closes an idle connection: a request sent at that moment would fail.
KEEP_ALIVE = 4.0
MAX_MESSAGE = 300  # characters of a server's error message


@dataclass
class Response:
    """What arrived for one request; times are seconds of `time.perf_counter`."""

    sent: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)  # of the events
    events: list[str] = field(default_factory=list)  # the data of each event
    status: int | None = None  # of HTTP; None if there was no answer
    error: str = ""  # why there is no complete stream; empty if there is one


def open_client(api_key: str | None) -> httpx2.AsyncClient:
    """A client for any number of concurrent requests. It sets no time limits: `stream_completion` does."""
    headers = {"Accept-Encoding": "identity"}  # a compressed stream would be held back until a block is full
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE)
    return httpx2.AsyncClient(headers=headers, limits=limits, timeout=None)


async def stream_completion(client: httpx2.AsyncClient, url: str, body: bytes, *, timeout: float) -> Response:
    """Send a streaming request and record its events until the stream ends; at most `timeout` seconds.

    Failures are recorded in the response, not raised.
    """
    headers = {"Content-Type": "application/json"}
    response = Response(perf_counter())
    try:
        async with asyncio.timeout(timeout):
            async with client.sse(url, method="POST", content=body, headers=headers) as source:
                response.status = source.response.status_code
                if response.status == HTTPStatus.OK:
                    async for event in source:
                        response.times.append(perf_counter())
                        response.events.append(event.data)
                else:
                    await source.response.aread()
                    response.error = http_error(source.response)
    except TimeoutError:
        response.error = f"no complete answer within {timeout:g} s"
    except httpx2.HTTPError as error:
        response.error = reason(error)
    response.ended = perf_counter()
    return response


def reason(error: Exception) -> str:
    """The message of an exception without a full stop, or, if it has none, its type."""
    return str(error).rstrip(".") or type(error).__name__


def http_error(response: httpx2.Response) -> str:
    """The status of a response that has been read, and the server's own message if it has one."""
    try:
        message = error_message(response.json())
    except ValueError:
        message = ""
    status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    return f"{status}: {message}" if message and message != response.reason_phrase else status


def error_message(found: Any) -> str:
    """The message in a JSON answer that reports an error: OpenAI's `error.message`, FastAPI's `detail`, or
    the whole object; the empty string if it reports none."""
    if not isinstance(found, dict):
        return ""
    error = found.get("error") or found.get("detail") or found.get("message")
    if isinstance(error, dict):
        error = error.get("message") or error
    return " ".join(str(error).split())[:MAX_MESSAGE].rstrip(".") if error else ""
