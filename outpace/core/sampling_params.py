"""Sampling parameters of one request, as used by the session, the API, the command line and the proofs.

A new parameter needs a field here, its computation in `sampling/adjust.py` (changes to logits) or
`sampling/warp.py` (truncation), and a line in the API's documentation. Validation, command line options and
help texts are derived from the field's metadata: `help`, `minimum`, `maximum`, `above` (an exclusive minimum)
and `changes_logits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite, isnan
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


def _parameter(default: Any, text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of one request. At each node of its draft tree they apply with the node's path
    as part of the history.

    Raises ValueError for a value outside of its range and TypeError for one of another type.
    """

    temperature: float = _parameter(0.0, "Temperature; 0 is greedy decoding.", minimum=0)
    top_k: int = _parameter(0, "Sample from the k most probable tokens; 0: from all.", minimum=0)
    top_p: float = _parameter(
        1.0, "Sample from the most probable tokens that hold this much of the mass.", above=0, maximum=1
    )
    max_tokens: int = _parameter(256, "Maximum number of new tokens.", minimum=1)
    stop: tuple[int, ...] = _parameter((), "Token ids that end the text; the stop token itself is kept.")
    seed: int = _parameter(0, "Seed of the request's random choices.")
    min_p: float = _parameter(
        0.0, "Drop tokens below this share of the highest probability.", minimum=0, maximum=1
    )
    typical_p: float = _parameter(
        1.0, "Sample from the tokens of most typical information that hold this mass.", above=0, maximum=1
    )
    repetition_penalty: float = _parameter(
        1.0,
        "Over 1: tokens of the prompt and the text become less probable; 1: off.",
        above=0,
        changes_logits=True,
    )
    presence_penalty: float = _parameter(
        0.0,
        "Subtracted from the logit of every token of the new text, -2 to 2.",
        minimum=-2,
        maximum=2,
        changes_logits=True,
    )
    frequency_penalty: float = _parameter(
        0.0,
        "Subtracted once for each time the token occurs in the new text, -2 to 2.",
        minimum=-2,
        maximum=2,
        changes_logits=True,
    )
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (), "Pairs of token id and number: the number is added to the token's logit.", changes_logits=True
    )
    bad_words: tuple[tuple[int, ...], ...] = _parameter(
        (), "Sequences of token ids that must not be generated.", changes_logits=True
    )
    no_repeat_ngram_size: int = _parameter(
        0, "N-grams of this size occur once in prompt and text; 0: off.", minimum=0, changes_logits=True
    )
    min_tokens: int = _parameter(
        0, "Number of new tokens before which stop tokens are excluded.", minimum=0, changes_logits=True
    )
    grammar: Grammar | None = _parameter(None, "Grammar that the new text follows.", changes_logits=True)
    # computed: whether any parameter that changes logits before temperature differs from its default
    changes_logits: bool = field(init=False, repr=False, compare=False)
    # computed: the n-grams of the request's text; None without `no_repeat_ngram_size`
    ngrams: RepeatedNgrams | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for parameter in PARAMETERS:
            value = getattr(self, parameter.name)
            if isinstance(parameter.default, int):
                object.__setattr__(self, parameter.name, whole_number(parameter.name, value))
            elif isinstance(parameter.default, float):
                _check_number(parameter.name, value)
            elif parameter.default == () and not isinstance(value, tuple):
                raise TypeError(f"{parameter.name} is {value!r}; use a tuple")
        self._check_ranges()
        changed = (p.name for p in LOGIT_PARAMETERS if getattr(self, p.name) != p.default)
        object.__setattr__(self, "changes_logits", any(changed))
        size = self.no_repeat_ngram_size
        object.__setattr__(self, "ngrams", RepeatedNgrams(size) if size else None)

    def _check_ranges(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature is {self.temperature}; use 0 for greedy decoding or a positive number"
            )
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}; use 0 for greedy decoding or at least {MIN_TEMPERATURE}"
            )
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; ask for at least one token")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; use 0 for no limit or a positive number")
        if self.no_repeat_ngram_size < 0:
            raise ValueError(
                f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; use 0 for none or a number of tokens"
            )
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; use a positive number, 1 for none"
            )
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; ask for 0 to "
                f"{self.max_tokens}"
            )
        for parameter in PARAMETERS:
            _check_range(parameter.name, getattr(self, parameter.name), parameter.metadata)
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


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; use a number")


def _check_range(name: str, value: Any, limits: Any) -> None:
    maximum = limits.get("maximum")
    if maximum is None:
        return
    if "above" in limits and not limits["above"] < value <= maximum:
        raise ValueError(f"{name} is {value}; use a number above {limits['above']} and at most {maximum}")
    if "minimum" in limits and not limits["minimum"] <= value <= maximum:
        raise ValueError(f"{name} is {value}; use a number from {limits['minimum']} to {maximum}")


# fields that a caller may set, in order; command line and API derive their options from them
PARAMETERS = tuple(each for each in fields(SamplingParams) if each.init)
LOGIT_PARAMETERS = tuple(each for each in PARAMETERS if each.metadata.get("changes_logits"))
