"""DISCO: a classifier on the draft's distributions, or a threshold that is learned from verified tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Frontier, Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.draft_distribution.predictor import (
    NUM_FEATURES,
    POSITIONS,
    DraftDistributionPredictor,
    features,
    untrained_draft_distribution_predictor,
)
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.hidden_state.predictor import untrained_hidden_state_predictor
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.models import peaked_tables
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.suite import CAUGHT, mistakes
from outpace.recipes.control.disco import REMEMBERED, LearnedConfidence, RocThreshold, disco, roc_threshold
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection
from tests.controllers.test_bandits import context
from tests.controllers.test_bandits import step as step_of

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
MODELS = peaked_tables()  # most texts have one possible next token, so that long ones are enumerated


def session(parts: Parts, params: SamplingParams) -> Session:
    return Session(parts, [torch.tensor([0, 1])], [params], LazyTargetProbs)


class Known(DraftDistributionPredictor):
    """Predicts given numbers in the order in which it is asked."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.values, self.asked = iter(values), list[tuple[Tensor, Sequence[int]]]()

    def acceptance(self, logits: Tensor, positions: Sequence[int]) -> list[float]:
        self.asked.append((logits, positions))
        return [next(self.values)] * len(logits)


def test_features_of_a_distribution() -> None:
    logits = torch.tensor([0.5, 0.125, 0.25, 0.125]).log()[None]
    (found,) = features(logits, torch.tensor([3]))
    entropy = 0.5 * math.log(2) + 0.25 * math.log(4) + 2 * 0.125 * math.log(8)
    expected = [0.5, 0.25, 0.125, 0.125, *[0.0] * 6, entropy, 3 / POSITIONS]
    assert found.tolist() == pytest.approx(expected)
    # an impossible token, and more tokens than features
    wide = torch.full((1, 40), 0.0)
    wide[0, 7] = float("-inf")
    found = features(wide, torch.tensor([1]))[0]
    assert len(found) == NUM_FEATURES and found[10].item() == pytest.approx(math.log(39))
    assert found[:10].tolist() == pytest.approx([1 / 39] * 10)


def test_a_draft_ends_behind_the_first_token_below_the_threshold() -> None:
    predictor = Known([0.9, 0.41, 0.39, 0.9])
    parts = disco.build(TARGET, draft=DRAFT, predictor=predictor)
    step = next(session(parts, SamplingParams(1.0, max_tokens=50, seed=3)).steps())
    assert len(step.draft.tree) - 1 == 3 and step.draft.forwards == 3
    assert [positions for _, positions in predictor.asked] == [[1], [2], [3]]


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_predictions_read_the_distribution_before_sampling_parameters(temperature: float) -> None:
    predictor = Known([1.0] * 3)
    parts = disco.build(TARGET, draft=DRAFT, predictor=predictor, depth=4)
    params = SamplingParams(temperature, top_k=2, max_tokens=9, seed=3, logit_bias=((1, 2.0),))
    tokens = next(session(parts, params).steps()).draft.tree.tokens.tolist()
    assert len(predictor.asked) == 3  # the longest draft ends without a prediction
    for count, (logits, _) in enumerate(predictor.asked, 1):
        assert torch.equal(logits[0], DRAFT.logits[DRAFT.state([0, *tokens[:count]])])


@pytest.mark.parametrize("trained", [True, False])
def test_drafts_are_longest_and_shortest_at_the_ends(trained: bool) -> None:
    predictor = untrained_draft_distribution_predictor(DRAFT) if trained else None
    for threshold, expected in ((0.0, 6), (1.0, 1)):
        parts = disco.build(TARGET, draft=DRAFT, predictor=predictor, depth=6, threshold=threshold)
        step = next(session(parts, SamplingParams(1.0, max_tokens=50, seed=3)).steps())
        assert len(step.draft.tree) - 1 == expected


def test_the_threshold_follows_from_verified_tokens() -> None:
    """What is learned is what a step tested: its accepted tokens and the first rejected one."""
    controller = LearnedConfidence(5, 0.3)
    parts = Parts(TARGET, DraftModel(DRAFT), Rejection(), controller)
    decoded, expected = session(parts, SamplingParams(1.0, max_tokens=150, seed=1)), []
    for step in decoded.steps():
        tree, leaf = step.draft.tree, step.verdict.leaf[0]
        if step.ctx.max_draft_depth[0] < 2:  # the last steps: a draft of one token at most is not asked about
            continue
        assert tree.confidence is not None
        probs = tree.confidence.exp().tolist()
        expected += [(probs[node], node <= leaf) for node in range(1, min(leaf + 2, len(tree)))]
        if len(expected) > 20:
            assert controller.thresholds[False].value == roc_threshold(*zip(*expected, strict=True))
    assert len(expected) > 50 and controller.thresholds[True].value == 0.3  # no greedy row was seen


