"""The head of Gumiho (Li et al. 2025): EAGLE's with two decoder layers for the first tokens, and an MLP for
each of the further ones.

Letters: A nodes, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.position_head import ResidualBlocks

NUM_LAYERS, NUM_MLPS = 2, 5
NUM_BLOCKS = 5  # of each MLP


class GumihoHead(EagleHead):
    """EAGLE's head with `num_mlps` MLPs: each reads what `fc` makes of the last two tokens of a path, and
    gives the hidden state from which the LM head predicts the next token, the one after it, and so on."""

    method = "gumiho"

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        lm_head: nn.Module,
        *,
        num_mlps: int = NUM_MLPS,
        bias: bool = True,
    ) -> None:
        super().__init__(config, embed, lm_head, bias=bias)
        size = config.hidden_size
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(2 * size, size), nn.SiLU(), ResidualBlocks(size, NUM_BLOCKS))
                for _ in range(num_mlps)
            ]
        )
        self.tail_levels, self.tail_reads = num_mlps, 2

    def tail(self, embedded: Tensor, states: Tensor, count: int) -> Tensor:
        pairs = self.fc(torch.cat((embedded, states), -1)).flatten(1)  # (A, 2 × D)
        return torch.stack([mlp(pairs) for mlp in list(self.mlps)[:count]], 1)


def untrained_gumiho(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of Gumiho for a target with random weights."""
    head = GumihoHead(head_config(target, target.vocab, NUM_LAYERS), target.embed, target.head)
    return untrained(head, target, seed, (head.fc, head.layers, head.mlps))
