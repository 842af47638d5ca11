"""SpecDec++: drafts end by the product of predicted acceptance, whose predictions read the drafted token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Frontier, Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.hidden_state.predictor import (
    HiddenStatePredictor,
    untrained_hidden_state_predictor,
)
from outpace.models.predictors.predictor import Pair, PredictorError
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.proof.suite import CAUGHT, mistakes
from outpace.recipes.control.specdec_pp import Survival, specdec_pp
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)


class Known(HiddenStatePredictor):
    """Predicts given numbers in the order in which it is asked, the same for all tokens of one call."""

    def __init__(self, values: Sequence[float], size: int = 3) -> None:
        super().__init__(size, 1)
        self.values, self.seen = iter(values), list[Tensor]()

    def probs(self, hidden: Tensor) -> list[float]:
        self.seen.append(hidden)
        return [next(self.values)] * len(hidden)


def lengths(parts: Parts, steps: int = 1, temperature: float = 1.0) -> list[int]:
    """Draft tokens in the first steps of one request."""
    session = Session(
        parts, [torch.tensor([0, 1])], [SamplingParams(temperature, max_tokens=200, seed=3)], LazyTargetProbs
    )
    found = list[int]()
    for step in session.steps():
        found.append(len(step.draft.tree) - 1)
        if len(found) == steps:
            break
    return found


def test_the_threshold_applies_to_the_product_of_all_tokens() -> None:
    # 0.9, 0.81, 0.729, 0.656: 1 minus it exceeds 0.3 at the fourth token, which stays; none is below 0.7
    predictor = Known([0.9] * 20)
    assert lengths(specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor)) == [4]
    # the product begins anew in every step, and the first token counts although it may not end a draft
    predictor = Known([0.5, 0.99, 0.9, 0.9, 0.9, 0.5])
    assert lengths(specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor), 2) == [2, 4]


def test_drafts_are_longest_without_a_threshold_and_shortest_with_none_allowed() -> None:
    predictor = untrained_hidden_state_predictor(DRAFT)
    for threshold, expected in ((1.0, 20), (0.0, 2)):
        parts = specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor, threshold=threshold)
        assert lengths(parts, 5) == [expected] * 5
    parts = specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor)
    assert len(set(lengths(parts, 20))) > 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_predictions_read_the_state_after_the_drafted_token(temperature: float) -> None:
    predictor = Known([1.0] * 3)
    parts = specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor, depth=4)
    session = Session(
        parts, [torch.tensor([0, 1])], [SamplingParams(temperature, max_tokens=9, seed=3)], LazyTargetProbs
    )
    tokens = next(session.steps()).draft.tree.tokens.tolist()  # the root, which is 1, and four draft tokens
    for count, hidden in enumerate(predictor.seen, 2):
        expected = DRAFT.logits[DRAFT.state([0, *tokens[:count]])].clamp(min=-1)  # states are logits here
        assert torch.equal(hidden[0], expected)
    assert len(predictor.seen) == 3  # the longest draft ends without a prediction


class Counting(Survival):
    """Counts which drafts ended and which went on where both were allowed."""

    answers: list[bool]

    def _stopped(self, frontier: Frontier) -> list[bool]:
        stopped = super()._stopped(frontier)
        self.answers += stopped
        return stopped


@pytest.mark.slow
def test_the_distribution_is_plain_decodings_where_first_tokens_may_end_drafts() -> None:
    predictor, answers = untrained_hidden_state_predictor(DRAFT), list[bool]()

    def build() -> Parts:
        controller = Counting(predictor, 3, 1, 0.3)
        controller.answers = answers
        return Parts(TARGET, DraftModel(DRAFT, keeps_hidden=True), Rejection(), controller)

    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=4)), Case((2,), SamplingParams(0.7, max_tokens=3))]
    found = enumerate_distributions(build, cases)
    logits = table_logits(TARGET.logits, TARGET.state)
    assert largest_error(found, logits, cases) < BOUND
    assert 50 < sum(answers) < len(answers) - 50 and found.counts.deepest > 1


def test_a_dropped_last_token_is_caught() -> None:
    assert mistakes()["token of low survival dropped"]() > CAUGHT


def test_what_cannot_be_built_is_said() -> None:
    predictor = untrained_hidden_state_predictor(DRAFT)
    with pytest.raises(ValueError, match="least is 3 and depth 2: give a least number of tokens from 1 to"):
        specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor, least=3, depth=2)
    with pytest.raises(ValueError, match="threshold is 1.5; give a probability from 0 to 1"):
        specdec_pp.build(TARGET, draft=DRAFT, predictor=predictor, threshold=1.5)
    with pytest.raises(PredictorError, match="hidden states of 3 numbers, and this one's have 5: give the"):
        specdec_pp.build(TARGET, draft=TableTarget(5), predictor=predictor)


def test_a_predictor_comes_back_from_its_folder(tmp_path: Path) -> None:
    predictor = untrained_hidden_state_predictor(DRAFT)
    hidden = torch.randn(5, 3)
    save_predictor(predictor, tmp_path)
    again = load_predictor(HiddenStatePredictor, tmp_path)
    assert again.trained_for is None and again.num_layers == 3
    assert again.probs(hidden) == pytest.approx(predictor.probs(hidden), abs=1e-6)
    weights = [layer.weight for layer in again.blocks.layers]
    assert not torch.equal(weights[0], weights[1])  # blocks of their own, not one that is repeated


def test_predictions_are_those_of_residual_blocks() -> None:
    predictor = HiddenStatePredictor(1, 2)
    with torch.no_grad():
        for layer, (weight, bias) in zip(predictor.blocks.layers, ((2.0, 0.0), (0.0, 1.0)), strict=True):
            layer.weight.fill_(weight)
            layer.bias.fill_(bias)
        predictor.output.weight.copy_(torch.tensor([[0.0], [1.0]]))
        predictor.output.bias.copy_(torch.tensor([0.5, 0.0]))

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    expected = 0.25 + silu(0.5) + silu(1.0) - 0.5
    (found,) = predictor.probs(torch.tensor([[0.25]]))
    assert found == pytest.approx(1 / (1 + math.exp(-expected)))


def test_folders_that_cannot_be_used_are_named(tiny, loaded, tmp_path: Path) -> None:
    target, draft = loaded
    command = "`outpace train specdec-pp --target TARGET --draft DRAFT --output FOLDER`"

    def error(folder: object, **options: object) -> str:
        given = {"draft": draft, "predictor": folder, "max_tokens": 4} | options
        with pytest.raises(ValueError) as caught:
            outpace.generate(target, "def", method="specdec-pp", **given)
        return str(caught.value)

    assert error(tmp_path / "none") == f"there is no folder {tmp_path / 'none'}: make one with {command}"
    assert error(tmp_path) == f"{tmp_path} holds no acceptance predictor: make one with {command}"
    assert "holds no acceptance predictor: give a folder with one for specdec-pp" in error(tiny.target)
    with pytest.raises(ValueError, match="specdec-pp needs predictor: .* train one with `outpace train"):
        outpace.generate(target, "def", method="specdec-pp", draft=draft)
    predictor = untrained_hidden_state_predictor(draft.target)
    for pair, other in ((Pair("a", "b"), "draft model"), (Pair("", "b"), "target")):
        predictor.trained_for = pair if pair.draft else Pair(fingerprint_of(draft), "b")
        save_predictor(predictor, tmp_path / other)
        assert f"the predictor was trained for another {other}: give the models" in error(tmp_path / other)
    (tmp_path / "target" / "config.json").write_text('{"outpace_predictor": "specdec-pp", "size": 3}')
    assert "does not describe a predictor: restore it" in error(tmp_path / "target")


def fingerprint_of(model: outpace.Model) -> str:
    from outpace.models.fingerprint import target_fingerprint

    return target_fingerprint(model.target)
