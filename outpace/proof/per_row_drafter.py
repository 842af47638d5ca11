"""A separate drafter per row or per group of rows, for distribution tests of drafters that learn across rows.

State learnt from other rows is fixed before a step and independent of the step's noise, so it cannot bias the
output; but with it a run could not be repeated in another batch. With a drafter per row, a row learns only
from its own steps; with a drafter per group, only from the group's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Scores, Step, Verdict
from outpace.core.noise import Key
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.union import Rekeyed


def row_by_row(
    build: Callable[[], Parts],
    history: Callable[[Parts], None]
    | None = None,  # decodes earlier requests, for drafters that learn from them
    shared: Sequence[object] = (),  # models: not copied, all drafters use the same objects
) -> Callable[[], Parts]:
    """`build` itself if its drafter does not learn across rows; else a function that returns its parts with a
    copy of the drafter per row, each copied after `history` has run."""
    example = build()
    if not example.drafter.learns_across_rows:
        return build
    if history is not None:
        history(example)

    def drafter() -> Drafter:
        return copy.deepcopy(example.drafter, {id(each): each for each in shared})

    return lambda: replace(build(), drafter=Apart(example.drafter, drafter))


def group_by_group(build: Callable[[], Parts], groups: Sequence[int]) -> Parts:
    """The parts with a new drafter per group of rows; `groups[slot]` is the group of a slot."""
    parts = build()
    return replace(parts, drafter=Apart(parts.drafter, lambda: build().drafter, groups))


class Apart:
    """Implementation of core.contracts.Drafter: one drafter per slot, or per group of slots, created by
    `make`. `example` has the `want` and `claims` of all of them."""

    learns_across_rows = drafts_across_rows = False

    def __init__(
        self, example: Drafter, make: Callable[[], Drafter], groups: Sequence[int] | None = None
    ) -> None:
        self._make, self._groups, self.want = make, groups, example.want
        self.claims: tuple[type[Claim], ...] = example.claims
        self._drafters: dict[int, Drafter] = {}  # group of slots -> the drafter they share
        # group of slots that share a drafter -> those of its slots whose requests have not ended
        self._open: dict[int, set[int]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        parts = list(self._divided(ctx.slots))
        drafts = [
            drafter.propose(_context(ctx, rows), replace(plan, depth=tuple(plan.depth[row] for row in rows)))
            for drafter, rows in parts
        ]
        forwards, seconds = sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts)
        return Draft(
            _joined([draft.tree for draft in drafts], [rows for _, rows in parts]), forwards, seconds
        )

    def observe(self, step: Step) -> None:
        for drafter, rows in self._divided(step.ctx.slots):
            drafter.observe(_step(step, rows))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            group = self._group(slot)
            if group in self._drafters:
                self._open[group].discard(slot)
                if self._open[group]:
                    self._drafters[group].release([slot])
                else:  # what the drafter would learn at the end of its last request, nobody would use
                    del self._drafters[group], self._open[group]

    def _group(self, slot: int) -> int:
        return self._groups[slot] if self._groups else slot

    def _divided(self, slots: Sequence[int]) -> list[tuple[Drafter, list[int]]]:
        """(drafter, rows of the batch that it drafts for) of every group in `slots`."""
        rows: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            group = self._group(slot)
            rows.setdefault(group, []).append(row)
            if group not in self._drafters:
                self._drafters[group], self._open[group] = self._make(), set()
            self._open[group].add(slot)
        return [(self._drafters[group], found) for group, found in rows.items()]


def _context(ctx: Context, rows: Sequence[int]) -> Context:
    """The context of these rows only; their noise is that of the whole batch."""
    noise = Rekeyed(
        ctx.noise, lambda key: Key([rows[row] for row in key.rows], key.nodes, key.depths, key.use, key.draw)
    )
    return Context(
        tokens=tuple(ctx.tokens[row] for row in rows),
        committed=tuple(ctx.committed[row] for row in rows),
        max_draft_depth=tuple(ctx.max_draft_depth[row] for row in rows),
        slots=tuple(ctx.slots[row] for row in rows),
        cache=ctx.cache,
        sampling=tuple(ctx.sampling[row] for row in rows),
        noise=noise,
        prompt_lengths=tuple(ctx.prompt_lengths[row] for row in rows),
        unread=None if ctx.unread is None else tuple(ctx.unread[row] for row in rows),
    )


def _joined(trees: Sequence[TokenTree], rows: Sequence[Sequence[int]]) -> TokenTree:
    """One tree for the whole batch; `rows[i]` are the batch rows of `trees[i]`. Claims are concatenated."""
    count = sum(map(len, rows))
    parents, claimed, roots = [-1] * count, [-1] * count, torch.zeros(count, dtype=torch.int64)
    q, ids, with_replacement, draws = [], [], list[bool](), list[tuple[int, int]]()
    for tree, of in zip(trees, rows, strict=True):
        claim, inside = tree.claim, len(of)
        # index in the joined tree of each node of this tree
        place = [*of, *range(len(parents), len(parents) + len(tree) - inside)]
        parents += [place[parent] for parent in tree.forest.parents[inside:]]
        roots[list(of)] = tree.tokens[:inside]
        if claim is None:
            claimed += [-1] * (len(tree) - inside)
            continue
        assert isinstance(claim, Drawn)
        claimed += [len(with_replacement) + index if index >= 0 else -1 for index in claim.row[inside:]]
        draws += [(place[node], len(with_replacement) + index) for node, index in claim.all_draws()]
        with_replacement += claim.replace
        q.append(claim.q)
        if claim.ids is not None:
            ids.append(claim.ids)
    claim = None
    if q:
        repeated = len({node for node, _ in draws}) < len(draws)
        claim = Drawn(
            torch.cat(q),
            tuple(claimed),
            tuple(with_replacement),
            torch.cat(ids) if ids else None,
            tuple(draws) if repeated else None,
        )
    tokens = torch.cat([roots, *(tree.tokens[len(of) :] for tree, of in zip(trees, rows, strict=True))])
    return TokenTree(tokens, Forest.of(parents, count), None, claim)


def _step(step: Step, rows: Sequence[int]) -> Step:
    """The step record of these rows only, their nodes renumbered; the draft tree has no claim."""
    tree, scores = step.draft.tree, step.scores
    forest = tree.forest
    nodes = [*rows, *(node for row in rows for node in forest.nodes[row][1:])]
    place = {node: index for index, node in enumerate(nodes)} | {-1: -1}
    parents = [place[forest.parents[node]] for node in nodes]
    at = [node - scores.first for node in nodes]
    return Step(
        ctx=_context(step.ctx, rows),
        draft=Draft(TokenTree(tree.tokens[nodes], Forest.of(parents, len(rows)))),
        scores=Scores(
            0,
            None if scores.logits is None else scores.logits[at],
            {layer: hidden[at] for layer, hidden in scores.hidden.items()},
            {layer: [weights[node] for node in at] for layer, weights in scores.attention.items()},
        ),
        verdict=Verdict(
            [place[step.verdict.leaf[row]] for row in rows], [step.verdict.bonus[row] for row in rows]
        ),
        kept=tuple(place[step.kept[row]] for row in rows),
        generated=tuple(step.generated[row] for row in rows),
        seconds=step.seconds,
    )
