"""The plan of a load test: levels, arrival times, the order of turns, prompts and seeds."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.load.plan import LoadLevel, LoadPlan, parse_levels, poisson_arrivals
from outpace.bench.measure.workload import WorkloadItem

ITEMS = [WorkloadItem(f"p/{index}", "p", (f"text {index}",), False) for index in range(12)]
LEVELS = [LoadLevel(1.0, False), LoadLevel(4.0, True)]


def plan(rounds: int = 2) -> LoadPlan:
    return LoadPlan(ITEMS, LEVELS, rounds, 7.0, seed=3)


def test_levels_are_rates_first_and_in_ascending_order() -> None:
    assert [level.label for level in parse_levels("2,1,0.5", "16,1")] == [
        "0.5 requests/s",
        "1 request/s",
        "2 requests/s",
        "1 stream",
        "16 streams",
    ]


@pytest.mark.parametrize(("rates", "concurrency"), [("0", None), ("inf", None), (None, "-1"), (None, "1.5")])
def test_a_load_that_is_no_positive_number_is_refused(rates: str | None, concurrency: str | None) -> None:
    with pytest.raises(ValueError):
        parse_levels(rates, concurrency)


def test_arrivals_are_a_poisson_process_that_its_seed_repeats() -> None:
    times = poisson_arrivals(50.0, (0, 1), 200.0)
    assert times == poisson_arrivals(50.0, (0, 1), 200.0) == sorted(times) and times[-1] < 200.0
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    # of an exponential distribution the standard deviation is the mean
    assert mean == pytest.approx(0.02, rel=0.05) and variance**0.5 == pytest.approx(mean, rel=0.05)
    assert times != poisson_arrivals(50.0, (0, 2), 200.0)


def test_in_each_round_every_contender_gets_every_level_once() -> None:
    turns = list(plan(rounds=3).turns(["a", "b", "c"]))
    assert len(turns) == len(set(turns)) == 18
    assert [(number, level) for number, level, _ in turns[::3]] == [
        (number, level) for number in range(3) for level in range(2)
    ]
    for level in range(2):
        firsts = [turns[index][2] for index in range(0, 18, 3) if turns[index][1] == level]
        assert sorted(firsts) == ["a", "b", "c"]


def test_no_prompt_comes_again_before_all_others() -> None:
    found = plan()
    requests = [each for number in (0, 1) for each in islice(found.requests(number, 1), 3)]
    assert len({request.item.id for request in requests}) == len({request.seed for request in requests}) == 6


def test_requests_at_a_rate_have_arrivals_and_those_of_streams_none() -> None:
    assert all((request.arrival or 8) < 7 for request in plan().requests(0, 0))
    assert [request.arrival for request in islice(plan().requests(0, 1), 100)] == [None] * 100
