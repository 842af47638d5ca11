"""Best-first draft trees (DDTree, 2026): the most probable paths, where the distribution at a level is known
before any token of the levels above it.

A heap holds the next candidates by the scores of their paths. Taking one adds it to the tree and puts two
into the heap: the next best token after its parent, and the best one after itself. A token's score is the
logarithm of its probability, or what else is not positive: then a path is never better than its beginning.
The tokens are chosen, not drawn, so no draft distribution is recorded for them: each is accepted where it
equals the target's own sample (verification by matching).

Letters: B rows, k levels, K tokens of the draft vocabulary, W tokens tried after each node.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.device_copies import on_host
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.grow import Read
from outpace.sampling.adjust import Adjuster
from outpace.sampling.topk import at_least_float32, top


@runtime_checkable
class ReadLevels(Protocol):
    """A `Read` whose logits after a node depend on its root and its depth alone."""

    def next_levels(self, roots: TokenTree) -> tuple[Tensor, Tensor | None]:
        """The logits (B, k, K) of the next k tokens after each root, from one forward, and the token of each
        logit (K,), None for all tokens in their order: always if a request changes logits, since these
        changes are made by token id."""
        ...


Tokens = NDArray[numpy.int32]
LogProbs = NDArray[numpy.float64]


class Ranked(NamedTuple):
    """The tokens that are tried after a node, the best ones first."""

    tokens: Sequence[int]  # (W,)
    scores: Sequence[float]  # (W,) what each adds to the score of its path, at most 0
    log_probs: Sequence[float]  # (W,) logs of their draft probabilities


# (text and path (T,) up to a node, its depth, tokens (W,) that may follow, logs of their draft probabilities
# (W,)) -> (W,) their scores, at most 0
Scored = Callable[[Sequence[int], int, Tokens, LogProbs], NDArray[numpy.float64]]


def best_first(ctx: Context, plan: Plan, read: Read, *, num_nodes: int) -> TokenTree:
    """Build a tree of at most `num_nodes` draft tokens per row: those of the most probable paths, no longer
    than the plan's depth. `read` is a `ReadLevels`. Draft probabilities are those at temperature 1."""
    levels = Levels(ctx, read, num_nodes)

    def after(row: int, path: Sequence[int]) -> Ranked:
        tokens, log_probs = levels.after(row, path)
        values = log_probs.tolist()
        return Ranked(tokens.tolist(), values, values)

    return _tree(ctx, plan, after, num_nodes)


def best_scored(
    ctx: Context, plan: Plan, read: Read, *, num_nodes: int, width: int, context: int, scored: Scored
) -> TokenTree:
    """Build a tree as `best_first` does, by other scores than probabilities: the `width` most probable tokens
    are tried at each level, with draft probabilities that sum to 1 over these. `scored` is given the last
    `context` tokens of text and path, or fewer."""
    levels = Levels(ctx, read, width, sum_to_one=True)
    before = [last(text, context).tolist() for text in ctx.tokens]

    def after(row: int, path: Sequence[int]) -> Ranked:
        tokens, log_probs = levels.after(row, path)
        scores = scored(last([*before[row], *path], context), len(path), tokens, log_probs)
        order = (-scores).argsort(kind="stable")
        return Ranked(tokens[order].tolist(), scores[order].tolist(), log_probs[order].tolist())

    return _tree(ctx, plan, after, num_nodes)


def last(values: Any, count: int) -> Any:
    """The last `count` of these values, or all if there are fewer."""
    return values[max(0, len(values) - count) :]


