"""Signs that something disturbed a benchmark: the machine's load, and times that contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from outpace.models.threads import busy, num_cpus

if TYPE_CHECKING:
    from outpace.bench.measure.forward_cost import Timings
    from outpace.bench.measure.run import Run

CONTRADICTION = 1.5  # a forward takes this many times as long as one of more nodes
UNEQUAL = 1.5  # the same work takes this many times as long in one round as in another


def disturbance(
    loads: Sequence[float],  # during the runs
    num_threads: int,
    timings: Iterable[Timings],
    runs: Sequence[Run],  # of plain decoding
) -> str | None:
    """Why no measurement of speed can be relied on, as part of a sentence; None without a sign of it."""
    if loads and busy(median(loads), num_threads):
        return (
            "other programs used the machine during the runs (in the median "
            f"{median(loads):.1f} processes for {num_cpus()} CPUs): measure again without them"
        )
    if any(contradict({size: median(found) for size, found in each.again.items()}) for each in timings):
        return (
            f"forwards over few tokens took {CONTRADICTION:g} times as long as over more, or longer: "
            "something else slowed the machine down, measure again"
        )
    worst = unequal(runs)
    if worst is not None and worst > UNEQUAL:
        return (
            f"plain decoding of the same prompt took {worst:.1f} times as long in one round as in another "
            "(the median of the prompts): something else slowed the machine down, measure again"
        )
    return None


def contradict(seconds: Mapping[int, float]) -> bool:
    """Whether a forward takes much longer than one of more nodes."""
    sizes = sorted(seconds)
    return any(
        seconds[size] > CONTRADICTION * seconds[larger]
        for index, size in enumerate(sizes)
        for larger in sizes[index + 1 :]
    )


def unequal(runs: Iterable[Run]) -> float | None:
    """The longest time per token of a prompt over its shortest one, as the median of all prompts; None where
    each was decoded once."""
    found: dict[tuple[int, float, int], list[float]] = {}
    for run in runs:
        key = run.trial.index, run.trial.temperature, run.trial.again
        found.setdefault(key, []).append(1 / run.tokens_per_second)
    ratios = [max(each) / min(each) for each in found.values() if len(each) > 1]
    return median(ratios) if ratios else None
