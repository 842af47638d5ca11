"""A drafter of its own for every row: for proofs about drafters that learn from all rows of a batch.

What a drafter was taught by other rows is settled before a step and independent of its noise, so it cannot bias the
output; but a run could not be replayed in other company. With drafters apart, a row learns from its own steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Scores, Step, Verdict
from outpace.core.noise import Key
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.together import Rekeyed


def row_by_row(build: Callable[[], Parts]) -> Callable[[], Parts]:
    """The same parts, whose drafter is apart for every row if it says that it is `shared` by them."""

    def built() -> Parts:
        parts = build()
        if not getattr(parts.drafter, "shared", False):
            return parts
        return replace(parts, drafter=RowByRow(parts.drafter, lambda: build().drafter))

    return built


class RowByRow:
    """core.contracts.Drafter: one that `make` makes for every slot, like `example`."""

    def __init__(self, example: Drafter, make: Callable[[], Drafter]) -> None:
        self._make, self.want = make, example.want
        self.claims: tuple[type[Claim], ...] = example.claims
        self._drafters: dict[int, Drafter] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafts = [
            self._of(slot).propose(_context(ctx, row), replace(plan, depth=(plan.depth[row],)))
            for row, slot in enumerate(ctx.slots)
        ]
        forwards, seconds = sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts)
        return Draft(_joined([draft.tree for draft in drafts]), forwards, seconds)

    def observe(self, step: Step) -> None:
        for row, slot in enumerate(step.ctx.slots):
            self._of(slot).observe(_step(step, row))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._drafters.pop(slot, None)

    def _of(self, slot: int) -> Drafter:
        if slot not in self._drafters:
            self._drafters[slot] = self._make()
        return self._drafters[slot]


def _context(ctx: Context, row: int) -> Context:
    """What is known of one row."""
    noise = Rekeyed(ctx.noise, lambda key: Key([row] * len(key.rows), key.nodes, key.depths, key.use, key.draw))
    return Context(
        tokens=ctx.tokens[row : row + 1],
        committed=ctx.committed[row : row + 1],
        room=ctx.room[row : row + 1],
        slots=ctx.slots[row : row + 1],
        cache=ctx.cache,
        sampling=ctx.sampling[row : row + 1],
        noise=noise,
        prompt_lengths=ctx.prompt_lengths[row : row + 1],
    )


def _joined(trees: Sequence[TokenTree]) -> TokenTree:
    """Trees of one row each as the rows of one: their roots first."""
    parents, claimed = [-1] * len(trees), [-1] * len(trees)
    q, ids, with_replacement = [], [], list[bool]()
    for row, tree in enumerate(trees):
        shift, claim = len(parents) - 1, tree.claim
        parents += [row if parent == 0 else shift + parent for parent in tree.forest.parents[1:]]
        if claim is None:
            claimed += [-1] * (len(tree) - 1)
            continue
        assert isinstance(claim, Drawn)
        claimed += [len(with_replacement) + index if index >= 0 else -1 for index in claim.row[1:]]
        with_replacement += claim.replace
        q.append(claim.q)
        if claim.ids is not None:
            ids.append(claim.ids)
    claim = None
    if q:
        claim = Drawn(torch.cat(q), tuple(claimed), tuple(with_replacement), torch.cat(ids) if ids else None)
    tokens = torch.cat([tree.tokens[:1] for tree in trees] + [tree.tokens[1:] for tree in trees])
    return TokenTree(tokens, Forest.of(parents, len(trees)), None, claim)


def _step(step: Step, row: int) -> Step:
    """What happened to one row."""
    tree, scores = step.draft.tree, step.scores
    forest, nodes = tree.forest, list(tree.forest.nodes[row])
    parents = [-1, *(forest.local[forest.parents[node]] for node in nodes[1:])]
    at = [node - scores.first for node in nodes]
    return Step(
        ctx=_context(step.ctx, row),
        draft=Draft(TokenTree(tree.tokens[nodes], Forest.of(parents, 1))),
        scores=Scores(
            0,
            None if scores.logits is None else scores.logits[at],
            {layer: hidden[at] for layer, hidden in scores.hidden.items()},
            {layer: [weights[node] for node in at] for layer, weights in scores.attention.items()},
        ),
        verdict=Verdict([forest.local[step.verdict.leaf[row]]], [step.verdict.bonus[row]]),
        kept=(forest.local[step.kept[row]],),
        emitted=(step.emitted[row],),
        seconds=step.seconds,
    )
