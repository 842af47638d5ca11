"""Sizes of draft trees by the number of rows: smaller trees for larger batches, and none for the largest (Hu
et al. 2026, TLT).

A strategy is a depth and a number of nodes. Ranges of batch sizes have the numbers of nodes in falling order;
among the strategies of a range, which differ in their depths, a bandit chooses by what they brought.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from math import inf
from statistics import median

from outpace.controllers.bandit import draw_arms, step_seconds
from outpace.core.context import Context
from outpace.core.contracts import PathScores, Plan, Step, Want

WINDOW = 300  # steps of a strategy whose rewards count


class BatchStrategies:
    """Implementation of core.contracts.Controller and of TreeSize.

    The reward of a step is the median over its rows of the generated tokens, times the rows, per second of
    the step: the median is what the paper calls the stable accept length, in which single long drafts do not
    count. In a range the strategy with the largest median reward of its last `WINDOW` steps drafts, one
    without a reward before all others, and with probability `exploring` any of them.

    Tokens of the tree are chosen, not drawn, so that choices by measured times leave the output exact."""

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        depths: Sequence[int],
        num_nodes: Sequence[int],
        first_rows: Sequence[int],
        *,
        most_rows: int,
        checks: int,
        exploring: float,
    ) -> None:
        """`depths`: longest paths of the strategies. `num_nodes`: most draft tokens of a row, for each range
        of batch sizes; `first_rows`: the smallest batch of each range. Batches of more than `most_rows` rows
        do not draft; after one, drafting begins again when `checks` steps in a row had no more.
        ValueError for values that do not go together."""
        if not depths or not num_nodes or min(*depths, *num_nodes) < 1:
            raise ValueError("depths and num_nodes are lists of numbers of 1 or more")
        if len(num_nodes) != len(first_rows):
            raise ValueError(
                f"there are {len(num_nodes)} num_nodes and {len(first_rows)} first_rows: give one of each "
                "for every range of batch sizes"
            )
        if list(first_rows) != sorted(set(first_rows)) or first_rows[0] != 1:
            raise ValueError(f"first_rows is {', '.join(map(str, first_rows))}: begin with 1 and go up")
        if most_rows < 0 or checks < 1 or not 0 <= exploring <= 1:
            raise ValueError("most_rows is 0 or more, checks 1 or more and exploring a probability")
        self._depths, self._num_nodes, self._first_rows = tuple(depths), tuple(num_nodes), tuple(first_rows)
        self._most_rows, self._checks, self._exploring = most_rows, checks, exploring
        self._below = checks  # steps since a batch had too many rows
        self._range = 0  # of the step that is planned
        self._arm: int | None = None  # its depth; None: it does not draft
        # rewards by range and depth
        self._rewards = [[deque[float](maxlen=WINDOW) for _ in depths] for _ in first_rows]

    def plan(self, ctx: Context) -> Plan:
        rows = len(ctx.slots)
        self._below = 0 if rows > self._most_rows else self._below + 1
        drafts = rows <= self._most_rows and self._below >= self._checks and any(ctx.max_draft_depth)
        if not drafts:
            self._arm = None
            return Plan((0,) * rows)
        self._range = bisect_right(self._first_rows, rows) - 1
        [self._arm] = draw_arms(ctx, [0], [self._probs()])
        depth = self._depths[self._arm]
        return Plan(tuple(min(depth, limit) for limit in ctx.max_draft_depth), size=self)

    def _probs(self) -> list[float]:
        """The probability of each depth in the next step of this range."""
        rewards = self._rewards[self._range]
        medians = [median(each) if each else inf for each in rewards]
        best = medians.index(max(medians))
        if not rewards[best]:
            return [float(arm == best) for arm in range(len(rewards))]
        other = self._exploring / len(rewards)
        return [other + (1 - self._exploring) * (arm == best) for arm in range(len(rewards))]

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        return [len(each) for each in newest]

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        return [min(self._num_nodes[self._range], len(each)) for each in candidates]

    def observe(self, step: Step) -> None:
        seconds, generated = step_seconds(step), [len(each) for each in step.generated if each]
        if self._arm is not None and seconds is not None and generated:
            reward = median(generated) * len(generated) / seconds
            self._rewards[self._range][self._arm].append(reward)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is about batch sizes."""
