"""String-level rejection sampling (Timor et al. 2025): a draft's text as a distribution of the next token.

New here: the distribution of the first target token in the text that the draft model generates next, summed
over all its tokenizations in draft tokens, and draws from that distribution. Reuses: CrossVocabularyDrafter,
Rejection, Fixed. Exact at any temperature: the tokens are drawn from exactly the distribution that they
claim. Of the methods for other vocabularies it accepts most and costs most: every string of draft tokens with
probability at least `min_prob` is extended until it cannot become a longer target token, so the draft model
should have short tokens, bytes at best. A less probable string counts as the longest target token that it
begins with. A string's first target token is taken to be the longest one that it begins with; where the
target's tokenizer splits it otherwise, fewer tokens are accepted, but the output stays exact. Text drafted
beyond that token is discarded; `depth` above 1 drafts the tokens after it in the same way.

Letters: B rows, S strings being extended, K tokens of the draft model, V of the target.
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

# What a string of draft tokens spells is stored as one integer: a target token id >= 0; NONE if it spells no
# token; or OPEN - n if it ends at node n of the byte trie, from which further bytes may spell a longer token
NONE, OPEN = (-1, -2)
ROOT = 0
CACHED_ENTRIES = 1 << 22  # (trie node, draft token) entries of `TokenTrie.after` that are cached: 64 MiB


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def slrs(target: Target, *, draft: CrossVocabularyDraft, depth: int = 1, min_prob: float = 0.02) -> Parts:
    """Draws from the distribution over target tokens that the draft model implies, verified by rejection.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step, in the target's tokens
        min_prob: minimum probability of a string of draft tokens for it to be extended
    """
    strings = StringDrafts(draft, target.vocab, min_prob)
    max_depth = depth * (strings.longest + 1)
    drafter = CrossVocabularyDrafter(
        draft, strings.grow, nodes=1 + max_depth * strings.max_strings, max_depth=max_depth + 1
    )
    return Parts(target, drafter, Rejection(), Fixed(depth))


class StringDrafts:
    """Drafts in the target's tokens from the distribution of the next target token that the draft model
    implies."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, vocab: int, min_prob: float) -> None:
        if not 0 < min_prob <= 1:
            raise ValueError(f"min_prob is {min_prob}; give a probability above 0 and at most 1")
        self.cross_vocabulary, self._vocab, self._min_prob = cross_vocabulary, vocab, min_prob
        self._trie = TokenTrie(cross_vocabulary)
        self.longest = max(len(piece) for piece in cross_vocabulary.target_vocabulary.pieces if piece)
        self.max_strings = int(1 / min_prob) + 1  # maximum number of strings per row extended in one forward

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the target's tokens."""
        grower, strings = Grower(ctx.roots), IncrementalTree(ctx, read)
        ends = {row: row for row, depth in enumerate(plan.depth) if depth > 0}  # row -> last draft node
        starts = dict(ends)  # row -> draft model node below which its strings begin
        for level in range(max(plan.depth)):
            ends = {row: node for row, node in ends.items() if plan.depth[row] > level}
            if not ends:
                break
            rows = list(ends)
            distribution = self.distribution(strings, [starts[row] for row in rows], ctx)
            mass = distribution.sum(-1)
            drawn = self._draw(
                grower, ctx, [(row, ends[row]) for row in rows], distribution / mass[:, None], mass.tolist()
            )
            ends = {row: node for row, node, _ in drawn}
            for row, _, token in drawn:
                starts[row] = strings.down(starts[row], self.cross_vocabulary.translated(token))
        return grower.tree()

    def _draw(
        self,
        grower: Grower,
        ctx: Context,
        at: Sequence[tuple[int, int]],
        distribution: Tensor,
        mass: Sequence[float],
    ) -> list[tuple[int, int, int]]:
        """Add one token below each (row, node) of `at` whose distribution has any mass; returns (row, new
        node, token) of each."""
        found: list[tuple[int, int, int]] = []
        for greedy in (False, True):
            picked = [
                m for m, (row, _) in enumerate(at) if ctx.sampling[row].greedy is greedy and mass[m] > 0
            ]
            nodes = [at[m][1] for m in picked]
            if nodes and greedy:
                new = grower.add_chosen(nodes, argmax(distribution[picked]))
            elif nodes:
                new = grower.add_drawn(nodes, distribution[picked], 1, ctx.noise)
            else:
                continue
            found += zip([at[m][0] for m in picked], new, grower.newest.tolist(), strict=True)
        return found

    def distribution(self, strings: IncrementalTree, starts: Sequence[int], ctx: Context) -> Tensor:  # (B, V)
        """Probability of each target token to be the first in the text that the draft model generates below
        each of these nodes."""
        found: Tensor | None = None
        partial = [PartialString(m, node, ROOT, 1.0) for m, node in enumerate(starts)]
        while partial:
            q = self.after(strings, partial, ctx)
            if found is None:
                found = torch.zeros(len(starts) * self._vocab, dtype=q.dtype, device=q.device)
            q = q * q.new_tensor([[each.mass] for each in partial])
            then, now = (
                torch.stack(each).to(q.device) for each in self._trie.after([s.trie_node for s in partial])
            )
            is_open = (then <= OPEN) & (q >= self._min_prob) & (q > 0)
            ended = (~is_open & (now != NONE)).to(q.dtype) * q
            shift = torch.tensor([[each.start * self._vocab] for each in partial], device=q.device)
            found.index_add_(0, (now.clamp(min=0) + shift).flatten(), ended.flatten())
            s, token = is_open.nonzero().unbind(1)
            extended = zip(
                s.tolist(), token.tolist(), then[s, token].tolist(), q[s, token].tolist(), strict=True
            )
            partial = [
                PartialString(
                    partial[s].start, strings.down(partial[s].node, [token]), OPEN - trie_node, mass
                )
                for s, token, trie_node, mass in extended
            ]
        assert found is not None
        return found.view(len(starts), self._vocab)

    def after(
        self, strings: IncrementalTree, partial: Sequence[PartialString], ctx: Context
    ) -> Tensor:  # (S, K)
        """The draft model's distribution after each string; where a target token begins, draft tokens without
        bytes or matching target token are masked."""
        nodes = [each.node for each in partial]
        logits = strings.logits(nodes)
        begins = torch.tensor([[each.trie_node == ROOT] for each in partial])
        if bool(begins.any()):
            logits = logits.masked_fill((begins & self._trie.unmatched).to(logits.device), float("-inf"))
        return warp(logits, [ctx.sampling[strings.rows[node]] for node in nodes])


