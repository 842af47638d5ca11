"""The state of one request in a session: its text and its limits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.sampling_params import SamplingParams


class RequestState:
    """The text of one request, prompt and generated tokens, and how far it may grow."""

    __slots__ = (
        "_array",
        "_memory",
        "length",
        "max_length",
        "num_cached",
        "num_steps",
        "prompt_length",
        "sampling",
    )

    def __init__(self, prompt: Tensor, sampling: SamplingParams) -> None:  # (T,) int64, T >= 1
        self.sampling = sampling
        self.prompt_length = self.length = len(prompt)
        self.max_length = self.length + sampling.max_tokens
        self.num_steps = 0  # number of steps that could generate tokens
        # number of prompt tokens found in the prefix cache when the request first joined a session; None
        # before that, or without a prefix cache
        self.num_cached: int | None = None
        self._memory = torch.empty(self.max_length, dtype=torch.int64)
        self._memory[: self.length] = prompt
        self._array = self._memory.numpy()  # numpy view, faster to write to

    @property
    def max_draft_depth(self) -> int:
        """Number of tokens that may still be generated, without the bonus token."""
        return self.max_length - self.length - 1

    def text(self, end: int | None = None) -> Tensor:  # (T,) int64
        """The tokens of prompt and output, up to index `end`; a view."""
        return self._memory[: self.length if end is None else end]

    def output(self) -> list[int]:
        """The generated tokens."""
        return self._array[self.prompt_length : self.length].tolist()

    def append(self, tokens: Sequence[int]) -> None:
        """Add generated tokens."""
        end = self.length + len(tokens)
        self._array[self.length : end] = tokens
        self.length = end
