"""Reads a prompt for the log probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outpace.api.prompt_logprobs import PromptLogprob, prompt_logprobs
from outpace.core.contracts import Prompt, Target, Want
from outpace.core.threads import with_torch_threads

TOKENS_AT_ONCE = 128  # whose logits over the vocabulary are in memory at the same time


class PromptReader:
    """Reads a prompt part by part, in forwards and a KV cache of its own, as decoding keeps no logits of
    prompts."""

    def __init__(self, target: Target, prompt: Tensor, num_top: int) -> None:  # (T,) int64, T >= 1
        """`num_top`: most probable tokens per PromptLogprob."""
        self.found: list[PromptLogprob | None] = [None]  # one per token so far; nothing is before the first
        self._target, self._prompt, self._num_top = target, prompt, num_top
        self._cache = target.open(1, len(prompt))
        self._parts = with_torch_threads(target.torch_threads, self._read())

    @property
    def num_bytes(self) -> int:
        """Memory of the KV cache, in bytes."""
        return self._cache.num_bytes

    def next_part(self) -> bool:
        """Read the next part; False if nothing was left to read."""
        return next(self._parts, None) is not None

    @torch.inference_mode()
    def _read(self) -> Iterator[int]:
        for begin in range(0, len(self._prompt) - 1, TOKENS_AT_ONCE):
            part = self._prompt[begin : begin + TOKENS_AT_ONCE + 1]
            _, scores = self._target.prefill([Prompt(part)], [0], self._cache, Want(prompt_logits=True))
            assert scores.logits is not None
            self.found += prompt_logprobs(scores.logits, part[1:].tolist(), self._num_top)
            yield len(part)
