"""Sampling parameters of one request, as used by the session, the API, the command line and the proofs.

Each is declared once, as a field of `SamplingParams` with what the package knows of it. From that follow the
checks, the arguments of `outpace.generate`, options, fields of requests, what becomes of a checkpoint's
generation_config and of transformers' processors, the cases of the proofs and the table in docs/sampling.md.
Those that truncate are declared in the order in which they are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite, isnan
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from outpace.core.repeated_ngrams import RepeatedNgrams

if TYPE_CHECKING:  # the command line reads these parameters without importing torch
    from torch import Tensor

MIN_TEMPERATURE = 1e-6  # logits divided by a smaller temperature may overflow float32


class Grammar(Protocol):
    """A constraint on the next token; a pure function of the generated text."""

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:  # (G,) int64, M -> (M, V) bool
        """Mask of the tokens allowed after the generated text (G tokens) followed by each of M paths of draft
        tokens. All tokens are allowed after a path that the grammar rejects or that has ended the text."""
        ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is known of one sampling parameter."""

    help: str  # one sentence
    name: str = ""  # that of the field
    default: Any = None
    off: Any = None  # value at which it changes nothing; None: the default
    minimum: float | None = None  # least value
    above: float | None = None  # all values are greater than this one
    maximum: float | None = None  # greatest value; None: infinity is none
    allowed: str = ""  # the allowed values, for the error message; "": as the three limits state them
    # how it changes the distribution: before temperature, in `sampling/adjust.py`, or after it, by the
    # function for it in `sampling/warp.py`
    changes_logits: bool = False
    truncates: bool = False
    argument: str | None = ""  # type of the argument of `generate`; "": the field's; None: has another form
    field: str = ""  # field of HTTP requests, in OpenAI's API or vLLM's; "": the name, and the field's type
    off_in_requests: Any = None  # what also means `off` there
    transformers: str = ""  # name in transformers' GenerationConfig; "": it has no such setting
    processor: str = ""  # class of transformers that applies it, and the attribute of that class
    defined_in: str = "transformers"  # whose definition it has, for the documentation
    # value that changes the distribution over V = 3 or 4 tokens, or a function of V that returns one; None:
    # distribution tests do not set it
    proof: Any = None

    @property
    def warps(self) -> bool:
        """Whether it changes the distribution of the next token."""
        return self.changes_logits or self.truncates or self.name == "temperature"

    def check(self, value: Any) -> Any:
        """The value as the field's type. TypeError for one of another type, ValueError for one outside of
        the range."""
        if isinstance(self.default, float):
            if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
                raise TypeError(f"{self.name} is {value!r}; use a number")
        elif isinstance(self.default, int):
            value = whole_number(self.name, value)
        elif isinstance(self.default, tuple) and not isinstance(value, tuple):
            raise TypeError(f"{self.name} is {value!r}; use a tuple")
        else:
            return value
        if not self._is_within(value):
            raise ValueError(f"{self.name} is {value}; {self.allowed or self._limits()}")
        return value

    def _is_within(self, value: Any) -> bool:
        least, above, most = self.minimum, self.above, self.maximum
        return (
            (least is None or value >= least)
            and (above is None or value > above)
            and (value <= most if most is not None else value < inf)
        )

    def _limits(self) -> str:
        if self.above is not None:
            most = "" if self.maximum is None else f" and at most {self.maximum}"
            return f"use a number above {self.above}{most}"
        if self.maximum is not None:
            return f"use a number from {self.minimum} to {self.maximum}"
        return f"use a number of at least {self.minimum}"


def _all_but_one(vocab: int) -> int:
    return vocab - 1


