"""How draft models learn to fill windows of masks, as diffusion models do.

A window stands behind a column's token (see training.lessons.lesson): masks, among which there may be tokens
of the text that are revealed already. The tokens of the text are learned, not the target's distributions:
these do not know the revealed tokens behind.

Letters: R texts, C and M columns, k masks of a window, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.training.config import Distillation
from outpace.training.features import Batch
from outpace.training.lessons.draft_models import DraftModelLesson
from outpace.training.packed_windows import window_logits

NUM_WINDOWS = 16  # of a text in one step, on average


class WindowLesson(DraftModelLesson):
    """The loss of masked diffusion models (MDLM, Sahoo et al. 2024) in windows behind a part of the columns:
    each token is masked with a probability t, drawn for its window, and 1 / t weighs the window's masks.

    Ours: half of the windows are masked as a whole, as all are when a draft begins; and half of the steps
    have shorter windows, as at the end of a text."""

    def __init__(
        self,
        draft: PreTrainedModel,
        target_head: nn.Module,
        settings: Distillation,
        vocab: int,  # of the target: masks are never drafted
        mask: int,
        end: int | None = None,  # a token behind each window
    ) -> None:
        super().__init__(draft, target_head, replace(settings, on_policy=0.0))
        self.num_steps = self.max_depth = settings.num_masks
        self._vocab, self._mask, self._end = vocab, mask, end
        self._chosen: Tensor | None = None  # (R, C) bool, the columns of this step; None: all

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        size = self.num_steps
        if torch.rand((), generator=noise) < 0.5:
            size = int(torch.randint(1, 1 + size, (), generator=noise))
        possible = super().columns(batch)
        share = NUM_WINDOWS / max(1.0, possible.sum().item() / len(possible))
        self._chosen = torch.rand(possible.shape, generator=noise).to(possible.device) < share
        try:
            return self._of_windows(batch, size, noise)
        finally:
            self._chosen = None

    def _of_windows(self, batch: Batch, size: int, noise: torch.Generator) -> Tensor:
        labels = torch.stack([self.labels(batch, step) for step in range(size)], 1)  # (M, k)
        learned = torch.stack([self.learned(batch, step) for step in range(size)], 1)
        rate, is_mask = (each.to(labels.device) for each in self.masked(labels.shape, noise))
        log_probs = self._logits_in(batch, labels.masked_fill(is_mask, self._mask)).log_softmax(-1)
        log_probs = log_probs.gather(-1, labels[..., None])[..., 0]
        counted = (learned & is_mask) * self.weights(log_probs.detach(), rate)
        return -(counted * log_probs).sum() / learned.sum().clamp_min(1)

    def masked(
        self, shape: torch.Size, noise: torch.Generator
    ) -> tuple[Tensor, Tensor]:  # (M, k) -> (M, 1), (M, k) bool
        """The masked share of each window, and its masks."""
        rate = torch.rand(shape[0], 1, generator=noise)
        rate = torch.where(torch.rand(shape[0], 1, generator=noise) < 0.5, 1.0, rate.clamp_min(1 / shape[1]))
        return rate, torch.rand(shape, generator=noise) < rate

    def weights(self, log_probs: Tensor, rate: Tensor) -> Tensor:  # (M, k), (M, 1) -> (M, k)
        """The weight of each masked token's cross entropy in the loss. `log_probs`: the log probability that
        the model gives the text's token at each mask; `rate`: the share of a window that is masked."""
        return (1 / rate).expand_as(log_probs)

    def columns(self, batch: Batch) -> Tensor:
        columns = super().columns(batch)
        return columns if self._chosen is None else columns & self._chosen

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        """All of a draft in one forward."""
        num = int(self.columns(batch).sum())
        masks = batch.tokens.new_full((num, num_steps), self._mask)
        yield from self._logits_in(batch, masks).unbind(1)

    def _logits_in(self, batch: Batch, windows: Tensor) -> Tensor:  # (M, k) -> (M, k, V)
        size = windows.shape[1]
        if self._end is not None:
            windows = torch.nn.functional.pad(windows, (0, 1), value=self._end)
        logits = window_logits(self.draft, batch.tokens, self.columns(batch), windows)
        return logits[:, :size, : self._vocab].float()


class WholeWindowLesson(WindowLesson):
    """Windows are masked as a whole."""

    def masked(self, shape: torch.Size, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.ones(shape[0], 1), torch.ones(shape, dtype=torch.bool)


class RefinedWindowLesson(WholeWindowLesson):
    """The second stage of DEER (Cheng et al. 2025): each token of a window weighs `settings.refinement` times
    as much as the one after it."""

    def weights(self, log_probs: Tensor, rate: Tensor) -> Tensor:
        behind = torch.arange(log_probs.shape[1] - 1, -1, -1, device=log_probs.device)
        return (self.settings.refinement**behind).expand_as(log_probs)


class StreakLesson(WholeWindowLesson):
    """SpecDiff-2 (Sandler et al. 2026): the number of tokens of a window that would be drafted before the
    first other one, in the mean. Each token weighs as much as it is probable that those before it are
    drafted, without a gradient: that of the product itself vanishes while the model knows little."""

    def weights(self, log_probs: Tensor, rate: Tensor) -> Tensor:
        return (log_probs.cumsum(1) - log_probs).exp()
