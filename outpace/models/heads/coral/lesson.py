"""How heads of CORAL learn (Weng et al. 2025): as those of HASS, with features that agree across steps; then,
in a run of its own, the router among groups of rows of the LM head.

Letters: P tokens, F size of a feature, M columns (see training.lessons.lesson), V vocabulary, G groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor, nn
from torch.nn import functional

from outpace.api.model import Model
from outpace.models.heads.coral.head import CoralHead, GroupRouter
from outpace.models.heads.coral.kind import KIND
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.hf.target import HFTarget
from outpace.training import losses
from outpace.training.config import ConfigError, Head, Optimizer, TrainConfig
from outpace.training.features import Batch
from outpace.training.head_methods import FeatureHeadMethod, begun, learning_head, of_kind
from outpace.training.lessons.feature_heads import HASS, ByToken, FeatureHeadLesson, features_of
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside
from outpace.training.texts import Example
from outpace.training.unrolled import unrolled


def info_nce(anchors: Tensor, others: Tensor, temperature: float) -> Tensor:  # (P, F) each
    """The cross entropy of finding each anchor's partner, which has the same index, among all `others` by
    cosine similarity divided by the temperature (van den Oord et al. 2018); 0 without anchors."""
    if not len(anchors):
        return anchors.sum()
    first, second = functional.normalize(anchors, dim=-1), functional.normalize(others, dim=-1)
    partners = torch.arange(len(anchors), device=anchors.device)
    return functional.cross_entropy(first @ second.T / temperature, partners)


def _alignment(steps: Sequence[ByToken], settings: Head) -> Tensor:
    """InfoNCE between the features that two steps have of the same tokens, the mean over all ordered pairs of
    steps; features of other tokens are the negatives."""
    pairs = list(permutations(steps, 2))
    total = steps[0].features.new_zeros(())
    for one, other in pairs:
        both = one.is_known & other.is_known
        first, second = one.features[both], other.features[both]  # (P, F)
        total = total + info_nce(first, second, settings.alignment_temperature)
    return settings.alignment_weight / max(1, len(pairs)) * total


class RouterLesson(FeatureHeadLesson):
    """The loss of the router of a head that is not changed: the cross entropy with the target's probability
    of each group, at every step of drafts that read the head's own outputs."""

    head: CoralHead

    def __init__(self, head: CoralHead, target_head: nn.Module, settings: Head) -> None:
        super().__init__(head, target_head, HASS, settings)
        assert head.router is not None
        self.trained = {f"router.{name}": weight for name, weight in head.router.named_parameters()}

    @property
    def num_draft_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.head.own.values())

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        total, groups = torch.zeros(()), self.head.groups
        for step, states in enumerate(self._states(batch, self.num_steps)):
            target_logits, _, mask = self._target(batch, step)
            of_groups = torch.stack([target_logits[:, group].logsumexp(-1) for group in groups], -1)  # (M, G)
            assert isinstance(self.head.router, GroupRouter)
            scores = self.head.router(states)
            total = total.to(scores) + losses.soft_cross_entropy(scores, of_groups, mask)
        return total

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        for states in self._states(batch, num_steps):
            yield self.routed(states)

    def routed(self, states: Tensor) -> Tensor:  # (M, F) -> (M, V)
        """The head's logits over the vocabulary, -inf for the tokens of groups that do not count."""
        assert self.head.router is not None
        active = self.head.active(self.head.router(states))
        group_of = torch.empty_like(self.head.token_order)
        for index, group in enumerate(self.head.groups):
            group_of[group] = index
        return self.head.lm_head(self.head.norm(states)).masked_fill(~active[:, group_of], float("-inf"))

    @torch.no_grad()
    def _states(self, batch: Batch, num_steps: int) -> list[Tensor]:
        columns = self.columns(batch)
        steps = unrolled(self.head, batch.tokens, features_of(self.head, batch), columns, num_steps)
        return [outputs.states for outputs in steps]


@dataclass(frozen=True, kw_only=True)
class CoralMethod(FeatureHeadMethod):
    """Trains a head, or with `head.groups` the router of a trained one."""

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> CoralHead:
        groups = config.head.groups
        if groups and start is None:
            raise ConfigError(
                f"head.groups={groups} trains the router of a head that is trained already: give that head, "
                "or leave out head.groups"
            )
        head = super().untrained(model, config, examples, start)
        assert isinstance(head, CoralHead)
        if start is None:
            head.token_order = by_frequency(examples, model.target.vocab).to(model.target.device)
        elif groups:
            try:
                router = head.add_router(groups, config.head.active_groups)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            begun(head, (router,), model.target, config.seed)
        elif head.router is not None:
            raise ConfigError(
                "the head has a router already, which is for its present weights: give the head from before, "
                "or train another router with head.groups"
            )
        return head

    def lesson(
        self, drafter: DraftHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        if not config.head.groups:
            return super().lesson(drafter, target, config, beside)
        assert isinstance(drafter, CoralHead)
        return RouterLesson(drafter, learning_head(drafter, target), config.head)


def by_frequency(examples: Sequence[Example], vocab: int) -> Tensor:  # (V,)
    """All tokens by their number in the answers, the most frequent first; equally frequent ones by id."""
    counts = Counter(token for example in examples for token in example.tokens[example.first :])
    return torch.tensor(sorted(range(vocab), key=lambda token: (-counts[token], token)))


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layers = head_config(target, target.vocab, config.head.num_layers)
    head = CoralHead(layers, target.embed, target.head, torch.arange(target.vocab, device=target.device))
    return begun(head, (head.fc, head.layers), target, config.seed)


METHODS = (
    CoralMethod(
        **of_kind(KIND),
        new=_new,
        objective=replace(HASS, across=_alignment),
        optimizer=Optimizer(clip_by="value"),
    ),
)
