"""Token-level intersection (Timor et al. 2025): a draft model restricted to tokens of both vocabularies.

New here: the draft's logits are masked to tokens with a matching token in the target's vocabulary, so that
its distribution becomes one over the target's tokens. Reuses: CrossVocabularyDrafter, Rejection, Fixed. Exact
at any temperature: renaming tokens one to one keeps a claim true. Tokens that only the target has are still
generated, from the residual distribution after rejection; the draft model reads them as the tokenization of
their bytes.
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
from outpace.drafters.model.cross_vocabulary import CrossVocabularyDrafter, Tails
from outpace.drafters.model.grow import Read, grow
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def tli(target: Target, *, draft: CrossVocabularyDraft, depth: int = 5, sampled: bool = True) -> Parts:
    """A drafted chain of tokens that both vocabularies have, verified by rejection.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    drafts = SharedTokenDrafts(draft, target.vocab, sampled=sampled)
    drafter = CrossVocabularyDrafter(
        draft, drafts.grow, drafts.to_target_tokens, nodes=depth + 1, max_depth=depth + 1
    )
    return Parts(target, drafter, Rejection(), Fixed(depth))


class SharedTokenDrafts:
    """Drafts restricted to the tokens that both vocabularies have."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, *, sampled: bool) -> None:
        self._match_of, self._vocab, self._sampled = cross_vocabulary.match_of, vocab, sampled
        self._own, self._match = cross_vocabulary.shared
        self.unmatched = self._match_of < 0

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the draft's tokens, all of which have a matching target token."""

        def masked(tree: TokenTree) -> tuple[int, Tensor]:
            first, logits = read(tree)
            return first, logits.masked_fill(self.unmatched.to(logits.device), float("-inf"))

        return grow(ctx, plan, masked, sampled=self._sampled)

    def to_target_tokens(self, tree: TokenTree, ctx: Context, tails: Tails) -> TokenTree:
        """The same tree in target token ids, with q over the target's vocabulary."""
        claim, tokens = tree.claim, self._match_of.to(tree.tokens.device)[tree.tokens]
        if not isinstance(claim, Drawn):
            return replace(tree, tokens=tokens)
        own, match = self._own.to(claim.q.device), self._match.to(claim.q.device)
        q = torch.zeros(len(claim.q), self._vocab, dtype=claim.q.dtype, device=claim.q.device)
        return replace(tree, tokens=tokens, claim=replace(claim, q=q.index_copy_(1, match, claim.q[:, own])))
