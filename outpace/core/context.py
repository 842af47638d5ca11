"""What is known before a step, and how a request wants its tokens chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from outpace.core.noise import Noise

if TYPE_CHECKING:
    from outpace.core.contracts import Cache


class Grammar(Protocol):
    """Which tokens may follow a text. What it answers depends on nothing else, whatever it was asked before."""

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:  # (G,) int64, M -> (M, V) bool
        """True for tokens that may stand after the new text and each of these paths; all of them behind a path that
        the grammar refuses or that has ended the text."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen; applied to every node of its tree, after the node's own path."""

    temperature: float = 0.0  # 0 makes the distribution one-hot: greedy is a distribution, not a mode
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[int, ...] = ()  # token ids that end the text; the stop token itself is kept
    seed: int = 0
    min_p: float = 0.0  # drop tokens less likely than this share of the likeliest one's probability
    typical_p: float = 1.0  # mass of the tokens kept, those of typical information first
    repetition_penalty: float = 1.0  # over 1: tokens of prompt and text become less likely
    presence_penalty: float = 0.0  # taken once from the logit of every token of the text
    frequency_penalty: float = 0.0  # taken once for each time
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    min_tokens: int = 0  # stop tokens are out of the question before so many
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature is {self.temperature}; use 0 for greedy decoding or a positive number"
            )
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; ask for at least one token")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; use 0 for no limit or a positive number")
        for name in ("top_p", "typical_p"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} is {value}; use a number above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; use a number from 0 to 1")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; use a positive number, 1 for none"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= (value := getattr(self, name)) <= 2:
                raise ValueError(f"{name} is {value}; use a number from -2 to 2")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; ask for 0 to {self.max_tokens}"
            )
        for token, bias in self.logit_bias:
            if token < 0 or isnan(bias) or not (isfinite(bias) or bias < 0):
                raise ValueError(
                    f"logit_bias of token {token} is {bias}; use a token id and a number, or -inf"
                )
        if not all(self.bad_words) or any(token < 0 for word in self.bad_words for token in word):
            raise ValueError(
                "a bad word is empty or holds a negative token; use token ids, at least one a word"
            )

    @property
    def greedy(self) -> bool:
        """Whether the distribution is one-hot."""
        return self.temperature == 0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before temperature: most requests do not, and pay nothing for it."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.min_tokens > 0
            or bool(self.logit_bias or self.bad_words)
            or self.grammar is not None
        )

    @property
    def bare(self) -> SamplingParams:
        """Temperature and truncation alone: for a drafter whose tokens are not those that the other settings name."""
        if not self.adjusts:
            return self
        return replace(
            self,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias=(),
            bad_words=(),
            min_tokens=0,
            grammar=None,
        )


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before a step; read-only. Row b of the batch is the sequence kept in slot `slots[b]`."""

    tokens: tuple[
        Tensor, ...
    ]  # B × (T_b,) int64 on the host: views of one history; committed, then any assumed
    committed: tuple[int, ...]  # how many of them are certain; the last one is the root
    room: tuple[int, ...]  # longest path still useful: one less than the tokens still wanted
    slots: tuple[int, ...]
    cache: Cache  # the target's; drafters never write to it
    sampling: tuple[SamplingParams, ...]
    noise: Noise
    prompt_lengths: tuple[
        int, ...
    ] = ()  # (B,) how many of the tokens were given; some settings count only new ones

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last token of each row."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])
