"""What is known before a step, and how a request wants its tokens chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outpace.core.noise import Noise, apart

if TYPE_CHECKING:
    from outpace.core.contracts import Cache


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request's tokens are chosen; applied to every node of its tree."""

    temperature: float = 0.0  # 0 makes the law one-hot: greedy is a law, not a mode
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[int, ...] = ()  # token ids that end the text; the stop token itself is kept
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; use 0 for greedy decoding or a positive number")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; ask for at least one token")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; use 0 for no limit or a positive number")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; use a number above 0 and at most 1")

    @property
    def greedy(self) -> bool:
        """Whether the law is one-hot."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before a step; read-only. Row b of the batch is the sequence kept in slot `slots[b]`."""

    tokens: tuple[Tensor, ...]  # B × (T_b,) int64 on the host: views of one history; committed, then any assumed
    committed: tuple[int, ...]  # how many of them are certain; the last one is the root
    room: tuple[int, ...]  # longest path still useful: one less than the tokens still wanted
    slots: tuple[int, ...]
    cache: Cache  # the target's; drafters never write to it
    sampling: tuple[Sampling, ...]
    noise: Noise

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last token of each row."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])

    def apart(self, index: int) -> Context:
        """The same context with noise of its own, for one of several parts that draw in the same step."""
        return replace(self, noise=apart(self.noise, index))
