"""The head of EAGLE-3 (Li et al. 2025): features of several layers, and an LM head over a draft vocabulary.

Letters: N tokens, D hidden size, K tokens of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from outpace.models.heads.draft_head import DraftHead


class Eagle3Layer(LlamaDecoderLayer):
    """A decoder layer whose attention reads the embedding beside the hidden states, each normed."""

    def __init__(self, config: LlamaConfig, *, norm_before_residual: bool) -> None:
        super().__init__(config, 0)
        size, attention = config.hidden_size, self.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(attention, name)
            wide = nn.Linear(2 * size, narrow.out_features, bias=narrow.bias is not None)
            setattr(attention, name, wide)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.norm_before_residual = norm_before_residual

    def forward(self, hidden_states: Tensor, *, embedded: Tensor, **attention: Any) -> Tensor:  # (1, N, D)
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        both = torch.cat((self.input_layernorm(embedded), normed), -1)
        states = residual + self.self_attn(hidden_states=both, **attention)[0]
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Head(DraftHead):
    """Fuses the outputs of several layers of the target to the feature of a token; while drafting, the
    layer's output before the norm is the next feature, or after it with `norm_output`."""

    def __init__(
        self,
        config: LlamaConfig,  # its vocabulary size is K
        embed: nn.Module,
        taps: Sequence[int],  # layers of the target whose outputs make the features
        *,
        draft_ids: Tensor | None = None,  # (K,) target token of each logit, in increasing order
        norm_before_residual: bool = False,
        norm_output: bool = False,
    ) -> None:
        super().__init__(config, embed, taps)
        size = config.hidden_size
        self.fc = nn.Linear(len(self.taps) * size, size, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config, norm_before_residual=norm_before_residual)])
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.draft_ids = draft_ids
        self.state_layer = -1 if norm_output else 0

    def fuse(self, hidden: Tensor) -> Tensor:
        return self.fc(hidden)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features, "embedded": embedded}


def default_taps(num_layers: int) -> tuple[int, ...]:
    """The layers of the paper: the inputs of layers 2, n // 2 and n - 3 are the outputs of those before.
    Models of fewer than 7 layers use distinct layers spread over their depth."""
    if num_layers >= 7:
        return 1, num_layers // 2 - 1, num_layers - 4
    return tuple(sorted({0, (num_layers - 1) // 2, max(0, num_layers - 1)}))
