"""The bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import model_validator

from outpace.serving.http.schemas.fields import Body, Flag, Whole
from outpace.serving.http.schemas.messages import Message


class TokenizeBody(Body):
    """The JSON body of POST /tokenize."""

    prompt: str | None = None
    messages: list[Message] | None = None  # in place of the prompt
    add_special_tokens: Flag = True  # of the prompt; the chat template decides about those of messages

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeBody:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("a prompt or messages, not both")
        return self


class DetokenizeBody(Body):
    """The JSON body of POST /detokenize."""

    tokens: list[Whole]
