"""String-level rejection sampling (Timor et al. 2025): what a draft writes, as a distribution over the
target's next token.

New here: the distribution of the first target token in what the draft model goes on to write, summed over all
ways in which it may write it, and draws from that distribution. Reuses: Translated, Rejection, Fixed. Exact
at any temperature: the tokens are drawn from the very distribution that is claimed. Of the methods for drafts
with other tokens it accepts most and costs most: all strings that are at least `min_prob` likely are followed
until no longer token of the target can begin with them, so the draft should have short tokens, bytes at best.
Less likely strings count as the longest token that they have spelt by then. A string is taken to begin with
the longest token that it spells; where a tokenizer would begin otherwise, the draft is refused more often,
and no more. What the draft wrote beyond the token is discarded; `depth` above 1 drafts the tokens after it in
the same way.

Letters: B rows, S strings being followed, K tokens of the draft model, V of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Target, recipe
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.cross_vocabulary import CrossVocabularyDrafter, Tails
from outpace.drafters.model.grow import Read
from outpace.drafters.model.incremental_tree import IncrementalTree
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.sampling.topk import argmax
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection

NONE, ON = -1, -2  # no token; ON - place: the string leads on to this place
START = 0
KNOWN = 1 << 22  # tokens of the draft's, over all places of which it is kept where they lead: 64 MiB


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def slrs(target: Target, *, draft: CrossVocabularyDraft, depth: int = 1, min_prob: float = 0.02) -> Parts:
    """Draws from the distribution of the target's next token that the draft implies.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step, in the target's tokens
        min_prob: least probability of a string of draft tokens for it to be extended
    """
    strings = Strings(draft, target.vocab, min_prob)
    reach = depth * (strings.longest + 1)
    drafter = CrossVocabularyDrafter(draft, strings.grow, nodes=1 + reach * strings.most, reach=reach + 1)
    return Parts(target, drafter, Rejection(), Fixed(depth))


class Strings:
    """Drafting from the distribution of the next target token."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, min_prob: float) -> None:
        if not 0 < min_prob <= 1:
            raise ValueError(f"min_prob is {min_prob}; give a probability above 0 and at most 1")
        self.cross_vocabulary, self._vocab, self._min_prob = cross_vocabulary, vocab, min_prob
        self._spelling = Spelling(cross_vocabulary)
        self.longest = max(len(piece) for piece in cross_vocabulary.ours.pieces if piece)
        self.most = int(1 / min_prob) + 1  # strings followed at once

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the target's tokens."""
        told, strings = Grower(ctx.roots), IncrementalTree(ctx, read)
        ends = {row: row for row, depth in enumerate(plan.depth) if depth > 0}  # row -> the last node told
        starts = dict(ends)  # row -> the node below which its strings begin
        for level in range(max(plan.depth)):
            ends = {row: node for row, node in ends.items() if plan.depth[row] > level}
            if not ends:
                break
            rows = list(ends)
            distribution = self.distribution(strings, [starts[row] for row in rows], ctx)
            mass = distribution.sum(-1)
            drawn = self._draw(
                told, ctx, [(row, ends[row]) for row in rows], distribution / mass[:, None], mass.tolist()
            )
            ends = {row: node for row, node, _ in drawn}
            for row, _, token in drawn:
                starts[row] = strings.down(starts[row], self.cross_vocabulary.translated(token))
        return told.tree()

    def _draw(
        self,
        told: Grower,
        ctx: Context,
        at: Sequence[tuple[int, int]],
        distribution: Tensor,
        mass: Sequence[float],
    ) -> list[tuple[int, int, int]]:
        """One token below each of these nodes, where there is any: its row, its node and itself."""
        found: list[tuple[int, int, int]] = []
        for greedy in (False, True):
            picked = [
                m for m, (row, _) in enumerate(at) if ctx.sampling[row].greedy is greedy and mass[m] > 0
            ]
            nodes = [at[m][1] for m in picked]
            if nodes and greedy:
                new = told.add_chosen(nodes, argmax(distribution[picked]))
            elif nodes:
                new = told.add_drawn(nodes, distribution[picked], 1, ctx.noise)
            else:
                continue
            found += zip([at[m][0] for m in picked], new, told.newest.tolist(), strict=True)
        return found

    def distribution(self, strings: IncrementalTree, starts: Sequence[int], ctx: Context) -> Tensor:  # (B, V)
        """How likely each of the target's tokens is to begin what the draft model writes below these
        nodes."""
        found: Tensor | None = None
        followed = [String(m, node, START, 1.0) for m, node in enumerate(starts)]
        while followed:
            q = self.after(strings, followed, ctx)
            if found is None:
                found = torch.zeros(len(starts) * self._vocab, dtype=q.dtype, device=q.device)
            q = q * q.new_tensor([[each.mass] for each in followed])
            then, now = (
                torch.stack(each).to(q.device) for each in self._spelling.after([s.place for s in followed])
            )
            on = (then <= ON) & (q >= self._min_prob) & (q > 0)
            ended = (~on & (now != NONE)).to(q.dtype) * q
            shift = torch.tensor([[each.start * self._vocab] for each in followed], device=q.device)
            found.index_add_(0, (now.clamp(min=0) + shift).flatten(), ended.flatten())
            s, token = on.nonzero().unbind(1)
            onward = zip(
                s.tolist(), token.tolist(), then[s, token].tolist(), q[s, token].tolist(), strict=True
            )
            followed = [
                String(followed[s].start, strings.down(followed[s].node, [token]), ON - place, mass)
                for s, token, place, mass in onward
            ]
        assert found is not None
        return found.view(len(starts), self._vocab)

    def after(self, strings: IncrementalTree, followed: Sequence[String], ctx: Context) -> Tensor:  # (S, K)
        """The draft model's distribution after each string, without tokens that mean nothing to the target
        where one begins."""
        nodes = [each.node for each in followed]
        logits = strings.logits(nodes)
        begins = torch.tensor([[each.place == START] for each in followed])
        if bool(begins.any()):
            logits = logits.masked_fill((begins & self._spelling.strange).to(logits.device), float("-inf"))
        return warp(logits, [ctx.sampling[strings.rows[node]] for node in nodes])


