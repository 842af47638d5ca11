"""Mutant of draft heads whose router chooses among groups of tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read, grow
from outpace.models.heads.coral.head import CoralHead
from outpace.models.heads.draft_head import head_config, untrained
from outpace.models.heads.head_model import HeadModel
from outpace.models.table import TableTarget
from outpace.verifiers.rejection import Rejection


class _NotedShares(CoralHead):
    """Notes for each node the probability that the groups which count for it have over all tokens."""

    shares: tuple[float, ...] = ()  # by node of the draft

    def draft_logits(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, ids = super().draft_logits(outputs)
        share = (logits.logsumexp(-1) - self.lm_head(outputs).logsumexp(-1)).exp()
        self.shares += tuple(share.tolist())
        return logits, ids


def chains_of_router(target: TableTarget) -> Parts:
    """Chains drawn from CORAL's head with groups of one token. Mutant: q is claimed with the probabilities
    over all tokens, and 0 for those of other groups, so that its sum is below 1."""
    order = torch.arange(target.vocab)
    head = _NotedShares(
        head_config(target, target.vocab), target.embed, target.head, order, num_groups=target.vocab
    )
    assert head.router is not None
    untrained(head, target, 1, (head.fc, head.layers, head.router))

    def growth(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        head.shares = ()
        tree = grow(ctx, plan, read)
        if not isinstance(tree.claim, Drawn):
            return tree
        q = tree.claim.q.clone()
        for node, row in enumerate(tree.claim.row):
            if row >= 0:
                q[row] *= head.shares[tree.forest.parents[node]]
        return replace(tree, claim=replace(tree.claim, q=q))

    drafter = FeatureDrafter(HeadModel(head), target.vocab, growth, sampled=True)
    return Parts(target, drafter, Rejection(), Fixed(2))
