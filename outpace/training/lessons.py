"""What the methods learn from a batch: the loss of a draft head and how often it agrees with the target.

Letters: R texts, T tokens, C = T - 1 columns (see training.unrolled), K draft vocabulary, F size of a
feature, S steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outpace.models.heads.draft_head import DraftHead
from outpace.training import losses
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.unrolled import unrolled


@dataclass(frozen=True)
class Lesson:
    """What a method minimises."""

    num_steps: Callable[[Head], int]  # steps of the head on its own outputs, the first included
    detached: bool  # no gradient through the head's outputs as inputs of the next step
    noise: bool  # features are disturbed
    # logits (R, C, K) and the target's, features (R, C, F) and the target's, mask (R, C)
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


LESSONS = {  # by the method that is trained
    "eagle": Lesson(lambda settings: 1, False, True, _eagle, lambda step, settings: 1.0),
    "hass": Lesson(lambda settings: settings.unroll, True, True, _hass, lambda step, settings: 1.0),
    "eagle3": Lesson(
        lambda settings: settings.unroll, False, False, _eagle3, lambda step, settings: settings.decay**step
    ),
}


class HeadLesson(nn.Module):
    """The loss of a head as a module, so that several devices can share a batch."""

    def __init__(self, head: DraftHead, target_head: nn.Module, lesson: Lesson, settings: Head) -> None:
        super().__init__()
        self.head = head
        # not as a module: the target's weights are neither trained nor saved
        self._target_head = (target_head,)
        self._lesson, self._settings = lesson, settings

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """The loss of a batch."""
        settings, lesson = self._settings, self._lesson
        features = self.head.fuse(self._taps(batch))[:, :-1]
        if lesson.noise and settings.noise:
            uniform = torch.rand(features.shape, generator=noise).to(features) - 0.5
            features = features + uniform * (settings.noise * 512 / batch.tokens.shape[1])
        total = features.new_zeros(())
        for each in unrolled(
            self.head, batch.tokens, features, lesson.num_steps(settings), detached=lesson.detached
        ):
            target_logits, mask = self._target(batch, each.step)
            logits = self.head.lm_head(self.head.norm(each.states))
            true = _following(batch.hidden[-1], each.step).to(logits)
            loss = lesson.loss(logits, target_logits, each.features, true, mask, settings)
            total = total + lesson.weight(each.step, settings) * loss
        return total

    @torch.no_grad()
    def agreement(self, batch: Batch, num_steps: int) -> Tensor:  # (S + 1,)
        """Number of columns, and of those in which the first 1, 2, ... S tokens of a greedy draft are the
        target's most probable ones. The text's own tokens are read, so it equals decoding where the text is
        the target's greedy text."""
        features = self.head.fuse(self._taps(batch))[:, :-1]
        ids = self._draft_ids(features.device)
        begins = _mask(batch, 0) & _mask(batch, num_steps - 1)
        counts = [begins.sum()]
        agrees = torch.ones_like(begins)
        for each in unrolled(self.head, batch.tokens, features, num_steps):
            logits = self.head.lm_head(self.head.norm(each.states))
            best = logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]
            full = self._target_head[0](_following(batch.hidden[-1], each.step))
            agrees = agrees & (best == full.argmax(-1))
            counts.append((agrees & begins).sum())
        return torch.stack(counts)

    def _taps(self, batch: Batch) -> Tensor:
        weight = next(self.head.layers.parameters())
        return torch.cat([batch.hidden[layer] for layer in self.head.taps], -1).to(weight.dtype)

    def _target(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:  # (R, C, K), (R, C)
        """The target's logits over the draft vocabulary, and where they are to be learned: not where its most
        probable token cannot be drafted."""
        with torch.no_grad():
            logits = self._target_head[0](_following(batch.hidden[-1], step)).float()
            mask = _mask(batch, step)
            ids = self._draft_ids(logits.device)
            if ids is None:
                return logits, mask
            can_draft = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
            can_draft[ids] = True
            return logits[..., ids], mask & can_draft[logits.argmax(-1)]

    def _draft_ids(self, device: torch.device) -> Tensor | None:
        return None if self.head.draft_ids is None else self.head.draft_ids.to(device)


def _following(states: Tensor, step: int) -> Tensor:  # (R, T, D) -> (R, C, D)
    """For column t the state at token t + 1 + step; zeros beyond the end."""
    moved = torch.zeros_like(states[:, 1:])
    left = states[:, 1 + step :]
    moved[:, : left.shape[1]] = left
    return moved


def _mask(batch: Batch, step: int) -> Tensor:  # (R, C)
    """The columns whose draft token at this step, token t + 2 + `step`, is one that the target generated."""
    mask = torch.zeros_like(batch.learns[:, 1:])
    learns = batch.learns[:, 2 + step :]
    mask[:, : learns.shape[1]] = learns
    return mask
