"""The plan of a load test: order of turns, prompts, seeds."""

from __future__ import annotations

from itertools import islice

from outpace.bench.load.load_level import Concurrency, RequestRate
from outpace.bench.load.plan import LoadPlan, TurnLength
from outpace.bench.measure.workload import WorkloadItem

ITEMS = [WorkloadItem(f"p/{index}", "p", (f"text {index}",), False) for index in range(12)]


def plan(length: TurnLength, rounds: int = 2) -> LoadPlan:
    return LoadPlan(ITEMS, [RequestRate(1.0), Concurrency(4)], rounds, length, seed=3)


def test_in_each_round_every_contender_gets_every_level_once():
    turns = list(plan(TurnLength(2), rounds=3).turns(["a", "b", "c"]))
    assert len(turns) == len(set(turns)) == 18
    assert [(number, level) for number, level, _ in turns[::3]] == [
        (number, level) for number in range(3) for level in range(2)
    ]


def test_each_contender_is_first_in_one_of_the_rounds():
    turns = list(plan(TurnLength(2), rounds=3).turns(["a", "b", "c"]))
    for level in range(2):
        firsts = [turns[index][2] for index in range(0, 18, 3) if turns[index][1] == level]
        assert sorted(firsts) == ["a", "b", "c"]


def test_no_prompt_comes_again_before_all_others():
    found = plan(TurnLength(3))
    ids = [
        request.item.id for number in (0, 1) for level in (0, 1) for request in found.requests(number, level)
    ]
    assert sorted(ids) == sorted(item.id for item in ITEMS)
    seeds = [request.seed for request in found.requests(1, 0)]
    assert len(set(seeds)) == 3 and all(type(request.seed) is int for request in found.requests(1, 0))


def test_requests_at_a_rate_have_arrivals_and_those_of_streams_none():
    by_number, by_time = plan(TurnLength(5)), plan(TurnLength(None, 7))
    assert len([request.arrival for request in by_number.requests(0, 0)]) == 5
    assert all((request.arrival or 8) < 7 for request in by_time.requests(0, 0))
    assert [request.arrival for request in by_number.requests(0, 1)] == [None] * 5
    assert len(list(islice(by_time.requests(0, 1), 100))) == 100
