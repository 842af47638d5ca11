"""How heads without a KV cache learn.

Letters: R texts, C and M columns (see training.lessons.lesson), D hidden size, S size of a node's state, V
vocabulary size, K draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outpace.models.heads.position_head import PositionHead
from outpace.training import losses
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.lessons.lesson import DrafterLesson, draftable
from outpace.training.unrolled import over_text

NUM_RANKS = 10  # number of ranks whose accuracy is measured at each depth, at most K


@dataclass(frozen=True)
class Objective:
    """What a method minimises: cross entropy with the text or with the target's distribution, by step."""

    soft: bool  # whether to learn the target's distribution, not the text's token
    weight: Callable[[int, Head], float]  # of a step


class PositionHeadLesson(DrafterLesson):
    """The loss of a head that drafts from one hidden state of the target."""

    def __init__(
        self,
        head: PositionHead,
        target_head: nn.Module,
        objective: Objective,
        settings: Head,
        num_steps: int,  # draft tokens that are learned
    ) -> None:
        super().__init__(head.own, target_head)
        self.head, self.num_steps, self.max_depth = head, num_steps, head.max_depth
        self._objective, self.settings = objective, settings
        # (V,) index of each token in the draft vocabulary; -1: it cannot be drafted
        self._places: Tensor | None = None
        if head.draft_ids is not None:
            self._places = torch.full((head.vocab,), -1)
            self._places[head.draft_ids.cpu()] = torch.arange(len(head.draft_ids))

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        return self.token_loss(batch, self.begun(batch))

    def token_loss(self, batch: Batch, states: Tensor) -> Tensor:  # (M, S)
        """The loss of all steps, given the head's states before the roots."""
        total = states.new_zeros((), dtype=torch.float32)
        ids = self.draft_ids(batch.tokens.device)
        for step, logits in enumerate(self._steps(batch, states, self.num_steps)):
            mask = self.taught(batch, step)
            if self._objective.soft:
                target_logits, can_draft = draftable(self.target_logits(batch, step), ids)
                loss = losses.soft_cross_entropy(logits, target_logits, mask & can_draft)
            else:
                labels = self.labels(batch, step)
                if self._places is not None:
                    labels = self._places.to(labels.device)[labels]
                    mask = mask & (labels >= 0)
                loss = losses.cross_entropy(logits, labels, mask)
            total = total + self._objective.weight(step, self.settings) * loss
        return total

    def taught(self, batch: Batch, step: int) -> Tensor:  # (M,) bool
        """Where draft token `step` counts in the loss."""
        return self.learned(batch, step)

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        return self._steps(batch, self.begun(batch), num_steps)

    def begun(self, batch: Batch) -> Tensor:  # (M, S)
        """The head's states before the roots."""
        dtype = next(iter(self.trained.values())).dtype
        hidden = batch.hidden[-1][:, :-1].to(dtype)
        if self.head.prefix is not None:
            hidden = over_text(self.head.prefix, batch.tokens, hidden)
        return self.head.begin(self.at_columns(hidden, batch))

    def _steps(self, batch: Batch, states: Tensor, num_steps: int) -> Iterator[Tensor]:
        for step in range(min(num_steps, self.max_depth or num_steps)):
            logits, states = self.head(step, states, self._read(batch, step))
            yield logits

    def draft_ids(self, device: torch.device) -> Tensor | None:
        ids = self.head.draft_ids
        return None if ids is None else ids.to(device)

    def finish(self, held_out: Iterable[Batch]) -> None:
        """Store in the head the share of held-out texts in which the token of each rank is right, by depth:
        it decides the shape of draft trees."""
        hits, counts = (torch.stack(parts).sum(0) for parts in zip(*map(self.ranks, held_out), strict=True))
        shares = (hits / counts.clamp_min(1)[:, None]).tolist()
        self.head.rank_accuracies = tuple(tuple(round(share, 4) for share in of_depth) for of_depth in shares)

    @torch.no_grad()
    def ranks(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (S, ranks), (S,)
        """By draft token: the number of columns in which the token of each rank is the text's, and the number
        of all columns."""
        ids = self.draft_ids(batch.tokens.device)
        num_ranks = min(NUM_RANKS, self.head.num_draft_tokens)
        hits = torch.zeros(self.num_steps, num_ranks, dtype=torch.int64)
        counts = torch.zeros(self.num_steps, dtype=torch.int64)
        for step, logits in enumerate(self.drafted(batch, self.num_steps)):
            mask = self.learned(batch, step)
            best = logits[mask].topk(num_ranks, -1).indices
            best = best if ids is None else ids[best]
            hits[step] = (best == self.labels(batch, step)[mask][:, None]).sum(0)
            counts[step] = mask.sum()
        return hits, counts

    def _read(self, batch: Batch, step: int) -> Tensor:  # (M,)
        """The token before draft token `step`."""
        return self.labels(batch, step - 1)
