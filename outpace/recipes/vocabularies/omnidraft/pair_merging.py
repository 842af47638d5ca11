"""Chains of draft tokens, some pairs of which are merged into one target token.

Letters: n nodes of the draft model's tree, K tokens of the draft model, V of the target, A shared tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.grower import DRAFT, Grower
from outpace.core.noise import Chooser, Key
from outpace.core.tree import TokenTree
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.model.cross_vocabulary import CrossVocabularyDrafter, Tails
from outpace.drafters.model.grow import Read
from outpace.drafters.model.incremental_tree import IncrementalTree
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes.vocabularies.omnidraft.early_stop import Stop
from outpace.recipes.vocabularies.omnidraft.online_distillation import OnlineDistillation
from outpace.sampling.warp import warp


class TokenPairs:
    """The target tokens, of those learnt, whose bytes two draft tokens make up."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        self._cross_vocabulary = cross_vocabulary
        self._learned: set[int] = set()
        self.after: dict[int, dict[int, int]] = {}  # first draft token -> second draft token -> target token
        self.of: dict[int, tuple[int, int]] = {}  # target token -> its two draft tokens
        self.firsts = torch.zeros(cross_vocabulary.model.vocab, dtype=torch.bool)  # (K,)

    def learn(self, tokens: Sequence[int]) -> None:
        """Add those of these target tokens that two draft tokens make up."""
        ours = self._cross_vocabulary.target_vocabulary
        for token in tokens:
            piece = ours.pieces[token]
            if token in self._learned or not piece or ours.ids[piece] != token:
                continue
            self._learned.add(token)
            translation = self._cross_vocabulary.translated(token)
            if len(translation) == 2:
                self.after.setdefault(translation[0], {})[translation[1]] = token
                self.of[token] = translation[0], translation[1]
                self.firsts[translation[0]] = True


@dataclass(slots=True)
class _Row:
    """A row being drafted: its last draft model token, and the distribution that it was drawn from while it
    may still be merged with the next token."""

    row: int
    node: int  # node of the row's last draft model token, in the tree of draft model tokens
    target_node: int  # last node of the row's draft, in the tree of target tokens
    pairs: TokenPairs
    token: int = -1
    distribution: Tensor | None = None  # (K,); None: the last token is in the draft already
    # candidates for the last token that begin a pair -> their nodes
    open: dict[int, int] = field(default_factory=dict[int, int])
    # the row's draft: target tokens, and the node of the last draft model token of each
    drafted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    accepted: float = 1.0  # predicted probability that the last token is accepted if those before it are
    survival: float = 1.0  # predicted probability that all tokens before it are accepted


