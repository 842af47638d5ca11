"""Runs a request and returns its answer, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from outpace.api.row_output import Result
from outpace.serving.http.disconnect import while_connected
from outpace.serving.http.generation import Generation
from outpace.serving.http.service import Service
from outpace.serving.http.sse import EventStream
from outpace.serving.request import GenerationRequest


class Answer(Protocol):
    """The form that a route gives to the output of a request."""

    def whole(self, results: Sequence[Result], /) -> dict[str, Any]:
        """The complete answer, from the results of all samples."""
        ...

    def stream(self, generation: Generation, /) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        ...


async def respond(
    service: Service,
    request: Request,
    requests: Sequence[GenerationRequest],  # the samples
    answer: Answer,
    *,
    arrived: float,  # time of `perf_counter` when the request arrived
    is_streamed: bool,
) -> Response:
    """Submit the samples of a request and respond with their output. They are cancelled if the client
    disconnects."""
    generation = Generation(service.engine, requests)
    await generation.submit(service.metrics, arrived)
    if is_streamed:
        return EventStream(answer.stream(generation), generation.close)
    try:
        results = await while_connected(request, generation.results())
    finally:
        generation.close()
    return JSONResponse(answer.whole(results))
