"""Arrival times of requests: a Poisson process, repeatable by its seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count, islice, takewhile

import numpy as np


def poisson_arrivals(
    rate: float, seed: Sequence[int], *, num_requests: int | None = None, seconds: float | None = None
) -> list[float]:
    """Arrival times in seconds, ascending: gaps are independent and exponential with mean 1 / `rate`.

    Either the first `num_requests` arrivals or, without that, all before `seconds`.
    """
    random = np.random.default_rng(seed)
    times = accumulate(float(random.exponential(1 / rate)) for _ in count())
    if num_requests is not None:
        return list(islice(times, num_requests))
    return list(takewhile(lambda time: time < (seconds or 0), times))