def _parameter(default: Any, help: str, **known: Any) -> Any:
    return field(default=default, metadata={"parameter": Parameter(help, **known)})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of one request. At each node of its draft tree they apply with the node's path
    as part of the history.

    Raises ValueError for a value outside of its range and TypeError for one of another type.
    """

    temperature: float = _parameter(
        0.0,
        "Divide all logits by it; 0 is greedy decoding, without truncation.",
        off=1.0,
        minimum=0,
        allowed=f"use 0 for greedy decoding or a positive number, at least {MIN_TEMPERATURE}",
        transformers="temperature",
        processor="TemperatureLogitsWarper.temperature",
        proof=0.7,
    )
    top_k: int = _parameter(
        0,
        "Keep the k most probable tokens; 0: all.",
        minimum=0,
        allowed="use 0 for no limit or a positive number",
        truncates=True,
        off_in_requests=-1,
        transformers="top_k",
        processor="TopKLogitsWarper.top_k",
        proof=_all_but_one,
    )
    top_p: float = _parameter(
        1.0,
        "Keep the most probable tokens that hold this much of the mass.",
        above=0,
        maximum=1,
        truncates=True,
        transformers="top_p",
        processor="TopPLogitsWarper.top_p",
        proof=0.9,
    )
    min_p: float = _parameter(
        0.0,
        "Keep tokens with at least this share of the highest probability.",
        minimum=0,
        maximum=1,
        truncates=True,
        transformers="min_p",
        processor="MinPLogitsWarper.min_p",
        proof=0.15,
    )
    typical_p: float = _parameter(
        1.0,
        "Keep tokens of about average information that hold this much of the mass.",
        above=0,
        maximum=1,
        truncates=True,
        transformers="typical_p",
        processor="TypicalLogitsWarper.mass",
        proof=0.8,
    )
    max_tokens: int = _parameter(
        256,
        "Maximum number of new tokens.",
        minimum=1,
        allowed="ask for at least one token",
        field="max_tokens",  # of completions; the other routes have other names for it
        transformers="max_new_tokens",
    )
    stop: tuple[int, ...] = _parameter(
        (),
        "Token ids that end the text; the stop token itself is kept.",
        argument=None,
        field="stop_token_ids",
    )
    seed: int = _parameter(0, "Seed of the request's random choices.", argument=None, field="seed")
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (),
        "Add a number to the logit of each of these token ids; -inf forbids a token.",
        changes_logits=True,
        argument="Mapping[Any, float]",
        processor="SequenceBiasLogitsProcessor.sequence_bias",
        defined_in="transformers (`sequence_bias` of single tokens)",
        proof=((1, 0.75), (2, -0.5)),
    )
    repetition_penalty: float = _parameter(
        1.0,
        "Divide positive and multiply negative logits of the tokens of prompt and new text by it.",
        above=0,
        allowed="use a positive number, 1 for none",
        changes_logits=True,
        transformers="repetition_penalty",
        processor="RepetitionPenaltyLogitsProcessor.penalty",
        proof=1.5,
    )
    presence_penalty: float = _parameter(
        0.0,
        "Subtract it from the logit of every token that the new text has, -2 to 2.",
        minimum=-2,
        maximum=2,
        changes_logits=True,
        defined_in="vLLM",
        proof=0.75,
    )
    frequency_penalty: float = _parameter(
        0.0,
        "Subtract it from a token's logit once for each time that the new text has it, -2 to 2.",
        minimum=-2,
        maximum=2,
        changes_logits=True,
        defined_in="vLLM",
        proof=-0.5,
    )
    no_repeat_ngram_size: int = _parameter(
        0,
        "Forbid tokens that complete an n-gram of this size which prompt and text already have; 0: off.",
        minimum=0,
        allowed="use 0 for none or a number of tokens",
        changes_logits=True,
        transformers="no_repeat_ngram_size",
        processor="NoRepeatNGramLogitsProcessor.ngram_size",
        # none in `proof`: over three tokens, grammar and bad words would leave no continuation
    )
    bad_words: tuple[tuple[int, ...], ...] = _parameter(
        (),
        "Forbid the token that would complete one of these texts or sequences of token ids.",
        changes_logits=True,
        argument="Words",
        transformers="bad_words_ids",
        processor="NoBadWordsLogitsProcessor.sequence_bias",
        defined_in="transformers (`bad_words_ids`)",
        proof=((0, 1), (1, 2, 2), (2, 0, 1)),
    )
    grammar: Grammar | None = _parameter(
        None,
        "Forbid tokens after which the new text could no longer follow it.",
        changes_logits=True,
        argument=None,
        field="structured_outputs",
        defined_in="vLLM",
    )
    min_tokens: int = _parameter(
        0,
        "Exclude end-of-text tokens and stop strings before this many new tokens.",
        minimum=0,
        changes_logits=True,
        transformers="min_new_tokens",
        defined_in="vLLM; transformers' `min_new_tokens`",
        proof=2,
    )
    # computed: whether any parameter that changes logits before temperature differs from its default
    changes_logits: bool = field(init=False, repr=False, compare=False)
    # computed: (name, value) of the parameters that truncate and are not off, in their order
    truncations: tuple[tuple[str, Any], ...] = field(init=False, repr=False, compare=False)
    # computed: the n-grams of the request's text; None without `no_repeat_ngram_size`
    ngrams: RepeatedNgrams | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {each.name: getattr(self, each.name) for each in PARAMETERS}
        for parameter in PARAMETERS:
            value = parameter.check(given[parameter.name])
            if value is not given[parameter.name]:
                object.__setattr__(self, parameter.name, value)
        self._check_further()
        changed = any(given[each.name] != each.default for each in LOGIT_PARAMETERS)
        object.__setattr__(self, "changes_logits", changed)
        kept = tuple([(each.name, given[each.name]) for each in TRUNCATIONS if given[each.name] != each.off])
        object.__setattr__(self, "truncations", kept)
        size = self.no_repeat_ngram_size
        object.__setattr__(self, "ngrams", RepeatedNgrams(size) if size else None)

    def _check_further(self) -> None:
        """Check what limits of single numbers do not state."""
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature is {self.temperature}; {BY_NAME['temperature'].allowed}")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; ask for 0 to "
                f"{self.max_tokens}"
            )
        for token, bias in self.logit_bias:
            if index(token) < 0 or isnan(bias) or not (isfinite(bias) or bias < 0):
                raise ValueError(
                    f"logit_bias of token {token} is {bias}; use a token id and a number, or -inf"
                )
        if not all(self.bad_words) or any(index(token) < 0 for word in self.bad_words for token in word):
            raise ValueError(
                "a bad word is empty or holds a negative token; use token ids, at least one a word"
            )

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0. Greedy decoding is sampling from a one-hot distribution, not a
        separate mode of the engine."""
        return self.temperature == 0

    @property
    def without_logit_changes(self) -> SamplingParams:
        """The same parameters with those that change logits at their defaults, for a drafter with another
        vocabulary, whose token ids they do not fit."""
        if not self.changes_logits:
            return self
        return replace(self, **{parameter.name: parameter.default for parameter in LOGIT_PARAMETERS})


def whole_number(name: str, value: Any) -> int:
    """The value as a Python integer. TypeError unless it is an integer of Python or numpy; bools are not."""
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} is {value!r}; use a whole number")


def _declared() -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    for each in fields(SamplingParams):
        if each.init:
            known: Parameter = each.metadata["parameter"]
            off = each.default if known.off is None else known.off
            found.append(replace(known, name=each.name, default=each.default, off=off))
    return tuple(found)


# fields that a caller may set, in order; everything else that lists sampling parameters is derived from them
PARAMETERS = _declared()
BY_NAME = {each.name: each for each in PARAMETERS}
LOGIT_PARAMETERS = tuple(each for each in PARAMETERS if each.changes_logits)
TRUNCATIONS = tuple(each for each in PARAMETERS if each.truncates)
