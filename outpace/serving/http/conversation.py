"""A conversation that the model continues: the part that chat completions and responses have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outpace.serving.http.errors import ApiError, bad_request
from outpace.serving.http.schemas.fields import SamplingBody
from outpace.serving.http.schemas.structured import ANY_OBJECT
from outpace.serving.http.service import Service
from outpace.serving.http.tool_calls import ForcedCall, OutputParser, TaggedCalls, TextOutput
from outpace.serving.http.tools import AUTO, Tool, Toolbox
from outpace.serving.request import GenerationRequest


@dataclass(frozen=True)
class Conversation:
    """What to continue, and how."""

    messages: Sequence[Mapping[str, Any]]  # as chat templates take them
    tools: Sequence[Tool]
    tool_choice: str | None  # as in Toolbox; None: the model decides
    json_schema: Mapping[str, Any] | None  # which the answer follows
    param: str  # the field of the request with the messages


def prepare(
    service: Service,
    body: SamplingBody,
    conversation: Conversation,
    *,
    n: int = 1,  # samples
    num_top: int | None,  # number of most probable tokens per Logprob; None: no log probabilities
    num_prompt_top: int | None = None,  # as num_top, for the tokens of the prompt
    prediction: str | None = None,
    parallel_tool_calls: bool = True,
    include_steps: bool = False,  # pieces have the records of their steps
) -> tuple[list[GenerationRequest], Callable[[], OutputParser]]:
    """The samples of a request, and a function that returns a parser for the text of one of them. ApiError
    for invalid values."""
    service.check_model(body.model)
    schema = conversation.json_schema
    try:
        toolbox = Toolbox(conversation.tools, conversation.tool_choice or AUTO)
        if toolbox.is_forced and schema is not None:
            raise ValueError("tool_choice forces a call, so the format of text cannot be given: leave it out")
        if toolbox.is_forced:
            schema = toolbox.schema()
        if not parallel_tool_calls and toolbox.may_call and not toolbox.is_forced:
            raise ValueError("parallel_tool_calls is false, which needs a forced call: set tool_choice")
    except ValueError as error:
        raise bad_request(error, type(body).model_fields) from error
    prompt = service.encode(list(conversation.messages), conversation.param, toolbox.for_template())
    requests = service.requests(
        body,
        [prompt],
        n=n,
        num_top=num_top,
        num_prompt_top=num_prompt_top,
        prediction=prediction,
        json_schema=schema,
        include_steps=include_steps,
    )
    parser: Callable[[], OutputParser] = TextOutput
    if toolbox.may_call:
        parser = ForcedCall if toolbox.is_forced else TaggedCalls
    return requests, parser


def schema_of(kind: str | None, schema: Mapping[str, Any] | None, param: str) -> Mapping[str, Any] | None:
    """JSON schema of a text format: "text", "json_object" or "json_schema". ApiError, which names `param`, if
    the last has no schema."""
    if kind == "json_object":
        return ANY_OBJECT
    if kind == "json_schema" and schema is None:
        raise ApiError(400, f"{param} has no schema: add it, or use json_object", param=param)
    return schema if kind == "json_schema" else None
