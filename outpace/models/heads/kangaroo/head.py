"""The adapter of Kangaroo (Liu et al. 2024): one attention block behind a target's first layers.

Letters: N tokens, D hidden size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained


class AttentionLayer(nn.Module):
    """A decoder layer of Llama without its MLP: norm and attention with a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, 0)

    def forward(self, hidden_states: Tensor, **attention: Any) -> Tensor:  # (1, N, D)
        normed = self.input_layernorm(hidden_states)
        return hidden_states + self.self_attn(hidden_states=normed, **attention)[0]


class KangarooHead(DraftHead):
    """Turns the output of the target's first `num_early_layers` layers at a token into logits for the next
    token, with an attention block, a norm and the target's LM head.

    Unlike in other heads, the entry of its KV cache at position t belongs to token t of the text."""

    method = "kangaroo"
    from_target = ("embed_tokens.", "lm_head.")

    def __init__(
        self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module, num_early_layers: int
    ) -> None:
        """`num_early_layers`: number of the target's layers that draft."""
        super().__init__(config, embed, (num_early_layers - 1,))
        self.num_early_layers = num_early_layers
        self.layers = nn.ModuleList([AttentionLayer(config)])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = lm_head

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features}


def default_early_layers(num_layers: int) -> int:
    """About one layer in 14: 2 of 32 layers and 3 of 40, as in the paper."""
    return max(1, round(num_layers / 14))


def untrained_kangaroo(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """An adapter of Kangaroo for a target with random weights. ValueError for a target of one layer."""
    if target.num_layers < 2:
        raise ValueError("a target of one layer has no early exit: use a draft model")
    early = default_early_layers(target.num_layers)
    head = KangarooHead(head_config(target, target.vocab), target.embed, target.head, early)
    return untrained(head, target, seed, (head.layers,))
