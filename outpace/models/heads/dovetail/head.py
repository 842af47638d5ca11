"""The head of Dovetail (Zhang et al. 2025): decoder layers over a gated mixture of features and embeddings.

Letters: R texts, N tokens, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained

NUM_LAYERS = 5  # of the authors' runs, the deepest of 1 to 5 that the paper compares


class GatedFusion(nn.Module):
    """Mixes a feature and an embedding, number by number, with weights that depend on both (the paper's
    dynamic gating fusion)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)  # of the embedding
        self.feature = nn.Linear(size, size, bias=False)
        self.embedding = nn.Linear(size, size, bias=False)
        self.gate = nn.Linear(2 * size, size, bias=False)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:  # (R, N, D) each -> (R, N, D)
        feature, embedding = self.feature(features), silu(self.embedding(self.norm(embedded)))
        share = torch.sigmoid(self.gate(torch.cat((feature, embedding), -1)))
        return share * feature + (1 - share) * embedding


class DovetailHead(DraftHead):
    """As EAGLE's head, from a token's embedding and the preceding hidden state to the token's own hidden
    state, with `GatedFusion` in place of one linear map and with several decoder layers. The first layer has
    no norm at its input, and none follows the last."""

    method = "dovetail"
    from_target = ("embed_tokens.", "lm_head.")

    def __init__(self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module) -> None:
        super().__init__(config, embed, (-1,))
        self.fusion = GatedFusion(config)
        layers: list[Any] = [LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers)]
        layers[0].input_layernorm = nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.Identity()
        self.lm_head = lm_head

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": self.fusion(embedded, features)}


def untrained_dovetail(target: TargetWithLayers, seed: int = 0, num_layers: int = 2) -> DraftHead:
    """A head of Dovetail for a target with random weights; for proofs, which run it often, of two layers."""
    head = DovetailHead(head_config(target, target.vocab, num_layers), target.embed, target.head)
    return untrained(head, target, seed, (head.fusion, head.layers))
