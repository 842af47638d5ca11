"""Claims: statements about the distribution of draft tokens, on which verification relies.

A claim gives the distribution q from which draft tokens were drawn. With a true claim, rejection sampling
accepts more tokens than matching. Tokens without a claim are verified by matching (accepted if equal to the
token sampled from the target), which is exact for any drafter. A false claim biases the output. Nodes may be
added to a tree with a claim, but selecting among drawn tokens (dropping, re-ordering or re-ranking them)
changes their distribution and makes the claim false.

Letters: N nodes of all trees, M rows of q, K columns of q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor


class Claim:
    """Base class of records of how draft tokens were drawn, on which exact verification relies;
    `Verifier.accepts` lists the subclasses for which a verifier is exact."""

    def only(self, nodes: Sequence[int]) -> Claim:
        """The record of these nodes alone, in this order. Nodes may be left out only with their whole row, or
        with all nodes below a given node, whatever their tokens; else the claim would be false."""
        raise NotImplementedError

    def below(self, nodes: Sequence[int], num_roots: int) -> Claim:
        """`only`, where the first `num_roots` nodes are committed, and so no longer drawn."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, slots=True)
class Drawn(Claim):
    """Record that tokens were drawn from the distributions `q`.

    Without `draws`, each node with `row` >= 0 was drawn once, in node order. `draws`, if given, lists every
    draw: a node may have been drawn several times, from one row of q or from several.
    """

    q: Tensor  # (M, K) draft distributions after temperature and truncation, at least float32; rows sum to 1
    row: tuple[int, ...]  # (N,) row of q from which each node was first drawn; -1: root, or not drawn
    # (M,) whether siblings from this row of q were drawn with replacement, so that they may be equal
    replace: tuple[bool, ...]
    ids: Tensor | None = (
        None  # (M, K) int64 token id of each column; None: column k is token k, K is the vocabulary size
    )
    draws: tuple[tuple[int, int], ...] | None = (
        None  # (node, row of q) of every draw in drawing order; None: one draw per node, see `row`
    )

    def all_draws(self) -> Sequence[tuple[int, int]]:
        """(node, row of q) of every draw, in the order of drawing."""
        if self.draws is not None:
            return self.draws
        return [(node, row) for node, row in enumerate(self.row) if row >= 0]

    def only(self, nodes: Sequence[int]) -> Drawn:
        place = {node: index for index, node in enumerate(nodes)}
        draws = self.draws and tuple([(place[node], row) for node, row in self.draws if node in place])
        return replace(self, row=tuple([self.row[node] for node in nodes]), draws=draws)

    def below(self, nodes: Sequence[int], num_roots: int) -> Drawn:
        own = self.only(nodes)
        row = (-1,) * num_roots + own.row[num_roots:]
        return replace(own, row=row, draws=own.draws and tuple([d for d in own.draws if d[0] >= num_roots]))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DrawnBeside(Drawn):
    """Record of drawn tokens with the drafter's distribution after every node, leaves and roots without a
    draft included, for rules that give the output a mixture of the target's distribution and the drafter's.
    """

    after: Tensor  # (N, V) distribution of the drafter's next token after each node, as in `q`
    logits: Tensor  # (N, V) its logits there, before all sampling parameters

    def only(self, nodes: Sequence[int]) -> DrawnBeside:
        own, at = Drawn.only(self, nodes), list(nodes)
        assert isinstance(own, DrawnBeside)
        return replace(own, after=self.after[at], logits=self.logits[at])
