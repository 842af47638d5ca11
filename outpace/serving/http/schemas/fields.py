"""Fields that several routes share: sampling, streaming and speculation."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

# JSON types as they are: 1 is not true, and "1" is no number
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict()]
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]

MAX_SAMPLES = 128  # of one request, as in OpenAI's API
MAX_TOP_LOGPROBS = 20
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "min_tokens",
)


class Speculation(BaseModel):
    """Extension: how this request is drafted."""

    method: str | None = None  # one of the server's methods; None: its first
    num_speculative_tokens: Annotated[int, Strict(), Field(ge=0)] | None = None  # largest depth of a draft


class StreamOptions(BaseModel):
    """Options of a streamed response."""

    include_usage: Flag | None = None


class Body(BaseModel):
    """Base of all request bodies. Unknown fields are kept in `model_extra`, to be logged."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None  # None: the model that is served

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, given: Any) -> Any:
        """Refuse text with lone surrogates, which JSON can spell and no tokenizer reads."""
        try:
            if isinstance(given, dict):
                json.dumps(given, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("text that is valid Unicode, and fewer levels") from None
        return given


class SamplingBody(Body):
    """Base of the bodies that ask for generated text."""

    temperature: Number | None = None
    top_p: Number | None = None
    seed: Whole | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    stop: str | list[str] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    # extensions that vLLM's server has too
    top_k: Whole | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: Whole | None = None
    ignore_eos: Flag | None = None
    bad_words: list[str] | None = None
    # extensions of this server
    speculation: Flag | Speculation | None = None  # false: no drafts
    include_metrics: Flag | None = None  # acceptance statistics in the response

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the number of generated tokens, and its value; None: the model's maximum
        length is the limit."""
        raise NotImplementedError

    @property
    def schema_field(self) -> str | None:
        """The field with the JSON schema that the output must follow; None: there is no such schema."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """The given sampling parameters, by name."""
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        if given.get("top_k") == -1:
            given["top_k"] = 0  # vLLM's value for no limit
        return given
