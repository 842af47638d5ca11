"""The tokens that a draft with a smaller LM head keeps: the most frequent ones of texts, and special ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outpace.core.contracts import Target
from outpace.indexes.store import open_index
from outpace.indexes.token_counts import TokenCounts

SHARE = 4  # a draft keeps one in SHARE tokens, unless it is told how many
LEAST = 2  # tokens that it keeps then at least


def kept_tokens(
    path: str | None,  # of a file of token counts; None: rank tokens by their ids
    target: Target,
    size: int | None,  # number of kept tokens; None: a quarter of the vocabulary
) -> Tensor | None:  # (size,) in increasing order
    """The `size` most frequent tokens. The special tokens of the file and the target's end-of-text tokens are
    among them, in the places of the rarest. None if they are the whole vocabulary. ValueError for a file that
    cannot be used and for a size that leaves no room for the special tokens."""
    counts = open_index(TokenCounts, path, target.vocab) or TokenCounts.by_id()
    size = max(LEAST, target.vocab // SHARE) if size is None else size
    ends = [token for token in _end_tokens(target) if token < target.vocab]
    kept = counts.kept(min(size, target.vocab), target.vocab, ends)
    return None if len(kept) == target.vocab else torch.tensor(sorted(kept))


def _end_tokens(target: Target) -> list[int]:
    """The end-of-text tokens of a transformers model; none of other models."""
    model: Any = getattr(target, "model", None)
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return [int(end) for end in (ends if isinstance(ends, list | tuple) else [ends])]
    return []
