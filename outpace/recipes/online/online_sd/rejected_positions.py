"""What a draft model learns from rejections: the target's distribution where a draft token was rejected.

Letters: T tokens, M positions, V tokens of the target, K of the draft model's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.contracts import Step
from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.target_labels import Divergence, target_label
from outpace.models.hf.low_rank import LowRankNetwork
from outpace.models.table import LearningTable

CONTEXT = 256  # most tokens of a text that are read before the first position to learn


@dataclass(frozen=True, eq=False)
class Rejections:
    """Implementation of drafters.learning.online_learning.Lesson: positions of one text at which a draft
    token was rejected."""

    network: LowRankNetwork | LearningTable
    divergence: Divergence
    tokens: Tensor  # (T,) int64
    at: tuple[int, ...]  # (M,) index of the token after which the rejected one stood
    log_p: Tensor  # (M, V) of the target

    @property
    def num_positions(self) -> int:
        return len(self.at)

    def loss(self, weights: Weights) -> Tensor:
        limit, end = self.network.max_length, self.at[-1] + 1
        begin = max(0, self.at[0] - CONTEXT, 0 if limit is None else end - limit)
        at = [place - begin for place in self.at if place >= begin]
        logits = self.network.logits(self.tokens[begin:end], weights)[at]
        # padded vocabularies differ in length: ids that both have stand for the same tokens
        shared = min(logits.shape[1], self.log_p.shape[1])
        log_p = self.log_p[-len(at) :, :shared].to(logits.device)
        every = torch.ones(len(at), dtype=torch.bool, device=logits.device)
        return len(at) * self.divergence(logits[:, :shared], log_p, every)


@dataclass(slots=True)
class _Text:
    tokens: Tensor  # up to the last position
    new: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, Tensor]])  # as `at` and `log_p`


class RejectedPositions:
    """Implementation of drafters.learning.online_learning.Lessons: notes of every step the position after the
    accepted tokens, if a token was drafted there. What was drafted behind it was not tested."""

    def __init__(self, network: LowRankNetwork | LearningTable, divergence: Divergence) -> None:
        self._network, self._divergence = network, divergence
        self._texts: dict[int, _Text] = {}  # by slot

    def note(self, step: Step, row: int) -> int:
        if not self.is_rejection(step, row):
            return 0
        leaf, logits = step.kept[row], step.scores.logits
        assert logits is not None
        before, accepted = step.ctx.tokens[row][: step.ctx.committed[row]], step.generated[row][:-1]
        tokens = torch.cat((before, torch.tensor(accepted, dtype=torch.int64)))
        text = self._texts.setdefault(step.ctx.slots[row], _Text(tokens))
        text.tokens = tokens
        text.new.append((len(text.tokens) - 1, self.label(step, row, logits[leaf - step.scores.first])))
        return 1

    def is_rejection(self, step: Step, row: int) -> bool:
        """Whether a token was drafted where the target's own one now stands, which is in the text."""
        leaf = step.kept[row]
        is_whole = bool(step.generated[row]) and leaf == step.verdict.leaf[row]
        return is_whole and bool(step.draft.tree.forest.children[leaf])

    def label(self, step: Step, row: int, logits: Tensor) -> Tensor:  # (V,) -> (V,)
        """What is learned at a position of a row, from the target's logits there."""
        return target_label(logits.clone())

    def take(self, slot: int) -> Rejections | None:
        text = self._texts.get(slot)
        if text is None or not text.new:
            return None
        at, log_p = zip(*text.new, strict=True)
        text.new = []
        return Rejections(self._network, self._divergence, text.tokens, at, torch.stack(log_p))

    def forget(self, slot: int) -> None:
        self._texts.pop(slot, None)
