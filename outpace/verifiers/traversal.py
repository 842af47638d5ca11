"""Traversal verification (Weng et al. 2025): tests the nodes of a draft tree from its leaves up to the root.

It starts with the path to the first leaf. Each node on it gets the weight w = min(1, w of its parent * r /
q), where r is the parent's residual at its token (p at first) and q the draft's probability of it. A node
without untested children is accepted with probability w, and the bonus token is drawn from its residual. If
it is rejected, its parent's residual becomes the normalised positive part of w r - q and, with S the sum of
that part, the parent's weight becomes S / (S + 1 - w); then the parent's next child is tested. The root has
the weight 1. On a chain this is block verification. Exact at any temperature, provided every claim is true
and siblings are tested in an order that does not depend on their tokens.

Siblings that were chosen, not drawn, are tested last, as draws from a one-hot q. Equal tokens drawn below one
node count as one node with the children of both: after the first is rejected its residual is 0, so nothing
below the second could be accepted.

Letters: A rows without a verdict yet, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.block import NEVER, chance_left
from outpace.verifiers.rejection import ACCEPT, RESIDUAL
from outpace.verifiers.rows import (
    Drafted,
    Ends,
    drawn_rows,
    keys,
    require_single_draws,
    smallest_mass,
    with_matched,
)


class Traversal:
    """Implementation of core.contracts.Verifier: traversal verification, all rows of a batch together."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.EXACT

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        rows = drawn_rows(tree, tree.claim)
        return with_matched(
            self._ends(rows, tree, target_probs, noise) if rows else {}, tree, target_probs, noise
        )

    def _ends(self, rows: Sequence[int], tree: TokenTree, target_probs: TargetProbs, noise: Noise) -> Ends:
        assert isinstance(tree.claim, Drawn)
        draft, forest = _Drafted(tree, tree.claim), tree.forest
        open_paths = [[Place(row, 1.0, draft.below([row]))] for row in rows]
        ended: list[Place] = []
        while open_paths:
            self._descend(open_paths, draft, target_probs)
            ends = [path[-1] for path in open_paths]
            kept = noise.flip([end.weight for end in ends], keys([end.node for end in ends], forest, ACCEPT))
            ended += [end for end, keep in zip(ends, kept, strict=True) if keep]
            open_paths = [path for path, keep in zip(open_paths, kept, strict=True) if not keep]
            if open_paths:
                self._refuse(open_paths, draft, target_probs)
        tokens: list[int] = []
        untouched = [place for place in ended if not place.refused]
        if untouched:
            tokens += target_probs.choose([place.node for place in untouched], noise)
        touched = [place for place in ended if place.refused]
        if touched:
            distributions = _stacked([self._distribution(place, target_probs) for place in touched])
            tokens += noise.choose(
                distributions, keys([place.node for place in touched], forest, RESIDUAL)
            ).tolist()
        pairs = zip(untouched + touched, tokens, strict=True)
        return {forest.rows[place.node]: (place.node, token) for place, token in pairs}

    def _descend(self, paths: Sequence[list[Place]], draft: _Drafted, target_probs: TargetProbs) -> None:
        """Extend every path by the next child to test and first descendants, to a leaf or weight 0."""
        new = [self._first_path(path[-1], draft) for path in paths]
        unread = [
            place
            for path, more in zip(paths, new, strict=True)
            for place in (path[-1], *more)
            if place.left is None and place.child
        ]
        if unread:
            p = target_probs.probs([place.node for place in unread])
            values = _at(p, draft.on(p.device, [place.child for place in unread])).tolist()
            for place, left, value in zip(unread, p.unbind(), values, strict=True):
                place.left, place.value = left, value
        for path, more in zip(paths, new, strict=True):
            for place in more:
                if path[-1].weight == 0:
                    break
                place.weight = draft.weight(path[-1])
                path.append(place)

    def _first_path(self, place: Place, draft: _Drafted) -> list[Place]:
        """New `Place`s from the next child to test down to the first leaf below it; their weights are not set
        yet."""
        path: list[Place] = []
        if place.weight == 0:
            return path
        while place.child:
            token = draft.tokens[place.child]
            if any(draft.tokens[child] == token for child in place.refused):
                # equal to a rejected sibling: its children were tested with that sibling's
                below: list[int] = []
            else:
                below = draft.below([child for child in place.below if draft.tokens[child] == token])
            place = Place(place.child, 0.0, below)
            path.append(place)
        return path

    def _refuse(self, paths: Sequence[list[Place]], draft: _Drafted, target_probs: TargetProbs) -> None:
        """Reject the last node of every path: remove it from the path, and update the residual and the weight
        of its parent."""
        for path in paths:
            path.pop()
        places = [path[-1] for path in paths]
        left = _without(places, draft)
        following = [place.following for place in places]
        if any(following):
            values, totals = torch.stack([_at(left, draft.on(left.device, following)), left.sum(-1)]).tolist()
        else:
            values, totals = [0.0] * len(places), left.sum(-1).tolist()
        for place, row, value, total in zip(places, left.unbind(), values, totals, strict=True):
            place.refused.append(place.child)
            place.weight = self._weight(place.weight, place.weight * total / place.total)
            if total <= smallest_mass(
                left.dtype
            ):  # after a rejection the residual is positive: a sum of 0 is rounding, so continue with p
                row, total = target_probs.probs([place.node])[0], 1.0
                value = float(row[draft.tokens[place.child]])
            place.left, place.value, place.total = row, value, total

    def _weight(self, weight: float, left: float) -> float:
        """A parent's weight after a child was rejected; `left` is the sum of the positive part of w r - q."""
        return chance_left(weight, left)

    def _distribution(self, place: Place, target_probs: TargetProbs) -> Tensor:  # (V,)
        """The residual of p that the bonus token after this node is drawn from, not normalised."""
        assert place.left is not None
        return place.left


