"""Fields that several routes share: sampling, streaming and speculation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict, create_model, model_validator

from outpace.core.sampling_params import PARAMETERS, Parameter
from outpace.serving.http.schemas.closed import Closed
from outpace.serving.http.schemas.structured import Constraint, StructuredOutputs

# JSON types as they are: 1 is not true, and "1" is no number
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict()]
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]

MAX_SAMPLES = 128  # of one request, as in OpenAI's API
MAX_TOP_LOGPROBS = 20
# What every step searches for in the text, or changes in the logits, takes time from all requests.
MAX_STOPS, MAX_STOP_LENGTH = 32, 256
MAX_BIASES = 8192
MAX_BAD_WORDS = 256
MAX_MESSAGES = 8192

NumTop = Annotated[int, Strict(), Field(ge=0, le=MAX_TOP_LOGPROBS)]
StopString = Annotated[str, Field(max_length=MAX_STOP_LENGTH)]
TYPES: Mapping[str, Any] = {
    "logit_bias": Annotated[dict[str, Number], Field(max_length=MAX_BIASES)],
    "bad_words": Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_BAD_WORDS)],
}  # of the sampling parameters that are neither numbers nor whole numbers
SAMPLING = tuple(each for each in PARAMETERS if not each.field)  # those whose fields follow from them


class Speculation(Closed):
    """Extension: how this request is drafted."""

    method: str | None = None  # one of the server's methods; None: its first
    num_speculative_tokens: Annotated[int, Strict(), Field(ge=0)] | None = None  # largest depth of a draft


class StreamOptions(Closed):
    """Options of a streamed response."""

    include_usage: Flag | None = None
    continuous_usage_stats: Flag | None = None  # with include_usage: token counts in every chunk, as in vLLM
    include_obfuscation: Flag | None = None  # no effect: it pads events against observers of the network


class Body(Closed):
    """Base of all request bodies."""

    neutral: ClassVar[Mapping[str, Any]] = {
        "add_special_tokens": True,
        "allowed_token_ids": [],
        "early_stopping": False,
        "echo": False,
        "include_reasoning": True,
        "length_penalty": 1.0,
        "logits_processors": [],
        "modalities": ["text"],
        "return_prompt_text": False,
        "return_token_ids": False,
        "return_token_offsets": False,
        "return_tokens_as_token_ids": False,
        "spaces_between_special_tokens": True,
        "truncation": "disabled",
        "use_beam_search": False,
        "verbosity": "medium",
    }

    model: str | None = None  # None: the model that is served
    # no effect: they concern billing, storage, caches and scheduling, not the answer
    guided_decoding_backend: Any = None
    metadata: Any = None
    priority: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    request_id: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None

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


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Type and default of the request field for a sampling parameter."""
    kind: Any = TYPES.get(parameter.name) or (Whole if isinstance(parameter.default, int) else Number)
    return kind | None, Field(None, description=parameter.help)


OF_PARAMETERS: dict[str, Any] = {each.name: _field(each) for each in SAMPLING}
SamplingFields = create_model("SamplingFields", __base__=Body, **OF_PARAMETERS)


class SamplingBody(SamplingFields):
    """Base of the bodies that ask for generated text."""

    seed: Whole | None = None  # of the first sample; the others have seeds derived from it
    stop: StopString | Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    # extensions that vLLM's server has too
    ignore_eos: Flag | None = None
    stop_token_ids: Annotated[list[Whole], Field(fail_fast=True, max_length=MAX_BIASES)] | None = None
    include_stop_str_in_output: Flag | None = None
    skip_special_tokens: Flag | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True, min_length=1)] | None = None
    guided_grammar: str | None = None
    # extensions of this server
    speculation: Flag | Speculation | None = None  # false: no drafts
    include_metrics: Flag | None = None  # acceptance statistics in the response

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the number of generated tokens, and its value; None: the model's maximum
        length is the limit."""
        raise NotImplementedError

    @property
    def constraints(self) -> list[Constraint]:
        """What the output must follow by vLLM's fields; more than one is an error."""
        guided = {
            kind: value
            for kind in ("json", "regex", "choice", "grammar")
            if (value := getattr(self, f"guided_{kind}")) is not None
        }
        found = [Constraint(f"guided_{kind}", kind, value) for kind, value in guided.items()]
        return found + (self.structured_outputs.constraints if self.structured_outputs else [])

    @property
    def format_field(self) -> str | None:
        """The field with the JSON schema or grammar that the answer must follow; None: there is none."""
        return next((each.field for each in self.constraints), None)

    @property
    def schema_field(self) -> str | None:
        """The field with the JSON schema or grammar that is compiled: that of the answer or of a call."""
        return self.format_field

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream has the token counts so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling(self) -> dict[str, Any]:
        """The given sampling parameters, by name."""
        given: dict[str, Any] = {}
        for each in SAMPLING:
            if (value := getattr(self, each.name)) is not None:
                means_off = each.off_in_requests is not None and value == each.off_in_requests
                given[each.name] = each.off if means_off else value
        return given
