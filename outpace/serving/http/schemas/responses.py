"""The body of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from outpace.serving.http.schemas.closed import Closed
from outpace.serving.http.schemas.conversation import ConversationBody, Effort
from outpace.serving.http.schemas.fields import MAX_MESSAGES, Flag, NumTop, Whole
from outpace.serving.http.schemas.messages import Content, called, reasoning_fields, text_of


class InputMessage(BaseModel):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text_of(self.content)}


class FunctionCall(BaseModel):
    """A call that the assistant made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """The call as a message of the assistant."""
        calls = [called(self.call_id, self.name, self.arguments)]
        return {"role": "assistant", "content": "", "tool_calls": calls}


class FunctionOutput(BaseModel):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content

    def for_template(self) -> dict[str, Any]:
        """The result as a message of the tool."""
        return {"role": "tool", "content": text_of(self.output), "tool_call_id": self.call_id}


class ReasoningText(BaseModel):
    """A part of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """Reasoning of the assistant before its next message or call."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None

    def for_template(self) -> dict[str, Any]:
        """The reasoning as fields of a message of the assistant."""
        return reasoning_fields("".join(part.text for part in self.content or ()))


InputItem = InputMessage | FunctionCall | FunctionOutput | ReasoningItem


class ReasoningOptions(Closed):
    """Options of the model's reasoning."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # no effect: the reasoning is there itself


class TextFormat(Closed):
    """The format of the generated text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: Flag | None = None  # no effect: the output always follows the schema
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextOptions(Closed):
    """Options of the generated text."""

    neutral: ClassVar[Mapping[str, Any]] = {"verbosity": "medium"}

    format: TextFormat | None = None


class ResponseTool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedFunction(BaseModel):
    """The choice of one tool."""

    type: Literal["function"]
    name: str


class ResponseBody(ConversationBody):
    """The JSON body of POST /v1/responses."""

    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    include: list[str] | None = None  # "message.output_text.logprobs" asks for log probabilities
    top_logprobs: NumTop | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None  # returned as it is
    previous_response_id: str | None = None  # refused: the server stores no responses
    background: Flag | None = None  # refused if true

    @property
    def effort(self) -> Effort | None:
        return self.reasoning.effort if self.reasoning else None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_output_tokens

    @property
    def format_field(self) -> str | None:
        is_text = self.text is None or self.text.format is None or self.text.format.type == "text"
        return super().format_field if is_text else "text.format"

    @property
    def schema_field(self) -> str | None:
        return self.format_field if self.tool_choice in (None, "none", "auto") else "tools"
