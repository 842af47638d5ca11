"""How heads learn that continue the target's hidden states, such as EAGLE's.

Letters: R texts, C and M columns (see training.lessons.lesson), K draft vocabulary, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from outpace.models.heads.draft_head import DraftHead
from outpace.training import losses
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.lessons.lesson import DrafterLesson, draftable, following
from outpace.training.packed import packed
from outpace.training.unrolled import UnrolledStep, unrolled

CROSS_ENTROPY = "soft_cross_entropy"  # its gradient does not depend on the mass of the draft vocabulary


@dataclass(frozen=True, eq=False)
class Compared:
    """Outputs of the head, and the target's to compare them with."""

    logits: Tensor  # (M, K)
    target_logits: Tensor  # (M, K)
    # (M,) the target's total probability of the draft vocabulary; None: 1, or not needed
    mass: Tensor | None
    features: Tensor  # (M, F)
    target_features: Tensor  # (M, F)
    mask: Tensor  # (M,) where they are compared

    def token_loss(self, settings: Head) -> Tensor:
        """The loss named `settings.token_loss`."""
        if settings.token_loss == CROSS_ENTROPY:
            return losses.soft_cross_entropy(self.logits, self.target_logits, self.mask)
        loss = getattr(losses, settings.token_loss)
        return loss(self.logits, self.target_logits, self.mask, mass=self.mass)