class PairMergingDrafter:
    """Implementation of core.contracts.Drafter: chains of the draft model's tokens in which some pairs are
    merged into target tokens."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)
    drafts_across_rows = False

    def __init__(
        self,
        cross_vocabulary: CrossVocabularyDraft,
        vocab: int,
        depth: int,
        pair_starts: int,
        *,
        pairs: Literal["seen", "request", "all"],
        learning: OnlineDistillation | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.learning, self.stop = learning, stop
        self.learns_across_rows = pairs == "seen" or learning is not None or stop is not None
        self._cross_vocabulary, self._vocab, self._pair_starts = cross_vocabulary, vocab, pair_starts
        self._own, self._match = cross_vocabulary.shared
        self._shared = cross_vocabulary.match_of >= 0
        self._inner = CrossVocabularyDrafter(
            cross_vocabulary,
            self.grow,
            nodes=1 + depth * (1 + pair_starts),
            max_depth=depth + 1,
            keeps_hidden=stop is not None,
        )
        self._rows: list[TokenPairs] = []  # per row of the draft in progress
        self._pairs = RequestMemory[TokenPairs](lambda: TokenPairs(cross_vocabulary))
        self._of_all = None if pairs == "request" else TokenPairs(cross_vocabulary)
        if pairs == "all":
            assert self._of_all is not None
            self._of_all.learn(range(len(cross_vocabulary.target_vocabulary.pieces)))

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if self.learning is not None:
            self.learning.adapter.activate()  # copies share a network
        self._rows = self._pairs_of(ctx)  # for `grow`, whose context is in the draft model's tokens
        return self._inner.propose(ctx, plan)

    def observe(self, step: Step) -> None:
        """Learn from the step, whose draft is verified: until the next `propose` none is pending."""
        if self.stop is not None:
            self.stop.observe(step)
        if self.learning is not None and any(step.generated):
            rows = self._pairs_of(step.ctx)
            for pairs, generated in zip(rows, step.generated, strict=True):
                pairs.learn(generated)
            if self.learning.observe(step, [pairs.of for pairs in rows]):
                self._inner.forget_all()

    def release(self, slots: Sequence[int]) -> None:
        if self.learning is not None:
            self.learning.release(slots)
        self._inner.release(slots)
        self._pairs.release(slots)

    def _pairs_of(self, ctx: Context) -> list[TokenPairs]:
        """Per row the pairs that may be merged; what is new in the texts is learned first."""
        found: list[TokenPairs] = []
        for own, new in self._pairs.follow(ctx):
            pairs = self._of_all or own
            pairs.learn(new.tolist())
            found.append(pairs)
        return found

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the target's tokens."""
        target_tree, draft_tree = Grower(ctx.roots), IncrementalTree(ctx, read)
        rows = [_Row(row, row, row, pairs) for row, pairs in enumerate(self._rows)]
        live = rows
        for level in range(max(plan.depth)):
            live = [row for row in live if plan.depth[row.row] > level]
            last = [plan.depth[row.row] == level + 1 for row in live]
            if not live:
                break
            distributions, begins = self._distributions(draft_tree, ctx, live, last)
            if self.stop is not None and level:
                live, last = self._going_on(self.stop, target_tree, ctx, live, last, distributions)
                if not live:
                    break
            drawn = self._draw(ctx, live, torch.stack([distributions[row.node] for row in live]), level)
            for row, token, ends in zip(live, drawn, last, strict=True):
                distribution = distributions[row.node]
                if row.distribution is not None:
                    pairs = row.pairs.after[row.token] if row.token in row.open else {}
                    if token in pairs:
                        row.node = draft_tree.down(row.node, [token])
                        self._append_target_token(target_tree, ctx, row, pairs[token], distributions)
                        row.distribution, row.open = None, {}
                        continue
                    matching = self._cross_vocabulary.matching_tokens[row.token]
                    self._append_target_token(target_tree, ctx, row, matching, distributions)
                    row.survival *= row.accepted
                    distribution = self.unmerged(distribution, pairs)
                row.open = {first: draft_tree.down(row.node, [first]) for first in begins[row.node]}
                row.node, row.token, row.distribution = (
                    draft_tree.down(row.node, [token]),
                    token,
                    distribution,
                )
                if ends:
                    self._append_target_token(
                        target_tree, ctx, row, self._cross_vocabulary.matching_tokens[token], distributions
                    )
        if self.stop is not None:
            for row in rows:
                seen = [node for _, node in row.drafted if draft_tree.is_scored(node)]
                hidden = list(self._inner.hidden(seen)) if seen else []
                self.stop.remember(ctx.slots[row.row], [token for token, _ in row.drafted], hidden)
        return target_tree.tree()

    def _going_on(
        self,
        stop: Stop,
        target_tree: Grower,
        ctx: Context,
        live: Sequence[_Row],
        last: Sequence[bool],
        distributions: dict[int, Tensor],
    ) -> tuple[list[_Row], list[bool]]:
        """The rows of `live` whose drafts do not end, with their entries of `last`; a token that may still be
        merged is appended unmerged if its row's draft ends.

        That decision changes with which probability a pair is drafted, so it is made for every token that
        could have been drawn there and begins a pair: those that end the draft begin none."""
        nodes = list(dict.fromkeys(node for row in live for node in (row.node, *row.open.values())))
        accepted = dict(zip(nodes, stop.accepted(self._inner.hidden(nodes)), strict=True))
        matching = self._cross_vocabulary.matching_tokens
        going_on: list[tuple[_Row, bool]] = []
        for row, is_last in zip(live, last, strict=True):
            row.accepted = accepted[row.node]
            ends = stop.ends(row.survival * row.accepted)
            if row.distribution is None:
                row.survival *= row.accepted
            else:
                ending = [node for node in row.open.values() if stop.ends(row.survival * accepted[node])]
                self.close_pairs(row, ending)
                ends = ends and row.token in matching  # no draft ends within a pair
                if ends:
                    self.end_draft(target_tree, ctx, row, distributions)
            if not ends:
                going_on.append((row, is_last))
        return [row for row, _ in going_on], [is_last for _, is_last in going_on]

    def close_pairs(self, row: _Row, ending: Sequence[int]) -> None:
        """Let the candidates for the row's last token at these nodes, with which the draft would end, begin
        no pair, unless they have no matching target token: within a pair no draft ends."""
        matching = self._cross_vocabulary.matching_tokens
        row.open = {
            first: node for first, node in row.open.items() if node not in ending or first not in matching
        }

    def end_draft(
        self, target_tree: Grower, ctx: Context, row: _Row, distributions: dict[int, Tensor]
    ) -> None:
        """Append the row's last token unmerged."""
        matching = self._cross_vocabulary.matching_tokens[row.token]
        self._append_target_token(target_tree, ctx, row, matching, distributions)

    def unmerged(self, distribution: Tensor, pairs: dict[int, int]) -> Tensor:  # (K,) -> (K,)
        """The distribution of a token given that it does not complete any of these pairs."""
        if not pairs:
            return distribution
        rest = distribution.clone()
        rest[list(pairs)] = 0
        return rest / rest.sum()

    def _distributions(
        self, draft_tree: IncrementalTree, ctx: Context, live: Sequence[_Row], last: Sequence[bool]
    ) -> tuple[dict[int, Tensor], dict[int, list[int]]]:
        """Per node the (K,) distribution of the next token and the tokens that may begin a pair there: at the
        last token of each row, and at the candidates for it that begin a pair."""
        # node -> its row, whether the next token is the draft's last, first token of a pair or -1
        queries: dict[int, tuple[_Row, bool, int]] = {}
        for row, ends in zip(live, last, strict=True):
            for first, node in row.open.items() if row.distribution is not None else ():
                queries[node] = (row, ends, first)
            queries.setdefault(row.node, (row, ends, -1))
        nodes = list(queries)
        logits = draft_tree.logits(nodes)
        shared = self._shared.to(logits.device)
        allowed = shared.repeat(len(nodes), 1)
        begins: dict[int, list[int]] = {}
        for index, (node, (row, ends, first)) in enumerate(queries.items()):
            begins[node] = []
            if first < 0 or bool(shared[first]):
                if self._pair_starts and not ends and row.pairs.after:
                    firsts = row.pairs.firsts.to(logits.device)
                    known = logits[index].masked_fill(~(shared | firsts), float("-inf"))
                    likely = known.topk(min(self._pair_starts, len(known))).indices
                    begins[node] = likely[firsts[likely]].tolist()
                    allowed[index, begins[node]] = True
            else:  # no matching target token: only pairs that begin with it
                allowed[index] = False
            if first >= 0:
                allowed[index, list(row.pairs.after[first])] = True
        q = warp(
            logits.masked_fill(~allowed, float("-inf")),
            [ctx.sampling[row.row] for row, _, _ in queries.values()],
        )
        return dict(zip(nodes, q.unbind(), strict=True)), begins

    def _draw(self, ctx: Context, live: Sequence[_Row], q: Tensor, level: int) -> list[int]:
        """Draw the next draft model token of every row; at temperature 0 the distributions are one-hot."""
        levels = [level] * len(live)
        return ctx.noise.choose(q, Key([row.row for row in live], levels, levels, DRAFT)).tolist()

    def _append_target_token(
        self, target_tree: Grower, ctx: Context, row: _Row, token: int, distributions: dict[int, Tensor]
    ) -> None:
        """Append to the row's draft the target token of its last draft model token, which is at the row's
        node, or of the pair that was merged."""
        row.drafted.append((token, row.node))
        if ctx.sampling[row.row].greedy:
            (row.target_node,) = target_tree.add_chosen([row.target_node], torch.tensor([token]))
        else:
            (row.target_node,) = target_tree.add_drawn(
                [row.target_node], self._distribution(row, distributions)[None], 1, FixedChoice(token)
            )

    def _distribution(self, row: _Row, distributions: dict[int, Tensor]) -> Tensor:  # (V,)
        """Probability of each target token, merged or unmerged, at the position where the row's last token
        was drawn."""
        distribution = row.distribution
        assert distribution is not None
        q = distribution.new_zeros(self._vocab)
        q[self._match.to(distribution.device)] = distribution[self._own.to(distribution.device)]
        for first, node in row.open.items():
            pairs, after = row.pairs.after[first], distributions[node]
            seconds = list(pairs)
            q[list(pairs.values())] = distribution[first] * after[seconds]
            match = self._cross_vocabulary.matching_tokens.get(first)
            if match is not None:
                rest = after.clone()  # summed: 1 minus the others may round to 0 or below
                rest[seconds] = 0
                q[match] = distribution[first] * rest.sum()
        return q


class FixedChoice(Chooser):
    """Implementation of core.noise.Noise that returns a token drawn before."""

    def __init__(self, token: int) -> None:
        self._token = token

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return torch.tensor([self._token], device=probs.device)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        raise AssertionError("only the choice of a token was made before")
