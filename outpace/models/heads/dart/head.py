"""The head of DART (Liu et al. 2026): EAGLE-3's, which drafts several tokens in one forward, in copies of one
learned mask.

Letters: R texts, N tokens, D hidden size of the target, F = D + 1 size of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle3.head import Eagle3Head, Eagle3Layer, default_taps

NUM_MASKS = 7


class DartLayer(Eagle3Layer):
    """EAGLE-3's layer, in which masks stand for the normed embedding and hidden states of a token."""

    def __init__(self, config: LlamaConfig, **options: Any) -> None:  # of Eagle3Layer
        super().__init__(config, **options)
        # what the attention reads at a mask; its first half is what the attention's output is added to
        self.mask_rep = nn.Parameter(torch.zeros(2 * config.hidden_size))

    def forward(
        self, hidden_states: Tensor, *, embedded: Tensor, is_mask: Tensor, **attention: Any
    ) -> Tensor:  # (R, N, D) each, (R, N, 1) bool
        both, residual = self.joined(hidden_states, embedded)
        both = torch.where(is_mask, self.mask_rep, both)
        residual = torch.where(is_mask, self.mask_rep[: residual.shape[-1]], residual)
        return self.attended(both, residual, **attention)


class DartHead(Eagle3Head):
    """EAGLE-3's head, behind whose last token stand up to `num_masks` masks, all alike but for their
    positions: at the j-th its logits are for the token j + 1 places further.

    A feature is a token's fused hidden states and a 0; that of a mask has a 1 in the last place."""

    method = "dart"

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        taps: Sequence[int],
        *,
        num_masks: int = NUM_MASKS,
        norm_before_residual: bool = False,
        qk_norm: bool = False,
        **options: Any,  # of Eagle3Head
    ) -> None:
        super().__init__(config, embed, taps, **options)
        layer = DartLayer(config, norm_before_residual=norm_before_residual, qk_norm=qk_norm)
        self.layers = nn.ModuleList([layer])
        self.feature_size = config.hidden_size + 1
        self.num_masks = num_masks

    def fuse(self, hidden: Tensor) -> Tensor:
        return nn.functional.pad(super().fuse(hidden), (0, 1))

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        is_mask = features[..., -1:] > 0.5
        return {"hidden_states": features[..., :-1], "embedded": embedded, "is_mask": is_mask}

    def mask_inputs(self, count: int) -> tuple[Tensor, Tensor]:
        feature = next(self.layers.parameters()).new_zeros(self.feature_size)
        feature[-1] = 1
        return torch.zeros(count, dtype=torch.int64), feature


def draw_mask(head: DartHead, seed: int) -> None:
    """Draw the mask from a seed, normally distributed as what norms return."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in head.layers:
            assert isinstance(layer, DartLayer)
            layer.mask_rep.copy_(torch.randn(layer.mask_rep.shape, generator=generator))


def untrained_dart(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of DART for a target with random weights, and the whole vocabulary as draft vocabulary."""
    head = DartHead(head_config(target, target.vocab), target.embed, default_taps(target.num_layers))
    made = untrained(head, target, seed, (head.fc, head.layers, head.lm_head))
    draw_mask(head, seed)
    return made
