"""Reads several levels of a draft tree in one forward of a draft head, in mask slots behind the last token.

A mask of a causal head gives the logits of the token after it. A head that reads blocks two ways
(`DraftHead.two_way`) gives at a mask those of the token in its place, unless it drafts at the root too
(`DraftHead.drafts_at_root`).

Letters: A anchors, B rows, k levels, K tokens of the draft vocabulary, F size of a feature, D hidden size, M
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import NOTHING, Choose, Ends, Plan
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

    Two-way blocks are read in one forward, always as a whole, with `levels` = `DraftHead.block_levels`: with
    fewer masks the logits at the others would change, and the head was not trained to read drafted tokens."""

    def __init__(self, drafter: FeatureDrafter, ctx: Context, plan: Plan, *, levels: int) -> None:
        super().__init__(drafter, ctx, plan)
        head = drafter.opened.head
        self._levels, self._two_way = levels, head.two_way
        # (B × levels, D) of a two-way block the inputs of the LM head, kept for `survival`
        self._outputs: Tensor | None = None
        self._depths = plan.depth
        depth = levels if self._two_way else max(plan.depth, default=0)
        ahead = [min(levels, depth - above) for above in range(0, depth, levels)]
        self._look_ahead = LookAhead(self._read_ahead, ahead)

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        head = self._drafter.opened.head
        first, logits = self._look_ahead(tree)
        with self.timed(), torch.no_grad():
            logits = head.given_tokens(logits, tree.tokens[first:])
        self.logits = [logits]
        return first, logits, head.draft_ids

    def survival(self, tree: TokenTree, nodes: Sequence[int]) -> list[float] | None:  # (M,) -> (M,)
        """Implementation of drafters.model.grow.PredictsSurvival, for heads that predict acceptance."""
        if self._outputs is None:
            return None
        forest = tree.forest
        paths = [list(forest.path(node)) for node in nodes]
        read = [node for path in paths for node in path]
        at = [forest.rows[node] * self._levels + forest.depths[node] for node in read]
        with self.timed(), torch.no_grad():
            tokens = tree.tokens[read].to(self._outputs.device)
            odds = self._drafter.opened.head.acceptance(self._outputs[at], tokens)
            accepted = odds.float().sigmoid().split([len(path) for path in paths])
            return torch.stack([each.prod() for each in accepted]).tolist()

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
        ids, feature = opened.head.mask_inputs((opened.head.num_masks or 0) if self._two_way else levels - 1)
        masked, nodes = with_masks(tree, anchors, ids.cpu(), self._counts(tree, anchors))
        with self.timed():
            self.cache.discard()
            missing = [self._drafter.missing(self._ctx, row) for row in range(len(slots))]
            features = [
                torch.cat((known, feature.to(known).expand(len(of_row) - lag, -1)))
                for (_, known), of_row in zip(missing, masked.forest.nodes, strict=True)
            ]
            gap = [tokens for tokens, _ in missing]
            want = opened.state if opened.head.predicts_acceptance else NOTHING
            scores = opened.model.score(masked, slots, self.cache, want, gap=gap, features=features)
        assert scores.logits is not None
        self.forwards += 1
        self.logits = [scores.logits]
        # a mask of a two-way block may have the logits of its own place, and the block's first token none
        skipped = 1 + len(ids) - levels

        def of_levels(values: Tensor) -> Tensor:  # (N, ...) -> (A, k, ...)
            return values[indices(nodes, values.device)].view(len(anchors), 1 + len(ids), -1)[:, skipped:]

        if opened.head.predicts_acceptance:
            self._outputs = of_levels(scores.hidden[opened.head.state_layer]).flatten(0, 1)
        return of_levels(scores.logits)

    def _counts(self, tree: TokenTree, anchors: Sequence[int]) -> list[int] | None:
        """The number of masks behind each anchor: as many as its row's draft still needs, since positions
        further on may be beyond the head's last one. None: all masks, as two-way blocks are read as a
        whole."""
        if self._two_way:
            return None
        depths, rows = tree.forest.depths, tree.forest.rows
        return [max(0, self._depths[rows[anchor]] - depths[anchor] - 1) for anchor in anchors]
