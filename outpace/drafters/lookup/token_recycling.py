"""Drafts from the target's top-k next tokens after the last occurrence of each token (Luo et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.tree import Shape
from outpace.drafters.lookup.rank_template import cut
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree, parents_and_ranks
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop
from outpace.sampling.topk import top

Ints = NDArray[np.int32]
UNKNOWN = -1


class TokenRecycling:
    """Implementation of core.contracts.Drafter with an adjacency table of the `top_k` next tokens of every
    token, shared by all requests and of constant size.

    It learns from every node that the target scored, accepted or not, from logits before temperature and
    truncation: a token that truncation removes in one context may be chosen in another.
    """

    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = True
    drafts_across_rows = False

    def __init__(self, vocab: int, top_k: int = 8, *, learn_from_prompts: bool = False) -> None:
        self.table = AdjacencyTable(vocab, min(top_k, vocab))
        self.want = Want(prompt_logits=learn_from_prompts)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.shape is not None, "this drafter fills a template"
        found = [
            self.table.draft(root, cut(plan.shape, depth)) if depth else NO_CANDIDATES
            for root, depth in zip(ctx.roots.tolist(), plan.depth, strict=True)
        ]
        return Draft(candidate_tree(ctx.roots, found))

    def observe(self, step: Step) -> None:
        if step.scores.logits is not None:
            self.learn(step.draft.tree.tokens, step.scores.logits)

    def learn(self, tokens: Tensor, logits: Tensor) -> None:  # (N,), (N, V)
        """Store the most probable tokens of `logits`, before temperature and truncation, as the next tokens
        of the scored nodes' `tokens`, in place of those stored before."""
        likeliest = top(logits, self.table.table.shape[1])[1]
        self.table.update(tokens.cpu().numpy(), likeliest.cpu().numpy())

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""


class AdjacencyTable:
    """(vocab, width) array: for each token the top next tokens of the target's last forward pass on it, most
    probable first; rows of tokens without an observation are -1."""

    def __init__(self, vocab: int, width: int = 8) -> None:
        if vocab < 1 or width < 1:
            raise ValueError(
                f"an adjacency table of {vocab} tokens with {width} successors: give 1 or more of both"
            )
        self.table = np.full((vocab, width), UNKNOWN, np.int32)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def update(self, tokens: Tokens, successors: Sequence[Sequence[int]] | NDArray[Any]) -> None:
        """Replace the rows of (N,) tokens by (N, width) next tokens, most probable first.

        If a token occurs twice, its last row is kept. Raises ValueError for wrong shapes or ids >= vocab.
        """
        read, rows = as_tokens(tokens), np.ascontiguousarray(successors, np.int32)
        if not len(read) and not len(rows):
            return
        vocab, width = self.table.shape
        if rows.shape != (len(read), width) or max(read.max(), rows.max()) >= vocab or rows.min() < 0:
            raise ValueError(
                f"{len(read)} tokens with rows {rows.shape}: "
                f"give {width} successors for each, of {vocab} tokens"
            )
        _replace(self.table, read, rows)

    def successors(self, token: int) -> list[int]:
        """The stored next tokens after a token, most probable first; empty if there is no observation."""
        row = self.table[token].tolist()
        return row if row[0] != UNKNOWN else []

    def draft(self, root: int, shape: Shape) -> CandidateTree:
        """Draft tree of fixed shape: the r-th child of a node with token t is the r-th successor of t.

        Nodes below a token without an observation are omitted. The weight of a node is
        1 / (1 + sum of ranks along its path). Raises ValueError for a root outside the vocabulary.
        """
        if not 0 <= root < len(self.table):
            raise ValueError(f"token {root} is not one of the table's {len(self.table)}")
        nodes = np.empty((len(shape.parents), 3), np.int32)
        size = int(_fill(self.table, root, parents_and_ranks(shape), nodes))
        tokens, parents, rank_sums = nodes[:size].T.tolist()
        return CandidateTree(tokens, parents, [1 / (1 + each) for each in rank_sums], 1 if size else 0)


@compiled_loop
def _replace(table: Ints, tokens: Ints, rows: Ints) -> None:
    for index in range(len(tokens)):
        for rank in range(table.shape[1]):
            table[tokens[index], rank] = rows[index, rank]


@compiled_loop
def _fill(table: Ints, root: int, shape: Ints, nodes: Ints) -> int:
    """Fill `nodes` (S, 3) with token, parent and sum of ranks of each drafted node; returns their number.

    shape: (S, 2) parent and rank of each node.
    """
    index_of, size = [0] * (len(shape) + 1), 0  # node of the shape -> row of `nodes`, -1: omitted
    index_of[0] = -1
    for node in range(len(shape)):
        above, rank = shape[node, 0], shape[node, 1]
        parent, token = index_of[above] + 0, -1
        if above == 0:
            token = table[root, rank] if rank < table.shape[1] else -1
        elif parent >= 0:
            token = table[nodes[parent, 0], rank] if rank < table.shape[1] else -1
        index_of[node + 1] = size if token >= 0 else -1
        if token >= 0:
            nodes[size, 0], nodes[size, 1] = token, parent
            nodes[size, 2] = rank + (nodes[parent, 2] if parent >= 0 else 0)
            size += 1
    return size
