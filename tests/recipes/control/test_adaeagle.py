"""AdaEAGLE: the length of a draft is predicted from what is committed, and learned from what is accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.fingerprint import target_fingerprint
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.heads.fingerprint import head_fingerprint
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.draft_length.lesson import DraftLengthLesson
from outpace.models.predictors.draft_length.predictor import (
    DraftLengthPredictor,
    untrained_draft_length_predictor,
)
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.predictor import Pair, PredictorError
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import transformers_models
from outpace.proof.reference import table_logits
from outpace.proof.suite import CAUGHT, mistakes
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.control.adaeagle import LEAST_PATH_PROB, PredictedLength, adaeagle
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import Predictor
from outpace.training.features import FeatureSource
from outpace.training.texts import Example
from outpace.verifiers.rejection import Rejection

VOCAB, DEPTH, LENGTH = 8, 5, 48
PROMPTS = ([1, 2, 6], [5, 0, 3, 3], [7, 4])


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def head() -> EagleModel:
    return EagleModel(HeadModel(untrained_eagle(target(), seed=2)))


class Known(DraftLengthPredictor):
    """Predicts the length that is given for each pair of embedding and hidden state."""

    def __init__(self, pairs: Tensor, lengths: Tensor) -> None:  # (P, 2 D), (P,)
        super().__init__(pairs.shape[1] // 2, DEPTH)
        self.pairs, self.known = pairs, lengths

    def lengths(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        distances = torch.cdist(torch.cat((embedded, hidden), -1), self.pairs)
        assert (distances.min(1).values < 1e-6).all(), "the predictor reads other states than in training"
        return self.known[distances.argmin(1)]


class Always(DraftLengthPredictor):
    """Predicts one length, not rounded."""

    def __init__(self, length: float, size: int = 3, depth: int = DEPTH) -> None:
        super().__init__(size, depth)
        self.length = length

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.full((len(embedded),), self.length)


def steps_of(parts: Parts, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Step]:
    """The steps in which something was generated."""
    tensors = [torch.tensor(each) for each in prompts]
    session = Session(parts, tensors, [params] * len(prompts), LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def texts(parts: Parts, params: SamplingParams) -> list[list[int]]:
    tensors = [torch.tensor(each) for each in PROMPTS]
    session = Session(parts, tensors, [params] * len(PROMPTS), LazyTargetProbs)
    list(session.steps())
    return [session.request(slot).text().tolist() for slot in range(len(PROMPTS))]


def drafted(steps: Sequence[Step], row: int = 0) -> list[int]:
    """Draft tokens of a row in each step."""
    return [len(step.draft.tree.forest.nodes[row]) - 1 for step in steps]


def build(predictor: DraftLengthPredictor, **options: bool) -> Parts:
    return adaeagle.build(target(), head=head(), predictor=predictor, **options)


@pytest.mark.parametrize("ddd", [False, True])
def test_greedy_texts_are_plain_decodings(ddd: bool) -> None:
    predictor = untrained_draft_length_predictor(target(), seed=1)
    params = SamplingParams(0, max_tokens=LENGTH)
    steps = steps_of(build(predictor, ddd=ddd), PROMPTS[:1], params)
    assert len(set(drafted(steps[:-5]))) > 2  # lengths of many kinds
    assert texts(build(predictor, ddd=ddd), params) == texts(autoregressive.build(target()), params)


@cache
def oracle() -> tuple[Known, int]:
    """A predictor that says what training would have it say at all positions of the greedy texts, and how
    many positions there are."""
    found = texts(autoregressive.build(target()), SamplingParams(0, max_tokens=LENGTH + DEPTH + 2))
    learned = DraftLengthLesson(
        DraftLengthPredictor(16, DEPTH), head().head, target().embed, target().head, Predictor()
    )
    examples = [Example(tuple(text), len(p)) for text, p in zip(found, PROMPTS, strict=True)]
    batch = FeatureSource(target(), examples, [-1], Path("none")).batch([0, 1, 2])
    pairs = torch.cat(learned._read(batch), -1)
    return Known(pairs, learned.accepted(batch).long()), len(pairs)


@pytest.mark.slow
def test_with_the_labels_of_training_no_draft_token_is_wasted_and_none_is_missing() -> None:
    predictor, count = oracle()
    assert count == 3 * (LENGTH + 3)  # of drafts of five tokens among LENGTH + 7
    assert predictor.known.bincount(minlength=DEPTH + 1).count_nonzero() >= 3
    params = SamplingParams(0, max_tokens=LENGTH)
    longest = adaeagle.build(target(), head=head(), predictor=Always(DEPTH, 16))
    assert texts(build(predictor), params) == texts(autoregressive.build(target()), params)
    for prompt in PROMPTS:
        steps, fixed = (steps_of(parts, [prompt], params) for parts in (build(predictor), longest))
        accepted = [len(step.generated[0]) - 1 for step in steps]
        assert drafted(steps)[:-1] == accepted[:-1] and sum(accepted) > 0  # the last may be cut
        assert [len(step.generated[0]) for step in steps] == [len(step.generated[0]) for step in fixed]
        assert sum(drafted(fixed)) > sum(drafted(steps))


def test_predictions_are_rounded_and_limited() -> None:
    table = TableTarget(3, seed=1)
    opened = EagleModel(HeadModel(untrained_eagle(table)))
    for predicted, expected in ((-2.0, 0), (0.4, 0), (0.6, 1), (2.6, 3), (5.6, 5), (99.0, 5)):
        parts = adaeagle.build(table, head=opened, predictor=Always(predicted))
        steps = steps_of(parts, [[0, 1]], SamplingParams(1.0, max_tokens=30, seed=1))
        assert drafted(steps[:-6]) == [expected] * len(steps[:-6])
    # a prompt of one token has no token before the root; a plain step follows, then drafts
    parts = adaeagle.build(table, head=opened, predictor=Always(2.0))
    assert drafted(steps_of(parts, [[1]], SamplingParams(1.0, max_tokens=9, seed=1)))[:2] == [0, 2]


def test_a_row_is_predicted_by_its_own_last_token_whatever_the_batch() -> None:
    predictor = untrained_draft_length_predictor(target(), seed=1)
    params = SamplingParams(0, max_tokens=24)
    together = steps_of(build(predictor), PROMPTS, params)
    lengths = {slot: [] for slot in range(3)}
    for step in together:
        for row, slot in enumerate(step.ctx.slots):
            if step.generated[row]:
                lengths[slot].append(len(step.draft.tree.forest.nodes[row]) - 1)
    for slot, prompt in enumerate(PROMPTS):
        assert lengths[slot] == drafted(steps_of(build(predictor), [prompt], params))


class Watched(PredictedLength):
    """Records the drafts that went on beyond the predicted length, and those that ended there."""

    longer: list[list[float]]
    ended: list[list[float]]

    def _ends(self, frontier):
        stopped = super()._ends(frontier)
        for row, path, ends in zip(frontier.rows, frontier.paths, stopped, strict=True):
            if len(path) >= self._predicted[row]:
                (self.ended if ends else self.longer).append(list(path))
            else:
                assert not ends  # the longer of both rules
        return stopped


def test_ddd_drafts_as_long_as_the_longer_of_two_rules() -> None:
    assert math.log(LEAST_PATH_PROB) == pytest.approx(-0.6)
    table = TableTarget(3, seed=1, spread=4.0)
    drafter = FeatureDrafter(HeadModel(untrained_eagle(table)), 3, grow, sampled=True)
    controller = Watched(Always(1.0), table.embed, ddd=True)
    controller.longer, controller.ended = [], []
    params = SamplingParams(1.0, max_tokens=60, seed=1)
    steps = steps_of(Parts(table, drafter, Rejection(), controller), [[0, 1]], params)
    assert controller.longer and controller.ended
    assert all(math.prod(path) >= LEAST_PATH_PROB for path in controller.longer)
    assert all(math.prod(path) < LEAST_PATH_PROB for path in controller.ended)
    assert len(set(drafted(steps[:-6]))) > 2 and min(drafted(steps[:-6])) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("ddd", [False, True])
def test_the_distribution_is_plain_decodings_with_drawn_chains(ddd: bool) -> None:
    table = TableTarget(3, seed=1)
    opened = EagleModel(HeadModel(untrained_eagle(table)))
    predictor = untrained_draft_length_predictor(table, seed=1)

    def made() -> Parts:
        return adaeagle.build(table, head=opened, predictor=predictor, ddd=ddd)

    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=4)), Case((2,), SamplingParams(0.7, max_tokens=3))]
    found = enumerate_distributions(made, cases)
    assert largest_error(found, table_logits(table.logits, table.state), cases) < BOUND
    assert found.counts.deepest > 1


def test_a_dropped_last_token_is_caught() -> None:
    assert mistakes()["token of low path probability dropped"]() > CAUGHT


def test_a_predictor_comes_back_from_its_folder(tmp_path: Path) -> None:
    predictor = untrained_draft_length_predictor(target())
    embedded, hidden = torch.randn(5, 16), torch.randn(5, 16)
    save_predictor(predictor, tmp_path)
    again = load_predictor(DraftLengthPredictor, tmp_path)
    assert again.trained_for is None and again.depth == predictor.depth and again.num_layers == 3
    assert torch.allclose(again(embedded, hidden), predictor(embedded, hidden), atol=1e-6)


def test_a_predictor_belongs_to_one_head_and_one_target(tmp_path: Path) -> None:
    other = EagleModel(HeadModel(untrained_eagle(target(), seed=3)))
    predictor = untrained_draft_length_predictor(target())
    own, whose = head_fingerprint(head().head), target_fingerprint(target())
    predictor.trained_for = Pair(own, whose)
    save_predictor(predictor, tmp_path)
    predictor = load_predictor(DraftLengthPredictor, tmp_path)
    build(predictor)
    command = "`outpace train adaeagle --target TARGET --head HEAD --output FOLDER`"
    with pytest.raises(PredictorError) as caught:
        adaeagle.build(target(), head=other, predictor=predictor)
    assert str(caught.value) == (
        "the predictor was trained for another head: give the models that it was trained for, or train one "
        f"for these with {command}"
    )
    predictor.trained_for = Pair(own, "another")
    with pytest.raises(PredictorError, match="was trained for another target: give the models"):
        build(predictor)
    with pytest.raises(PredictorError, match="hidden states of 3 numbers, and this one's have 16: give the"):
        build(DraftLengthPredictor(3, DEPTH))


def test_a_heads_fingerprint_is_that_of_the_weights_in_its_folder(tmp_path: Path) -> None:
    made = untrained_eagle(target(), seed=2)
    save_head(made, tmp_path, target())
    read = load_head("eagle", tmp_path, target())
    expected = head_fingerprint(read)
    assert expected == head_fingerprint(made) != head_fingerprint(untrained_eagle(target(), seed=3))
    with torch.no_grad():
        read.fc.weight.mul_(0.9)  # as compression changes them
    assert head_fingerprint(read) == expected


def test_folders_that_cannot_be_used_are_named(tiny, loaded, tmp_path: Path) -> None:
    model, _ = loaded
    folder = tmp_path / "head"
    save_head(untrained_eagle(model.target), folder, model.target)
    command = "`outpace train adaeagle --target TARGET --head HEAD --output FOLDER`"

    def error(**options: object) -> str:
        with pytest.raises(ValueError) as caught:
            outpace.generate(model, "def", method="adaeagle", head=str(folder), max_tokens=4, **options)
        return str(caught.value)

    nowhere = tmp_path / "none"
    assert error(predictor=str(nowhere)) == f"there is no folder {nowhere}: make one with {command}"
    assert error(predictor=str(folder)) == (
        f"{folder} holds no length predictor: give a folder with one for adaeagle, or make one with {command}"
    )
    assert error() == (
        f"adaeagle needs predictor: a folder with a predictor for the head; train one with {command}"
    )
    save_predictor(untrained_draft_length_predictor(model.target), tmp_path / "predictor")
    answer = outpace.generate(
        model, "def", method="adaeagle", head=str(folder), predictor=str(tmp_path / "predictor"), max_tokens=4
    )
    assert answer
