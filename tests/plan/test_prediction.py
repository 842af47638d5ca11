"""Predictions on given times: against brute force, where speculation stops paying, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outpace.cost.drafts import Drafts
from outpace.cost.hardware import Hardware
from outpace.cost.model_size import AttentionLayer, ModelSize
from outpace.cost.roofline import Roofline
from outpace.plan.plan import Memory, Plan
from outpace.plan.prediction import PlannedMethod, last_that_pays, predict
from outpace.plan.step_costs import FittedCosts, RooflineCosts
from outpace.plan.steps import TimedStep

NOTHING = FittedCosts(0, 0, 0, 0, 0, 0, 0)
PLAIN = PlannedMethod("plain", Drafts((), ()), NOTHING)
DEVICE = Hardware("device", "a device", 1e12, {"bfloat16": 1e14}, 24e9, "as given", 1.0, 1.0, 0.0)
SIZE = ModelSize(10, 1000, 1000, 1e9, 0, (AttentionLayer(8, 8, 100),) * 10)
SMALL = replace(SIZE, num_layers=2, matrices=1e8, attention=SIZE.attention[:2])


def line(tokens: float, rows: int, context: float) -> float:
    return 10 + 0.5 * tokens


def drafted_by(forward: float, rates: list[float]) -> PlannedMethod:
    return PlannedMethod("chain", Drafts.chain(rates), replace(NOTHING, forward=forward, forwards=1.0))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("forward", [0.5, 3.0, 30.0])
def test_the_best_length_is_that_of_a_sweep(rows: int, forward: float) -> None:
    rates = [0.8, 0.7, 0.7, 0.5, 0.4]
    found = predict(line, PLAIN, drafted_by(forward, rates), rows, 100)
    tokens, speeds = 1.0, list[float]()
    path = 1.0
    for length, rate in enumerate(rates, 1):
        path *= rate
        tokens += path
        speeds.append(tokens / (length * forward + 10 + 0.5 * rows * (length + 1)))
    assert found.best.length == 1 + speeds.index(max(speeds))
    assert found.speedup == pytest.approx(max(speeds) * (10 + 0.5 * rows))
    assert (found.choice.length == 0) == (found.speedup <= 1)
    assert found.plain_seconds == 10 + 0.5 * rows and len(found.by_length) == 5


def test_the_needed_acceptance_gives_a_speedup_of_one() -> None:
    found = predict(line, PLAIN, drafted_by(3.0, [0.5] * 4), 1, 100)
    assert found.needed and found.needed.rate
    rates = [found.needed.rate] * found.needed.length
    again = predict(line, PLAIN, drafted_by(3.0, rates), 1, 100)
    assert again.by_length[-1].speed * again.plain_seconds == pytest.approx(1.0)


def test_drafts_that_are_found_sometimes_cost_sometimes() -> None:
    # nothing is found in six of ten row-steps
    drafts = Drafts((0.4, 0.4), (0.3, 0.2), can_be_cut=False)
    found = predict(lambda tokens, rows, context: tokens**2, PLAIN, PlannedMethod("", drafts, NOTHING), 2, 0)
    seconds = 0.36 * 2**2 + 2 * 0.24 * 4**2 + 0.16 * 6**2
    assert found.best.seconds == pytest.approx(seconds) and found.best.tokens == 1.5
    assert found.needed is None


def test_a_tree_is_chosen_where_ranks_are_known_and_tokens_are_free() -> None:
    method = replace(drafted_by(1.0, [0.5] * 4), ranks=(0.5, 0.3, 0.1))
    found = predict(lambda tokens, rows, context: 10.0, PLAIN, method, 1, 0)
    assert found.shape is not None and found.tree_nodes == len(found.shape.parents) > 4
    chain = predict(lambda tokens, rows, context: 10.0, PLAIN, drafted_by(1.0, [0.5] * 4), 1, 0)
    assert found.speedup > chain.speedup
    dear = predict(lambda tokens, rows, context: 10.0 * tokens, PLAIN, method, 1, 0)
    assert dear.choice.length == 0


def on_device(size: ModelSize, drafter: ModelSize, rates: list[float], device: Hardware = DEVICE) -> Plan:
    target = Roofline(size, device)
    plain = PlannedMethod("plain", Drafts((), ()), RooflineCosts(target, step_seconds=0.0))
    costs = RooflineCosts(target, [Roofline(drafter, device)], step_seconds=0.0)
    drafters = [(drafter.weight_bytes, drafter)]
    return Plan(
        "target",
        target,
        plain,
        [PlannedMethod("draft", Drafts.chain(rates), costs)],
        [1, 16, 400],
        256,
        Memory.of(size, drafters, 256, device.memory),
        [],
        [],
        {},
        {},
    )


def test_one_token_pays_by_its_relative_cost_and_beyond_the_ridge_none_does() -> None:
    ratio = Roofline(SMALL, DEVICE)(1, 1, 256) / Roofline(SIZE, DEVICE)(1, 1, 256)
    for rate in (ratio - 0.02, ratio + 0.02):
        plan = on_device(SIZE, SMALL, [rate])
        assert (plan.predict("draft", 1).speedup > 1) == (rate > ratio)
    plan = on_device(SIZE, SMALL, [0.7] * 6)
    ridge = Roofline(SIZE, DEVICE).ridge
    assert plan.predict("draft", 1).speedup > 1.5 and plan.predict("draft", 400).choice.length == 0
    until = plan.pays_until()
    assert until is not None and ridge / 7 < until < 2 * ridge
    assert plan.predict("draft", until).speedup > 1 >= plan.predict("draft", until + 1).speedup
    assert f"it pays up to batch {until}." in plan.recommendation


def test_models_whose_kernels_take_longer_to_launch_than_to_run_gain_nothing() -> None:
    slow = replace(DEVICE, launch_seconds=1e-3)
    plan = on_device(SIZE, replace(SMALL, num_layers=10), [0.7] * 6, slow)
    assert all(plan.predict("draft", rows).choice.length == 0 for rows in plan.batches)
    assert plan.pays_until() is None
    assert plan.recommendation.startswith("do not speculate: the best method, draft, is predicted")
    assert "it would pay there with" in plan.recommendation


def test_memory_is_that_of_weights_and_caches() -> None:
    plan = on_device(SIZE, SMALL, [0.7])
    cache = 256 * 2 * 8 * 100 * 2
    assert plan.memory.total(3) == 2e9 + 2e8 + 3 * 12 * cache
    assert plan.memory.total(3, drafting=False) == 2e9 + 3 * 10 * cache
    assert plan.memory.most_rows() == int((24e9 - 2.2e9) // (12 * cache)) == plan.largest
    assert "rows fit in 24 GB" in plan.fits
    assert replace(plan, memory=replace(plan.memory, device=1e9)).fits == "The models do not fit in 1 GB."


@pytest.mark.parametrize("last", [None, 1, 5, 9, 16])
def test_the_last_size_that_pays_is_found_between_those_looked_at(last: int | None) -> None:
    assert last_that_pays(lambda rows: 2.0 if rows <= (last or 0) else 0.5, [1, 2, 8, 16]) == last


def step(rows: int, drafted: int, **fields: Any) -> TimedStep:
    costs = FittedCosts(0.001, 0.002, 0.0003, 1.0, 0.004, 0.0005, 0.0001)
    depth = drafted // rows
    draft_seconds = costs.drafting(depth, rows, 0)
    seconds = draft_seconds + costs.other(drafted, rows) + line(rows + drafted, rows, 50) / 1000
    return TimedStep(rows, drafted, depth, 50.0, depth, draft_seconds, seconds, rows, **fields)


def test_costs_are_those_that_explain_the_steps() -> None:
    steps = [step(rows, rows * depth) for rows in (1, 6) for depth in (0, 1, 3, 8)]
    found = FittedCosts.fit(steps, lambda tokens, rows, context: line(tokens, rows, context) / 1000)
    assert found.drafting(5, 3, 0) == pytest.approx(0.001 + 5 * (0.002 + 0.0009))
    assert found.other(20, 4) == pytest.approx(0.004 + 0.002 + 0.002)
    alone = FittedCosts.fit([step(1, 4), step(6, 24)], lambda *size: line(*size) / 1000)
    assert alone.draft == 0 and alone.drafting(4, 1, 0) == pytest.approx(step(1, 4).draft_seconds)
    none = FittedCosts.fit([step(2, 0)], lambda *size: line(*size) / 1000)
    assert none.drafting(0, 2, 0) == 0 and none.other(0, 2) == pytest.approx(0.005)
