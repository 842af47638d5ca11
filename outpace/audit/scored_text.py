"""A text of the audited server with the reference's distribution of each of its tokens.

Letters: T tokens of a text, K columns of a distribution, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ScoredText:
    """Tokens of one text, and the distribution from which each of them should have been drawn.

    A column of a distribution is a token, or all tokens that have no column of their own: their id is
    `vocab`. A token may be left out, as where the reference cannot tell whether truncation keeps it: its
    position is then not among `positions`.
    """

    probs: Tensor  # (T, K) float64; rows sum to 1
    ids: Tensor  # (K,) or (T, K) int64 token ids of the columns
    columns: Tensor  # (T,) int64 column of each token
    positions: Sequence[int]  # (T,) index of each token in `text`
    text: Sequence[int]  # token ids of the whole text; `vocab` for one that has no column of its own
    prompt: Sequence[int]  # token ids before it
    vocab: int

    @cached_property
    def log_probs(self) -> Tensor:  # (T,)
        """Log probability of each token."""
        return self.probs.gather(1, self.columns[:, None])[:, 0].log()

    @cached_property
    def surprise(self) -> float:
        """How improbable the text is: its negative log probability minus the expected value, in standard
        deviations."""
        information = -self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny).log()
        mean = (self.probs * information).sum(1)
        variance = float((self.probs * (information - mean[:, None]) ** 2).sum())
        return float((-self.log_probs - mean).sum()) / max(variance, 1.0) ** 0.5
