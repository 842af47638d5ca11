"""Drafts from what the target thought likely after each token when it last read it (Luo et al. 2025)."""

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
    """core.contracts.Drafter by an adjacency table, shared by all requests and never larger than at the
    start.

    It learns from every node that the target read, accepted or not, from logits as they come: what
    temperature and truncation hide at one place may be chosen at another.
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

    def learn(self, tokens: Tensor, logits: Tensor) -> None:  # (N,) read, (N, V) unwarped after them
        """Replace what follows these tokens."""
        likeliest = top(logits, self.table.table.shape[1])[1]
        self.table.update(tokens.cpu().numpy(), likeliest.cpu().numpy())

    def release(self, slots: Sequence[int]) -> None:
        """Nothing kept by request."""
