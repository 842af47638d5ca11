"""A controller that chooses among several drafters by comparing what each would have had accepted.

Every drafter is compared on every generated token, also those that did not draft it, so the comparison needs
no trial drafts. A bandit (`bandit.py`) only learns about the drafter that it chose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from outpace.controllers.arm_choice import draw_arms
from outpace.controllers.normal_hedge import NormalHedge
from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want

# step -> row -> for each generated token the probability, by drafter, that its draft is accepted there
Compare = Callable[[Step], Mapping[int, Sequence[Sequence[float]]]]


class DelayedLosses:
    """The losses of drafts that would have begun at each position, known once as many positions follow as
    drafts are long.

    The loss is 1 - E / (K + 1), where E = 1 + a + a b + ... is the number of tokens that a draft of K tokens
    is expected to generate if its tokens are accepted with the probabilities a, b, ...
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # for each position: the weights of the drafters in the step that drafted it, and by drafter the
        # probability that its token is accepted there
        self._waiting: deque[tuple[Sequence[float], Sequence[float]]] = deque()

    def add(
        self, weights: Sequence[float], accepted: Sequence[float]
    ) -> Iterator[tuple[Sequence[float], list[float]]]:
        """Add the next position, whose step had these weights and where each drafter's token is accepted with
        these probabilities. Yields the weights and each drafter's loss for the positions whose losses are now
        known, in order."""
        self._waiting.append((weights, accepted))
        while len(self._waiting) >= self._depth:
            following = [each for _, each in islice(self._waiting, self._depth)]
            losses = [
                1 - expected_tokens(rates) / (self._depth + 1) for rates in zip(*following, strict=True)
            ]
            yield self._waiting.popleft()[0], losses


def expected_tokens(rates: Sequence[float]) -> float:
    """Tokens that a draft is expected to generate, with the target's own one, if its tokens are accepted with
    these probabilities."""
    return 1 + sum(prod(rates[:count]) for count in range(1, len(rates) + 1))


@dataclass(slots=True)
class Request:
    """What is known of one request."""

    experts: NormalHedge
    losses: DelayedLosses
    weights: Sequence[float]  # probabilities of the drafters in the next step


class Hedge:
    """Implementation of core.contracts.Controller: in each row and step one of several drafters is drawn,
    with probabilities that NormalHedge (Liu et al. 2026) learns. All draft chains of one length.

    A request begins with equal probabilities. The loss of a drafter at a position is known when the text has
    grown by as many tokens as a draft has; the probabilities of the step that drafted the position are then
    updated with it.
    """

    want = Want()
    plans_across_rows = False

    def __init__(
        self, num_drafters: int, depth: int, compare: Compare, *, horizon: int | None = None
    ) -> None:
        """`compare` is called once per step, and may run draft models. `horizon`: length of the drafts whose
        losses are compared; None: `depth`. ValueError for a depth or horizon below 1."""
        horizon = depth if horizon is None else horizon
        if min(depth, horizon) < 1:
            raise ValueError(f"depth is {depth}; use 1 or more")
        self._num_drafters, self._depth, self._horizon, self._compare = num_drafters, depth, horizon, compare
        self._requests: dict[int, Request] = {}  # by slot

    def plan(self, ctx: Context) -> Plan:
        rows = [row for row, depth in enumerate(ctx.max_draft_depth) if depth]
        drafter = [0] * len(ctx.slots)
        weights = [self._request(ctx.slots[row]).weights for row in rows]
        for row, arm in zip(rows, draw_arms(ctx, rows, weights), strict=True):
            drafter[row] = arm
        return Plan((self._depth,) * len(ctx.slots), drafter=tuple(drafter))

    def weights(self, slot: int) -> Sequence[float]:
        """The weights of the drafters for the request in this slot."""
        return self._request(slot).weights

    def _request(self, slot: int) -> Request:
        if slot not in self._requests:
            experts = NormalHedge(self._num_drafters)
            self._requests[slot] = Request(experts, DelayedLosses(self._horizon), experts.weights())
        return self._requests[slot]

    def observe(self, step: Step) -> None:
        for row, positions in self._compare(step).items():
            request = self._request(step.ctx.slots[row])
            for accepted in positions:
                for weights, losses in request.losses.add(request.weights, accepted):
                    request.experts.update(weights, losses)
            request.weights = request.experts.weights()

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)
