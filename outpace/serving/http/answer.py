"""Runs a request that asks for generated text and returns its answer, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from outpace.api.row_output import Result
from outpace.serving.http.disconnect import while_connected
from outpace.serving.http.generation import Generation
from outpace.serving.http.schemas.fields import SamplingBody
from outpace.serving.http.service import Service
from outpace.serving.http.sse import EventStream
from outpace.serving.request import GenerationRequest

Given = TypeVar("Given", bound=SamplingBody)


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
    body: Given,
    prepare: Callable[[Service, Given], tuple[Sequence[GenerationRequest], Answer]],
) -> Response:
    """Submit the samples of a request and respond with their output. They are cancelled if the client
    disconnects.

    `prepare` returns the samples and the form of their output; it is called in a thread, as it may take long.
    """
    arrived = perf_counter()
    prepared = service.preparation.run(
        partial(prepare, service, body), len(await request.body()), body.schema_field
    )
    requests, answer = await while_connected(request, prepared)
    generation = Generation(service.engine, requests)
    await generation.submit(service.metrics, arrived)
    if body.stream:
        return EventStream(answer.stream(generation), generation.close)
    try:
        results = await while_connected(request, generation.results())
    finally:
        generation.close()
    return JSONResponse(answer.whole(results))
