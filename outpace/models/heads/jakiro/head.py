"""The head of Jakiro (Huang et al. 2025): EAGLE's with two experts in place of the MLP and two outputs.

Letters: R texts, N tokens, A nodes, D hidden size.
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
from outpace.models.heads.eagle.head import EagleHead


class AttentionLayer(LlamaDecoderLayer):
    """The attention of a decoder layer with its residual, without norms and MLP."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 0)
        del self.mlp, self.input_layernorm, self.post_attention_layernorm

    def forward(self, hidden_states: Tensor, **attention: Any) -> Tensor:  # (R, N, D)
        return hidden_states + self.self_attn(hidden_states=hidden_states, **attention)[0]


class Expert(nn.Module):
    """A gated MLP whose inner layer has the hidden size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, size, bias=False)
        self.up = nn.Linear(size, size, bias=False)
        self.down = nn.Linear(size, size, bias=False)

    def forward(self, states: Tensor) -> Tensor:  # (..., D) -> (..., D)
        return self.down(silu(self.gate(states)) * self.up(states))


class TwoExperts(nn.Module):
    """Two experts and their router, which has a pair of numbers for each of two outputs."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.router = nn.Linear(size, 4, bias=False)
        self.experts = nn.ModuleList([Expert(size), Expert(size)])

    def forward(self, states: Tensor) -> Tensor:  # (..., D) -> (..., D)
        """The output for the next token: the experts' weighted sum."""
        outputs, weights = self._routed(states, 0)
        return states + (weights * outputs).sum(-2)

    def contrast(self, states: Tensor) -> Tensor:  # (..., D) -> (..., D)
        """The output for the token after the next: of the weighted experts, the one with the larger weight
        minus the other one. Equal weights count as if the first were larger."""
        outputs, weights = self._routed(states, 2)
        is_larger = weights[..., :1, :] >= weights[..., 1:, :]
        signs = torch.where(is_larger, 1, -1).to(weights)
        return states + (torch.cat((signs, -signs), -2) * weights * outputs).sum(-2)

    def _routed(self, states: Tensor, first: int) -> tuple[Tensor, Tensor]:  # (..., 2, D), (..., 2, 1)
        """The outputs of both experts, and their weights by the router's numbers from `first` on."""
        normed = self.norm(states)
        weights = self.router(normed)[..., first : first + 2].softmax(-1)
        return torch.stack([expert(normed) for expert in self.experts], -2), weights[..., None]


class JakiroHead(EagleHead):
    """As EAGLE's head, from a token's embedding and the preceding hidden state to the token's own hidden
    state. `TwoExperts` stand in place of the norm before the LM head, so that the output of the layer before
    them gives the last level of a draft too, in their contrastive output."""

    method = "jakiro"

    def __init__(
        self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module, *, bias: bool = True
    ) -> None:
        super().__init__(config, embed, lm_head, bias=bias)
        self.layers = nn.ModuleList([AttentionLayer(config)])
        self.norm = TwoExperts(config)
        self.tail_levels, self.tail_reads, self.tail_layer = 1, 1, 0

    def tail(self, embedded: Tensor, states: Tensor, count: int) -> Tensor:
        assert isinstance(self.norm, TwoExperts)
        return self.norm.contrast(states)


def untrained_jakiro(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of Jakiro for a target with random weights."""
    head = JakiroHead(head_config(target, target.vocab), target.embed, target.head)
    return untrained(head, target, seed, (head.fc, head.layers, head.norm))
