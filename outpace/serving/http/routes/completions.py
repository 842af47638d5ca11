"""POST /v1/completions: continuations of texts."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from outpace.api.row_output import Piece, Result
from outpace.serving.http.answer import respond
from outpace.serving.http.errors import ApiError
from outpace.serving.http.generation import Generation
from outpace.serving.http.logprob_formats import (
    TextPlaces,
    completion_logprobs,
    echo_logprobs,
    prompt_entries,
)
from outpace.serving.http.schemas.completions import CompletionBody
from outpace.serving.http.service import Service
from outpace.serving.http.sse import DONE, STREAMED, event
from outpace.serving.http.step_format import check_steps, step_fields
from outpace.serving.http.usage import UsageSoFar, metrics, usage
from outpace.serving.request import Finished, GenerationRequest


def completions(service: Service) -> APIRouter:
    """The route of completions."""
    router = APIRouter()

    @router.post("/v1/completions", responses=STREAMED)
    async def complete(body: CompletionBody, request: Request) -> Response:
        return await respond(service, request, body, _prepare)

    return router


def _prepare(service: Service, body: CompletionBody) -> tuple[list[GenerationRequest], _CompletionAnswer]:
    """Check a body. Returns a generation request per sample, and what formats their output as a response."""
    service.check_model(body.model)
    check_steps(body)
    n = body.n or 1
    if body.suffix and (body.echo or body.prompt_logprobs is not None):
        sentence = "suffix cannot be combined with echo or prompt_logprobs: leave out one of them"
        raise ApiError(400, sentence, param="suffix")
    if body.best_of not in (None, n):
        raise ApiError(
            400, "best_of is not supported: ask for n samples and choose among them", param="best_of"
        )
    prompts: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]  # the token ids of one prompt
    if not prompts:
        raise ApiError(400, "prompt is an empty list: give at least one", param="prompt")
    encoded = [service.encode(prompt, "prompt", suffix=body.suffix or "") for prompt in prompts]
    requests = service.requests(
        body,
        encoded,
        n=n,
        num_top=body.logprobs,
        num_prompt_top=body.num_prompt_top,
        generates=body.generates,
        include_steps=bool(body.include_steps),
    )
    texts = [
        (prompt if isinstance(prompt, str) else service.tokenizer.decode(prompt)) if body.echo else ""
        for prompt in prompts
    ]
    return requests, _CompletionAnswer(service, body, requests, [text for text in texts for _ in range(n)])


class _CompletionAnswer:
    """The response to one request, whole or as a stream."""

    def __init__(
        self,
        service: Service,
        body: CompletionBody,
        requests: Sequence[GenerationRequest],
        echoes: Sequence[str],  # the text that precedes each sample
    ) -> None:
        self._service, self._body, self._echoes = service, body, echoes
        self._requests, self._method = requests, requests[0].method or service.methods[0]
        self._places = [
            TextPlaces(service.bytes_of, request.prompt, request.settings.shown, offset=len(echo))
            for request, echo in zip(requests, echoes, strict=True)
        ]
        num_samples = body.n or 1
        self._num_prompt_tokens = sum(len(request.prompt) for request in requests[::num_samples])
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The response with all choices."""
        choices = [
            {
                "index": index,
                "text": echo + result.text,
                "logprobs": self._whole_logprobs(index, result),
                "finish_reason": result.finish_reason,
                **self._prompt_logprobs(result),
            }
            for index, (result, echo) in enumerate(zip(results, self._echoes, strict=True))
        ]
        return self._head | {"choices": choices} | self._counts(results)

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The response as events: a chunk per piece of text."""
        results: list[Result] = []
        so_far = UsageSoFar(self._body, self._num_prompt_tokens, len(self._requests))

        def chunk(index: int, text: str, **fields: Any) -> dict[str, Any]:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None} | fields
            return self._head | {"choices": [choice]} | so_far.field()

        try:
            for index, echo in enumerate(self._echoes):
                if echo:
                    yield event(chunk(index, echo))
            async for index, each in generation.events():
                if isinstance(each, Finished):
                    so_far.add(index, each.result)
                    results.append(each.result)
                    last = chunk(index, "", finish_reason=each.result.finish_reason)
                    if len(results) == len(self._echoes) and not self._body.include_usage:
                        last |= metrics(self._body, results)
                    yield event(last)
                elif isinstance(each, Piece):
                    so_far.add(index, each)
                    if each.text or each.logprobs or each.step:
                        yield event(chunk(index, each.text, **self._fields(index, each)))
            if self._body.include_usage:
                yield event(self._head | {"choices": []} | self._counts(results))
        except ApiError as error:
            yield event(error.body)
        yield DONE

    def _whole_logprobs(self, index: int, result: Result) -> dict[str, Any] | None:
        """Those of the text, which begins with the prompt if that is echoed."""
        found = self._logprobs(result, self._places[index])
        if found is None or not self._body.echo or result.prompt_logprobs is None:
            return found
        tokens, length = self._requests[index].prompt, len(self._echoes[index])
        num_top, bytes_of = self._body.logprobs or 0, self._service.bytes_of
        before = echo_logprobs(result.prompt_logprobs, tokens, num_top, bytes_of, length)
        return {name: before[name] + found[name] for name in found}

    def _prompt_logprobs(self, result: Result) -> dict[str, Any]:
        num_top = self._body.prompt_logprobs
        if num_top is None or result.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_entries(result.prompt_logprobs, num_top, self._service.bytes_of)}

    def _fields(self, index: int, piece: Piece) -> dict[str, Any]:
        """What a chunk says of a piece besides its text."""
        fields = {"logprobs": self._logprobs(piece, self._places[index])}
        if piece.step is not None:
            fields["step"] = step_fields(piece.step, self._method, self._service.bytes_of)
        return fields

    def _logprobs(self, output: Result | Piece, place_of: TextPlaces) -> dict[str, Any] | None:
        if output.logprobs is None:
            return None
        return completion_logprobs(output.logprobs, self._service.bytes_of, place_of)

    def _counts(self, results: Sequence[Result]) -> dict[str, Any]:
        return {"usage": usage(self._num_prompt_tokens, results)} | metrics(self._body, results)
