"""Whether a method that learns gets faster: the first half of the prompts against the second, in decoding
order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from outpace.bench.measure.metrics import Counts
from outpace.bench.measure.run import Run


@dataclass(frozen=True)
class HalfSummary:
    """Totals over half of the prompts in all rounds; learnt state is dropped before each round."""

    tokens_per_second: float
    speedup: float  # tokens/s divided by that of plain decoding on the same prompts
    mean_acceptance_length: float | None  # None: a peer engine, which does not report acceptance

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens_per_second": self.tokens_per_second,
            "speedup_of_totals": self.speedup,
            "mean_acceptance_length": self.mean_acceptance_length,
        }


def in_halves(pairs: Sequence[tuple[Run, Run]]) -> tuple[HalfSummary, HalfSummary] | None:
    """Summaries of the first and the second half of these (contender, plain decoding) pairs, in the decoding
    order of a round; None for a single prompt.

    With an odd number of prompts the middle one is in the second half.
    """
    order = sorted({_order_key(run) for run, _ in pairs})
    first = set(order[: len(order) // 2])
    if not first:
        return None
    early, late = (
        _half([pair for pair in pairs if (_order_key(pair[0]) in first) is which]) for which in (True, False)
    )
    return early, late


def _order_key(run: Run) -> tuple[int, int]:
    return run.trial.again, run.trial.index


def _half(pairs: Sequence[tuple[Run, Run]]) -> HalfSummary:
    counted = [run.counts for run, _ in pairs]
    counts = reduce(Counts.__add__, [each for each in counted if each], Counts())
    speed = rate([run for run, _ in pairs])
    return HalfSummary(
        speed,
        speed / rate([plain for _, plain in pairs]),
        counts.mean_acceptance_length if all(counted) else None,
    )


def rate(runs: Sequence[Run]) -> float:
    """Tokens per second of these runs: total tokens over total seconds."""
    return sum(run.tokens for run in runs) / max(sum(run.seconds for run in runs), 1e-9)