class Levels:
    """The `width` most probable tokens of each level of each row, from one forward; fewer where fewer are
    possible. `sum_to_one`: their draft probabilities sum to 1, those of all tokens otherwise."""

    def __init__(self, ctx: Context, read: Read, width: int, *, sum_to_one: bool = False) -> None:
        of_levels: object = read
        assert isinstance(of_levels, ReadLevels)
        self._logits, ids = of_levels.next_levels(TokenTree.roots(ctx.roots))
        self._ctx, self._width, self._sum_to_one = ctx, width, sum_to_one
        found, self._num_levels = self._top(self._logits.flatten(0, 1), ids), self._logits.shape[1]
        self._found = found  # of all levels of the first row, and so on
        self._adjuster = Adjuster(ctx)

    def after(self, row: int, path: Sequence[int]) -> tuple[Tokens, LogProbs]:  # (W,) each
        """The tokens that may follow a path below a row's root, the most probable ones first, and the logs of
        their draft probabilities, after the request's changes of logits."""
        if not self._ctx.sampling[row].changes_logits:
            return self._found[row * self._num_levels + len(path)]
        return self._top(self._logits_after(row, path), None)[0]

    def log_probs(self, row: int, path: Sequence[int], tokens: Sequence[int]) -> LogProbs:  # (M,) -> (M,)
        """The logs of the draft probabilities of any tokens after a path, for a model that drafts all."""
        logits = self._logits_after(row, path)[0]
        changes = self._ctx.sampling[row].changes_logits
        total = logits.logsumexp(-1) if changes else self._totals[row, len(path)]
        return (logits[list(tokens)] - total).double().cpu().numpy()

    @cached_property
    def _totals(self) -> Tensor:  # (B, k)
        return at_least_float32(self._logits).logsumexp(-1)

    def _logits_after(self, row: int, path: Sequence[int]) -> Tensor:  # (1, K)
        logits = at_least_float32(self._logits[row, len(path)][None])
        if not self._ctx.sampling[row].changes_logits:
            return logits
        adjusted = self._adjuster(logits, [row], [path])
        # after a path that the target cannot take no token may be left: any will do
        return adjusted if adjusted.amax() > -torch.inf else logits

    def _top(self, logits: Tensor, ids: Tensor | None) -> list[tuple[Tokens, LogProbs]]:  # (M, K) -> M
        log_probs = at_least_float32(logits).log_softmax(-1)
        found, columns = top(log_probs, min(self._width, logits.shape[-1]))
        if self._sum_to_one:
            found = found.log_softmax(-1)
        on_cpu = on_host(columns if ids is None else ids[columns], found)
        tokens, values = on_cpu[0].int().numpy(), on_cpu[1].double().numpy()
        counts = (values > -numpy.inf).sum(-1).tolist()
        return [(tokens[row, :count], values[row, :count]) for row, count in enumerate(counts)]


def _tree(
    ctx: Context, plan: Plan, after: Callable[[int, Sequence[int]], Ranked], num_nodes: int
) -> TokenTree:
    """The tree of each row's best paths; `after`: row, path below its root -> what is tried next."""
    parents, texts, log_probs = [-1] * len(ctx.slots), ctx.roots.tolist(), [0.0] * len(ctx.slots)
    for row, depth in enumerate(plan.depth):
        ends = () if ctx.stops is None else ctx.stops[row]
        first = len(parents)
        for parent, token, log_prob in _best(partial(after, row), depth, num_nodes, ends):
            parents.append(row if parent < 0 else first + parent)
            texts.append(token)
            log_probs.append(log_prob)
    forest = Forest.of(parents, len(ctx.slots))
    return TokenTree(torch.tensor(texts), forest, torch.tensor(log_probs))


def _best(
    after: Callable[[Sequence[int]], Ranked], depth: int, num_nodes: int, ends: Container[int]
) -> list[tuple[int, int, float]]:
    """The nodes of a row's tree, each after its parent: the parent's index in this list, -1 for the root; the
    token; the log of its draft probability. `ends`: tokens with which the text ends."""
    nodes, paths, number = list[tuple[int, int, float]](), list[list[int]](), count()
    below: dict[int, Ranked] = {}  # node -> what may follow it
    # (-score of the path, depth, order of insertion, parent, rank of the token); of equally good paths the
    # shorter one is first
    heap: list[tuple[float, int, int, int, int]] = []

    def put(above: float, level: int, parent: int, rank: int) -> None:
        scores = below[parent].scores
        if rank < len(scores):
            heappush(heap, (above - scores[rank], level, next(number), parent, rank))

    def extend(node: int, above: float, path: list[int]) -> None:
        if len(path) < depth:
            below[node] = after(path)
            put(above, len(path), node, 0)

    extend(-1, 0.0, [])
    while heap and len(nodes) < num_nodes:
        above, level, _, parent, rank = heappop(heap)
        token, score = below[parent].tokens[rank], below[parent].scores[rank]
        nodes.append((parent, token, below[parent].log_probs[rank]))
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
        put(above + score, level, parent, rank + 1)
        if token not in ends and len(nodes) < num_nodes:
            extend(len(nodes) - 1, above, paths[-1])
    return nodes
