"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, Strict

from outpace.serving.http.schemas.closed import Closed
from outpace.serving.http.schemas.conversation import ConversationBody, Effort
from outpace.serving.http.schemas.fields import MAX_MESSAGES, MAX_SAMPLES, Body, Flag, NumTop, Whole
from outpace.serving.http.schemas.messages import Content, Message
from outpace.serving.http.schemas.steps import SteppedBody


class JsonSchema(Closed):
    """A named JSON schema."""

    name: str | None = None
    description: str | None = None
    strict: Flag | None = None  # no effect: the output always follows the schema
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(Closed):
    """The format of the generated text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Function(BaseModel):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON schema of its arguments


class FunctionTool(BaseModel):
    """A tool: a function."""

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    """The name of a function."""

    name: str


class NamedTool(BaseModel):
    """The choice of one tool."""

    type: Literal["function"]
    function: FunctionName


class PredictedContent(BaseModel):
    """The expected answer, which is drafted first."""

    type: Literal["content"]
    content: Content


class ChatBody(ConversationBody, SteppedBody):
    """The JSON body of POST /v1/chat/completions."""

    # the chat template decides about special tokens
    neutral: ClassVar[Mapping[str, Any]] = {**Body.neutral, "add_special_tokens": False}

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Whole | None = None
    max_tokens: Whole | None = None  # the older name
    n: Annotated[int, Strict(), Field(ge=1, le=MAX_SAMPLES)] | None = None
    logprobs: Flag | None = None
    top_logprobs: NumTop | None = None
    prompt_logprobs: NumTop | None = None  # extension that vLLM's server has too
    response_format: ResponseFormat | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    prediction: PredictedContent | None = None
    reasoning_effort: Effort | None = None
    # extensions that vLLM's server has too
    add_generation_prompt: Flag | None = None  # None: unless the last message is continued
    continue_final_message: Flag | None = None

    @property
    def effort(self) -> Effort | None:
        return self.reasoning_effort

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None and self.max_tokens is not None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def format_field(self) -> str | None:
        is_text = self.response_format is None or self.response_format.type == "text"
        return super().format_field if is_text else "response_format"

    @property
    def schema_field(self) -> str | None:
        return self.format_field if self.tool_choice in (None, "none", "auto") else "tools"
