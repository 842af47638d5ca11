"""What drafting while the target works gives: tokens per round, and a step's time on two devices.

A round reads a draft of `depth` tokens, or none if the draft before was dropped, while the next one is made.
Rates are those of independent tests: every draft token is accepted with the same probability.
"""

from __future__ import annotations

from collections.abc import Mapping

SIDE_BY_SIDE = ("draft", "score")  # parts of a step that two devices do at the same time


def tokens_per_round(rate: float, depth: int, *, first: float | None = None) -> float:
    """Expected tokens of a round (PEARL, arXiv:2408.11850). `rate`: how often a draft token is accepted, in
    [0, 1); `first`: how often one of the candidates for a draft's first token is, by default `rate`.
    ValueError for a rate outside of its range."""
    if not 0 <= rate < 1:
        raise ValueError(f"the rate of accepted tokens is {rate}: it is at least 0 and less than 1")
    hit = rate if first is None else first
    again = hit * rate ** (depth - 1)  # a whole draft and the first token of the next one
    # shares of rounds with and without a draft to read follow from how often either comes after the other
    return (1 - again + hit * (1 - rate**depth) / (1 - rate)) / (1 + hit - again)


def seconds_on_two_devices(seconds: Mapping[str, float]) -> float:
    """A virtual clock: a step's time if the drafter and the target had a device each, given the time of its
    parts one after the other on one device. The time between steps, the caller's, does not count."""
    side_by_side = max(seconds.get(part, 0.0) for part in SIDE_BY_SIDE)
    others = (taken for part, taken in seconds.items() if part not in (*SIDE_BY_SIDE, "caller"))
    return side_by_side + sum(others)
