"""The head of DFlash (Chen et al. 2026): a few decoder layers that fill a block of masks in one forward.

A block is the last token of the text and masks behind it, all of which attend to one another. Before it, in
every layer, stand keys and values of the text alone: projections of the target's hidden states at each token
but the last, fused once for all layers.

Letters: R texts, N tokens, D hidden size, F = D + 1 size of a feature, K tokens of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained

BLOCK_SIZE, NUM_LAYERS = 8, 2  # of new heads; the paper's have blocks of 16 tokens and 5 layers


class DFlashLayer(nn.Module):
    """A decoder layer of Qwen3, in which context gives keys and values only."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        super().__init__()
        attention: Any = Qwen3Attention(cast(Any, config), index)
        self.self_attn = attention
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden_states: Tensor, *, context: Tensor, is_context: Tensor, **attention: Any
    ) -> Tensor:  # (R, N, D) each, (R, N, 1) bool
        # the outputs at context tokens have no meaning, and no token reads them
        read = torch.where(is_context, context, self.input_layernorm(hidden_states))
        states = hidden_states + self.self_attn(hidden_states=read, **attention)[0]
        return states + self.mlp(self.post_attention_layernorm(states))


class DFlashHead(DraftHead):
    """Reads blocks of `num_masks` masks behind a token: the logits at a mask are for the token in its place.

    A feature is a token's fused hidden states and the number 1; the tokens of a block have zeros in its
    place. The target's LM head gives the logits, or one of the head's own over a draft vocabulary. With
    `drafts_at_root` the logits at every token of the block, the first one too, are for the token after it."""

    method = "dflash"
    feature_lag = 0
    two_way = True
    before_forward = ("fc.", "hidden_norm.")

    def __init__(
        self,
        config: LlamaConfig,  # its vocabulary size is K
        embed: nn.Module,
        lm_head: nn.Module,  # the target's
        taps: Sequence[int],  # layers of the target whose outputs make the features, in increasing order
        *,
        mask_token: int,  # a token of the target, whose embedding the masks have
        num_masks: int = BLOCK_SIZE - 1,
        drafts_at_root: bool = False,
        draft_ids: Tensor | None = None,  # (K,) target token of each logit
    ) -> None:
        if list(taps) != sorted(set(taps)) or not taps or taps[0] < 0:
            raise ValueError(f"the layers of a head are different and in increasing order, not {list(taps)}")
        super().__init__(config, embed, taps)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.feature_size = size + 1
        self.num_masks, self.mask_token, self.drafts_at_root = num_masks, mask_token, drafts_at_root
        self.fc = nn.Linear(len(self.taps) * size, size, bias=False)
        self.hidden_norm = LlamaRMSNorm(size, eps=eps)
        self.layers = nn.ModuleList([DFlashLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = LlamaRMSNorm(size, eps=eps)
        self.draft_ids = draft_ids
        if draft_ids is None:
            self.lm_head, self.from_target = lm_head, ("embed_tokens.", "lm_head.")
        else:
            self.lm_head = nn.Linear(size, config.vocab_size, bias=False)

    def fuse(self, hidden: Tensor) -> Tensor:
        return nn.functional.pad(self.hidden_norm(self.fc(hidden)), (0, 1), value=1.0)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        is_context = features[..., -1:] > 0.5
        return {"hidden_states": embedded, "context": features[..., :-1], "is_context": is_context}

    def mask_inputs(self, count: int) -> tuple[Tensor, Tensor]:
        return torch.full((count,), self.mask_token), torch.zeros(self.feature_size)


def default_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """`count` layers of the target, or as many as there are, spread evenly from its second to its third last
    one as in the paper; in targets of fewer than `count` + 3 layers, over all of them."""
    first, last = (1, num_layers - 3) if num_layers >= count + 3 else (0, num_layers - 1)
    if count == 1:
        return (num_layers // 2,)
    return tuple(sorted({round(first + index * (last - first) / (count - 1)) for index in range(count)}))


def default_mask(vocab: int) -> int:
    """The last id of the vocabulary, which texts seldom or never have."""
    return vocab - 1


def untrained_dflash(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of DFlash for a target with random weights."""
    config = head_config(target, target.vocab, NUM_LAYERS)
    taps = default_taps(target.num_layers, NUM_LAYERS)
    head = DFlashHead(config, target.embed, target.head, taps, mask_token=default_mask(target.vocab))
    head.hidden_norm.to(next(target.embed.parameters()))
    return untrained(head, target, seed, (head.fc, head.layers))
