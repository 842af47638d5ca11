"""POST /v1/responses: a response to a text or a conversation. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from outpace.api.row_output import Piece, Result
from outpace.serving.http.answer import respond
from outpace.serving.http.conversation import Conversation, Prepared, prepare, schema_of
from outpace.serving.http.errors import ApiError
from outpace.serving.http.generation import Generation
from outpace.serving.http.logprob_formats import TextPlaces, chat_logprobs
from outpace.serving.http.response_items import COMPLETED, IN_PROGRESS, PlacedLogprob, ResponseItems
from outpace.serving.http.schemas.responses import ReasoningItem, ResponseBody
from outpace.serving.http.service import Service
from outpace.serving.http.sse import STREAMED, event
from outpace.serving.http.tools import Tool
from outpace.serving.http.usage import metrics, usage
from outpace.serving.request import Finished, GenerationRequest

INCOMPLETE, FAILED = "incomplete", "failed"
LOGPROBS = "message.output_text.logprobs"  # the element of `include` that asks for log probabilities


def responses(service: Service) -> APIRouter:
    """The route of responses."""
    router = APIRouter()

    @router.post("/v1/responses", responses=STREAMED)
    async def create(body: ResponseBody, request: Request) -> Response:
        return await respond(service, request, body, _prepare)

    return router


def _prepare(service: Service, body: ResponseBody) -> tuple[list[GenerationRequest], _ResponseAnswer]:
    """The one sample of a request, and the form of its output."""
    if body.previous_response_id:
        sentence = "previous_response_id is not supported, since nothing is stored: send the whole input"
        raise ApiError(400, sentence, param="previous_response_id")
    if body.background:
        raise ApiError(400, "background is not supported: use stream", param="background")
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        reasoning: dict[str, Any] = {}
        for item in body.input:
            found = item.for_template()
            if isinstance(item, ReasoningItem):
                reasoning = found  # of the assistant's message or call that follows
            else:
                messages.append(found | (reasoning if found["role"] == "assistant" else {}))
                reasoning = {}
    wanted, choice = body.text.format if body.text else None, body.tool_choice
    conversation = Conversation(
        messages,
        [Tool(each.name, each.description, each.parameters) for each in body.tools or ()],
        choice if choice is None or isinstance(choice, str) else choice.name,
        schema_of(wanted.type if wanted else None, wanted.schema_ if wanted else None, "text.format"),
        "input",
    )
    asks = body.top_logprobs is not None or LOGPROBS in (body.include or ())
    num_top = (body.top_logprobs or 0) if asks else None
    requests, prepared = prepare(service, body, conversation, num_top=num_top)
    return requests, _ResponseAnswer(service, body, requests, prepared)


class _ResponseAnswer:
    """The response to one request, whole or as a stream."""

    def __init__(
        self,
        service: Service,
        body: ResponseBody,
        requests: Sequence[GenerationRequest],
        prepared: Prepared,
    ) -> None:
        self._service, self._body, self._prepared = service, body, prepared
        self._parser = prepared.parser()
        self._num_prompt_tokens = len(requests[0].prompt)
        self._items = ResponseItems()
        self._place_of = TextPlaces(service.bytes_of, requests[0].prompt, requests[0].settings.shown)
        given = body.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": service.name,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.sampling().get("temperature"),
            "top_p": body.sampling().get("top_p"),
            "text": given.get("text", {"format": {"type": "text"}}),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "truncation": "disabled",
        }

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The complete response; a request has one sample."""
        [result] = results
        self._items.push([*self._parser.push(result.text), *self._parser.finish()], self._logprobs(result))
        self._items.close(_status(result))
        return self._completed(result)

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The response as events, each with its number."""
        number = 0

        def numbered(given: dict[str, Any]) -> bytes:
            nonlocal number
            found = {"type": given["type"], "sequence_number": number} | given
            number += 1
            return event(found, found["type"])

        started = self._state(IN_PROGRESS)
        yield numbered({"type": "response.created", "response": started})
        yield numbered({"type": "response.in_progress", "response": started})
        try:
            async for _, each in generation.events():
                if isinstance(each, Piece):
                    for item in self._items.push(self._parser.push(each.text), self._logprobs(each)):
                        yield numbered(item)
                elif isinstance(each, Finished):
                    status = _status(each.result)
                    last = self._items.push(self._parser.finish())
                    for item in [*last, *self._items.close(status)]:
                        yield numbered(item)
                    response = self._completed(each.result)
                    yield numbered({"type": f"response.{status}", "response": response})
        except ApiError as error:
            failure = {"code": error.code or "server_error", "message": error.message}
            response = self._state(FAILED) | {"error": failure}
            yield numbered({"type": "response.failed", "response": response})

    def _state(self, status: str) -> dict[str, Any]:
        """The response with the items so far."""
        state = {"status": status, "error": None, "incomplete_details": None, "usage": None}
        return self._head | state | {"output": list(self._items.items)}

    def _completed(self, result: Result) -> dict[str, Any]:
        status = _status(result)
        found = self._state(status) | {"usage": self._usage(result)}
        if status == INCOMPLETE:
            found["incomplete_details"] = {"reason": "max_output_tokens"}
        return found | metrics(self._body, [result])

    def _usage(self, result: Result) -> dict[str, Any]:
        counts = usage(self._num_prompt_tokens, [result], self._prepared.num_reasoning_tokens)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": counts["total_tokens"],
        }

    def _logprobs(self, output: Result | Piece) -> list[PlacedLogprob]:
        """Those of the next tokens."""
        found = output.logprobs or ()
        entries = zip(chat_logprobs(found, self._service.bytes_of), found, strict=True)
        return [PlacedLogprob(entry, *self._place_of(own.token)) for entry, own in entries]


def _status(result: Result) -> str:
    return INCOMPLETE if result.finish_reason == "length" else COMPLETED
