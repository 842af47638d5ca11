"""Drafts from the target's top-k next tokens after the last occurrence of each token (Luo et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.lookup.rank_template import cut
from outpace.indexes.tables.adjacency import AdjacencyTable
from outpace.sampling.topk import top


class TokenRecycling:
    """Implementation of core.contracts.Drafter with an adjacency table of the `top_k` next tokens of every
    token, shared by all requests and of constant size.

    It learns from every node that the target scored, accepted or not, from logits before temperature and
    truncation: a token that truncation removes in one context may be chosen in another.
    """

    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = True
    drafts_across_rows = False

    def __init__(self, vocab: int, top_k: int = 8, *, learn_from_prompts: bool = False) -> None:
        self.table = AdjacencyTable(vocab, min(top_k, vocab))
        self.want = Want(prompt_logits=learn_from_prompts)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.shape is not None, "this drafter fills a template"
        roots = ctx.roots
        tokens: list[int] = []
        parents = [-1] * len(roots)
        for row, (root, depth) in enumerate(zip(roots.tolist(), plan.depth, strict=True)):
            if depth:
                found = self.table.draft(root, cut(plan.shape, depth))
                first = len(parents)
                parents += [row if parent < 0 else first + parent for parent in found.parents]
                tokens += found.tokens
        if not tokens:
            return Draft(TokenTree.roots(roots))
        return Draft(TokenTree(torch.cat([roots, torch.tensor(tokens)]), Forest.of(parents, len(roots))))

    def observe(self, step: Step) -> None:
        if step.scores.logits is not None:
            self.learn(step.draft.tree.tokens, step.scores.logits)

    def learn(self, tokens: Tensor, logits: Tensor) -> None:  # (N,), (N, V)
        """Store the most probable tokens of `logits`, before temperature and truncation, as the next tokens
        of the scored nodes' `tokens`, in place of those stored before."""
        likeliest = top(logits, self.table.table.shape[1])[1]
        self.table.update(tokens.cpu().numpy(), likeliest.cpu().numpy())

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
