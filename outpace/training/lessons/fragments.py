"""How a target and its heads learn to complete fragments (syntax-aligned Medusa, Xu et al. 2025).

Letters: R texts, T tokens, C and M columns (see training.lessons.lesson), V vocabulary size, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.heads.medusa.head import MedusaHead
from outpace.models.hf.target import HFTarget
from outpace.training import losses
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.lessons.lesson import following
from outpace.training.lessons.position_heads import Objective, PositionHeadLesson

OBJECTIVE = Objective(soft=False, weight=lambda step, settings: settings.decay ** (step + 1))


@dataclass(frozen=True)
class TunedTarget:
    """A target that is trained, and its heads."""

    model: PreTrainedModel
    target: HFTarget  # of the same weights
    head: MedusaHead


class FragmentLesson(PositionHeadLesson):
    """Next-token prediction by the target, and the loss of its heads with a weight. At each column the labels
    behind the last `marker` that the heads reach are left out: heads learn to complete fragments, not to
    begin them. The target learns all labels: our reading. The paper's weight of the heads rises during the
    training; here it is constant."""

    layers = ()  # of the target as it was before

    def __init__(self, tuned: TunedTarget, settings: Head, marker: int, weight: float) -> None:
        super().__init__(tuned.head, tuned.target.head, OBJECTIVE, settings, tuned.head.num_heads)
        self.model, self._marker, self._weight = tuned.model, marker, weight
        self.trained |= {f"model.{name}": each for name, each in tuned.model.named_parameters()}

    @property
    def num_draft_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.head.own.values())

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        hidden, logits = self._run(batch)
        own = losses.cross_entropy(logits[:, :-1], batch.tokens[:, 1:], batch.is_token[:, 1:])
        return own + self._weight * self.token_loss(batch, self._states(hidden, batch))

    def begun(self, batch: Batch) -> Tensor:
        return self._states(self._run(batch)[0], batch)

    def target_logits(self, batch: Batch, step: int) -> Tensor:
        with torch.no_grad():
            return self.at_columns(following(self._run(batch)[1], 1 + step), batch).float()

    def taught(self, batch: Batch, step: int) -> Tensor:
        is_marker = batch.tokens == self._marker
        ahead = torch.stack([following(is_marker, 2 + later) for later in range(step, self.num_steps)])
        return super().taught(batch, step) & self.at_columns(ahead.any(0), batch)

    def _states(self, hidden: Tensor, batch: Batch) -> Tensor:  # (R, T, D) -> (M, D)
        return self.head.begin(self.at_columns(hidden[:, :-1], batch))

    def _run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The inputs of the LM head (R, T, D) and the logits (R, T, V)."""
        found: list[Tensor] = []
        head: Any = self.model.get_output_embeddings()
        assert isinstance(head, nn.Module)
        hook = head.register_forward_pre_hook(lambda module, given: found.append(given[0]))
        try:
            logits = self.model(input_ids=batch.tokens, use_cache=False, return_dict=True).logits
        finally:
            hook.remove()
        return found[0], logits
