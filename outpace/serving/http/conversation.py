"""A conversation that the model continues: the part that chat completions and responses have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outpace.sampling.thinking import Phase
from outpace.serving.http.errors import ApiError, bad_request
from outpace.serving.http.output import OutputParser, TextOutput
from outpace.serving.http.reasoning.formats import TAIL
from outpace.serving.http.reasoning.thinking import Thinking
from outpace.serving.http.schemas.conversation import ConversationBody
from outpace.serving.http.schemas.structured import ANY_OBJECT
from outpace.serving.http.service import Service
from outpace.serving.http.template_options import template_options
from outpace.serving.http.tool_calls.forced_call import ForcedCall
from outpace.serving.http.tool_calls.found_calls import FoundCalls
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
    continued: str | None = None  # beginning of the answer: the last message, which is not ended; None: none
    opens_answer: bool = True  # whether the template writes what an answer begins with


@dataclass(frozen=True)
class Prepared:
    """How the output of a request is read."""

    parser: Callable[[], OutputParser]  # returns one for the text of one sample
    thinking: Thinking | None  # None: the answer begins at once

    def num_reasoning_tokens(self, tokens: Sequence[int]) -> int:
        """How many of the tokens of a sample are in the reasoning."""
        return 0 if self.thinking is None else self.thinking.num_tokens(tokens)


def prepare(
    service: Service,
    body: ConversationBody,
    conversation: Conversation,
    *,
    n: int = 1,  # samples
    num_top: int | None,  # number of most probable tokens per Logprob; None: no log probabilities
    num_prompt_top: int | None = None,  # as num_top, for the tokens of the prompt
    prediction: str | None = None,
    include_steps: bool = False,  # pieces have the records of their steps
) -> tuple[list[GenerationRequest], Prepared]:
    """The samples of a request, and how their output is read. ApiError for invalid values."""
    service.check_model(body.model)
    schema = conversation.json_schema
    try:
        toolbox = Toolbox(conversation.tools, conversation.tool_choice or AUTO)
        if toolbox.may_call and (field := body.format_field) is not None:
            sentence = f"tools cannot be called in the format that {field} gives"
            raise ValueError(f"{sentence}: leave one of them out, or set tool_choice to none")
        if toolbox.is_forced:
            schema = toolbox.schema()
        if body.parallel_tool_calls is False and toolbox.may_call and not toolbox.is_forced:
            raise ValueError("parallel_tool_calls is false, which needs a forced call: set tool_choice")
        template = template_options(service.tokenizer, body)
    except ValueError as error:
        raise bad_request(error, type(body).model_fields) from error
    if conversation.continued is not None:
        template |= {"continue_final_message": True}
    template |= {"add_generation_prompt": conversation.opens_answer and conversation.continued is None}
    messages, tools = list(conversation.messages), toolbox.for_template()
    prompt = service.encode(messages, conversation.param, tools, template)
    thinking = _thinking(service, body, prompt, conversation.continued)
    shown: Collection[str] = service.call_format.special if toolbox.may_call else ()
    if thinking is not None:
        shown = (*shown, thinking.reasoning.start, thinking.reasoning.end)
    requests = service.requests(
        body,
        [prompt],
        n=n,
        num_top=num_top,
        num_prompt_top=num_prompt_top,
        prediction=prediction,
        json_schema=schema,
        include_steps=include_steps,
        shown=shown,
        thinking=thinking,
    )
    answer: Callable[..., OutputParser] = TextOutput
    if toolbox.is_forced:
        answer = partial(ForcedCall, service.call_format.new_id)
    elif toolbox.may_call:
        answer = partial(FoundCalls, service.call_format, toolbox.schemas)
    return requests, Prepared(answer if thinking is None else thinking.parser(answer), thinking)


def _thinking(
    service: Service, body: ConversationBody, prompt: Sequence[int], continued: str | None
) -> Thinking | None:
    """The reasoning that comes, or may come, before the answer. ApiError for a budget without it."""
    budget = None if body.thinking_token_budget == -1 else body.thinking_token_budget
    reasoning, tags = service.reasoning, service.thinking_tags
    if reasoning is None or tags is None:
        if budget is None:
            return None
        sentence = "thinking_token_budget needs a model that thinks: start the server with --reasoning-parser"
        raise ApiError(400, sentence, param="thinking_token_budget")
    phase = reasoning.phase_after(service.tokenizer.decode(prompt[-TAIL:]), continued)
    if phase is Phase.ANSWER:
        return None
    return Thinking(reasoning, tags, phase is Phase.THINKING, budget, body.include_reasoning is not False)


def schema_of(kind: str | None, schema: Mapping[str, Any] | None, param: str) -> Mapping[str, Any] | None:
    """JSON schema of a text format: "text", "json_object" or "json_schema". ApiError, which names `param`, if
    the last has no schema."""
    if kind == "json_object":
        return ANY_OBJECT
    if kind == "json_schema" and schema is None:
        raise ApiError(400, f"{param} has no schema: add it, or use json_object", param=param)
    return schema if kind == "json_schema" else None
