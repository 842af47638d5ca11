"""The predicted speedup of each method at each batch size, and where speculation stops paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outpace.core.tree import Shape
from outpace.cost.best_shape import best_shape
from outpace.cost.drafts import Drafts
from outpace.cost.forward_seconds import ForwardSeconds
from outpace.cost.step_time import Choice, Needed, StepTime, best_length

UNLIKELY = 1e-9  # a number of draft tokens whose probability is below this is left out


class StepCosts(Protocol):
    """Seconds that a method's steps take besides the target's forward."""

    def drafting(self, length: int, rows: int, context: float) -> float:
        """Of the forwards that draft `length` tokens, or levels of a tree, in each row."""
        ...

    def other(self, drafted: float, rows: int) -> float:
        """Of everything else, with `drafted` draft tokens of all rows together: sampling, verification,
        lookups and Python."""
        ...


@dataclass(frozen=True)
class PlannedMethod:
    """A method as a plan sees it."""

    name: str
    drafts: Drafts
    costs: StepCosts
    # how often the token of each rank is accepted, at every depth, where it is known: trees of other shapes
    # are then tried too
    ranks: Sequence[float] = ()
    shown: str = ""  # how users ask for it; "": not by a command


@dataclass(frozen=True)
class Prediction:
    """What a method is predicted to do at one batch size, with the best of its draft lengths."""

    method: str
    rows: int
    choice: Choice  # length 0: plain decoding is faster than all lengths
    plain_seconds: float  # of a step without drafts
    best: Choice  # of the lengths that draft something
    by_length: Sequence[Choice]
    # acceptance rate at which it would be as fast as plain decoding; None: drafts are not always of one
    # length
    needed: Needed | None
    tree_nodes: float | None = None  # draft tokens of a row-step, if the best draft is a tree
    shape: Shape | None = None  # of that tree, if it is not the method's own

    @property
    def speedup(self) -> float:
        """Over plain decoding of the same batch; that of the best draft, also below 1."""
        return self.best.speed * self.plain_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return self.rows * self.best.speed


def step_time(target: ForwardSeconds, method: PlannedMethod, rows: int, context: float) -> StepTime:
    """Seconds of a step of a method by the length of its drafts."""

    def rest(tokens: float) -> float:
        length = round(tokens) - 1
        drafted = rows * method.drafts.drafted(length)
        totals = method.drafts.totals(length, rows)
        verifying = sum(
            float(probability) * target(rows + total, rows, context)
            for total, probability in enumerate(totals)
            if probability > UNLIKELY
        )
        drafting = method.costs.drafting(length, rows, context) if length else 0.0
        return verifying + drafting + method.costs.other(drafted, rows)

    return StepTime(0.0, rest)


def predict(
    target: ForwardSeconds, plain: PlannedMethod, method: PlannedMethod, rows: int, context: float
) -> Prediction:
    """The prediction for a method at one batch size."""
    plain_seconds = step_time(target, plain, rows, context)(0)
    time = step_time(target, method, rows, context)
    rates = method.drafts.rates
    by_length = [best_length(rates, time, [length]) for length in method.drafts.lengths]
    best, shape = max(by_length, key=lambda each: each.speed), None
    nodes = method.drafts.tree_nodes
    if method.ranks:

        def cost(tokens: int) -> float:
            return target(rows * tokens, rows, context) + method.costs.other(rows * (tokens - 1), rows)

        level = method.costs.drafting(1, rows, context)
        tree = best_shape(method.ranks, cost, level, depth=method.drafts.longest)
        if tree.shape.parents:
            levels = tree.shape.depth
            found = Choice(levels, tree.length, cost(len(tree.shape.parents) + 1) + levels * level)
            if found.speed > best.speed:
                best, shape, nodes = found, tree.shape, float(len(tree.shape.parents))
    nothing = Choice(0, 1.0, plain_seconds)
    return Prediction(
        method.name,
        rows,
        best if best.speed > nothing.speed else nothing,
        plain_seconds,
        best,
        by_length,
        Needed.least(nothing, time, method.drafts.lengths) if method.drafts.can_be_cut else None,
        nodes,
        shape,
    )


def last_that_pays(speedup: Callable[[int], float], sizes: Sequence[int]) -> int | None:
    """The largest batch size, between the smallest and the largest of `sizes`, up to which speculation pays
    without a gap. None if it does not even at the smallest; the largest if it always does."""
    low = sizes[0]
    if speedup(low) <= 1:
        return None
    for high in sizes[1:]:
        if speedup(high) <= 1:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if speedup(middle) > 1 else (low, middle)
            return low
        low = high
    return sizes[-1]
