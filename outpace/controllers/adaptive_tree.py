"""Draft trees as large as pays: the number of levels and of nodes that maximise the expected number of
generated tokens per second.

Letters: B rows, M candidates of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import PathScores, Plan, Step, Want
from outpace.cost.linear_cost import Numbers
from outpace.cost.padding import padded

# In the first steps nothing is known about times, so tree sizes are fixed. Step i drafts the i-th share of
# `num_nodes` draft tokens, and extends that share of the paths of each level. The shares differ, so that the
# times show what a draft token costs, and are small, because verifying a large tree takes a CPU as long as
# several steps without drafts.
FIRST_SHARES = (0.1, 0.3, 0.2, 0.1)
FIRST_STEPS = len(FIRST_SHARES)
NUM_BINS, BINS_PER_E = 24, 3.0  # of path probabilities, by their logarithms
PRIOR_NODES = 8.0  # weight of a path's draft probability beside what was measured, in nodes
KEEP = 0.999  # share of the evidence that is kept per step
# assumed before any was counted: how often the token after an accepted path is accepted, and of how many
# paths that is known
PRIOR_GOES_ON, PRIOR_PATHS = 0.7, 4.0
LEAST_SECONDS = 1e-9

Indices = NDArray[numpy.int64]


class AdaptiveTree:
    """Implementation of core.contracts.Controller for trees of the most probable paths, and of
    core.contracts.TreeSize for each of its plans.

    A path's probability in the drafter is an estimate of the probability that it is accepted (EAGLE-2, Li et
    al. 2024). It is corrected by how often paths of about that probability were. A step generates one token
    per row and one for every node on an accepted path; so the best number of nodes, in the order of their
    probability, is where the expected number of tokens divided by the predicted time of the step is largest.
    A further level extends as many of the paths that would stay as pay for the head's forward over them, if
    the level needs one; if none do, drafting ends. In the first steps sizes are fixed.

    Tokens of the tree are chosen, not drawn, so a choice that depends on them leaves the output exact.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        depth: int,
        num_nodes: int,
        sizes: Sequence[int] = (),
        head_sizes: Sequence[int] = (),
        *,
        levels_per_forward: int = 1,
    ) -> None:
        """`depth`, `num_nodes`: levels and draft tokens of the largest tree of one row. `sizes`,
        `head_sizes`: numbers of tokens to which compiled forwards of the target and of the draft head are
        padded; empty if these are not compiled. At every level a compiled head computes all nodes of a
        branching tree again, and of a chain only the new node. `levels_per_forward`: levels that one forward
        of the head gives (see drafters.model.look_ahead), after which the next one reads the whole tree
        again. ValueError for a depth or number of nodes below 1."""
        if min(depth, num_nodes) < 1:
            raise ValueError(f"depth is {depth} and num_nodes {num_nodes}; use 1 or more")
        self._depth, self._num_nodes, self._levels_per_forward = depth, num_nodes, levels_per_forward
        self._cost = StepCost(sizes)
        self._num_drafts = 0
        self._accepted, self._tested = numpy.zeros(NUM_BINS), numpy.zeros(NUM_BINS)
        # accepted paths that end before the last level, and those whose next token was accepted too
        self._ended, self._went_on = PRIOR_PATHS, PRIOR_GOES_ON * PRIOR_PATHS
        self._rows = 1  # of the step that is planned
        self._head_sizes = numpy.array(head_sizes, dtype=float)
        self._num_computed = 0.0  # tokens in the head's forwards for it
        self._nodes: list[int] = []  # by row: nodes that the head has read, the root included
        self._is_chain: list[bool] = []  # by row: whether these are a chain
        self._step_seconds = numpy.zeros(1)  # predicted, without drafting, by number of draft tokens
        # of a draft, of each forward of the head, and of each token in it
        self._start_seconds = self._forward_seconds = self._token_seconds = 0.0

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        self._cost.update()
        self._predict(len(limits), sum(ctx.committed))
        self._num_drafts += any(limits)
        return Plan(tuple(limits), size=self)

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        if self._num_drafts <= FIRST_STEPS:
            most = self._first(self._num_nodes)
            return [min(most, len(each)) for each in candidates]
        scores, rows = self._sorted(candidates)
        counts = numpy.bincount(rows[: self._best(scores, levels)[0]], minlength=len(candidates))
        return counts.tolist()

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        if self._num_drafts <= FIRST_STEPS:
            return self._extended([self._first(len(each)) for each in newest], levels)
        scores, _ = self._sorted(candidates)
        number, tokens, seconds = self._best(scores, levels)
        if number == 0:  # not even the most probable paths pay
            return [0] * len(newest)
        # what follows a path is less probable than the path: where it does not stay, nothing below it would
        extended, of = self._sorted([each[each >= scores[number - 1]] for each in newest])
        added = numpy.cumsum(self._probabilities(extended)) * (self._went_on / self._ended)
        more = numpy.zeros(len(of))
        if self._needs_forward(levels):
            more = self._forward_seconds + self._token_seconds * self._computed(of.tolist())
        speeds = (tokens + added) / (seconds + more)
        best = int(speeds.argmax()) + 1 if len(speeds) and speeds.max() > tokens / seconds else 0
        return self._extended(numpy.bincount(of[:best], minlength=len(newest)).tolist(), levels)

    def _first(self, most: int) -> int:
        """`most` times this step's share in FIRST_SHARES, rounded: at least 1, unless `most` is 0."""
        return min(most, max(1, round(FIRST_SHARES[self._num_drafts - 1] * most)))

    def observe(self, step: Step) -> None:
        tree, ctx = step.draft.tree, step.ctx
        drafted = len(tree) - len(ctx.slots)
        if drafted and tree.confidence is not None:
            self._learn(step)
        reads = ctx.unread is not None and any(len(unread) for unread in ctx.unread)
        if not reads and all(step.generated) and "score" in step.seconds:
            # The first head forward of a draft also reads the tokens that the previous step generated. Their
            # number was not kept: this step's is used, which is about the same.
            first = self._padded(sum(map(len, step.generated))) - self._padded(len(ctx.slots))
            self._cost.record(step, drafted)
            self._cost.record_drafting(step, int(self._num_computed + first))

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is about the drafter."""

    def _learn(self, step: Step) -> None:
        """Count the nodes of the tree, and those on accepted paths, by path probability."""
        tree = step.draft.tree
        forest, rows = tree.forest, len(step.ctx.slots)
        assert tree.confidence is not None
        own, paths = tree.confidence.tolist(), [0.0] * rows
        for node in range(rows, len(forest.parents)):
            paths.append(paths[forest.parents[node]] + own[node])
        bins = _bins(numpy.array(paths[rows:]))
        self._accepted *= KEEP
        self._tested *= KEEP
        self._ended, self._went_on = self._ended * KEEP, self._went_on * KEEP
        numpy.add.at(self._tested, bins, 1)
        for leaf in step.verdict.leaf:
            path = [node for node in forest.path(leaf) if node >= rows]
            numpy.add.at(self._accepted, bins[[node - rows for node in path]], 1)
            self._went_on += max(0, len(path) - 1)
            self._ended += max(0, len(path) - (not forest.children[leaf]))

    def _probabilities(self, scores: Numbers) -> Numbers:  # (M,) logarithms -> (M,)
        bins = _bins(scores)
        prior = numpy.exp(scores) * PRIOR_NODES
        return (self._accepted[bins] + prior) / (self._tested[bins] + PRIOR_NODES)

    def _sorted(self, candidates: Sequence[PathScores]) -> tuple[Numbers, Indices]:  # (M,), (M,)
        """The candidates of all rows by falling probability, at most `num_nodes` of each, and their rows."""
        best = [each[: self._num_nodes] for each in candidates]
        if len(best) == 1:
            return best[0], numpy.zeros(len(best[0]), numpy.int64)
        scores = numpy.concatenate(best)
        rows = numpy.repeat(numpy.arange(len(best)), [len(each) for each in best])
        order = numpy.argsort(-scores, kind="stable")
        return scores[order], rows[order]

    def _best(self, scores: Numbers, levels: int) -> tuple[int, float, float]:
        """The best number of nodes, and the expected tokens and seconds of a step with them."""
        tokens = self._rows + numpy.concatenate(([0.0], numpy.cumsum(self._probabilities(scores))))
        forwards = -(-levels // self._levels_per_forward)
        drafting = forwards * self._forward_seconds + self._num_computed * self._token_seconds
        seconds = self._step_seconds[: len(tokens)] + self._start_seconds + drafting
        best = int((tokens / seconds).argmax())
        return best, float(tokens[best]), float(seconds[best])

    def _predict(self, rows: int, context: int) -> None:
        """Predict the times of the next step, of `rows` rows with `context` tokens in the KV cache."""
        self._rows, self._num_computed = rows, self._padded(rows * self._levels_per_forward)
        self._nodes, self._is_chain = [1] * rows, [True] * rows
        nodes, zero, one = numpy.arange(rows * self._num_nodes + 1.0), numpy.zeros(1), numpy.ones(1)
        first, both = (self._cost.drafting(forwards, zero, context) for forwards in (one, 2 * one))
        self._step_seconds = numpy.maximum(LEAST_SECONDS, self._cost.verifying(rows, context, 0, nodes))
        self._forward_seconds = float((both - first)[0])
        self._start_seconds = float(first[0]) - self._forward_seconds
        self._token_seconds = float(self._cost.drafting(zero, one, context)[0])

    def _computed(self, rows: Sequence[int]) -> Numbers:
        """(M,) tokens that the head's next forward computes, with padding, if it extends the first 1, 2, ...
        M of the new nodes. `rows` (M,): the row of each of them."""
        totals, counts, total = list[float](), [0] * self._rows, 0
        for row in rows:
            total -= self._computed_in(row, counts[row])
            counts[row] += 1
            total += self._computed_in(row, counts[row])
            totals.append(total)
        return padded(numpy.array(totals, dtype=float), self._head_sizes)

    def _padded(self, tokens: int) -> float:
        return float(padded(numpy.array([float(tokens)]), self._head_sizes)[0])

    def _needs_forward(self, levels: int) -> bool:
        """Whether the level after these needs a forward of the head."""
        return levels % self._levels_per_forward == 0

    def _computed_in(self, row: int, count: int) -> int:
        """Tokens that the head's next forward computes for this row if it extends `count` of its new nodes:
        just these, or a compiled head all nodes of the row once they branch; with masks, all nodes and the
        masks behind the new ones."""
        if self._levels_per_forward > 1:
            return self._nodes[row] + count * self._levels_per_forward if count else 0
        is_alone = not len(self._head_sizes) or count == 0 or (count == 1 and self._is_chain[row])
        return count if is_alone else self._nodes[row] + count

    def _extended(self, counts: list[int], levels: int) -> list[int]:
        """Record that `counts[row]` new nodes of each row are extended after this number of levels; returns
        `counts`."""
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        if rows and self._needs_forward(levels):
            self._num_computed += float(self._computed(rows)[-1])
        for row, count in enumerate(counts):
            self._nodes[row] += count
            self._is_chain[row] &= count <= 1
        return counts


def _bins(scores: Numbers) -> Indices:
    return numpy.minimum(NUM_BINS - 1, (-scores * BINS_PER_E).astype(numpy.int64))