def test_tokens_after_the_first_rejected_one_are_not_learned() -> None:
    controller, ctx, learned = LearnedConfidence(5, 0.3), context(1), []
    stop = controller.plan(ctx).stop
    assert stop is not None
    stop(Frontier([0], [[0.9]], torch.zeros(1, 3)))
    for threshold in controller.thresholds.values():
        threshold.learn = learned.extend
    made = step_of(ctx, [4], [1])  # of four draft tokens the first is accepted
    tree = replace(made.draft.tree, confidence=torch.tensor([1.0, 0.9, 0.5, 0.25, 0.75]).log())
    controller.observe(replace(made, draft=replace(made.draft, tree=tree)))
    assert [accepted for _, accepted in learned] == [True, False]
    assert [prob for prob, _ in learned] == pytest.approx([0.9, 0.5])


class Watched(LearnedConfidence):
    """Records the thresholds with which it was asked, and its answers."""

    seen: list[tuple[float, bool]]

    def _stopped(self, frontier: Frontier) -> list[bool]:
        stopped = super()._stopped(frontier)
        self.seen += [(self.thresholds[False].value, each) for each in stopped]
        return stopped


def watched(seen: list[tuple[float, bool]]) -> Parts:
    controller = Watched(3, 0.2)
    controller.seen = seen
    return Parts(MODELS.target, DraftModel(MODELS.drafts[0]), Rejection(), controller)


@pytest.mark.slow
def test_a_learned_threshold_keeps_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.recipes.control.disco.FEWEST", 2)
    seen = list[tuple[float, bool]]()
    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=9)), Case((2,), SamplingParams(0.7, max_tokens=9))]
    found = enumerate_distributions(controllers_by_row(lambda: watched(seen)), cases)
    assert largest_error(found, MODELS.logits, cases) < BOUND
    assert found.counts.deepest > 1
    assert len({value for value, _ in seen}) > 3 and len({ends for _, ends in seen}) == 2


@pytest.mark.slow
def test_rows_that_learn_from_one_another_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.recipes.control.disco.FEWEST", 2)
    seen = list[tuple[float, bool]]()
    row = SamplingParams(1.0, max_tokens=5)
    groups = [Group((1, 1), (row, row))]
    found = enumerate_joint(lambda: watched(seen), groups)
    assert largest_joint_error(found, MODELS.logits, groups) < BOUND
    assert len({value for value, _ in seen}) > 3 and len({ends for _, ends in seen}) == 2


def test_a_dropped_last_token_is_caught() -> None:
    assert mistakes()["token of low probability dropped"]() > CAUGHT


def test_a_predictor_comes_back_from_its_folder(tmp_path: Path) -> None:
    predictor = untrained_draft_distribution_predictor(DRAFT)
    save_predictor(predictor, tmp_path)
    again = load_predictor(DraftDistributionPredictor, tmp_path)
    found = [each.acceptance(DRAFT.logits, [2] * len(DRAFT.logits)) for each in (predictor, again)]
    assert found[1] == pytest.approx(found[0], abs=1e-6) and max(found[0]) - min(found[0]) > 0.3


def test_what_cannot_be_used_is_said(loaded, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threshold is 1.5; give a probability from 0 to 1"):
        disco.build(TARGET, draft=DRAFT, threshold=1.5)
    with pytest.raises(ValueError, match="threshold is -1; give a probability from 0 to 1"):
        disco.build(
            TARGET, draft=DRAFT, predictor=untrained_draft_distribution_predictor(DRAFT), threshold=-1
        )
    target, draft = loaded
    save_predictor(untrained_hidden_state_predictor(draft.target), tmp_path)
    given = {"draft": draft, "predictor": str(tmp_path), "max_tokens": 4}
    with pytest.raises(
        ValueError, match="holds a predictor for specdec-pp: give a folder with one for disco"
    ):
        outpace.generate(target, "def", method="disco", **given)


def test_rows_that_another_drafter_drafted_for_are_not_learned_from() -> None:
    """Such as those with a predicted output, whose tokens have no draft probabilities."""
    controller = LearnedConfidence(3, 0.3)
    parts = Parts(TARGET, DraftModel(DRAFT), Rejection(), controller)
    step = next(session(parts, SamplingParams(1.0, max_tokens=20, seed=1)).steps())
    other = LearnedConfidence(3, 0.3)
    other.plan(step.ctx)
    for each in (other, controller):
        each.thresholds[False].learn([(0.9, True), (0.8, False)] * 3)
        assert each.thresholds[False].value == 0.9
        for _ in range(200):
            each.observe(step)
    assert other.thresholds[False].value == 0.9 != controller.thresholds[False].value


def test_a_worked_example_of_a_threshold() -> None:
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
