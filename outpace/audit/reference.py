"""What the audited server should generate: the contract of references.

Letters: T tokens of a text, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outpace.audit.endpoint import Answer
from outpace.audit.scored_text import ScoredText
from outpace.audit.setting import Rounding, Setting


@dataclass(frozen=True)
class Scored:
    """The reference's distributions along an answer."""

    text: ScoredText
    tokens: Sequence[int]  # (T,) token ids
    log_probs: Sequence[float]  # (T,) of each token, where nothing is truncated
    outside: Sequence[int] = ()  # positions of tokens that top_p excludes, whatever the rounding


class Reference(Protocol):
    """A model, or another server, that decodes plainly."""

    rounding: Rounding
    vocab: int  # a number above all token ids

    @property
    def name(self) -> str:
        """Its model or address."""
        ...

    def encode(self, prompt: str) -> list[int] | None:
        """Token ids of a prompt; None if the reference has no tokenizer."""
        ...

    def read(self, answer: Answer) -> list[int] | None:
        """Token ids of an answer of the server; None if it does not give them."""
        ...

    def states(self, setting: Setting) -> bool:
        """Whether it can state the distribution of every token with these parameters."""
        ...

    def score(self, prompt: Sequence[int], tokens: Sequence[int], setting: Setting) -> Scored:
        """The distributions of these tokens, each given those before it."""
        ...

    def gaps(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """By how much the logit of the most probable token exceeds that of each of these."""
        ...

    def text_gap(self, prompt: str, answer: Answer, max_tokens: int) -> float | None:
        """The logit by which the reference's greedy text differs from an answer at the first difference; 0 if
        they are equal, None if it cannot be told."""
        ...

    def describe(self, prompt: str, answer: Answer, setting: Setting) -> dict[str, float]:
        """Numbers that tell texts of other distributions apart, where only texts are known; the same for a
        text of either server."""
        ...

    def sample(self, prompt: str, setting: Setting, max_tokens: int, seed: int) -> Answer:
        """A text of the reference."""
        ...
