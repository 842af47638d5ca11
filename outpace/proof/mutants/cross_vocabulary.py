"""Mutants of drafters with another vocabulary than the target's (TLI, SLRS, OmniDraft)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step
from outpace.core.grower import Grower
from outpace.core.noise import Chooser, Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.cross_vocabulary import CrossVocabularyDrafter, Tails
from outpace.drafters.model.grow import Read, grow
from outpace.drafters.model.incremental_tree import IncrementalTree
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes.vocabularies.omnidraft.early_stop import Stop
from outpace.recipes.vocabularies.omnidraft.pair_merging import PairMergingDrafter, _Row
from outpace.recipes.vocabularies.slrs import PartialString, StringDrafts
from outpace.recipes.vocabularies.tli import SharedTokenDrafts


class NotRenormalised(SharedTokenDrafts):
    """Mutant: sets q to 0 outside the tokens of both vocabularies, draws from q renormalised, but
    records the unnormalised q in the claim."""

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        claimed: list[Tensor] = []

        def children(
            grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
        ) -> list[int]:
            left = q.masked_fill(self.unmatched, 0)
            claimed.append(left)
            return grower.add_drawn(at, left / left.sum(-1, keepdim=True), widths, noise)

        tree = grow(ctx, plan, read, children=children)
        if isinstance(tree.claim, Drawn):
            tree = replace(tree, claim=replace(tree.claim, q=torch.cat(claimed)))
        return tree


class TwoForOne(SharedTokenDrafts):
    """Mutant: two draft tokens have the same string and either may be drawn as the target token,
    but the recorded q has the probability of only one of them."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, *, sampled: bool) -> None:
        super().__init__(cross_vocabulary, vocab, sampled=sampled)
        matching_tokens = [
            cross_vocabulary.target_vocabulary.ids.get(piece or b"", -1)
            for piece in cross_vocabulary.draft_vocabulary.pieces
        ]
        self._match_of = torch.tensor(matching_tokens).maximum(self._match_of)
        self.unmatched = self._match_of < 0


class _WithOtherClaim(StringDrafts):
    """Base class of mutants that record the distributions in `_claimed` as q instead of those that tokens
    were drawn from."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, min_prob: float) -> None:
        super().__init__(cross_vocabulary, vocab, min_prob)
        self._claimed: list[Tensor] = []

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        self._claimed = []
        tree = super().grow(ctx, plan, read, tails)
        if isinstance(tree.claim, Drawn):
            tree = replace(tree, claim=replace(tree.claim, q=torch.cat(self._claimed)))
        return tree


class OneWay(_WithOtherClaim):
    """Mutant: records as q the distribution over strings of one-byte draft tokens, without the probability of
    the same strings written with longer tokens."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, min_prob: float) -> None:
        super().__init__(cross_vocabulary, vocab, min_prob)
        self._bytewise = _Bytewise(cross_vocabulary, vocab, min_prob)

    def distribution(self, strings: IncrementalTree, starts: Sequence[int], ctx: Context) -> Tensor:
        self._claimed.append(self._bytewise.distribution(strings, starts, ctx))
        return super().distribution(strings, starts, ctx)


class Leftover(_WithOtherClaim):
    """Mutant: draws the next target token from the draft bytes left over after a target token, but records as
    q the distribution not conditioned on that token.

    Given the token before it, the next token cannot be one that would have made that token a longer one.
    """

    def _draw(
        self,
        grower: Grower,
        ctx: Context,
        at: Sequence[tuple[int, int]],
        distribution: Tensor,
        mass: Sequence[float],
    ) -> list[tuple[int, int, int]]:
        self._claimed.append(distribution)
        vocabulary, tokens, beyond = (
            self.cross_vocabulary.target_vocabulary,
            grower.structure().tokens.tolist(),
            distribution.clone(),
        )
        for index, (row, node) in enumerate(at):
            for token, piece in enumerate(vocabulary.pieces):
                before = vocabulary.pieces[tokens[node]]
                if (
                    node != row
                    and before
                    and piece
                    and vocabulary.tokenize(before + piece)[0] != tokens[node]
                ):
                    beyond[index, token] = 0
        return super()._draw(grower, ctx, at, beyond / beyond.sum(-1, keepdim=True), mass)


class _Bytewise(StringDrafts):
    def after(self, strings: IncrementalTree, partial: Sequence[PartialString], ctx: Context) -> Tensor:
        q = super().after(strings, partial, ctx)
        q = q * torch.tensor(
            [len(piece or b" ") == 1 for piece in self.cross_vocabulary.draft_vocabulary.pieces]
        )
        return q / q.sum(-1, keepdim=True)


class Unconditioned(PairMergingDrafter):
    """Mutant: after a token that was not merged into a pair, the next distribution keeps the tokens that
    would have completed the pair."""

    def unmerged(self, distribution: Tensor, pairs: dict[int, int]) -> Tensor:
        return distribution


class Unsubtracted(PairMergingDrafter):
    """Mutant: records for a token its full draft probability as q, without subtracting the probability of
    pairs that begin with it."""

    def _distribution(self, row: _Row, distributions: dict[int, Tensor]) -> Tensor:
        q, matching_tokens = super()._distribution(row, distributions), self._cross_vocabulary.matching_tokens
        assert row.distribution is not None
        for first in row.open:
            if first in matching_tokens:
                q[matching_tokens[first]] = row.distribution[first]
        return q


class HiddenStop(Stop):
    """Not a mutant: ends drafts by a fixed function of hidden states, which learns nothing."""

    def accepted(self, hidden: Tensor) -> list[float]:
        return hidden[:, 0].sigmoid().tolist()

    def observe(self, step: Step) -> None:
        """Does nothing: this stop learns nothing."""


class CutPairs(PairMergingDrafter):
    """Mutant: ends the draft behind a token that could have begun a pair, but records the distributions in
    which that token may have been merged."""

    def close_pairs(self, row: _Row, ending: Sequence[int]) -> None:
        return


class LastTokenDropped(PairMergingDrafter):
    """Mutant: leaves out the token with which the draft ends, as if it had not been drawn."""

    def end_draft(
        self, target_tree: Grower, ctx: Context, row: _Row, distributions: dict[int, Tensor]
    ) -> None:
        return


class ClaimedAfterUpdate(PairMergingDrafter):
    """Mutant: changes the weights of the draft model after the draft is drawn, and records the distributions
    of the changed weights as q."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        model = self._cross_vocabulary.model
        assert isinstance(model, TableTarget)
        ctx, before = replace(ctx, noise=Remembered(ctx.noise)), model.logits
        super().propose(ctx, plan)
        try:
            model.logits = before.flip(-1)
            return super().propose(ctx, plan)
        finally:
            model.logits = before


class Remembered(Chooser):
    """Noise that makes each choice once and repeats it when asked again."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._made: dict[tuple[int, ...], Tensor] = {}

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        place = (*key.rows, *key.nodes)
        if place not in self._made:
            self._made[place] = self._noise.choose(probs, key)
        return self._made[place]

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return self._noise.flip(accept, key)


def translated(drafting: SharedTokenDrafts | StringDrafts, cross_vocabulary: CrossVocabularyDraft) -> Drafter:
    """A CrossVocabularyDrafter whose draft-model part is the drafter `drafting`."""
    translate_tree = drafting.to_target_tokens if isinstance(drafting, SharedTokenDrafts) else None
    return CrossVocabularyDrafter(cross_vocabulary, drafting.grow, translate_tree, nodes=64, max_depth=16)
