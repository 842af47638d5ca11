"""Lessons: the loss of a drafter on a batch of texts, and how often it agrees with the target.

A draft begins at a column: at column t the drafter has read the text up to token t + 1, and draft token s,
counted from 0, is compared with token t + 2 + s. Only tokens that the target generated count.

Letters: R texts, T tokens, C = T - 1 columns, M columns with a draft token that counts, V vocabulary size,
K tokens that can be drafted, D hidden size, S draft tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.training.evaluation import DrafterEvaluation, Evaluation
from outpace.training.features import Batch, FeatureSource
from outpace.training.losses import acceptance

EVALUATED_DEPTH = 5  # draft tokens in an evaluation, unless the drafter's longest draft is shorter


class Lesson(nn.Module):
    """A loss as a module, so that several devices can share a batch."""

    layers: Sequence[int] = (-1,)  # layers of the target whose outputs are needed
    num_steps = 1  # number of draft tokens that are learned at each column
    evaluation_type: type[Any]  # the class in training.evaluation that `evaluation` returns

    def __init__(self, own: Mapping[str, nn.Parameter], target_head: nn.Module) -> None:
        super().__init__()
        self.trained = dict(own)  # by name
        # in a tuple, so that it is no submodule: the target's weights are neither trained nor saved
        self._target_head = (target_head,)

    @property
    def num_draft_parameters(self) -> int:
        """Number of parameters of the drafter or predictor."""
        return sum(parameter.numel() for parameter in self.trained.values())

    def batch(self, source: FeatureSource, indices: Sequence[int], seed: int) -> Batch:
        """The texts to learn from in one step, given the indices of texts of the data."""
        return source.batch(indices)

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def evaluation(self, step: int, batches: Iterable[Batch]) -> Evaluation:
        """Measurements on held-out texts at this step of the run."""
        raise NotImplementedError

    def quality(self, evaluation: Any) -> float | None:
        """What decides which weights are kept: those of the evaluation of the highest quality. None: the
        last ones."""
        return None

    def finish(self, held_out: Iterable[Batch]) -> None:
        """After training, set what is chosen by held-out texts."""

    def target_logits(self, batch: Batch, step: int) -> Tensor:  # (M, V)
        """The target's logits for draft token `step`."""
        states = following(batch.hidden[-1], 1 + step)[self.columns(batch)]
        head = self._target_head[0]
        with torch.no_grad():
            return head(states.to(next(head.parameters()).dtype)).float()

    def labels(self, batch: Batch, step: int) -> Tensor:  # (M,)
        """The text's token at the position of draft token `step`."""
        return following(batch.tokens, 2 + step)[self.columns(batch)]

    def learned(self, batch: Batch, step: int) -> Tensor:  # (M,) bool
        """Whether the target generated the text's token at the position of draft token `step`."""
        return following(batch.learns, 2 + step)[self.columns(batch)]

    def at_columns(self, values: Tensor, batch: Batch) -> Tensor:  # (R, C or T, ...) -> (M, ...)
        """The values at the M columns."""
        return values[:, : batch.tokens.shape[1] - 1][self.columns(batch)]

    def columns(self, batch: Batch) -> Tensor:  # (R, C) bool
        """Whether some draft token of a column counts."""
        columns = following(batch.learns, 2)
        for step in range(1, self.num_steps):
            columns = columns | following(batch.learns, 2 + step)
        return columns


class DrafterLesson(Lesson):
    """The loss of a drafter."""

    evaluation_type = DrafterEvaluation
    max_depth: int | None = None  # tokens of the longest draft; None: no limit
    evaluated_depth = EVALUATED_DEPTH

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:  # (M, K) each
        """The drafter's logits for the first, second, ... draft token, at most `num_steps`, teacher-forced:
        it reads the tokens of the text, not its own drafts."""
        raise NotImplementedError

    def draft_ids(self, device: torch.device) -> Tensor | None:  # (K,)
        """The tokens that can be drafted; None: all."""
        return None

    @torch.no_grad()
    def agreement(self, batch: Batch, num_steps: int) -> Tensor:  # (2 + S,) float64
        """Sums over the columns with `num_steps` tokens to compare: 1; the probability that a first draft
        token, drawn at temperature 1, is accepted; whether the first 1, 2, ... S tokens of a greedy draft are
        all the target's most probable ones. On the target's greedy text this equals acceptance in decoding.
        """
        ids = self.draft_ids(batch.tokens.device)
        begins = self.learned(batch, 0) & self.learned(batch, num_steps - 1)
        sums = torch.zeros(2 + num_steps, dtype=torch.float64)
        sums[0] = begins.sum()
        agrees = begins
        for step, logits in enumerate(self.drafted(batch, num_steps)):
            full = self.target_logits(batch, step)
            best = logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]
            agrees = agrees & (best == full.argmax(-1))
            sums[2 + step] = agrees.sum()
            if step == 0:
                sums[1] = acceptance(logits, full, begins, ids).double().sum()
        return sums

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> DrafterEvaluation:
        """Agreement with the target in drafts of `evaluated_depth` tokens."""
        num_steps = min(self.evaluated_depth, self.max_depth or self.evaluated_depth)
        sums = torch.zeros(2 + num_steps, dtype=torch.float64)
        for batch in batches:
            sums += self.agreement(batch, num_steps).cpu()
        acceptance, *agreement = (sums[1:] / sums[0].clamp_min(1)).tolist()
        return DrafterEvaluation(step, acceptance, 1 + sum(agreement), tuple(agreement))


def following(values: Tensor, shift: int) -> Tensor:  # (R, T, ...) -> (R, C, ...)
    """For column t the value at token t + `shift`; zeros beyond the end."""
    moved = torch.zeros_like(values[:, 1:])
    left = values[:, shift:][:, : moved.shape[1]]
    moved[:, : left.shape[1]] = left
    return moved


def draftable(logits: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:  # (M, V) -> (M, K), (M,) bool
    """The target's logits over the draft vocabulary, and where its most probable token can be drafted."""
    if ids is None:
        return logits, torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    is_drafted = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    is_drafted[ids] = True
    return logits[..., ids], is_drafted[logits.argmax(-1)]
