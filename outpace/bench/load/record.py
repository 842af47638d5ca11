"""The record of one request: when its chunks arrived, how many tokens it has, and why it failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outpace.bench.load.plan import PlannedRequest
from outpace.bench.load.stream import Response, error_message

END = "[DONE]"  # data of the event that ends a stream
TEXTS = ("content", "reasoning_content", "reasoning")  # fields of a chat chunk that hold generated text


@dataclass(frozen=True)
class RequestRecord:
    """One request; times are in seconds, those of its answer since it was sent.

    A chunk is an event with generated text. With speculative decoding it holds one token or several.
    """

    prompt: str  # its id
    arrival: float | None  # planned, since the beginning of the turn; None: a concurrent stream
    sent: float  # since the beginning of the turn
    latency: float  # until the stream ended
    chunks: tuple[float, ...] = ()  # arrivals
    prompt_tokens: int | None = None  # None: the server reported no usage
    output_tokens: int | None = None
    error: str = ""  # why it failed; empty: it succeeded

    @property
    def failed(self) -> bool:
        return bool(self.error)

    @property
    def time_to_first_token(self) -> float:
        """Seconds until the first chunk, of a request that succeeded."""
        return self.chunks[0]

    @property
    def inter_token_latencies(self) -> list[float]:
        """Seconds between one chunk and the next."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds per token after the first; None with fewer than two tokens or an unknown number."""
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def delay(self) -> float:
        """Seconds between the planned arrival and the sending, which the load generator itself lost."""
        return 0.0 if self.arrival is None else self.sent - self.arrival

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "arrival_seconds": self.arrival,
            "sent_seconds": self.sent,
            "latency_ms": 1000 * self.latency,
            "chunks_ms": [round(1000 * chunk, 3) for chunk in self.chunks],
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "error": self.error or None,
        }


def read_response(response: Response, request: PlannedRequest, began: float) -> RequestRecord:
    """The record of a response; `began`: when its turn began, in seconds of `time.perf_counter`."""
    chunks: list[float] = []
    usage: Mapping[str, Any] = {}
    error, ended = response.error, bool(response.error)
    for time, event in zip(response.times, response.events, strict=True):
        if event == END:
            ended = True
            continue
        try:
            found = json.loads(event)
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            error = error or "an event of the stream is not a JSON object"
            continue
        if found.get("error"):
            error = error or error_message(found)
        usage = found.get("usage") or usage
        if any(map(_has_text, found.get("choices") or ())):
            chunks.append(time - response.sent)
    if not error and not ended:
        error = f"the stream broke off without {END}"
    if not error and not chunks:
        error = "the stream has no text"
    return RequestRecord(
        prompt=request.item.id,
        arrival=request.arrival,
        sent=response.sent - began,
        latency=response.ended - response.sent,
        chunks=tuple(chunks),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        error=error,
    )


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or any(delta.get(name) for name in TEXTS))
