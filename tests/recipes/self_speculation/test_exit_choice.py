"""DEL's choice of an exit and a length, from steps whose outputs are given."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch

from outpace.core.contracts import Frontier, Scores, Step
from outpace.core.sampling_params import SamplingParams
from outpace.recipes.self_speculation.del_decoding.exit_choice import CARRIED, FIRST_STEPS, KEEP, ExitChoice
from tests.controllers.test_bandits import context, step

LAYERS, VOCAB = 4, 5


def choice(depth: int = 6) -> ExitChoice:
    return ExitChoice(lambda states: states, LAYERS, depth)


def verified(
    accepted: int, drafted: int, right: list[list[bool]], confidence: float = 8.0, generated=None
) -> Step:
    """A step in which exit e predicts token 1, which is generated, at the positions that `right[e]` names."""
    ctx = context(1)
    done = step(ctx, [drafted], [accepted])
    nodes = drafted + 1
    hidden = {}
    for layer, hits in enumerate(right):
        states = torch.zeros(nodes, VOCAB)
        for node in range(nodes):
            states[node, 1 if hits[node] else 2] = confidence
        hidden[layer] = states
    generated = (([1] * (accepted + 1)),) if generated is None else generated
    return replace(done, scores=Scores(0, None, hidden), generated=generated)


def test_positions_after_the_first_mismatch_do_not_count() -> None:
    made = choice()
    # the draft's second token is wrong: nodes 2 and 3 have read tokens that were not generated
    made.observe(verified(1, 3, [[True, False, True, True], *[[False, False, True, True]] * 2]))
    known = made._requests[0]
    assert known.tested.tolist() == [2, 2, 2] and known.rates().tolist() == [0.5, 0.0, 0.0]
    made.observe(verified(0, 3, [[False] * 4, [True] * 4, [True] * 4]))
    tested = 2 * 0.95 + 1  # earlier steps count less
    assert known.exits == [0, 1, 2]
    assert known.rates().tolist() == pytest.approx([0.95 / tested, 1 / tested, 1 / tested])


def test_exit_and_length_have_the_most_tokens_per_layer() -> None:
    made = choice()
    assert made.choose(0) == (1, 0)  # nothing is known yet
    made.observe(verified(3, 3, [[True, True, True, False], [True] * 4, [True] * 4]))
    rates = [0.75, 1.0, 1.0]
    speeds = {
        (exit_layer, depth): sum(rates[exit_layer - 1] ** each for each in range(depth + 1))
        / (depth * exit_layer + LAYERS)
        for exit_layer in (1, 2, 3)
        for depth in range(7)
    }
    assert made.choose(0) == max(speeds, key=speeds.__getitem__)
    plan = made.plan(context(1))
    assert (plan.drafter, plan.depth) == ((made.choose(0)[0],), (made.choose(0)[1],))
    for _ in range(40):
        made.observe(verified(0, 1, [[False] * 2, [False] * 2, [False] * 2]))
    assert made.choose(0)[1] == 0
    made.release([0])
    assert made.choose(0) == (1, 0)


def test_a_request_begins_with_what_the_last_one_has_taught() -> None:
    made = choice()
    right = [[False] * 4, [True] * 4, [False] * 4]
    for _ in range(60):
        made.observe(verified(3, 3, right))
    before = made._requests[0]
    assert before.tested[1] > 2 * CARRIED
    made.release([0])
    assert made.choose(0) == (1, 0)  # nothing is chosen before the prompt was read
    made.observe(verified(3, 3, right))
    known = made._requests[0]
    assert known.tested[1] == pytest.approx(KEEP * CARRIED + 4) and known.rates()[1] == pytest.approx(1.0)
    assert known.chosen[0] == 2 and known.midpoints().tolist() == before.midpoints().tolist()
    # another text, of which the first exit knows more
    for _ in range(12):
        made.observe(verified(3, 3, [[True] * 4, [False] * 4, [False] * 4]))
    assert known.chosen[0] == 1 and before.chosen[0] == 2


def test_with_patience_an_exit_is_used_once_it_was_the_best_in_several_steps() -> None:
    first, second = ([[hit] * 4 for hit in hits] for hits in ((True, False, False), (False, True, False)))

    def chosen(patience: int) -> list[tuple[int, int]]:
        made, found = ExitChoice(lambda states: states, LAYERS, 6, patience), []
        for right in [first] * 3 + [second] * 12:
            made.observe(verified(3, 3, right))
            found.append(made.choose(0))
        return found

    at_once, later = chosen(0), chosen(3)
    assert at_once[0] == (1, 6)
    assert [depth for _, depth in later[:3]] == [0, 0, 6] and later[2] == (1, 6)
    used = [
        next(step for step, (layer, depth) in enumerate(each) if layer == 2 and depth)
        for each in (at_once, later)
    ]
    assert used[1] >= used[0] + 2
    assert all(layer == 1 or not depth for layer, depth in later[: used[1]])  # meanwhile


def test_exits_that_cannot_be_the_best_predict_nothing_until_they_can_be() -> None:
    predicted: list[int] = []

    def logits(states: torch.Tensor) -> torch.Tensor:
        predicted.append(len(states))
        return states

    made = ExitChoice(logits, LAYERS, 6)  # at most 7/10, 7/16 and 7/22 tokens per layer
    made.observe(verified(3, 3, [[True] * 4] * 3))
    known = made._requests[0]
    assert made.choose(0) == (1, 6) and known.exits == [0]
    made.observe(verified(3, 3, [[True, True, True, False], [False] * 4, [False] * 4]))
    assert known.rates().tolist() == pytest.approx([(4 * KEEP + 3) / (4 * KEEP + 4), 1, 1])
    assert known.exits == [0]
    while known.rates()[0] > 0.6:
        made.observe(verified(0, 3, [[False] * 4, [True] * 4, [True] * 4]))
    assert made.choose(0) == (2, 6) and known.exits == [0, 1]
    made.observe(verified(3, 3, [[False] * 4, [False] * 4, [True] * 4]))
    assert known.exits == [0, 1, 2] and known.tested[2] < known.tested[1] < known.tested[0]
    assert predicted[:2] == [12, 4] and predicted[-1] == 8


def test_positions_of_several_steps_are_compared_together_after_the_first_steps() -> None:
    predicted: list[int] = []

    def logits(states: torch.Tensor) -> torch.Tensor:
        predicted.append(len(states))
        return states

    made, each = ExitChoice(logits, LAYERS, 6, together=3), ExitChoice(lambda states: states, LAYERS, 6)
    right = [[True, True, False, False], [False] * 4, [True] * 4]
    for number in range(FIRST_STEPS + 3):
        made.observe(verified(1, 3, right))
        each.observe(verified(1, 3, right))
        compared = FIRST_STEPS + 3 if number == FIRST_STEPS + 2 else min(number + 1, FIRST_STEPS)
        assert made._requests[0].tested[0] == pytest.approx(
            2 * sum(KEEP**age for age in range(compared))
            if compared <= FIRST_STEPS
            else 2 * (KEEP**3 * sum(KEEP**age for age in range(FIRST_STEPS)) + 3)
        )
    assert len(predicted) == FIRST_STEPS + 1 and predicted[-1] == 3 * 2 * len(made._requests[0].exits)
    assert made._requests[0].rates() == pytest.approx(each._requests[0].rates(), abs=1e-9)
    assert made.choose(0) == each.choose(0)
    # steps that are not compared yet are forgotten with their request, and the next one is not a first one
    made.observe(verified(1, 3, right))
    made.release([0])
    made.observe(verified(1, 3, right))
    assert len(made._requests[0].pending) == 1


def test_a_draft_ends_with_a_token_of_low_confidence() -> None:
    made = choice()
    made.observe(verified(3, 3, [[True] * 4] * 3, confidence=8.0))
    made.observe(verified(0, 0, [[False]] * 3, confidence=0.5))
    for _ in range(3):
        made.observe(verified(3, 3, [[True] * 4] * 3, confidence=8.0))
    plan = made.plan(context(1))
    assert plan.stop is not None and plan.drafter is not None
    top = [float(torch.tensor([0.0, each, 0, 0, 0]).softmax(0).max()) for each in (0.5, 8.0)]
    assert made._requests[0].threshold == pytest.approx(sum(top) / 2)
    logits = torch.tensor([[0.0, 0.4, 0, 0, 0], [0.0, 9.0, 0, 0, 0]])
    assert plan.stop(Frontier([0, 0], [[0.9], [0.9]], logits)) == [True, False]


def test_tokens_of_low_confidence_end_no_draft_while_they_are_accepted() -> None:
    made = choice()
    made.observe(verified(3, 3, [[True] * 4] * 3, confidence=8.0))
    made.observe(verified(0, 0, [[False]] * 3, confidence=0.5))
    for right in [True] * 9:
        made.observe(verified(0, 0, [[right]] * 3, confidence=0.6))  # below the midpoint
        made.observe(verified(3, 3, [[True] * 4] * 3, confidence=8.0))
    known = made._requests[0]
    assert known.midpoints()[0] > 0.32 and known.unsure_rate(0) == 1.0 and known.threshold == 0.0
    for _ in range(9):
        made.observe(verified(0, 0, [[False]] * 3, confidence=0.6))
        made.observe(verified(3, 3, [[True] * 4] * 3, confidence=8.0))
    rate, unsure = known.rates()[0], known.unsure_rate(0)
    best = (rate ** numpy.arange(known.chosen[1] + 1)).sum() / (known.chosen[1] + LAYERS)
    assert known.chosen[0] == 1 and 0 < rate * unsure < best
    assert known.threshold == known.midpoints()[0] > 0


def test_at_a_temperature_drawn_tokens_are_accepted_with_the_overlap_of_the_distributions() -> None:
    made = choice()
    done = verified(1, 1, [[True] * 2, [False] * 2, [True] * 2], confidence=2.0)
    logits = torch.zeros(2, VOCAB)
    logits[:, 1] = 1.0
    sampling = (SamplingParams(temperature=0.5),)
    scores = replace(done.scores, logits=logits)
    made.observe(replace(done, scores=scores, ctx=replace(done.ctx, sampling=sampling)))

    def overlap(token: int) -> float:
        q = (2.0 * torch.eye(VOCAB)[token] / 0.5).softmax(0)
        return float(torch.minimum(q, (logits[0] / 0.5).softmax(0)).sum())

    assert made._requests[0].rates().tolist() == pytest.approx([overlap(1), overlap(2), overlap(1)])
    assert 0.1 < overlap(2) < overlap(1) < 0.9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_end_of_a_prompt_is_the_first_step(temperature: float) -> None:
    made = choice()
    # the last layer predicts token 1, whatever the prompt's tokens are
    right = [[True, True, False, True], [False] * 4, [False] * 4, [True] * 4]
    read = verified(3, 3, right, confidence=50.0, generated=([],))
    ctx = replace(read.ctx, sampling=(SamplingParams(temperature=temperature),))
    made.observe(replace(read, ctx=ctx))
    assert numpy.allclose(made._requests[0].rates(), [0.75, 0, 0])


def test_a_model_of_one_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="one layer has no early exit"):
        ExitChoice(lambda states: states, 1, 3)
