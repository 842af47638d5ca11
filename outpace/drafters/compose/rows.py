"""A batch divided into groups of rows that are drafted apart: contexts and steps of each, and one tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy
import torch
from torch.nn.functional import pad

from outpace.core.claim import Claim, Drawn, DrawnBeside
from outpace.core.context import Context, longest_draft
from outpace.core.contracts import (
    Draft,
    Found,
    LookUp,
    Parts,
    PathScores,
    Plan,
    Scores,
    Step,
    TreeSize,
    Verdict,
)
from outpace.core.noise import Key
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.union import Rekeyed


def context_of_rows(ctx: Context, rows: Sequence[int]) -> Context:
    """The context of these rows only; their noise is that of the whole batch."""
    noise = Rekeyed(
        ctx.noise, lambda key: Key([rows[row] for row in key.rows], key.nodes, key.depths, key.use, key.draw)
    )
    values = {each.name: getattr(ctx, each.name) for each in fields(Context)}
    # those that are no tuple, as the cache, belong to the batch, and an empty one is not known
    of_rows = {
        name: tuple([value[row] for row in rows])
        for name, value in values.items()
        if isinstance(value, tuple) and value
    }
    return Context(**{**values, **of_rows, "noise": noise})


@dataclass(frozen=True)
class SizeOfRows:
    """Implementation of core.contracts.TreeSize for some rows of a batch: `whole` decides as if nothing had
    been drafted in the other rows."""

    whole: TreeSize
    rows: Sequence[int]
    num_rows: int  # of the batch

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        return self._own(self.whole.extend(self._all(candidates), self._all(newest), levels))

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        return self._own(self.whole.keep(self._all(candidates), levels))

    def _all(self, own: Sequence[PathScores]) -> list[PathScores]:
        found = [numpy.empty(0)] * self.num_rows
        for row, each in zip(self.rows, own, strict=True):
            found[row] = each
        return found

    def _own(self, counts: Sequence[int]) -> list[int]:
        return [counts[row] for row in self.rows]


def plan_of_rows(plan: Plan, rows: Sequence[int]) -> Plan:
    """The plan for these rows only."""
    stop, choice, num_rows = plan.stop, plan.choice, len(plan.depth)

    def chosen(limits: Sequence[int], look_up: LookUp) -> list[tuple[int, int]]:
        assert choice is not None
        all_limits = [0] * num_rows  # other rows draft nothing
        for row, limit in zip(rows, limits, strict=True):
            all_limits[row] = limit

        def look_up_all() -> list[Found]:
            found: list[Found] = [(0, ())] * num_rows
            for row, each in zip(rows, look_up(), strict=True):
                found[row] = each
            return found

        sizes = choice(all_limits, look_up_all)
        return [sizes[row] for row in rows]

    return replace(
        plan,
        depth=tuple(plan.depth[row] for row in rows),
        stop=stop and (lambda own: stop(replace(own, rows=[rows[row] for row in own.rows]))),
        size=None if plan.size is None else SizeOfRows(plan.size, rows, num_rows),
        choice=None if choice is None else chosen,
        drafter=None if plan.drafter is None else tuple(plan.drafter[row] for row in rows),
        stem=None if plan.stem is None else tree_of_rows(plan.stem, rows),
    )


Propose = Callable[[Context, Plan], Draft]  # `propose` of a drafter


def draft_of_some(propose: Propose, ctx: Context, plan: Plan, rows: Sequence[int]) -> Draft:
    """The draft of a drafter that sees these rows only; the others have none."""
    if len(rows) == len(ctx.slots):
        return propose(ctx, plan)
    if not rows:
        return Draft(TokenTree.roots(ctx.roots))
    draft = propose(context_of_rows(ctx, rows), plan_of_rows(plan, rows))
    others = sorted({*range(len(ctx.slots))} - {*rows})
    tree = joined_rows([draft.tree, TokenTree.roots(ctx.roots[others])], [rows, others])
    return replace(draft, tree=tree)


def draft_within(propose: Propose, ctx: Context, plan: Plan, limit: int | None, skipped: int = 0) -> Draft:
    """The draft of a drafter whose model reads at most `limit` tokens of a text (None: any number), which
    does not read its first `skipped` tokens, or reads -`skipped` more behind a draft. Rows end with the last
    draft token that the model can predict, and those with longer texts have no draft; the model reads nothing
    of them. It is not asked for a draft of no depth."""
    longest = [longest_draft(limit, length - skipped) for length in ctx.committed]
    rows = [row for row, depth in enumerate(longest) if depth]
    plan = plan.within(longest)
    if plan.stem is not None:  # the depth is counted from the leaves of the stem
        ctx = replace(ctx, max_draft_depth=tuple(map(min, ctx.max_draft_depth, longest)))
    return draft_of_some(propose, ctx, plan, rows) if any(plan.depth) else Draft(TokenTree.roots(ctx.roots))


def draft_of_rows(parts: Parts, ctx: Context, rows: Sequence[int], depth: Sequence[int]) -> Draft:
    """The draft of one method for these rows, planned by its own controller; `depth`: by row of `ctx`, the
    longest path that it may have."""
    own = ctx if len(rows) == len(ctx.slots) else context_of_rows(ctx, rows)
    limits = tuple([min(own.max_draft_depth[index], depth[row]) for index, row in enumerate(rows)])
    if not any(limits) and DrawnBeside not in parts.drafter.claims:  # it reads the roots without a draft too
        return Draft(TokenTree.roots(own.roots))
    if limits != own.max_draft_depth:
        own = replace(own, max_draft_depth=limits)
    draft = parts.drafter.propose(own, parts.controller.plan(own).within(limits))
    if parts.target.chains_only:  # here, as chains of one method may be joined with drawn tokens of another
        return replace(draft, tree=draft.tree.first_chain())
    return draft


def joined_drafts(drafts: Sequence[Draft], rows: Sequence[Sequence[int]]) -> Draft:
    """One draft for the whole batch; `rows[i]` are the batch rows of `drafts[i]`."""
    if len(drafts) == 1:
        return drafts[0]
    tree = joined_rows([draft.tree for draft in drafts], rows)
    return Draft(tree, sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts))


def joined_rows(trees: Sequence[TokenTree], rows: Sequence[Sequence[int]]) -> TokenTree:
    """One tree for the whole batch; `rows[i]` are the batch rows of `trees[i]`. Claims are concatenated, and
    so is confidence if all trees with draft tokens have it."""
    count, trees = sum(map(len, rows)), with_like_claims(trees)
    parents, claimed = [-1] * count, [-1] * count
    # roots are on the host, drawn tokens on the draft model's device
    device = next((t.tokens.device for t in trees if t.tokens.device.type != "cpu"), trees[0].tokens.device)
    tokens = [tree.tokens.to(device) for tree in trees]
    roots = torch.zeros(count, dtype=torch.int64, device=device)
    q, ids, with_replacement, draws = [], [], list[bool](), list[tuple[int, int]]()
    places = list[int]()  # of the nodes of all trees
    drafted = [(tree, len(of)) for tree, of in zip(trees, rows, strict=True) if len(tree) > len(of)]
    confidences = [tree.confidence[inside:] for tree, inside in drafted if tree.confidence is not None]
    known = bool(drafted) and len(confidences) == len(drafted)
    for tree, own, of in zip(trees, tokens, rows, strict=True):
        claim, inside = tree.claim, len(of)
        # index in the joined tree of each node of this tree
        place = [*of, *range(len(parents), len(parents) + len(tree) - inside)]
        places += place
        parents += [place[parent] for parent in tree.forest.parents[inside:]]
        roots[list(of)] = own[:inside]
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
        if all(isinstance(tree.claim, DrawnBeside) for tree in trees):
            claim = _beside(claim, trees, places)
    joined = torch.cat([roots, *(own[len(of) :] for own, of in zip(tokens, rows, strict=True))])
    confidence = torch.cat([torch.zeros(count), *confidences]) if known else None
    return TokenTree(joined, Forest.of(parents, count), confidence, claim)


def _beside(claim: Drawn, trees: Sequence[TokenTree], places: Sequence[int]) -> DrawnBeside:
    """The joined claim with the distributions after all nodes, of which those of the trees, one after the
    other, are in `places`."""
    order = sorted(range(len(places)), key=places.__getitem__)
    claims = [tree.claim for tree in trees if isinstance(tree.claim, DrawnBeside)]
    after = torch.cat([each.after for each in claims])[order]
    logits = torch.cat([each.logits for each in claims])[order]
    return DrawnBeside(claim.q, claim.row, claim.replace, claim.ids, claim.draws, after=after, logits=logits)


def with_like_claims(trees: Sequence[TokenTree]) -> list[TokenTree]:
    """The same trees, whose distributions q can be concatenated: over the whole vocabulary if any of them is,
    else over as many listed tokens; columns that are added have probability 0."""
    claims = [tree.claim for tree in trees if isinstance(tree.claim, Drawn)]
    if len({(claim.q.shape[1], claim.ids is None) for claim in claims}) <= 1:
        return list(trees)
    whole = next((claim.q.shape[1] for claim in claims if claim.ids is None), None)
    columns = max(claim.q.shape[1] for claim in claims)
    return [replace(tree, claim=_widened(tree.claim, whole, columns)) for tree in trees]


def _widened(claim: Claim | None, whole: int | None, columns: int) -> Claim | None:
    """The claim over a vocabulary of `whole` tokens; None: over `columns` listed tokens."""
    if not isinstance(claim, Drawn) or claim.ids is None:
        return claim
    if whole is not None:
        q = claim.q.new_zeros(len(claim.q), whole).scatter_add_(1, claim.ids, claim.q)
        return replace(claim, q=q, ids=None)
    missing = (0, columns - claim.q.shape[1])
    return replace(claim, q=pad(claim.q, missing), ids=pad(claim.ids, missing))


def tree_of_rows(tree: TokenTree, rows: Sequence[int]) -> TokenTree:
    """The trees of these rows only, their nodes renumbered. A claim keeps all rows of q."""
    return tree.only(_nodes_of_rows(tree.forest, rows), rows)


def _nodes_of_rows(forest: Forest, rows: Sequence[int]) -> list[int]:
    """The nodes of these rows in the order of a forest of their own: roots first."""
    return [*rows, *(node for row in rows for node in forest.nodes[row][1:])]


def step_of_rows(step: Step, rows: Sequence[int]) -> Step:
    """The step record of these rows only, their nodes renumbered; the draft tree has no claim."""
    tree, scores = step.draft.tree, step.scores
    nodes = _nodes_of_rows(tree.forest, rows)
    place = {node: index for index, node in enumerate(nodes)}
    at = [node - scores.first for node in nodes]
    return Step(
        ctx=context_of_rows(step.ctx, rows),
        draft=Draft(tree_of_rows(replace(tree, claim=None), rows)),
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
        finished=tuple(index for index, row in enumerate(rows) if row in step.finished),
    )
