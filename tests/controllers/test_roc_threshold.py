"""The threshold that is fitted to verified tokens: worked examples, ties, and what it needs."""

from __future__ import annotations

import random

import pytest

from outpace.controllers.roc_threshold import REMEMBERED, RocThreshold, roc_threshold


def test_a_worked_example() -> None:
    # by threshold: false positives of 3 rejected, false negatives of 3 accepted, cost
    #   0.9: 0, 2/3, 2   0.8: 1/3, 2/3, 7/3   0.7: 1/3, 1/3, 4/3   0.6: 1/3, 0, 1/3   0.3: 2/3   0.2: 1
    probs = [0.9, 0.8, 0.7, 0.6, 0.3, 0.2]
    assert roc_threshold(probs, [True, False, True, True, False, False]) == 0.6
    order = [3, 0, 5, 1, 4, 2]
    accepted = [(True, False, True, True, False, False)[index] for index in order]
    assert roc_threshold([probs[index] for index in order], accepted) == 0.6


def test_accepted_tokens_count_three_times() -> None:
    # 0.2 keeps all five accepted tokens at the cost of both rejected ones, 1; 0.5 loses one of five, 3/5
    probs, accepted = [0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.2], [True] * 4 + [False] * 2 + [True]
    assert roc_threshold(probs, accepted) == 0.5
    # of three accepted tokens the lost one would cost 1 as well: of equal costs the larger threshold
    assert roc_threshold([0.9, 0.8, 0.4, 0.3, 0.2], [True, True, False, False, True]) == 0.8
    assert roc_threshold([0.9, 0.4, 0.3, 0.2], [True, False, False, True]) == 0.2


def test_tokens_of_equal_probability_are_on_one_side() -> None:
    # the accepted token of 0.5 is not had without the rejected one: cost 1 at 0.5, 3/2 at 0.9
    assert roc_threshold([0.9, 0.5, 0.5], [True, True, False]) == 0.5
    assert roc_threshold([0.5, 0.5], [False, True]) == 0.5


def cost(tokens: list[tuple[float, bool]], threshold: float) -> float:
    """The share of false positives plus three times that of false negatives."""
    false_positives = [prob >= threshold for prob, right in tokens if not right]
    false_negatives = [prob < threshold for prob, right in tokens if right]
    return sum(false_positives) / len(false_positives) + 3 * sum(false_negatives) / len(false_negatives)


def test_it_is_the_best_of_all_thresholds() -> None:
    choice = random.Random(0)
    for _ in range(50):
        tokens = [(round(choice.random(), 1), choice.random() < 0.6) for _ in range(12)] + [(0.5, True)]
        tokens.append((0.4, False))
        probs, accepted = zip(*tokens, strict=True)
        costs = [cost(tokens, each) for each in probs]
        assert cost(tokens, roc_threshold(probs, accepted)) == pytest.approx(min(costs))


def test_it_changes_with_six_tokens_of_both_kinds_and_forgets_old_ones() -> None:
    threshold = RocThreshold(0.4)
    threshold.learn([(0.9, True)] * 3)
    threshold.learn([(0.2, False)] * 2)
    assert threshold.value == 0.4
    threshold.learn([(0.8, True)])
    assert threshold.value == 0.8
    threshold.learn([(0.1, True), (0.05, False)] * (REMEMBERED // 2))
    assert threshold.value == 0.1
    alike = RocThreshold(0.4)
    alike.learn([(0.9, True)] * 10)
    alike.learn([])
    assert alike.value == 0.4
