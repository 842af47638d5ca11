"""The questions of the soak test: requests at temperature 0, whose texts do not depend on what is decoded
beside them, asked with the `openai` package."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from outpace.bench.measure.workload import load_items

CHAT, COMPLETIONS, RESPONSES = "chat", "completions", "responses"
PATHS = {
    CHAT: "/v1/chat/completions",
    COMPLETIONS: "/v1/completions",
    RESPONSES: "/v1/responses",
}
CHUNKS: Mapping[str, Callable[[Any], Any]] = {  # route -> function that makes a chunk of its JSON values
    CHAT: lambda values: ChatCompletionChunk.construct(**values),
    COMPLETIONS: lambda values: Completion.construct(**values),
    RESPONSES: lambda values: SimpleNamespace(**values),
}
COLOR = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
TOOL = {"name": "set_lamp", "parameters": COLOR}
LAMP = "Make the lamp blue."
Answer = tuple[tuple[str, str], ...]  # text and finish reason of each choice


@dataclass(frozen=True)
class Question:
    """A request: keyword arguments of the openai client's method for this route."""

    route: str
    body: Mapping[str, Any]

    def with_options(self, extra: Mapping[str, Any]) -> Question:
        """The question with more extensions of the API."""
        merged = {**self.body.get("extra_body", {}), **extra}
        return Question(self.route, {**self.body, "extra_body": merged})

    def json(self, *, stream: bool) -> bytes:
        """The body of the HTTP request."""
        body = {name: value for name, value in self.body.items() if name != "extra_body"}
        return json.dumps({**body, **self.body.get("extra_body", {}), "stream": stream}).encode()


def questions(model: str) -> list[Question]:
    """One of each kind that the API has, and several of the usual ones."""
    code = [item.turns[0] for item in load_items("code", 8)]
    sums = [item.turns[0] for item in load_items("arithmetic", 8)]
    edits = [item.turns[0] for item in load_items("edit", 4)]
    asked = Asked(model)
    schema = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": COLOR}}
    function = {"type": "function", "function": TOOL}
    return [
        *[asked.chat(text, 16) for text in sums + edits],
        *[asked.completions(text[:200], 20) for text in code],
        *[asked.responses(text, 16) for text in sums[:3] + edits[:3]],
        asked.chat(LAMP, 40, tools=[function], tool_choice="required"),
        asked.chat(LAMP, 40, tools=[function]),
        asked.chat(LAMP, 40, response_format=schema),
        asked.chat(edits[0], 30, prediction={"type": "content", "content": edits[0]}),
        asked.chat(sums[0], 12, logprobs=True, top_logprobs=2),
        asked.chat(sums[1], 30, stop=["\n"]),
        asked.completions([code[0][:100], code[1][:100]], 10),
        asked.completions(code[2][:100], 10, logprobs=2),
        asked.completions(code[3][:100], 10, echo=True),
        asked.completions("".join(code)[:1500], 10),  # read in several steps
        asked.completions(code[4][:100], 120, extra_body={"ignore_eos": True}),
        asked.completions(code[5][:100], 12, presence_penalty=1.0, logit_bias={"17": -5}),
        asked.responses(LAMP, 40, tools=[{"type": "function", **TOOL}], tool_choice="required"),
        asked.responses(LAMP, 40, text={"format": {"type": "json_schema", "name": "lamp", "schema": COLOR}}),
    ]


def short_questions(model: str) -> list[Question]:
    """Questions with short prompts and a few tokens as the answer."""
    sums = [item.turns[0] for item in load_items("arithmetic", 6)]
    asked = Asked(model)
    return [
        *[asked.chat(text, number) for number, text in enumerate(sums, 1)],
        *[asked.responses(text, number) for number, text in enumerate(sums[:3], 1)],
        *[asked.completions(text, 3) for text in ("def add(", "import os", "for i in", "class A:", "x =")],
        asked.chat(LAMP, 4, tools=[{"type": "function", "function": TOOL}], tool_choice="required"),
    ]


class Asked:
    """Makes questions to one model."""

    def __init__(self, model: str) -> None:
        self._common = {"model": model, "temperature": 0}

    def chat(self, content: str, limit: int, **options: Any) -> Question:
        messages = [{"role": "user", "content": content}]
        return self._question(CHAT, messages=messages, max_completion_tokens=limit, **options)

    def completions(self, prompt: Any, limit: int, **options: Any) -> Question:
        return self._question(COMPLETIONS, prompt=prompt, max_tokens=limit, **options)

    def responses(self, given: str, limit: int, **options: Any) -> Question:
        return self._question(RESPONSES, input=given, max_output_tokens=limit, **options)

    def _question(self, route: str, **body: Any) -> Question:
        return Question(route, self._common | body)


async def ask(client: AsyncOpenAI, question: Question) -> Answer:
    """The answer, not streamed."""
    if question.route == CHAT:
        completion = await client.chat.completions.create(**question.body)
        return tuple((_chat_text(each.message), each.finish_reason) for each in completion.choices)
    if question.route == COMPLETIONS:
        completion = await client.completions.create(**question.body)
        return tuple((each.text, each.finish_reason) for each in completion.choices)
    response = await client.responses.create(**question.body)
    calls = "".join(each.arguments for each in response.output if each.type == "function_call")
    return ((response.output_text + calls, response.status or ""),)


async def open_stream(client: AsyncOpenAI, question: Question) -> Any:
    """The stream of the client for a question."""
    methods = {
        CHAT: client.chat.completions.create,
        COMPLETIONS: client.completions.create,
        RESPONSES: client.responses.create,
    }
    return await methods[question.route](**question.body, stream=True)


async def read_stream(route: str, chunks: AsyncIterator[Any], at_most: int | None = None) -> Answer:
    """The answer that a stream holds in its first chunks, by default in all of them."""
    texts, reasons = defaultdict[int, str](str), defaultdict[int, str](str)
    number = 0
    async for chunk in chunks:
        for index, text, reason in _parts(route, chunk):
            texts[index] += text
            reasons[index] = reason or reasons[index]
        number += 1
        if number == at_most:
            break
    return tuple((texts[index], reasons[index]) for index in sorted(texts))


async def parse_stream(route: str, response: bytes) -> AsyncIterator[Any]:
    """The chunks in a response of HTTP/1.0."""
    _, _, events = response.partition(b"\r\n\r\n")
    for line in events.decode().split("\n"):
        name, _, data = line.partition(": ")
        if name == "data" and data != "[DONE]":
            yield CHUNKS[route](json.loads(data))


def _chat_text(message: Any) -> str:
    return (message.content or "") + "".join(each.function.arguments for each in message.tool_calls or ())


def _parts(route: str, chunk: Any) -> list[tuple[int, str, str]]:
    """Index, text and finish reason of the choices of a chunk."""
    if route == RESPONSES:
        kind = chunk.type
        if kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
            return [(0, chunk.delta, "")]
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            status = kind.removeprefix("response.")
            return [(0, "", status)]
        return []
    if route == COMPLETIONS:
        return [(each.index, each.text, each.finish_reason or "") for each in chunk.choices]
    return [
        (
            each.index,
            (each.delta.content or "")
            + "".join(call.function.arguments or "" for call in each.delta.tool_calls or ()),
            each.finish_reason or "",
        )
        for each in chunk.choices
    ]
