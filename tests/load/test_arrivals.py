"""Arrival times: a Poisson process that its seed repeats."""

from __future__ import annotations

from scipy import stats

from outpace.bench.load.arrivals import poisson_arrivals

SEED = (0, 1, 2)


def test_a_seed_repeats_the_arrivals():
    times = poisson_arrivals(4.0, SEED, num_requests=50)
    assert times == poisson_arrivals(4.0, SEED, num_requests=50)
    assert times != poisson_arrivals(4.0, (0, 1, 3), num_requests=50)
    assert len(times) == 50 and times == sorted(times) and times[0] > 0


def test_twice_the_rate_halves_every_gap():
    slow, fast = (poisson_arrivals(rate, SEED, num_requests=10) for rate in (1.0, 2.0))
    assert slow == [2 * time for time in fast]


def test_gaps_are_exponential():
    times = poisson_arrivals(5.0, SEED, num_requests=4000)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert stats.kstest(gaps, stats.expon(scale=1 / 5.0).cdf).pvalue > 0.01


def test_a_duration_ends_the_same_process():
    times = poisson_arrivals(5.0, SEED, num_requests=200)
    assert poisson_arrivals(5.0, SEED, seconds=10.0) == [time for time in times if time < 10.0]
