"""The head of ParallelSpec (Xiao et al. 2024): EAGLE's, which also reads learned masks.

Letters: N tokens, D hidden size, V vocabulary size of the target, k masks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle.head import EagleHead

NUM_MASKS = 4


class ParallelSpecHead(EagleHead):
    """EAGLE's head with `num_masks` learned tokens, of the ids from V on: at mask j behind a token its logits
    are for the token j + 1 places further. Masks, and drafted tokens, have a learned feature."""

    method = "parallelspec"

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        lm_head: nn.Module,
        *,
        num_masks: int = NUM_MASKS,
        bias: bool = True,
    ) -> None:
        super().__init__(config, embed, lm_head, bias=bias)
        self.num_masks, self._vocab = num_masks, config.vocab_size
        self.mask_embeddings = nn.Parameter(torch.zeros(num_masks, config.hidden_size))
        self.mask_feature = nn.Parameter(torch.zeros(config.hidden_size))

    def embedded(self, ids: Tensor) -> Tensor:
        mask = (ids - self._vocab).clamp(min=0)
        tokens = self.embed_tokens(ids.clamp(max=self._vocab - 1))
        return torch.where((ids < self._vocab)[..., None], tokens, self.mask_embeddings[mask].to(tokens))

    def mask_inputs(self, count: int) -> tuple[Tensor, Tensor]:
        return torch.arange(self._vocab, self._vocab + count), self.mask_feature


def draw_masks(head: ParallelSpecHead, seed: int) -> None:
    """Draw the masks' embeddings and feature from a seed, normally distributed with standard deviation 0.02,
    that of embeddings in Llama models."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mask in (head.mask_embeddings, head.mask_feature):
            mask.copy_(0.02 * torch.randn(mask.shape, generator=generator))


def untrained_parallelspec(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of ParallelSpec for a target with random weights."""
    head = ParallelSpecHead(head_config(target, target.vocab), target.embed, target.head)
    weight = next(target.embed.parameters())
    for mask in (head.mask_embeddings, head.mask_feature):
        mask.data = mask.data.to(weight)
    draw_masks(head, seed)
    return untrained(head, target, seed, (head.fc, head.layers))
