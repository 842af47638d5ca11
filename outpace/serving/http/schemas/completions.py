"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Strict, Tag

from outpace.serving.http.schemas.fields import MAX_SAMPLES, Flag, NumTop, Whole
from outpace.serving.http.schemas.steps import SteppedBody

MAX_TOKENS = 16  # the default of this route in OpenAI's API


def _kind(given: Any) -> str:
    """The kind of a prompt by its first element, so that a long list is not read as every kind."""
    if not isinstance(given, list):
        return "text"
    first = given[0] if given else None
    return "tokens" if isinstance(first, int) else "token lists" if isinstance(first, list) else "texts"


Tokens = Annotated[list[Whole], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[list[Tokens], Field(fail_fast=True), Tag("token lists")],
    Discriminator(_kind),
]


class CompletionBody(SteppedBody):
    """The JSON body of POST /v1/completions."""

    prompt: Prompt  # texts or token ids
    max_tokens: Whole | None = None
    n: Annotated[int, Strict(), Field(ge=1, le=MAX_SAMPLES)] | None = None  # per prompt
    logprobs: NumTop | None = None
    echo: Flag | None = None  # the text begins with the prompt, and with its log probabilities
    prompt_logprobs: NumTop | None = None  # extension that vLLM's server has too
    suffix: str | None = None  # refused by models without tokens for infilling
    best_of: Whole | None = None  # refused if it is not n

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if not self.generates:
            return "max_tokens", 1
        return "max_tokens", MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def generates(self) -> bool:
        """False if only the prompt is wanted."""
        return self.max_tokens != 0 or not (self.echo or self.prompt_logprobs is not None)

    @property
    def num_prompt_top(self) -> int | None:
        """Most probable tokens at each token of the prompt; None: no log probabilities of the prompt."""
        echoed = self.logprobs if self.echo else None
        return max((each for each in (echoed, self.prompt_logprobs) if each is not None), default=None)