@dataclass(frozen=True)
class Objective:
    """What a method minimises."""

    num_steps: Callable[[Head], int]  # unrolled steps of the head, the one on the target's features included
    detached: bool  # no gradient through the head's outputs as inputs of the next step
    noise: bool  # whether noise is added to features
    loss: Callable[[Compared, Head], Tensor]
    weight: Callable[[int, Head], float]  # of a step
    # the head's outputs at the steps: on its own outputs, in masks (training.packed), or in the last ones by
    # its tail (training.with_tail)
    run: Callable[..., Iterator[UnrolledStep]] = unrolled
    max_depth: int | None = None  # of drafts that are evaluated; None: as deep as the head drafts
    # (head, tokens, features, columns, noise) -> the tokens and features that the head reads in training;
    # None: those of the text
    inputs: Callable[[DraftHead, Tensor, Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]] | None = (
        None
    )
    # what is added for all steps together; None: nothing
    across: Callable[[Sequence[ByToken], Head], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class ByToken:
    """A step's features by the tokens whose hidden states they stand for, whatever the step."""

    features: Tensor  # (R, T, F)
    is_known: Tensor  # (R, T) bool


def features_and_tokens(one: Compared, settings: Head) -> Tensor:
    """The loss of EAGLE (Li et al. 2024): the distance between features, and that of token probabilities."""
    distance = losses.smooth_l1(one.features, one.target_features, one.mask)
    return settings.feature_weight * distance + settings.token_weight * one.token_loss(settings)


EAGLE = Objective(
    num_steps=lambda settings: 1,
    detached=False,
    noise=True,
    loss=features_and_tokens,
    weight=lambda step, settings: 1.0,
)


TOKENS = Objective(  # of EAGLE-3 (Li et al. 2025) and others: token probabilities alone
    num_steps=lambda settings: settings.unroll,
    detached=False,
    noise=False,
    loss=Compared.token_loss,
    weight=lambda step, settings: settings.decay**step,
)
# the same in masks behind every token (Hui et al. 2026, P-EAGLE)
TOKENS_IN_MASKS = replace(TOKENS, num_steps=lambda settings: settings.num_heads, run=packed)


def _features_tokens_and_best(one: Compared, settings: Head) -> Tensor:
    top = losses.top_k_cross_entropy(one.logits, one.target_logits, one.mask, k=settings.top_k)
    return features_and_tokens(one, settings) + settings.top_k_weight * top


HASS = Objective(  # Zhang et al. 2025
    num_steps=lambda settings: settings.unroll,
    detached=True,
    noise=True,
    loss=_features_tokens_and_best,
    weight=lambda step, settings: 1.0,
)


class FeatureHeadLesson(DrafterLesson):
    """The loss of a head that continues the target's hidden states."""

    def __init__(self, head: DraftHead, target_head: nn.Module, objective: Objective, settings: Head) -> None:
        super().__init__(head.own, target_head)
        self.head = head
        self.layers = sorted({-1, *head.taps})
        self.num_steps = objective.num_steps(settings)
        self.max_depth = objective.max_depth if head.num_masks is None else 1 + head.num_masks
        self._objective, self._settings = objective, settings

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        settings, objective = self._settings, self._objective
        features = features_of(self.head, batch)
        if objective.noise and settings.noise:
            uniform = torch.rand(features.shape, generator=noise).to(features) - 0.5
            features = features + uniform * (settings.noise * 512 / batch.tokens.shape[1])
        total, by_token = features.new_zeros(()), list[ByToken]()
        columns, tokens = self.columns(batch), batch.tokens
        if objective.inputs is not None:
            tokens, features = objective.inputs(self.head, tokens, features, columns, noise)
        for each in objective.run(
            self.head, tokens, features, columns, self.num_steps, detached=objective.detached
        ):
            target_logits, mass, mask = self._target(batch, each.step)
            logits = self.logits_at(each, batch)
            true = self.at_columns(following(batch.hidden[-1], 1 + each.step), batch).to(logits)
            compared = Compared(logits, target_logits, mass, each.features, true, mask)
            loss = self.loss_at(each, compared, batch)
            total = total + objective.weight(each.step, settings) * loss
            if objective.across is not None:
                by_token.append(_by_token(each, columns, mask))
        return total if objective.across is None else total + objective.across(by_token, settings)

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        columns = self.columns(batch)
        features = features_of(self.head, batch)
        for each in self._objective.run(self.head, batch.tokens, features, columns, num_steps):
            yield self.logits_at(each, batch)

    def logits_at(self, outputs: UnrolledStep, batch: Batch) -> Tensor:  # (M, K)
        """The head's logits at a step."""
        return self.head.lm_head(outputs.outputs)

    def loss_at(self, outputs: UnrolledStep, compared: Compared, batch: Batch) -> Tensor:
        """The loss of a step, without its weight."""
        return self._objective.loss(compared, self._settings)

    def draft_ids(self, device: torch.device) -> Tensor | None:
        return None if self.head.draft_ids is None else self.head.draft_ids.to(device)

    def _target(self, batch: Batch, step: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """The target's logits over the draft vocabulary (M, K), its total probability of these tokens (M,) if
        the loss needs it, and a mask of positions to learn (M,), without those whose most probable token
        cannot be drafted."""
        all_logits, mass = self.target_logits(batch, step), None
        ids = self.draft_ids(all_logits.device)
        logits, can_draft = draftable(all_logits, ids)
        if ids is not None and self._settings.token_loss != CROSS_ENTROPY:
            mass = (logits.float().logsumexp(-1) - all_logits.float().logsumexp(-1)).exp()
        return logits, mass, self.learned(batch, step) & can_draft


def features_of(head: DraftHead, batch: Batch) -> Tensor:  # (R, C, F)
    """The features of a batch's tokens but the last, as this head reads them."""
    weight = next(head.layers.parameters())
    taps = torch.cat([batch.hidden[layer] for layer in head.taps], -1)
    fused = head.fuse(taps.to(weight.dtype))
    if head.knows_tokens:
        tokens = batch.tokens
        fused = head.with_tokens(fused, tokens, torch.cat((tokens[:, :1], tokens[:, :-1]), 1))
    return fused[:, :-1]


def _by_token(outputs: UnrolledStep, columns: Tensor, mask: Tensor) -> ByToken:  # (R, C) and (M,) bool
    """The features of one step where the token after them is learned: column t of step s has that of token
    t + 1 + s."""
    rows, at = (index[mask] for index in columns.nonzero(as_tuple=True))
    place = rows, at + 1 + outputs.step
    size = columns.shape[0], columns.shape[1] + 1
    features = outputs.features.new_zeros(*size, outputs.features.shape[1])
    known = torch.zeros(size, dtype=torch.bool, device=columns.device)
    return ByToken(
        features.index_put(place, outputs.features[mask]), known.index_put(place, torch.ones_like(mask[mask]))
    )
