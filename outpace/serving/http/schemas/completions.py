"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from outpace.serving.http.schemas.fields import MAX_SAMPLES, MAX_TOP_LOGPROBS, Flag, Whole
from outpace.serving.http.schemas.steps import SteppedBody

MAX_TOKENS = 16  # the default of this route in OpenAI's API


class CompletionBody(SteppedBody):
    """The JSON body of POST /v1/completions."""

    prompt: str | list[str] | list[Whole] | list[list[Whole]]  # texts or token ids
    max_tokens: Whole | None = None
    n: Annotated[int, Strict(), Field(ge=1, le=MAX_SAMPLES)] | None = None  # per prompt
    logprobs: Annotated[int, Strict(), Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: Flag | None = None
    suffix: str | None = None  # refused: the text would have to end with it
    best_of: Whole | None = None  # refused if it is not n

    @property
    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", MAX_TOKENS if self.max_tokens is None else self.max_tokens
