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
from outpace.verifiers.block import NEVER, acceptance_probability
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
        open_paths = [[NodeState(row, 1.0, draft.children([row]))] for row in rows]
        ended: list[NodeState] = []
        while open_paths:
            self._descend(open_paths, draft, target_probs)
            ends = [path[-1] for path in open_paths]
            accepted = noise.flip(
                [end.weight for end in ends], keys([end.node for end in ends], forest, ACCEPT)
            )
            ended += [end for end, is_accepted in zip(ends, accepted, strict=True) if is_accepted]
            open_paths = [
                path for path, is_accepted in zip(open_paths, accepted, strict=True) if not is_accepted
            ]
            if open_paths:
                self._reject(open_paths, draft, target_probs)
        tokens: list[int] = []
        untouched = [state for state in ended if not state.rejected]
        if untouched:
            tokens += target_probs.choose([state.node for state in untouched], noise)
        touched = [state for state in ended if state.rejected]
        if touched:
            distributions = _stacked([self._distribution(state, target_probs) for state in touched])
            tokens += noise.choose(
                distributions, keys([state.node for state in touched], forest, RESIDUAL)
            ).tolist()
        pairs = zip(untouched + touched, tokens, strict=True)
        return {forest.rows[state.node]: (state.node, token) for state, token in pairs}

    def _descend(self, paths: Sequence[list[NodeState]], draft: _Drafted, target_probs: TargetProbs) -> None:
        """Extend every path by the next child to test and first descendants, to a leaf or weight 0."""
        new = [self._first_path(path[-1], draft) for path in paths]
        unread = [
            state
            for path, more in zip(paths, new, strict=True)
            for state in (path[-1], *more)
            if state.residual is None and state.child
        ]
        if unread:
            p = target_probs.probs([state.node for state in unread])
            residuals_at_child = _at(p, draft.on(p.device, [state.child for state in unread])).tolist()
            for state, residual, residual_at_child in zip(
                unread, p.unbind(), residuals_at_child, strict=True
            ):
                state.residual, state.residual_at_child = residual, residual_at_child
        for path, more in zip(paths, new, strict=True):
            for state in more:
                if path[-1].weight == 0:
                    break
                state.weight = draft.weight(path[-1])
                path.append(state)

    def _first_path(self, state: NodeState, draft: _Drafted) -> list[NodeState]:
        """New `NodeState`s from the next child to test down to the first leaf below it; their weights are not
        set yet."""
        path: list[NodeState] = []
        if state.weight == 0:
            return path
        while state.child:
            token = draft.tokens[state.child]
            if any(draft.tokens[child] == token for child in state.rejected):
                # equal to a rejected sibling: its children were tested with that sibling's
                children: list[int] = []
            else:
                children = draft.children([child for child in state.children if draft.tokens[child] == token])
            state = NodeState(state.child, 0.0, children)
            path.append(state)
        return path

    def _reject(self, paths: Sequence[list[NodeState]], draft: _Drafted, target_probs: TargetProbs) -> None:
        """Reject the last node of every path: remove it from the path, and update the residual and the weight
        of its parent."""
        for path in paths:
            path.pop()
        states = [path[-1] for path in paths]
        residual = _residuals_without(states, draft)
        next_child = [state.next_child for state in states]
        if any(next_child):
            residuals_at_child, residual_sums = torch.stack(
                [_at(residual, draft.on(residual.device, next_child)), residual.sum(-1)]
            ).tolist()
        else:
            residuals_at_child, residual_sums = [0.0] * len(states), residual.sum(-1).tolist()
        for state, row, residual_at_child, residual_sum in zip(
            states, residual.unbind(), residuals_at_child, residual_sums, strict=True
        ):
            state.rejected.append(state.child)
            state.weight = self._weight(state.weight, state.weight * residual_sum / state.residual_sum)
            # after a rejection the residual is positive: a sum of 0 is rounding, so continue with p
            if residual_sum <= smallest_mass(residual.dtype):
                row, residual_sum = target_probs.probs([state.node])[0], 1.0
                residual_at_child = float(row[draft.tokens[state.child]])
            state.residual, state.residual_at_child, state.residual_sum = row, residual_at_child, residual_sum

    def _weight(self, weight: float, residual_sum: float) -> float:
        """A parent's weight after a child was rejected; `residual_sum` is the sum of the positive part of w r
        - q."""
        return acceptance_probability(weight, residual_sum)

    def _distribution(self, state: NodeState, target_probs: TargetProbs) -> Tensor:  # (V,)
        """The residual of p that the bonus token after this node is drawn from, not normalised."""
        assert state.residual is not None
        return state.residual


