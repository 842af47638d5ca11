"""The head of EAGLE and EAGLE-2 (Li et al. 2024): a decoder layer over embeddings and hidden states.

Letters: N tokens, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained


class EagleHead(DraftHead):
    """Predicts the next input of the target's LM head: from a token's embedding and the preceding hidden
    state (first and second half of the input of `fc`) to the token's own hidden state, which the target's LM
    head turns into logits. The first decoder layer has no norm at its input, and none follows the last. EAGLE
    has one layer; heads with more (Yan et al. 2025, Scylla) have the same layout."""

    method = "eagle"
    from_target = ("embed_tokens.", "lm_head.")

    def __init__(
        self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module, *, bias: bool = True
    ) -> None:
        super().__init__(config, embed, (-1,))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layers: list[Any] = [LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers)]
        layers[0].input_layernorm = nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.Identity()
        self.lm_head = lm_head

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": self.fc(torch.cat((embedded, features), -1))}


def untrained_eagle(target: TargetWithLayers, seed: int = 0, num_layers: int = 1) -> DraftHead:
    """A head of EAGLE for a target with random weights."""
    head = EagleHead(head_config(target, target.vocab, num_layers), target.embed, target.head)
    return untrained(head, target, seed, (head.fc, head.layers))
