"""The ideal speedup of a method: its measured acceptance at the measured cost of forwards, without other
overhead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outpace.bench.measure.metrics import StepCost
from outpace.bench.measure.run import Run
from outpace.cost.cost_curve import CostCurve

TARGET, DRAFT = "target", "draft"
Costs = Mapping[tuple[str, str], CostCurve]  # (TARGET or DRAFT, mode) -> cost curve


def ideal_speedup(pairs: Sequence[tuple[Run, Run]], costs: Costs, mode: str) -> float | None:
    """Ideal speedup over plain decoding: tau * t(1) / (t(nodes + 1) + draft forwards * t_d), with acceptance
    length tau, seconds t of a target forward and t_d of a draft forward, summed over the recorded steps in
    this mode. None if costs or counts are missing."""
    target, draft = costs.get((TARGET, mode)), costs.get((DRAFT, mode))
    if target is None:
        return None
    rates: list[float] = []
    for side in (0, 1):
        tokens, seconds = 0, 0.0
        for pair in pairs:
            counts = pair[side].counts
            if counts is None:
                return None
            tokens += counts.generated
            each = counts.seconds["draft"] / counts.timed_forwards if counts.timed_forwards else 0.0
            seconds += sum(
                times * ideal_seconds(cost, target, draft, each) for cost, times in counts.costs.items()
            )
        if seconds <= 0:
            return None
        rates.append(tokens / seconds)
    return rates[0] / rates[1] if rates[1] else None


def ideal_seconds(cost: StepCost, target: CostCurve, draft: CostCurve | None, each: float) -> float:
    """Seconds of one step without overhead: one target forward and the draft forwards, read from the cost
    curves. A draft forward takes `each` seconds if `draft` is None or the step's nodes per tree level are
    unknown."""
    if draft is not None and cost.levels:
        drafting = sum(draft(level / cost.rows) for level in cost.levels)
    else:
        drafting = cost.forwards * each
    return target(cost.nodes / cost.rows) + drafting
