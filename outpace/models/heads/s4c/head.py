"""The heads of S4C (He et al. 2025): EAGLE's layer for the first draft token and light blocks for the others.

Letters: M nodes of one depth, S = D hidden size of the target, K = V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import head_config
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.position_head import Mixer, PositionHead, random_parameters

NUM_HEADS = 5  # our choice


class S4CHead(PositionHead):
    """Head 1 is EAGLE's layer over the text, the prefix of the others: its output at the root is the state of
    the root. Head k, from 2 on, reads the state of a node's parent and the embedding of the node's token; its
    output is the node's state. The target's LM head turns states into logits."""

    method = "s4c"

    def __init__(self, target: TargetWithLayers, num_heads: int, layer: LlamaConfig) -> None:
        super().__init__(target, num_heads)
        self.num_heads = num_heads
        self.prefix = EagleHead(layer, target.embed, nn.Identity(), bias=False)
        self.mixers = nn.ModuleList([Mixer(2, self.hidden_size) for _ in range(num_heads - 1)])
        self.lm_head = target.head

    @property
    def own(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in super().own.items() if not name.startswith("lm_head.")}

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if depth:
            embedded = self.embed_tokens(tokens).to(states.dtype)
            states = self.mixers[depth - 1](torch.cat((states, embedded), -1))
        dtype = next(self.lm_head.parameters()).dtype  # another one where the heads learn
        return self.lm_head(states.to(dtype)), states


def first_layer(target: TargetWithLayers) -> LlamaConfig:
    """The configuration of head 1, with the widths of the target's own layers."""
    # the vocabulary size is that of its outputs
    return head_config(target, int(next(target.embed.parameters()).shape[1]))


def untrained_s4c(target: TargetWithLayers, seed: int = 0) -> PositionHead:
    """Heads for a target with random weights."""
    return random_parameters(S4CHead(target, NUM_HEADS, first_layer(target)), seed)