@dataclass(eq=False, slots=True)
class Place:
    """State of one node on the path from the root to the leaf under test; nodes are tested from the leaf
    upwards."""

    node: int
    weight: float  # probability of accepting the node once it has no untested children
    below: list[int]  # its children in the order they are tested
    refused: list[int] = field(default_factory=list[int])  # its children that were tested and rejected
    left: Tensor | None = None  # (V,) residual of p after `refused`, not normalised; None: p not computed yet
    total: float = 1.0  # sum of `left`
    value: float = 0.0  # `left` at the token of `child`

    @property
    def child(self) -> int:
        """The next child to test; 0, which is a root and never a child, if all were tested."""
        return self.below[len(self.refused)] if len(self.refused) < len(self.below) else 0

    @property
    def following(self) -> int:
        """The child that is tested after `child`; 0 if there is none."""
        return self.below[len(self.refused) + 1] if len(self.refused) + 1 < len(self.below) else 0


class _Drafted(Drafted):
    """`Drafted` with the order and weights of children in tests. ValueError for several draws per node."""

    def __init__(self, tree: TokenTree, claim: Drawn) -> None:
        require_single_draws(claim, "traversal verification")
        super().__init__(tree, claim)
        drawn = [
            node for node, row in enumerate(claim.row) if row >= 0
        ]  # most draft probabilities will be needed: read all of them in one tensor operation
        rows, tokens = [claim.row[node] for node in drawn], tree.tokens[drawn].to(claim.q.device)
        if claim.ids is None:
            beliefs = claim.q[rows, tokens]
        else:
            beliefs = (claim.q[rows] * (claim.ids[rows] == tokens[:, None])).sum(-1)
        self.beliefs.update(zip(zip(drawn, rows, strict=True), beliefs.tolist(), strict=True))
        for draw in zip(drawn, rows, strict=True):
            self.check(draw)

    def on(self, device: torch.device, nodes: Sequence[int]) -> Tensor:  # (A,)
        """The tokens of these nodes as int64 on `device`."""
        return torch.tensor([self.tokens[node] for node in nodes], device=device)

    def below(self, nodes: Sequence[int]) -> list[int]:
        """Children of `nodes`, whose paths are equal: drawn ones in drawing order, then chosen ones."""
        below = [child for node in nodes for child in self.forest.children[node]]
        return sorted(below, key=lambda child: self.claim.row[child] < 0)

    def weight(self, place: Place) -> float:
        """The weight of the next child of `place`: min(1, w r / q); 0 if an equal sibling was rejected."""
        child = place.child
        if any(self.tokens[other] == self.tokens[child] for other in place.refused):
            return 0.0
        weight = place.weight * place.value / place.total
        if (row := self.claim.row[child]) >= 0:
            weight *= self.share(place) / self.belief((child, row))
        return min(1.0, weight) if weight > NEVER else 0.0

    def share(self, place: Place) -> float:
        """Probability that q had left when the next child was drawn; 1 if drawn with replacement."""
        row = self.claim.row[place.child]
        return self.remaining(row, [other for other in place.refused if self.claim.row[other] == row])


def _without(places: Sequence[Place], draft: _Drafted) -> Tensor:  # (A, V), not normalised
    """Residuals of the A nodes after their next child is rejected, not normalised: the positive part of r - q
    / w, where w is the node's weight (`Place.weight`). q is scaled by the sum of r, as r is not
    normalised."""
    claim, children = draft.claim, [place.child for place in places]
    rows = [claim.row[child] for child in children]
    shares = [
        place.total / (place.weight * draft.share(place)) if row >= 0 else 0.0
        for place, row in zip(places, rows, strict=True)
    ]
    r = _stacked([place.left for place in places if place.left is not None])
    if claim.ids is None and len(rows) == 1:
        left = torch.sub(r, claim.q[rows[0]].to(r.dtype), alpha=shares[0])
    else:
        at = torch.tensor(rows, device=r.device).clamp_(min=0)
        q, share = claim.q.index_select(0, at).to(r.dtype), r.new_tensor(shares)[:, None]
        if claim.ids is None:
            left = torch.addcmul(r, q, share, value=-1)
        else:
            left = r.scatter_add(1, claim.ids.index_select(0, at), q * -share)
    left.clamp_(min=0)
    for index, (child, row) in enumerate(zip(children, rows, strict=True)):
        if row < 0:  # a chosen token has a one-hot q: nothing of it is left
            left[index, draft.tokens[child]] = 0
    return left


def _stacked(rows: Sequence[Tensor]) -> Tensor:  # A × (V,) -> (A, V)
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))


def _at(distributions: Tensor, tokens: Tensor) -> Tensor:  # (A, V), (A,) -> (A,)
    return distributions.gather(1, tokens[:, None])[:, 0]