@dataclass(eq=False, slots=True)
class NodeState:
    """State of one node on the path from the root to the leaf under test; nodes are tested from the leaf
    upwards."""

    node: int
    weight: float  # probability of accepting the node once it has no untested children
    children: list[int]  # its children in the order they are tested
    rejected: list[int] = field(default_factory=list[int])  # its children that were tested and rejected
    residual: Tensor | None = (
        None  # (V,) residual of p after `rejected`, not normalised; None: p not computed yet
    )
    residual_sum: float = 1.0  # sum of `residual`
    residual_at_child: float = 0.0  # `residual` at the token of `child`

    @property
    def child(self) -> int:
        """The next child to test; 0, which is a root and never a child, if all were tested."""
        return self.children[len(self.rejected)] if len(self.rejected) < len(self.children) else 0

    @property
    def next_child(self) -> int:
        """The child that is tested after `child`; 0 if there is none."""
        return self.children[len(self.rejected) + 1] if len(self.rejected) + 1 < len(self.children) else 0


class _Drafted(Drafted):
    """`Drafted` with the order and weights of children in tests. ValueError for several draws per node."""

    def __init__(self, tree: TokenTree, claim: Drawn) -> None:
        require_single_draws(claim, "traversal verification")
        super().__init__(tree, claim)
        self.read_draft_probs()  # most of them will be needed

    def on(self, device: torch.device, nodes: Sequence[int]) -> Tensor:  # (A,)
        """The tokens of these nodes as int64 on `device`."""
        return torch.tensor([self.tokens[node] for node in nodes], device=device)

    def children(self, nodes: Sequence[int]) -> list[int]:
        """Children of `nodes`, whose paths are equal: drawn ones in drawing order, then chosen ones."""
        children = [child for node in nodes for child in self.forest.children[node]]
        return sorted(children, key=lambda child: self.claim.row[child] < 0)

    def weight(self, state: NodeState) -> float:
        """The weight of the next child of `state`: min(1, w r / q), or 0 if an equal sibling was rejected."""
        child = state.child
        if any(self.tokens[other] == self.tokens[child] for other in state.rejected):
            return 0.0
        weight = state.weight * state.residual_at_child / state.residual_sum
        if (row := self.claim.row[child]) >= 0:
            weight *= self.share(state) / self.draft_prob((child, row))
        return min(1.0, weight) if weight > NEVER else 0.0

    def share(self, state: NodeState) -> float:
        """Probability that q had left when the next child was drawn; 1 if drawn with replacement."""
        row = self.claim.row[state.child]
        return self.remaining(row, [other for other in state.rejected if self.claim.row[other] == row])


def _residuals_without(states: Sequence[NodeState], draft: _Drafted) -> Tensor:  # (A, V), not normalised
    """Residuals of the A nodes after their next child is rejected, not normalised: the positive part of r - q
    / w, where w is the node's weight (`NodeState.weight`). q is scaled by the sum of r, as r is not
    normalised."""
    claim, children = draft.claim, [state.child for state in states]
    rows = [claim.row[child] for child in children]
    scales = [
        state.residual_sum / (state.weight * draft.share(state)) if row >= 0 else 0.0
        for state, row in zip(states, rows, strict=True)
    ]
    r = _stacked([state.residual for state in states if state.residual is not None])
    if claim.ids is None and len(rows) == 1:
        residual = torch.sub(r, claim.q[rows[0]].to(r.dtype), alpha=scales[0])
    else:
        at = torch.tensor(rows, device=r.device).clamp_(min=0)
        q, share = claim.q.index_select(0, at).to(r.dtype), r.new_tensor(scales)[:, None]
        if claim.ids is None:
            residual = torch.addcmul(r, q, share, value=-1)
        else:
            residual = r.scatter_add(1, claim.ids.index_select(0, at), q * -share)
    residual.clamp_(min=0)
    for index, (child, row) in enumerate(zip(children, rows, strict=True)):
        if row < 0:  # a chosen token has a one-hot q: nothing of it is left
            residual[index, draft.tokens[child]] = 0
    return residual


def _stacked(rows: Sequence[Tensor]) -> Tensor:  # A × (V,) -> (A, V)
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))


def _at(distributions: Tensor, tokens: Tensor) -> Tensor:  # (A, V), (A,) -> (A,)
    return distributions.gather(1, tokens[:, None])[:, 0]
