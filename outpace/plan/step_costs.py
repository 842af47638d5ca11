"""What a method's steps take besides the target's forward: fitted to measured steps, or from a device's
peaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy

from outpace.cost.forward_seconds import ForwardSeconds
from outpace.cost.linear_cost import non_negative_fit
from outpace.cost.roofline import Roofline
from outpace.plan.steps import TimedStep

# Assumed of engines on a GPU or a large CPU: seconds of a step outside of all kernels, as for scheduling.
STEP_SECONDS = 0.3e-3


@dataclass(frozen=True)
class FittedCosts:
    """Sums of quantities times coefficients, all in seconds."""

    draft: float  # of a draft
    forward: float  # of each of its forwards
    forward_row: float  # of each row in each of these forwards
    forwards: float  # of the draft model for each draft token of a row, or level of a tree
    step: float  # of everything else in a step
    row: float  # of each row
    drafted: float  # of each draft token

    def drafting(self, length: int, rows: int, context: float) -> float:
        forwards = self.forwards * length
        return self.draft * (forwards > 0) + forwards * (self.forward + self.forward_row * rows)

    def other(self, drafted: float, rows: int) -> float:
        return self.step + self.row * rows + self.drafted * drafted

    @staticmethod
    def fit(steps: Iterable[TimedStep], target: ForwardSeconds) -> FittedCosts:
        """The costs that explain measured steps of one method, given the seconds of the target's forwards.
        Steps of one size count by their median."""
        cells: dict[tuple[int, int, int], list[TimedStep]] = {}
        for step in steps:
            cells.setdefault((step.rows, step.drafted, step.forwards), []).append(step)
        sizes = list(cells)
        whole = numpy.array([median(each.seconds for each in cells[size]) for size in sizes])
        drafting = numpy.array([median(each.draft_seconds for each in cells[size]) for size in sizes])
        rest = [
            median(
                each.seconds - each.draft_seconds - target(rows + drafted, rows, each.context)
                for each in cells[rows, drafted, forwards]
            )
            for rows, drafted, forwards in sizes
        ]
        counts = numpy.sqrt([len(cells[size]) for size in sizes])
        quantities = numpy.array([(1, rows, drafted) for rows, drafted, _ in sizes], float)
        step, row, drafted = non_negative_fit(quantities, numpy.array(rest), counts / whole)
        used = [index for index, size in enumerate(sizes) if size[2]]
        draft = forward = forward_row = forwards = 0.0
        if used:
            # with one number of forwards alone, what a draft costs by itself cannot be told from them
            once = float(len({sizes[i][2] for i in used}) > 1)
            quantities = numpy.array([(once, sizes[i][2], sizes[i][2] * sizes[i][0]) for i in used], float)
            draft, forward, forward_row = non_negative_fit(
                quantities, drafting[used], counts[used] / whole[used]
            )
            with_forwards = [each for i in used for each in cells[sizes[i]] if each.depth]
            forwards = median(each.forwards / each.depth for each in with_forwards) if with_forwards else 1.0
        return FittedCosts(*map(float, (draft, forward, forward_row, forwards, step, row, drafted)))


@dataclass(frozen=True)
class RooflineCosts:
    """Drafting by forwards of these models over one token of each row, or over `width` of each in a tree."""

    target: Roofline
    drafters: Sequence[Roofline] = ()  # (): drafts are looked up, which is taken to cost nothing
    forwards: float = 1.0  # of each drafter for each draft token of a row, or level of a tree
    width: float = 1.0  # tokens of a row in such a forward
    step_seconds: float = STEP_SECONDS

    def drafting(self, length: int, rows: int, context: float) -> float:
        tokens = self.width * rows
        each = sum(drafter(tokens, rows, context) + drafter.sampling(tokens) for drafter in self.drafters)
        return self.forwards * length * each

    def other(self, drafted: float, rows: int) -> float:
        return self.step_seconds + self.target.sampling(rows + drafted)
