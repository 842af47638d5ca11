"""Reads the last levels of a draft tree without forwards, from outputs that a draft head gave above them.

Letters: A anchors, N nodes, n nodes of a path, k levels, K tokens of the draft vocabulary, D hidden size.
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


class TailReader(FeatureReader):
    """The forwards of one draft of a head with `DraftHead.tail`: one for each of the first levels, then none
    for the last ones, which the tail drafts from the outputs of the forwards.

    `depth`: the levels of the deepest drafts. Shallower ones, as at the end of a text, have forwards at the
    same levels, so that drafts do not depend on other requests in their batch."""

    def __init__(self, drafter: FeatureDrafter, ctx: Context, plan: Plan, *, depth: int) -> None:
        super().__init__(drafter, ctx, plan)
        self._num_forwards = drafter.opened.head.levels_with_forwards(depth)
        ahead = [1] * self._num_forwards
        if depth > self._num_forwards:
            ahead.append(depth - self._num_forwards)
        self._look_ahead = LookAhead(self._read_ahead, ahead)
        self._outputs: list[Tensor] = []  # (N, D) what the tail reads at all nodes so far, in parts

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        first, logits = self._look_ahead(tree)
        return first, logits, self._drafter.opened.head.draft_ids

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:
        """None: a chain is read level by level, as any other tree."""
        return None

    def _read_ahead(self, tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, k, K)
        if tree.forest.depths[anchors[0]] == self._num_forwards:
            return self._read_tail(tree, anchors, levels)
        first, logits, _ = super().over_draft_vocabulary(tree)
        self._outputs.append(self.layer_outputs[self._drafter.opened.head.tail_layer])
        return logits[indices([anchor - first for anchor in anchors], logits.device)][:, None]

    def _read_tail(self, tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, k, K)
        head, parents = self._drafter.opened.head, tree.forest.parents
        weight = next(iter(head.own.values()))
        paths = [list(anchors)]
        for _ in range(head.tail_reads):
            paths.append([parents[node] for node in paths[-1]])
        nodes, above = paths[-2::-1], paths[:0:-1]  # each from the first of the path on
        with self.timed(), torch.no_grad():
            outputs = torch.cat(self._outputs)
            states = torch.stack([outputs[indices(each, outputs.device)] for each in above], 1)
            tokens = torch.stack([tree.tokens[each] for each in nodes], 1).to(weight.device)
            found = head.tail(head.embedded(tokens).to(weight), states.to(weight), levels)
            logits = head.lm_head(found)
        self.logits = [logits]
        return logits