@dataclass(frozen=True, slots=True)
class PartialString:
    """A sequence of draft model tokens whose bytes do not yet determine the first target token."""

    start: int  # index, in the argument `starts` of `distribution`, of the node where the string starts
    node: int  # node of the string's last token in the tree of draft model tokens
    trie_node: int  # node of the byte trie of the target's tokens
    mass: float  # the draft model's probability of generating this sequence after its start node


class TokenTrie:
    """A trie over the bytes of the target's tokens, and the trie node that each draft token leads to from
    each node."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        self._pieces, self._matches = (
            cross_vocabulary.draft_vocabulary.pieces,
            cross_vocabulary.matching_tokens,
        )
        self._below: list[dict[int, int]] = [{}]  # per trie node: byte -> child
        self._token: list[int] = [NONE]  # per trie node: longest target token that its bytes begin with
        # sorted by bytes, a token that is a prefix of another comes before it, so new nodes inherit it
        for piece, token in sorted(cross_vocabulary.target_vocabulary.ids.items()):
            trie_node = ROOT
            for byte in piece:
                if byte not in self._below[trie_node]:
                    self._below[trie_node][byte] = len(self._below)
                    self._below.append({})
                    self._token.append(self._token[trie_node])
                trie_node = self._below[trie_node][byte]
            self._token[trie_node] = token
        self._by_byte: dict[int, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                self._by_byte.setdefault(piece[0], []).append(token)
        self.unmatched = torch.tensor(
            [
                not piece and token not in cross_vocabulary.matching_tokens
                for token, piece in enumerate(self._pieces)
            ]
        )
        # an LRU cache: tables for all trie nodes, two numbers per draft token each, would take gigabytes
        self._cached_after = lru_cache(max(16, CACHED_ENTRIES // len(self._pieces)))(self._after)

    def after(self, trie_nodes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:  # S × (K,), S × (K,)
        """Per trie node, two arrays over the draft's tokens: the target token that the string now certainly
        begins with, or OPEN - n if it leads to trie node n; and the longest target token that it begins with
        so far."""
        found = [self._cached_after(trie_node) for trie_node in trie_nodes]
        return [then for then, _ in found], [now for _, now in found]

    def _after(self, trie_node: int) -> tuple[Tensor, Tensor]:
        # only draft tokens whose first byte continues from this trie node are walked
        then = torch.full((len(self._pieces),), self._token[trie_node], dtype=torch.int64)
        now = then.clone()
        if trie_node == ROOT:
            for token, match in self._matches.items():
                if not self._pieces[token]:
                    then[token] = now[token] = match
        for byte in self._below[trie_node]:
            for token in self._by_byte.get(byte, ()):
                end, left_trie = self._walk(trie_node, self._pieces[token] or b"")
                now[token] = self._token[end]
                then[token] = self._token[end] if left_trie or not self._below[end] else OPEN - end
        return then, now

    def _walk(self, trie_node: int, piece: bytes) -> tuple[int, bool]:
        """The last trie node on the path of these bytes, and whether the path leaves the trie."""
        for byte in piece:
            below = self._below[trie_node].get(byte)
            if below is None:
                return trie_node, True
            trie_node = below
        return trie_node, False
