"""Token-level intersection (Timor et al. 2025): a draft model of another vocabulary, held to the tokens both have.

New here: the draft's logits are masked to tokens with a twin in the target's vocabulary, so that its law becomes one
over the target's tokens. Reuses: Translated, Rejection, Fixed. Exact at any temperature: renaming tokens one to
one leaves a claim true. Tokens that only the target has are still produced, as what rejection leaves of p; the draft
reads them as its twin, or else as the tokens that spell the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Target, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.grow import Read, grow
from outpace.drafters.translate import Tails, Translated
from outpace.models.vocabulary import Foreign
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def tli(target: Target, *, draft: Foreign, depth: int = 5, sampled: bool = True) -> Parts:
    shared = Shared(draft, target.vocab, sampled=sampled)
    drafter = Translated(draft, shared.grow, shared.renamed, nodes=depth + 1, reach=depth + 1)
    return Parts(target, drafter, Rejection(), Fixed(depth))


class Shared:
    """Drafting with the tokens that both vocabularies have."""

    def __init__(self, foreign: Foreign, vocab: int, *, sampled: bool) -> None:
        self._twin_of, self._vocab, self._sampled = foreign.twin_of, vocab, sampled
        self._own, self._twin = foreign.shared
        self.strange = self._twin_of < 0

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the draft's tokens."""

        def masked(tree: TokenTree) -> tuple[int, Tensor]:
            first, logits = read(tree)
            return first, logits.masked_fill(self.strange.to(logits.device), float("-inf"))

        return grow(ctx, plan, masked, sampled=self._sampled)

    def renamed(self, tree: TokenTree, ctx: Context, tails: Tails) -> TokenTree:
        """The same tree in the target's tokens, and its claim over them."""
        claim, tokens = tree.claim, self._twin_of.to(tree.tokens.device)[tree.tokens]
        if not isinstance(claim, Drawn):
            return replace(tree, tokens=tokens)
        own, twin = self._own.to(claim.q.device), self._twin.to(claim.q.device)
        q = torch.zeros(len(claim.q), self._vocab, dtype=claim.q.dtype, device=claim.q.device)
        return replace(tree, tokens=tokens, claim=replace(claim, q=q.index_copy_(1, twin, claim.q[:, own])))
