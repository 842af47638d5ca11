"""The heads of Hydra (Ankner et al. 2024): like Medusa's, but each also reads the earlier draft tokens.

Hydra++ adds a prefix layer: a decoder layer over the hidden states of the whole text, whose output takes the
place of the target's hidden state.

Letters: M nodes of one depth, N tokens, D hidden size of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.position_head import Mixer, PositionHead, ResidualBlocks, random_parameters


class PrefixLayer(DraftHead):
    """The decoder layer of Hydra++ as a draft head that runs over the text with a KV cache. In place of
    logits it returns its normed outputs (N, D)."""

    def __init__(self, config: LlamaConfig, embed: nn.Module) -> None:
        super().__init__(config, embed, (-1,))
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Identity()

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features}


class HydraHead(PositionHead):
    """Head k, counted from 1, predicts the token k positions after the root from the hidden state and the
    embeddings of the root and the k - 1 draft tokens on the path. A node's state is the concatenation of
    these vectors."""

    method = "hydra"

    def __init__(
        self,
        target: TargetWithLayers,
        num_heads: int,
        *,
        num_layers: int = 1,  # blocks of each head, the first included
        bias: bool = True,  # of the LM heads
        prefix: PrefixLayer | None = None,  # Hydra++
        draft_ids: Tensor | None = None,  # (K,) token of each logit; None: the whole vocabulary
    ) -> None:
        super().__init__(target, num_heads, draft_ids)
        self.num_heads, self.num_layers = num_heads, num_layers
        size = self.hidden_size
        self.mixers = nn.ModuleList([Mixer(head + 2, size) for head in range(num_heads)])
        self.blocks = nn.ModuleList([ResidualBlocks(size, num_layers - 1) for _ in range(num_heads)])
        self.lm_heads = nn.ModuleList(
            [nn.Linear(size, self.num_draft_tokens, bias=bias) for _ in range(num_heads)]
        )
        self.prefix = prefix
        self.dropout = nn.Dropout(0.0)  # of the inputs of blocks and LM heads, in training

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.cat((states, self.embed_tokens(tokens).to(states.dtype)), -1)
        mixed = self.blocks[depth](self.mixers[depth](self.dropout(states)), self.dropout)
        return self.lm_heads[depth](self.dropout(mixed)), states


def prefix_layer(target: TargetWithLayers) -> PrefixLayer:
    """A prefix layer for a target, with the widths of the target's own layers; its weights are undefined."""
    # the vocabulary size is that of its outputs
    config = head_config(target, int(next(target.embed.parameters()).shape[1]))
    return PrefixLayer(config, target.embed)


def untrained_hydra(target: TargetWithLayers, seed: int = 0) -> PositionHead:
    """Four heads of four blocks for a target and a prefix layer, as in Hydra++, with random weights."""
    return random_parameters(HydraHead(target, 4, num_layers=4, prefix=prefix_layer(target)), seed)
