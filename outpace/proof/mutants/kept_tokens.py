"""Mutants of drafters that draft some tokens of the vocabulary only (VocabTrim, FR-Spec, padded drafts).

Tokens are drawn from q over the kept ones, and the claim states another distribution."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.heads.trimmed_draft import TrimmedDraft
from outpace.models.table import TableTarget
from outpace.sampling.warp import warp

KEPT = (0, 2)


class _KeptTokens(DraftModel):
    """Base class: the correct drafter of the tokens `KEPT`, whose claim `claimed` then changes."""

    def __init__(self, model: TableTarget) -> None:
        super().__init__(TrimmedDraft(model, torch.tensor(KEPT)))
        self._whole = model

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        tree, claim = draft.tree, draft.tree.claim
        if not isinstance(claim, Drawn):
            return draft
        return replace(draft, tree=replace(tree, claim=replace(claim, q=self.claimed(tree, claim.q, ctx))))

    def claimed(self, tree: TokenTree, q: Tensor, ctx: Context) -> Tensor:
        raise NotImplementedError


class WholeVocabularyClaimed(_KeptTokens):
    """Mutant: states the draft distribution over the whole vocabulary, not normalised over kept tokens."""

    def claimed(self, tree: TokenTree, q: Tensor, ctx: Context) -> Tensor:
        assert isinstance(tree.claim, Drawn)
        stated, tokens, forest = q.clone(), tree.tokens.tolist(), tree.forest
        for node, row in enumerate(tree.claim.row):
            if row < 0:
                continue
            row_of_batch = forest.rows[node]
            path = [tokens[ancestor] for ancestor in forest.path(forest.parents[node])[1:]]
            state = self._whole.state([*ctx.tokens[row_of_batch].tolist(), *path])
            stated[row] = warp(self._whole.logits[state][None], [ctx.sampling[row_of_batch]])[0]
        return stated


class OtherOrder(_KeptTokens):
    """Mutant: the columns of q are in the order of the kept tokens' counts, but are read as in the order of
    their ids."""

    def claimed(self, tree: TokenTree, q: Tensor, ctx: Context) -> Tensor:
        stated = torch.zeros_like(q)
        stated[:, KEPT] = q[:, KEPT[::-1]]
        return stated


class CutAfterDrawing(DraftModel):
    """Mutant: a draft model with one token id more than the target draws from all its ids, replaces its last
    id by the target's last id, and claims q normalised over the target's ids."""

    def __init__(self, vocab: int) -> None:
        super().__init__(TableTarget(vocab + 1, seed=2, order=2))
        self._vocab = vocab

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        tree, claim = draft.tree, draft.tree.claim
        if not isinstance(claim, Drawn):
            return draft
        q = claim.q[:, : self._vocab] / claim.q[:, : self._vocab].sum(-1, keepdim=True)
        tokens = tree.tokens.clamp(max=self._vocab - 1)
        return replace(draft, tree=replace(tree, tokens=tokens, claim=replace(claim, q=q)))
