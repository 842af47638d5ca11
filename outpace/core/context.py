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
