"""How Kangaroo's adapter learns (Liu et al. 2024).

Letters: R texts, T tokens, M columns (see training.lessons.lesson), D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outpace.models.heads.kangaroo import KangarooHead
from outpace.training import losses
from outpace.training.features import Batch
from outpace.training.lessons.lesson import DrafterLesson, following
from outpace.training.unrolled import over_text


class AdapterLesson(DrafterLesson):
    """Cross entropy between the adapter's distribution and the target's after each token, from the target's
    output of the layer before the exit. While drafting it reads the same outputs: nothing is unrolled."""

    def __init__(self, head: KangarooHead, target_head: nn.Module, num_early_parameters: int) -> None:
        """`num_early_parameters`: those of the target's layers that draft."""
        super().__init__(head.own, target_head)
        self.head = head
        self.layers = sorted({-1, *head.taps})
        self._num_early_parameters = num_early_parameters

    @property
    def num_draft_parameters(self) -> int:
        """Those of the adapter and of the layers before it."""
        return super().num_draft_parameters + self._num_early_parameters

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        (logits,) = self.drafted(batch, 1)
        return losses.soft_cross_entropy(logits, self.target_logits(batch, 0), self.learned(batch, 0))

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        weight = next(self.head.layers.parameters())
        states = batch.hidden[self.head.taps[0]].to(weight.dtype)
        outputs = over_text(self.head, batch.tokens, states)  # (R, T, D)
        for step in range(num_steps):
            yield self.head.lm_head(self.at_columns(following(outputs, 1 + step), batch))
