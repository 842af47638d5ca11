"""The heads of Jakiro and Jakiro* (Huang et al. 2025): EAGLE's with two experts in place of the MLP. Jakiro's
have a second output, for one token more.

Letters: R texts, N tokens, A nodes, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
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


class PlainExpert(nn.Module):
    """An expert of Jakiro*: an MLP without a gate."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, states: Tensor) -> Tensor:  # (..., D) -> (..., D)
        return self.down(gelu(self.up(states)))


class TwoExperts(nn.Module):
    """Two experts and their router, which has a pair of numbers for each output: for one, or with `contrast`
    for two."""

    def __init__(self, config: LlamaConfig, contrast: bool = True) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.router = nn.Linear(size, 4 if contrast else 2, bias=False)
        self.experts = nn.ModuleList([Expert(size) if contrast else PlainExpert(size, inner) for _ in "01"])

    def forward(self, states: Tensor) -> Tensor:  # (..., D) -> (..., D)
        """The output for the next token: the experts' weighted sum."""
        outputs, weights = self._routed(states, 0)
        return states + (weights * outputs).sum(-2)

    def apart(self, states: Tensor) -> Tensor:  # (..., D) -> (2, ..., D)
        """What the output for the next token would be with one expert alone: with the one that has the larger
        weight, then with the other one. Equal weights count as if the first were larger."""
        outputs, weights = self._routed(states, 0)
        is_larger = weights[..., :1, :] >= weights[..., 1:, :]
        ordered = torch.where(is_larger, outputs, outputs.flip(-2))
        return states + ordered.movedim(-2, 0)

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
    them gives other outputs too: each expert's alone, and with `has_contrast` the last level of a draft."""

    method = "jakiro"

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        lm_head: nn.Module,
        *,
        bias: bool = True,
        contrast: bool = True,
    ) -> None:
        super().__init__(config, embed, lm_head, bias=bias)
        self.layers = nn.ModuleList([AttentionLayer(config)])
        self.norm = TwoExperts(config, contrast)
        self.has_contrast, self.apart_layer = contrast, 0
        if contrast:
            self.tail_levels, self.tail_reads, self.tail_layer = 1, 1, 0

    def apart(self, states: Tensor) -> Tensor:
        assert isinstance(self.norm, TwoExperts)
        return self.norm.apart(states)

    def tail(self, embedded: Tensor, states: Tensor, count: int) -> Tensor:
        assert isinstance(self.norm, TwoExperts)
        return self.norm.contrast(states)


def untrained_jakiro(target: TargetWithLayers, seed: int = 0, contrast: bool = True) -> DraftHead:
    """A head of Jakiro, or without `contrast` of Jakiro*, for a target with random weights."""
    head = JakiroHead(head_config(target, target.vocab), target.embed, target.head, contrast=contrast)
    return untrained(head, target, seed, (head.fc, head.layers, head.norm))
