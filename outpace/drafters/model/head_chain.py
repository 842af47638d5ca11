"""A drafter of chains around a draft head of any kind."""

from __future__ import annotations

from functools import partial

from outpace.core.contracts import Drafter
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_model import PositionModel


def head_chain(opened: OpenedHead, vocab: int, *, sampled: bool = True) -> Drafter:
    """Chains of tokens drawn from the head, or without `sampled` of its most probable ones, for a target of
    `vocab` tokens."""
    growth = partial(grow, sampled=sampled)
    if isinstance(opened, PositionModel):
        return position_drafter(opened, vocab, growth, sampled=sampled)
    assert isinstance(opened, HeadModel)
    return FeatureDrafter(opened, vocab, growth, sampled=sampled)


def longest_chain(opened: OpenedHead, depth: int) -> int:
    """Number of tokens of the longest chain that the head can draft, at most `depth`. Some heads, such as
    Medusa's, have one part for each token; others have no limit."""
    limit = opened.head.max_depth if isinstance(opened, PositionModel) else None
    return depth if limit is None else min(depth, limit)


def longest_text(opened: OpenedHead) -> int | None:
    """Number of tokens of the longest text for which the head drafts; None: any. Heads do not read the first
    token."""
    assert isinstance(opened, PositionModel | HeadModel)
    limit = None if opened.model is None else opened.model.max_length
    return None if limit is None else limit + 1
