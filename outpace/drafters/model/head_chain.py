"""A drafter of chains around a draft head of any kind."""

from __future__ import annotations

from functools import partial

from outpace.core.contracts import Drafter
from outpace.drafters.model.feature_drafter import FeatureDrafter, FeatureReader
from outpace.drafters.model.grow import grow
from outpace.drafters.model.mask_reader import MaskReader
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_model import PositionModel


def head_chain(opened: OpenedHead, vocab: int, depth: int, *, sampled: bool = True) -> Drafter:
    """Chains of up to `depth` tokens drawn from the head, or without `sampled` of its most probable ones, for
    a target of `vocab` tokens."""
    growth = partial(grow, sampled=sampled)
    if isinstance(opened, PositionModel):
        return position_drafter(opened, vocab, growth, sampled=sampled)
    assert isinstance(opened, HeadModel)
    reader = FeatureReader
    if opened.head.drafts_in_masks:
        reader = partial(MaskReader, levels=levels_per_forward(opened, depth))
    return FeatureDrafter(opened, vocab, growth, sampled=sampled, reader=reader)


def longest_chain(opened: OpenedHead, depth: int) -> int:
    """Number of tokens of the longest chain that the head can draft, at most `depth`. Some heads, such as
    Medusa's, have one part for each token, and blocks that are read two ways have a size; others have no
    limit."""
    if isinstance(opened, PositionModel):
        return min(depth, depth if opened.head.max_depth is None else opened.head.max_depth)
    assert isinstance(opened, HeadModel)
    return min(depth, opened.head.block_levels) if opened.head.two_way else depth


def levels_per_forward(opened: OpenedHead, depth: int) -> int:
    """Number of tokens of a chain of at most `depth` that one forward of the head drafts; at least 1."""
    if not isinstance(opened, HeadModel) or not opened.head.drafts_in_masks:
        return 1
    head = opened.head
    if head.two_way:
        return head.block_levels
    return max(1, depth) if head.num_masks is None else 1 + head.num_masks


def longest_text(opened: OpenedHead) -> int | None:
    """Number of tokens of the longest text for which the head drafts; None: any. Heads do not read the first
    token."""
    assert isinstance(opened, PositionModel | HeadModel)
    limit = None if opened.model is None else opened.model.max_length
    return None if limit is None else limit + 1
