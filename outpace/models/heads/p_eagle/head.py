"""The head of P-EAGLE (Hui et al. 2026): EAGLE-3's, which drafts several tokens at once, in mask slots.

Letters: D hidden size, taps as in `DraftHead`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle3.head import Eagle3Head, default_taps


class FurtherLayer(LlamaDecoderLayer):
    """A decoder layer after the first, which does not read embeddings."""

    def forward(self, hidden_states: Tensor, *, embedded: Tensor, **attention: Any) -> Tensor:
        return super().forward(hidden_states, **attention)


class PEagleHead(Eagle3Head):
    """EAGLE-3's head whose masks have the embedding of one token of the target's vocabulary, and learned
    outputs of the target's layers in place of those that are not known. Any number of masks may follow a
    token. Published heads have four decoder layers, of which the first is EAGLE-3's."""

    method = "p-eagle"
    before_forward = ("fc.", "mask_hidden")

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        taps: Sequence[int],
        *,
        mask_token: int,
        **options: Any,  # of Eagle3Head
    ) -> None:
        super().__init__(config, embed, taps, **options)
        self.layers.extend(FurtherLayer(config, index) for index in range(1, config.num_hidden_layers))
        self.mask_token = mask_token
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(self.taps) * config.hidden_size))

    def mask_inputs(self, count: int) -> tuple[Tensor, Tensor]:
        return torch.full((count,), self.mask_token), self.fuse(self.mask_hidden.flatten()[None])[0]


def draw_mask(head: PEagleHead, seed: int) -> None:
    """Draw the masks' outputs of layers from a seed, normally distributed with standard deviation 0.02."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.mask_hidden.copy_(0.02 * torch.randn(head.mask_hidden.shape, generator=generator))


def untrained_p_eagle(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of P-EAGLE for a target with random weights, with the last token as mask."""
    layers, taps = head_config(target, target.vocab), default_taps(target.num_layers)
    head = PEagleHead(layers, target.embed, taps, mask_token=target.vocab - 1)
    head.mask_hidden.data = head.mask_hidden.data.to(next(target.embed.parameters()))
    draw_mask(head, seed)
    return untrained(head, target, seed, (head.fc, head.layers, head.lm_head))
