"""Several draft models that draft one tree together, token by token.

Letters: F frontier nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Target, Want
from outpace.core.grower import Grower
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.rows import context_of_rows
from outpace.drafters.model.draft_model import DraftModel, Reader
from outpace.recipes.control.cosine.routing_scores import RoutingScores
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32


@dataclass(frozen=True, slots=True)
class Proposal:
    """The most probable next token of one draft model."""

    drafter: int
    token: int
    confidence: float  # its draft probability at temperature 1
    follows: int  # the token before it in the text that the draft model has read


class FusedChains:
    """Implementation of core.contracts.Drafter of CoSine (Gao et al. 2025): the draft models that `routing`
    chooses for a row draft together.

    With `fusion`, at each level each of them proposes its most probable token, and the one with the largest
    product of confidence and routing score is the next token of a chain that all of them continue. The other
    proposals are its siblings and have no children. Without, each draft model drafts a chain of its own, and
    tokens that chains begin with together are one node.

    The fused token is chosen among several models' tokens, so it is not distributed as any one model's q: it
    has no claim and is verified by matching, as its siblings are.
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, models: Sequence[Target], routing: RoutingScores, *, fusion: bool = True) -> None:
        """ValueError for models with different vocabularies: they read one another's tokens."""
        if len(sizes := sorted({model.vocab for model in models})) > 1:
            listed = " and ".join(map(str, sizes))
            raise ValueError(
                f"the draft models have vocabularies of {listed} tokens, but continue one another's tokens: "
                "give models with the target's tokenizer"
            )
        self._models = [DraftModel(model, sampled=False) for model in models]
        self.routing, self._fusion = routing, fusion
        # slot -> what each draft model proposed at each level of the draft in progress
        self._proposed: dict[int, list[list[Proposal]]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = [row for row, depth in enumerate(plan.depth) if depth]
        if not rows:
            return Draft(TokenTree.roots(ctx.roots))
        chosen = self.routing.choose(ctx, rows)
        with ExitStack() as stack:
            members: list[_Member] = []
            for number, model in enumerate(self._models):
                own = [
                    row for row in rows if number in chosen[row] and model.longest_draft(ctx.committed[row])
                ]
                if own:
                    own_ctx = ctx if len(own) == len(ctx.slots) else context_of_rows(ctx, own)
                    members.append(_Member(number, own, own_ctx, stack.enter_context(model.reading(own_ctx))))
            tree = self._grown(ctx, plan, members)
        return Draft(
            tree,
            sum(member.reader.forwards for member in members),
            sum(member.reader.seconds for member in members),
        )

    def _grown(self, ctx: Context, plan: Plan, members: Sequence[_Member]) -> TokenTree:
        tree = _Tree(ctx)
        for slot in ctx.slots:
            self._proposed[slot] = []
        stops = ctx.stops
        ended: set[tuple[int, int]] = set()  # (row, draft model) that has drafted the end of the text
        for level in range(max(plan.depth)):
            found: dict[int, list[Proposal]] = {}
            for member in members:
                own = [row for row in member.rows if plan.depth[row] > level]
                own = [row for row in own if (row, member.drafter) not in ended]
                model = self._models[member.drafter]
                own = [row for row in own if model.longest_draft(ctx.committed[row]) > level]
                for row, proposal in member.proposals(own):
                    found.setdefault(row, []).append(proposal)
            if not found:
                break
            following: dict[int, dict[int, int]] = {}  # row -> draft model -> the token that it reads next
            for row, proposals in found.items():
                self._proposed[ctx.slots[row]].append(proposals)
                scores = self.routing.scores(ctx.slots[row])
                if self._fusion:
                    proposals = sorted(proposals, key=lambda each: -each.confidence * scores[each.drafter])
                    fused = proposals[0].token
                    tree.add(row, [each.token for each in proposals])
                    following[row] = {each.drafter: fused for each in proposals}
                else:
                    for each in sorted(proposals, key=lambda each: -scores[each.drafter]):
                        tree.extend(row, each.drafter, each.token)
                    following[row] = {each.drafter: each.token for each in proposals}
            for row, tokens in following.items() if stops else ():
                ended |= {(row, drafter) for drafter, token in tokens.items() if token in stops[row]}
            for member in members:
                own = [row for row in member.rows if member.drafter in following.get(row, {})]
                member.go_on(own, [following[row][member.drafter] for row in own])
        return tree.tree()

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            levels = self._proposed.pop(slot, [])
            if levels and step.generated[row]:
                accepted = forest.depths[step.verdict.leaf[row]]
                self.routing.record(slot, agreement(levels, step.generated[row]), accepted)

    def release(self, slots: Sequence[int]) -> None:
        self.routing.release(slots)
        for model in self._models:
            model.release(slots)
        for slot in slots:
            self._proposed.pop(slot, None)


def agreement(levels: Sequence[Sequence[Proposal]], generated: Sequence[int]) -> dict[int, float]:
    """Draft model -> the mean confidence of its proposals, those that were not generated counting 0.
    Proposals after a token that was not generated do not count."""
    found: dict[int, list[float]] = {}
    ended: set[int] = set()
    for level, (proposals, token) in enumerate(zip(levels, generated, strict=False)):
        for each in proposals:
            if level and each.follows != generated[level - 1]:
                ended.add(each.drafter)
            if each.drafter not in ended:
                found.setdefault(each.drafter, []).append(each.confidence * (each.token == token))
    return {drafter: sum(scores) / len(scores) for drafter, scores in found.items()}


class _Member:
    """A draft model that takes part in a draft, with the text that it reads below each root: a chain."""

    def __init__(self, drafter: int, rows: Sequence[int], ctx: Context, reader: Reader) -> None:
        self.drafter, self.rows, self.reader = drafter, rows, reader  # (B,) its rows of the batch
        self._ctx, self._chains = ctx, Grower(ctx.roots)
        self._ends, self._last = list(range(len(rows))), ctx.roots.tolist()  # last node, and its token

    def proposals(self, rows: Sequence[int]) -> list[tuple[int, Proposal]]:
        """The model's next token after the text of each of these rows, which it reads."""
        if not rows:
            return []
        at = [self.rows.index(row) for row in rows]
        ends, last = [self._ends[index] for index in at], [self._last[index] for index in at]
        first, logits = self.reader(self._chains.structure())
        logits = adjust(logits[[end - first for end in ends]], self._ctx, self._chains, ends)
        confidences, tokens = at_least_float32(logits).softmax(-1).max(-1)
        found = zip(rows, tokens.tolist(), confidences.tolist(), last, strict=True)
        return [(row, Proposal(self.drafter, *rest)) for row, *rest in found]

    def go_on(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Continue the texts of these rows with a token each."""
        if rows:
            at = [self.rows.index(row) for row in rows]
            nodes = self._chains.add_chosen([self._ends[index] for index in at], torch.tensor(tokens))
            for index, node, token in zip(at, nodes, tokens, strict=True):
                self._ends[index], self._last[index] = node, token


class _Tree:
    """The draft tree of the whole batch; equal tokens below a node are one node."""

    def __init__(self, ctx: Context) -> None:
        self._num_rows = len(ctx.slots)
        self._tokens, self._parents = ctx.roots.tolist(), [-1] * self._num_rows
        self._ends: dict[int, int] = {}  # row -> last node of the fused chain
        self._own_ends: dict[tuple[int, int], int] = {}  # (row, draft model) -> last node of its chain
        self._below: dict[tuple[int, int], int] = {}  # (node, token) -> the node with this token below it

    def add(self, row: int, tokens: Sequence[int]) -> None:
        """Continue the fused chain of a row with the first of these tokens; the others are its siblings."""
        end = self._ends.get(row, row)
        self._ends[row], *_ = [self._child(end, token) for token in tokens]

    def extend(self, row: int, drafter: int, token: int) -> None:
        """Continue a draft model's own chain."""
        end = self._own_ends.get((row, drafter), row)
        self._own_ends[row, drafter] = self._child(end, token)

    def _child(self, parent: int, token: int) -> int:
        if (parent, token) not in self._below:
            self._below[parent, token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
        return self._below[parent, token]

    def tree(self) -> TokenTree:
        return TokenTree(torch.tensor(self._tokens), Forest.of(self._parents, self._num_rows))