@dataclass(frozen=True, slots=True)
class String:
    """A string being followed."""

    start: int  # which of the strings asked about it belongs to
    node: int  # of the draft model's tree, its last token
    place: int  # in the spelling of the target's tokens
    mass: float  # its probability


class Spelling:
    """The target's tokens as a tree of bytes, and where each of the draft model's leads in it."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        self._pieces, self._matches = cross_vocabulary.theirs.pieces, cross_vocabulary.matching_tokens
        self._below: list[dict[int, int]] = [{}]  # per place the places after it, by byte
        self._token: list[int] = [NONE]  # per place the longest token that it has spelt
        for piece, token in sorted(cross_vocabulary.ours.ids.items()):  # shorter tokens come first
            place = START
            for byte in piece:
                if byte not in self._below[place]:
                    self._below[place][byte] = len(self._below)
                    self._below.append({})
                    self._token.append(self._token[place])
                place = self._below[place][byte]
            self._token[place] = token
        self._by_byte: dict[int, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                self._by_byte.setdefault(piece[0], []).append(token)
        self.strange = torch.tensor(
            [
                not piece and token not in cross_vocabulary.matching_tokens
                for token, piece in enumerate(self._pieces)
            ]
        )
        # two numbers a token of the draft's for every place: of all places together they would take gigabytes
        self._known = lru_cache(max(16, KNOWN // len(self._pieces)))(self._after)

    def after(self, places: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:  # S × (K,), S × (K,)
        """Per place and token of the draft's: the target's token that begins the string for certain, or where
        it leads; and the longest token spelt so far."""
        found = [self._known(place) for place in places]
        return [then for then, _ in found], [now for _, now in found]

    def _after(self, place: int) -> tuple[Tensor, Tensor]:
        # most tokens do not go on from here: only those that do are looked at
        then = torch.full((len(self._pieces),), self._token[place], dtype=torch.int64)
        now = then.clone()
        if place == START:
            for token, match in self._matches.items():
                if not self._pieces[token]:
                    then[token] = now[token] = match
        for byte in self._below[place]:
            for token in self._by_byte.get(byte, ()):
                end, fallen = self._walk(place, self._pieces[token] or b"")
                now[token] = self._token[end]
                then[token] = self._token[end] if fallen or not self._below[end] else ON - end
        return then, now

    def _walk(self, place: int, piece: bytes) -> tuple[int, bool]:
        """Where these bytes lead, and whether some lead nowhere."""
        for byte in piece:
            below = self._below[place].get(byte)
            if below is None:
                return place, True
            place = below
        return place, False
