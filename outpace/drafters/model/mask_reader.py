"""Reads several levels of a draft tree in one forward of a draft head, in mask slots behind the last token.

A mask of a causal head gives the logits of the token after it. A head that reads blocks two ways
(`DraftHead.two_way`) gives at a mask those of the token in its place.

Letters: A anchors, B rows, k levels, K tokens of the draft vocabulary, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Choose, Ends, Plan
from outpace.core.device_copies import indices
from outpace.core.tree import TokenTree
from outpace.drafters.model.feature_drafter import FeatureDrafter, FeatureReader
from outpace.drafters.model.look_ahead import LookAhead
from outpace.drafters.model.masks import with_masks
from outpace.models.draft_vocabulary import over_vocabulary


class MaskReader(FeatureReader):
    """The forwards of one draft of a head with `DraftHead.mask_inputs`: each gives the logits of `levels`
    levels, fewer where the draft ends before. Forwards after the first read the whole tree again, with masks
    behind the nodes that have no logits yet: entries of masks are not kept.

    Two-way blocks are read in one forward, always with `levels` masks: fewer would change the logits at the
    others, and the head was not trained to read drafted tokens."""

    def __init__(self, drafter: FeatureDrafter, ctx: Context, plan: Plan, *, levels: int) -> None:
        super().__init__(drafter, ctx, plan)
        self._levels, self._two_way = levels, drafter.opened.head.two_way
        self._depths = plan.depth
        depth = levels if self._two_way else max(plan.depth, default=0)
        ahead = [min(levels, depth - above) for above in range(0, depth, levels)]
        self._look_ahead = LookAhead(self._read_ahead, ahead)

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        first, logits = self._look_ahead(tree)
        return first, logits, self._drafter.opened.head.draft_ids

    def next_levels(self, roots: TokenTree) -> tuple[Tensor, Tensor | None]:
        """Implementation of drafters.model.best_first.ReadLevels."""
        logits, ids = (
            self._read_ahead(roots, range(len(roots)), self._levels),
            self._drafter.opened.head.draft_ids,
        )
        if ids is None or not any(each.changes_logits for each in self._ctx.sampling):
            return logits, ids
        wide = over_vocabulary(logits.flatten(0, 1), ids, self._drafter.vocab)
        return wide.unflatten(0, logits.shape[:2]), None

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:
        """None: a chain is read in as many forwards as any other tree."""
        return None

    def _read_ahead(self, tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, k, K)
        opened, slots = self._drafter.opened, self._ctx.slots
        lag = opened.head.feature_lag
        ids, feature = opened.head.mask_inputs(levels if self._two_way else levels - 1)
        masked, nodes = with_masks(tree, anchors, ids.cpu(), self._counts(tree, anchors))
        with self.timed():
            self.cache.discard()
            missing = [self._drafter.missing(self._ctx, row) for row in range(len(slots))]
            features = [
                torch.cat((known, feature.to(known).expand(len(of_row) - lag, -1)))
                for (_, known), of_row in zip(missing, masked.forest.nodes, strict=True)
            ]
            gap = [tokens for tokens, _ in missing]
            scores = opened.model.score(masked, slots, self.cache, gap=gap, features=features)
        assert scores.logits is not None
        self.forwards += 1
        self.logits = [scores.logits]
        logits = scores.logits[indices(nodes, scores.logits.device)]
        # a mask of a two-way block has the logits of its own place, and the block's first token has none
        return logits.view(len(anchors), 1 + len(ids), -1)[:, int(self._two_way) :]

    def _counts(self, tree: TokenTree, anchors: Sequence[int]) -> list[int] | None:
        """The number of masks behind each anchor: as many as its row's draft still needs, since positions
        further on may be beyond the head's last one. None: all masks, as two-way blocks are read as a
        whole."""
        if self._two_way:
            return None
        depths, rows = tree.forest.depths, tree.forest.rows
        return [max(0, self._depths[rows[anchor]] - depths[anchor] - 1) for anchor in anchors]
