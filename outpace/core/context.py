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
    """The state of a batch of B rows before a decoding step, read-only."""

    tokens: tuple[Tensor, ...]  # B × (T_b,) int64 on the host, prompt and output; views of the history
    committed: tuple[int, ...]  # (B,) number of committed tokens; the last of them is the root of the draft
    # (B,) tokens that may still be generated, without the bonus token; 0 where more of the text is unread
    max_draft_depth: tuple[int, ...]
    slots: tuple[int, ...]  # (B,) slot of each row in the session and the KV cache
    cache: Cache  # the target's KV cache; drafters never write to it
    sampling: tuple[SamplingParams, ...]  # (B,)
    noise: Noise  # source of all random choices of the step
    # (B,) number of prompt tokens; some sampling parameters count only generated tokens
    prompt_lengths: tuple[int, ...] = ()
    # B × (G_b,) tokens before each root that the target has not read, such as those of a prompt; the step's
    # forward reads them. None: there are none in any row
    unread: tuple[Tensor, ...] | None = None

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last committed token of each row, which is the root of its draft tree."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])
