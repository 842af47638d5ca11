"""Drafts of windows that several forwards fill in any order, behind many columns of texts at once.

They are those of `drafters.model.windows.reveal` if the columns were drafted one at a time.

Letters: R texts, T tokens, C = T - 1 columns (see training.lessons.lesson), M windows, n masks of a window, D
hidden size of the draft model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.models.predictors.reveals.predictor import with_shares
from outpace.training.packed_windows import window_outputs

# Which masks are replaced by their drawn tokens. Arguments: the states at the places of the windows with the
# share of masks left (M, n, D + 1), the draft probabilities of the drawn tokens (M, n), and where masks are
# left (M, n) bool. Returns (M, n) bool, at least one in each window with a mask and none in other places.
Choose = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class WindowForward:
    """What one forward read and gave in all windows, and what was revealed after it."""

    states: Tensor  # (M, n, D + 1) with the share of masks left
    is_mask: Tensor  # (M, n) bool
    drawn: Tensor  # (M, n) int64
    draft_probs: Tensor  # (M, n) of the drawn tokens
    revealed: Tensor  # (M, n) bool


@dataclass(frozen=True)
class WindowDrafts:
    """How windows are drafted."""

    draft: PreTrainedModel
    size: int  # n
    mask: int  # token
    vocab: int  # of the target: other tokens are never drafted

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,  # (R, T) int64
        columns: Tensor,  # (R, C) bool, true where windows begin
        choose: Choose,
        *,
        copies: int = 1,  # drafts of each column, one after the other among the M windows
        temperature: float = 0.0,
        noise: torch.Generator | None = None,  # unless the temperature is 0
    ) -> list[WindowForward]:
        """Draft in all windows at once. Returns what each forward of the draft model read and revealed, up to
        the one that fills the last mask."""
        forwards = list[WindowForward]()
        windows = tokens.new_full((int(columns.sum()) * copies, self.size), self.mask)
        is_mask = torch.ones_like(windows, dtype=torch.bool)
        while is_mask.any():
            logits, hidden = window_outputs(self.draft, tokens, columns, windows, copies)
            logits = logits[..., : self.vocab].float()
            drawn = logits.argmax(-1)
            if temperature:
                # in float64, so that no point is rounded up to the last sum
                sums = (logits / temperature).softmax(-1).cumsum(-1, dtype=torch.float64)
                points = torch.rand(drawn.shape, generator=noise).to(sums)[..., None] * sums[..., -1:]
                drawn = torch.searchsorted(sums, points, right=True)[..., 0]
            draft_probs = logits.softmax(-1).gather(-1, drawn[..., None])[..., 0]
            states = with_shares(hidden, is_mask.float().mean(1, keepdim=True).expand(is_mask.shape))
            revealed = choose(states, draft_probs, is_mask)
            forwards.append(WindowForward(states, is_mask, drawn, draft_probs, revealed))
            windows, is_mask = torch.where(revealed, drawn, windows), is_mask & ~revealed
        return forwards


def tokens_of(forwards: list[WindowForward]) -> tuple[Tensor, Tensor, Tensor]:
    """The drafts: their tokens (M, n), the draft probabilities with which these were drawn (M, n), and the
    number of forwards of each (M,)."""
    tokens, probs = torch.zeros_like(forwards[0].drawn), torch.zeros_like(forwards[0].draft_probs)
    for each in forwards:
        tokens = torch.where(each.revealed, each.drawn, tokens)
        probs = torch.where(each.revealed, each.draft_probs, probs)
    return tokens, probs, torch.stack([each.is_mask.any(1) for each in forwards]).sum(0)


def at_least_one(revealed: Tensor, values: Tensor, is_mask: Tensor) -> Tensor:  # (M, n) each
    """`revealed` at masks, or where it has none the mask of the largest value, which are 0 or more."""
    revealed = revealed & is_mask
    best = values.masked_fill(~is_mask, -1).argmax(-1, keepdim=True)
    only = torch.zeros_like(revealed).scatter_(-1, best, ~revealed.any(-1, keepdim=True))
    return (revealed | only) & is_mask
