"""One streamed completion: when the chunks of its text arrived, how many tokens it has, why it failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import Any

import httpx2

END = "[DONE]"  # data of the event that ends a stream
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
    error: str = ""  # why there is no complete stream; empty if there is one


@dataclass(frozen=True)
class RequestRecord:
    """One request; times are in seconds, those of its answer since it was sent.

    A chunk is an event with generated text. With speculative decoding it holds one token or several.
    """

    arrival: float | None  # planned, since the beginning of the turn; None: a concurrent stream
    sent: float  # since the beginning of the turn
    latency: float  # until the stream ended
    chunks: tuple[float, ...] = ()  # arrivals
    output_tokens: int = 0  # as the server reports them
    error: str = ""  # why it failed; empty: it succeeded

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds per token after the first; None with fewer than two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def delay(self) -> float:
        """Seconds between the planned arrival and the sending, which the load generator itself lost."""
        return 0.0 if self.arrival is None else self.sent - self.arrival


def open_client() -> httpx2.AsyncClient:
    """A client for any number of concurrent requests. It sets no time limits: `stream_completion` does."""
    headers = {"Accept-Encoding": "identity"}  # a compressed stream would be held back until a block is full
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE)
    return httpx2.AsyncClient(headers=headers, limits=limits, timeout=None)


async def stream_completion(
    client: httpx2.AsyncClient, url: str, body: Mapping[str, Any], *, timeout: float
) -> Response:
    """Send a streaming request to the completions below `url` and record its events, without reading them,
    until the stream ends; at most `timeout` seconds. Failures are recorded in the response, not raised."""
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    headers = {"Content-Type": "application/json"}
    response = Response(perf_counter())
    try:
        async with asyncio.timeout(timeout):
            async with client.sse(
                f"{url}/completions", method="POST", content=content, headers=headers
            ) as source:
                if source.response.status_code == HTTPStatus.OK:
                    async for event in source:
                        response.times.append(perf_counter())
                        response.events.append(event.data)
                else:
                    text = (await source.response.aread()).decode(errors="replace")
                    response.error = f"HTTP {source.response.status_code}: {text[:MAX_MESSAGE]}"
    except TimeoutError:
        response.error = f"no complete answer within {timeout:g} s"
    except httpx2.HTTPError as error:
        response.error = str(error).rstrip(".") or type(error).__name__
    response.ended = perf_counter()
    return response


def read_response(response: Response, arrival: float | None, began: float) -> RequestRecord:
    """The record of a response; `began`: when its turn began, in seconds of `time.perf_counter`."""
    chunks: list[float] = []
    output_tokens: int | None = None
    error = response.error
    for time, event in zip(response.times, response.events, strict=True):
        if event == END:
            continue
        found = json.loads(event)
        if found.get("error"):
            error = error or str(found["error"])[:MAX_MESSAGE]
        output_tokens = (found.get("usage") or {}).get("completion_tokens", output_tokens)
        if any(choice.get("text") for choice in found.get("choices", ())):
            chunks.append(time - response.sent)
    if not error and END not in response.events:
        error = f"the stream broke off without {END}"
    if not error and not (chunks and output_tokens):
        error = "the stream has no text, or does not report its number of tokens"
    sent, latency = response.sent - began, response.ended - response.sent
    return RequestRecord(arrival, sent, latency, tuple(chunks), output_tokens or 0, error)
