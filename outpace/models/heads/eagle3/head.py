"""The head of EAGLE-3 (Li et al. 2025): features of several layers, and an LM head over a draft vocabulary.

Letters: N tokens, D hidden size, K tokens of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained


class Eagle3Layer(LlamaDecoderLayer):
    """A decoder layer whose attention reads the embedding beside the hidden states, each normed."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        norm_before_residual: bool,
        qk_norm: bool = False,  # norms of queries and keys, as in Qwen3, whose layers are otherwise Llama's
    ) -> None:
        super().__init__(config, 0)
        size, shape = config.hidden_size, cast(Any, config)
        attention: Any = Qwen3Attention(shape, 0) if qk_norm else self.self_attn
        self.self_attn = attention
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(attention, name)
            wide = nn.Linear(2 * size, narrow.out_features, bias=narrow.bias is not None)
            setattr(attention, name, wide)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.norm_before_residual = norm_before_residual
        self.qk_norm = qk_norm

    def forward(self, hidden_states: Tensor, *, embedded: Tensor, **attention: Any) -> Tensor:  # (1, N, D)
        return self.attended(*self.joined(hidden_states, embedded), **attention)

    def joined(self, hidden_states: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads (1, N, 2D), and what its output is added to (1, N, D)."""
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        return torch.cat((self.input_layernorm(embedded), normed), -1), residual

    def attended(self, both: Tensor, residual: Tensor, **attention: Any) -> Tensor:
        """The layer's output (1, N, D) from what `joined` returns."""
        states = residual + self.self_attn(hidden_states=both, **attention)[0]
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Head(DraftHead):
    """Fuses the outputs of several layers of the target to the feature of a token. While drafting, the output
    of the head's layer is the next feature: before the final norm, or after it with `norm_output`."""

    method = "eagle3"
    before_forward = ("fc.",)

    def __init__(
        self,
        config: LlamaConfig,  # its vocabulary size is K
        embed: nn.Module,
        taps: Sequence[int],  # layers of the target whose outputs make the features, in increasing order
        *,
        draft_ids: Tensor | None = None,  # (K,) target token of each logit
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,  # one norm over the joined outputs of all layers
        fc_norm: bool = False,  # instead, one norm over the outputs of each layer
        norm_output: bool = False,
        qk_norm: bool = False,
    ) -> None:
        if norm_before_fc and fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other: norm all layers or each of them")
        # servers keep hidden states in the order of layers, whatever the order in a configuration
        if list(taps) != sorted(set(taps)) or not taps or taps[0] < 0:
            raise ValueError(f"the layers of a head are different and in increasing order, not {list(taps)}")
        super().__init__(config, embed, taps)
        size, eps = config.hidden_size, config.rms_norm_eps
        joined = len(self.taps) * size
        self.input_norm = LlamaRMSNorm(joined, eps=eps) if norm_before_fc else None
        self.fc_norm = norms_of_taps(config, len(self.taps)) if fc_norm else None
        self.fc = nn.Linear(joined, size, bias=False)
        layer = Eagle3Layer(config, norm_before_residual=norm_before_residual, qk_norm=qk_norm)
        self.layers = nn.ModuleList([layer])
        self.norm = LlamaRMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.draft_ids = draft_ids
        self.state_layer = -1 if norm_output else 0

    def fuse(self, hidden: Tensor) -> Tensor:
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.chunk(len(self.taps), -1)
            norms = self.fc_norm.values()
            hidden = torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)], -1)
        return self.fc(hidden)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features, "embedded": embedded}


def norms_of_taps(config: LlamaConfig, count: int) -> nn.ModuleDict:
    """A norm for each of several layers of the target."""
    # no ModuleList: OutputCapture takes a model's first ModuleList for its layers
    norms = {str(index): LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for index in range(count)}
    return nn.ModuleDict(norms)


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Layers near the beginning, the middle and the end. With 32 layers or more they are the paper's: the
    inputs of layers 2, n // 2 and n - 3, that is, the outputs of the layers before. In less deep models the
    last one is proportionally closer to the end; models of fewer than 7 layers use distinct layers spread
    over their depth."""
    if num_layers >= 7:
        return 1, num_layers // 2 - 1, num_layers - min(4, max(2, num_layers // 8))
    return tuple(sorted({0, (num_layers - 1) // 2, max(0, num_layers - 1)}))


def untrained_eagle3(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of EAGLE-3 for a target with random weights, and the whole vocabulary as draft vocabulary."""
    head = Eagle3Head(head_config(target, target.vocab), target.embed, default_taps(target.num_layers))
    return untrained(head, target, seed, (head.fc, head.layers, head.lm_head))
