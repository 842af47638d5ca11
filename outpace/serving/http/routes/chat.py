"""POST /v1/chat/completions: the next message of a conversation."""

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
from outpace.serving.http.logprob_formats import chat_logprobs, prompt_entries
from outpace.serving.http.output import ArgumentsDelta, CallDelta, Delta, ReasoningDelta, TextDelta
from outpace.serving.http.schemas.chat import ChatBody
from outpace.serving.http.schemas.messages import reasoning_fields, text_of
from outpace.serving.http.service import Service
from outpace.serving.http.sse import DONE, STREAMED, event
from outpace.serving.http.step_format import check_steps, step_fields
from outpace.serving.http.tools import Tool
from outpace.serving.http.usage import UsageSoFar, metrics, usage
from outpace.serving.request import Finished, GenerationRequest


def chat(service: Service) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter()

    @router.post("/v1/chat/completions", responses=STREAMED)
    async def complete(body: ChatBody, request: Request) -> Response:
        return await respond(service, request, body, _prepare)

    return router


def _prepare(service: Service, body: ChatBody) -> tuple[list[GenerationRequest], _ChatAnswer]:
    """Check a body. Returns a generation request per sample, and what formats their output as a response."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: set it to true", param="top_logprobs")
    check_steps(body)
    last = body.messages[-1]
    if body.continue_final_message and body.add_generation_prompt:
        sentence = (
            "continue_final_message and add_generation_prompt exclude one another: leave one of them out"
        )
        raise ApiError(400, sentence, param="continue_final_message")
    if body.continue_final_message and (last.role != "assistant" or last.tool_calls):
        sentence = "continue_final_message needs a text of the assistant as the last message: add it"
        raise ApiError(400, sentence, param="continue_final_message")
    choice, wanted = body.tool_choice, body.response_format
    schema = wanted.json_schema.schema_ if wanted and wanted.json_schema else None
    functions = [tool.function for tool in body.tools or ()]
    conversation = Conversation(
        [message.for_template() for message in body.messages],
        [Tool(each.name, each.description, each.parameters) for each in functions],
        choice if choice is None or isinstance(choice, str) else choice.function.name,
        schema_of(wanted.type if wanted else None, schema, "response_format"),
        "messages",
        text_of(last.content) if body.continue_final_message else None,
        body.add_generation_prompt is not False,
    )
    requests, prepared = prepare(
        service,
        body,
        conversation,
        n=body.n or 1,
        num_top=(body.top_logprobs or 0) if body.logprobs else None,
        num_prompt_top=body.prompt_logprobs,
        prediction=text_of(body.prediction.content) if body.prediction else None,
        include_steps=bool(body.include_steps),
    )
    return requests, _ChatAnswer(service, body, requests, prepared)


class _ChatAnswer:
    """The response to one request, whole or as a stream."""

    def __init__(
        self,
        service: Service,
        body: ChatBody,
        requests: Sequence[GenerationRequest],
        prepared: Prepared,
    ) -> None:
        self._service, self._body, self._requests = service, body, requests
        self._prepared = prepared
        self._parsers = [prepared.parser() for _ in requests]  # by sample
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.name,
        }

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The response with all choices."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        found = self._head | {"object": "chat.completion", "choices": choices} | self._counts(results)
        prompt = results[0].prompt_logprobs
        if prompt is not None and self._body.prompt_logprobs is not None:
            entries = prompt_entries(prompt, self._body.prompt_logprobs, self._service.bytes_of)
            found["prompt_logprobs"] = entries
        return found

    def _choice(self, index: int, result: Result) -> dict[str, Any]:
        parser, texts, calls = self._parsers[index], list[str](), list[dict[str, Any]]()
        reasoning = ""
        for delta in [*parser.push(result.text), *parser.finish()]:
            if isinstance(delta, TextDelta):
                texts.append(delta.text)
            elif isinstance(delta, ReasoningDelta):
                reasoning += delta.text
            elif isinstance(delta, CallDelta):
                function = {"name": delta.name, "arguments": ""}
                calls.append({"id": delta.id, "type": "function", "function": function})
            else:
                calls[delta.index]["function"]["arguments"] += delta.text
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts), "refusal": None}
        if reasoning:
            message |= reasoning_fields(reasoning)
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(result),
            "finish_reason": self._reason(index, result),
        }

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The response as events: a chunk per piece of text."""
        results: list[Result] = []
        head = self._head | {"object": "chat.completion.chunk"}
        so_far = UsageSoFar(self._body, len(self._requests[0].prompt), len(self._requests))

        def chunk(index: int, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | fields
            return head | {"choices": [choice]} | so_far.field()

        try:
            for index in range(len(self._requests)):
                yield event(chunk(index, {"role": "assistant", "content": ""}))
            async for index, each in generation.events():
                if isinstance(each, Piece):
                    so_far.add(index, each)
                    fields = self._fields(each)
                    for delta in map(_delta, self._parsers[index].push(each.text)):
                        yield event(chunk(index, delta, **fields))
                        fields = {}
                    if fields:
                        yield event(chunk(index, {}, **fields))  # tokens whose text is still held back
                elif isinstance(each, Finished):
                    so_far.add(index, each.result)
                    for delta in map(_delta, self._parsers[index].finish()):
                        yield event(chunk(index, delta))
                    results.append(each.result)
                    last = chunk(index, {}, finish_reason=self._reason(index, each.result))
                    if len(results) == len(self._requests) and not self._body.include_usage:
                        last |= metrics(self._body, results)
                    yield event(last)
            if self._body.include_usage:
                yield event(head | {"choices": []} | self._counts(results))
        except ApiError as error:
            yield event(error.body)
        yield DONE

    def _reason(self, index: int, result: Result) -> str | None:
        """The reason why a sample ended. A call that was cut off is none."""
        called = self._parsers[index].num_calls and result.finish_reason == "stop"
        return "tool_calls" if called else result.finish_reason

    def _fields(self, piece: Piece) -> dict[str, Any]:
        """What a chunk says of a piece besides its text."""
        fields: dict[str, Any] = {}
        if piece.logprobs is not None:
            fields["logprobs"] = self._logprobs(piece)
        if piece.step is not None:
            method = self._requests[0].method or self._service.methods[0]
            fields["step"] = step_fields(piece.step, method, self._service.bytes_of)
        return fields

    def _logprobs(self, output: Result | Piece) -> dict[str, Any] | None:
        if output.logprobs is None:
            return None
        return {"content": chat_logprobs(output.logprobs, self._service.bytes_of), "refusal": None}

    def _counts(self, results: Sequence[Result]) -> dict[str, Any]:
        counts = usage(len(self._requests[0].prompt), results, self._prepared.num_reasoning_tokens)
        return {"usage": counts} | metrics(self._body, results)


def _delta(delta: Delta) -> dict[str, Any]:
    """A delta as the value of a chunk."""
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return reasoning_fields(delta.text)
    call: dict[str, Any] = {"index": delta.index}
    if isinstance(delta, ArgumentsDelta):
        call |= {"function": {"arguments": delta.text}}
    else:
        call |= {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}}
    return {"tool_calls": [call]}
