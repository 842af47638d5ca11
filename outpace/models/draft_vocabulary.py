"""Logits of a head that drafts only some tokens, over the target's whole vocabulary.

Letters: N nodes, K tokens that can be drafted, V vocabulary of the target.
"""

from __future__ import annotations

from torch import Tensor


def over_vocabulary(logits: Tensor, draft_ids: Tensor | None, vocab: int) -> Tensor:  # (N, K) -> (N, V)
    """The logits with -inf for tokens that cannot be drafted. `draft_ids` (K,): the token of each logit;
    None: all tokens, in their order."""
    if draft_ids is None:
        return logits
    wide = logits.new_full((len(logits), vocab), float("-inf"))
    wide[:, draft_ids.to(logits.device)] = logits
    return wide
