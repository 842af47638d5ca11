"""How heads of EAGLE, HASS and EAGLE-3 learn.

Letters: M columns (see training.lessons.lesson), K draft vocabulary, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outpace.models.heads.draft_head import DraftHead
from outpace.training import losses
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.lessons.lesson import DrafterLesson, draftable, following
from outpace.training.unrolled import unrolled


@dataclass(frozen=True)
class Objective:
    """What a method minimises."""

    num_steps: Callable[[Head], int]  # steps of the head on its own outputs, the first included
    detached: bool  # no gradient through the head's outputs as inputs of the next step
    noise: bool  # features are disturbed
    # logits (M, K) and the target's, features (M, F) and the target's, mask (M,)
    loss: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Head], Tensor]
    weight: Callable[[int, Head], float]  # of a step


def _eagle(q: Tensor, p: Tensor, features: Tensor, true: Tensor, mask: Tensor, settings: Head) -> Tensor:
    distance = losses.smooth_l1(features, true, mask)
    return settings.feature_weight * distance + settings.token_weight * losses.soft_cross_entropy(q, p, mask)


def _hass(q: Tensor, p: Tensor, features: Tensor, true: Tensor, mask: Tensor, settings: Head) -> Tensor:
    return _eagle(q, p, features, true, mask, settings) + losses.top_k_cross_entropy(
        q, p, mask, k=settings.top_k
    )


def _eagle3(q: Tensor, p: Tensor, features: Tensor, true: Tensor, mask: Tensor, settings: Head) -> Tensor:
    return losses.soft_cross_entropy(q, p, mask)


OBJECTIVES = {  # by the method that is trained
    "eagle": Objective(lambda settings: 1, False, True, _eagle, lambda step, settings: 1.0),
    "hass": Objective(lambda settings: settings.unroll, True, True, _hass, lambda step, settings: 1.0),
    "eagle3": Objective(
        lambda settings: settings.unroll, False, False, _eagle3, lambda step, settings: settings.decay**step
    ),
}


class FeatureHeadLesson(DrafterLesson):
    """The loss of a head that continues the target's hidden states."""

    def __init__(self, head: DraftHead, target_head: nn.Module, objective: Objective, settings: Head) -> None:
        super().__init__(head.own, target_head)
        self.head = head
        self.layers = sorted({-1, *head.taps})
        self.num_steps = objective.num_steps(settings)
        self._objective, self._settings = objective, settings

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        settings, objective = self._settings, self._objective
        features = self._features(batch)
        if objective.noise and settings.noise:
            uniform = torch.rand(features.shape, generator=noise).to(features) - 0.5
            features = features + uniform * (settings.noise * 512 / batch.tokens.shape[1])
        total = features.new_zeros(())
        columns = self.columns(batch)
        for each in unrolled(
            self.head, batch.tokens, features, columns, self.num_steps, detached=objective.detached
        ):
            target_logits, mask = self._target(batch, each.step)
            logits = self._logits(each.states)
            true = self.at_columns(following(batch.hidden[-1], 1 + each.step), batch).to(logits)
            loss = objective.loss(logits, target_logits, each.features, true, mask, settings)
            total = total + objective.weight(each.step, settings) * loss
        return total

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        columns = self.columns(batch)
        for each in unrolled(self.head, batch.tokens, self._features(batch), columns, num_steps):
            yield self._logits(each.states)

    def draft_ids(self, device: torch.device) -> Tensor | None:
        return None if self.head.draft_ids is None else self.head.draft_ids.to(device)

    def _features(self, batch: Batch) -> Tensor:  # (R, C, F)
        weight = next(self.head.layers.parameters())
        taps = torch.cat([batch.hidden[layer] for layer in self.head.taps], -1)
        return self.head.fuse(taps.to(weight.dtype))[:, :-1]

    def _logits(self, states: Tensor) -> Tensor:  # (M, D) -> (M, K)
        return self.head.lm_head(self.head.norm(states))

    def _target(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:  # (M, K), (M,)
        """The target's logits over the draft vocabulary, and where they are to be learned: not where its most
        probable token cannot be drafted."""
        logits = self.target_logits(batch, step)
        logits, can_draft = draftable(logits, self.draft_ids(logits.device))
        return logits, self.learned(batch, step) & can_draft
