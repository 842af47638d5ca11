"""The state of a batch before a decoding step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outpace.core.noise import Noise
from outpace.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from outpace.core.contracts import Cache


@dataclass(frozen=True, slots=True)
class Context:
    """The state before a step, read-only. Row b of the batch is the sequence in slot `slots[b]`."""

    tokens: tuple[Tensor, ...]  # B × (T_b,) int64 on the host, views of the session's history
    committed: tuple[int, ...]  # how many of them are committed; the last one is the root
    room: tuple[int, ...]  # longest useful path: one less than the tokens still to generate
    slots: tuple[int, ...]
    cache: Cache  # the target's KV cache; drafters never write to it
    sampling: tuple[SamplingParams, ...]
    noise: Noise
    prompt_lengths: tuple[
        int, ...
    ] = ()  # (B,) tokens of the prompt; some sampling parameters count only new tokens

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last token of each row."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])
