"""The number of draft tokens that cost nothing to verify, from steps whose times are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy
import pytest

from outpace.controllers.idle_compute import FIRST_SHARES, PROBE, IdleCompute
from outpace.controllers.step_cost import StepCost
from outpace.core.contracts import Scores
from outpace.recipes.control.scylla import BatchTree
from tests.controllers.test_bandits import context, step

MEMORY, TOKEN = 10e-3, 0.2e-3  # seconds to read the weights, and of the arithmetic of one token
MOST = 59
Time = Callable[[int], float]  # number of tokens in a forward -> its seconds


def roofline(tokens: int) -> float:
    return max(MEMORY, TOKEN * tokens)


def linear(tokens: int) -> float:
    return MEMORY + TOKEN * tokens


def idle(least: int = 1, tolerance: float = 0.1) -> IdleCompute:
    return IdleCompute(MOST, StepCost(), least=least, tolerance=tolerance)


def decoded(made: IdleCompute, rows: int, steps: int, time: Time = roofline) -> list[int]:
    """The numbers of draft tokens per row of steps with so many rows."""
    chosen: list[int] = []
    for _ in range(steps):
        ctx = context(rows, limit=MOST)
        chosen.append(made.num_tokens(rows, sum(ctx.committed)))
        tokens = rows * (1 + chosen[-1])
        done = step(ctx, [chosen[-1]] * rows, [0] * rows, score=time(tokens), verify=1e-4)
        made.observe(replace(done, scores=Scores(0, None, computed=tokens)))
    return chosen


def test_the_first_steps_have_fixed_sizes_and_one_in_sixteen_another_one() -> None:
    chosen = decoded(idle(), 4, 5 * PROBE)
    assert chosen[:6] == [max(1, round(share * MOST)) for share in FIRST_SHARES] == [1, 18, 1, 12, 1, 6]
    others = [(chosen[at], chosen[at - 1]) for at in range(PROBE, 5 * PROBE, PROBE)]
    assert [other > before for other, before in others] == [True, True, False, True] and others[2][0] == 1


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 40])
def test_with_linear_times_it_is_the_largest_number_within_the_tolerance(rows: int) -> None:
    made = idle(tolerance=0.3)
    chosen = decoded(made, rows, 200, linear)[-1]
    limit = 1.3 * linear(2 * rows)
    sizes = [m for m in range(1, MOST + 1) if linear(rows * (1 + m)) <= limit]
    assert abs(chosen - sizes[-1]) <= 1  # the time of a step outside the forward is flat


@pytest.mark.parametrize("least", [0, 1])
def test_more_rows_never_get_more_whatever_the_clock_says(least: int) -> None:
    random, made = Random(3), idle(least)
    sizes = [1, 2, 3, 5, 8, 13]
    for _ in range(40):
        decoded(made, random.choice(sizes), 3, lambda tokens: linear(tokens) * random.uniform(0.3, 3))
    settled = idle(least)
    settled._cost = made._cost
    settled._rows_seen, settled._num_choices = set(sizes), len(FIRST_SHARES)
    found = [settled.num_tokens(rows, 3 * rows) for rows in sizes]
    assert found == sorted(found, reverse=True) and least <= found[-1] and found[0] <= MOST


def gained(nodes: int) -> float:
    """Expected tokens of a step whose tree has so many nodes, which grows with its logarithm."""
    return 1 + sum(0.8 / (1 + 0.6 * node) for node in range(nodes))


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_no_fixed_number_of_nodes_has_more_throughput_at_any_batch(rows: int) -> None:
    chosen = decoded(idle(), rows, 200)[-1]
    speeds = {m: gained(m) / roofline(rows * (1 + m)) for m in (1, 2, 4, 8, 16, 32, MOST)}
    assert gained(chosen) / roofline(rows * (1 + chosen)) >= max(speeds.values())


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_a_clock_that_stands_or_goes_backwards_is_survived(seconds: float) -> None:
    assert all(1 <= each <= MOST for each in decoded(idle(), 2, 40, lambda _: seconds))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"most": 0, "least": 1, "tolerance": 0.1}, "use 1 or more"),
        ({"most": 4, "least": 1, "tolerance": -0.1}, "use a share from 0"),
        ({"most": 4, "least": 1, "tolerance": float("nan")}, "use a share from 0"),
    ],
)
def test_unsuited_options_are_refused(options, sentence: str) -> None:
    most = options.pop("most")
    with pytest.raises(ValueError, match=sentence):
        IdleCompute(most, StepCost(), **options)


def test_only_paths_that_can_stay_are_extended() -> None:
    tree = BatchTree(6, MOST, tolerance=0.1)
    tree._num_nodes = 2
    candidates = [numpy.array([-0.1, -0.3, -0.5, -0.5]), numpy.array([-1.0])]
    assert tree.extend(candidates, [numpy.array([-0.3, -0.5]), numpy.array([-1.0])], 2) == [1, 1]
    assert tree.keep(candidates, 2) == [2, 2]
    with pytest.raises(ValueError, match="use 1 or more"):
        BatchTree(0, 4, tolerance=0.1)
