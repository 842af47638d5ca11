"""Drafts from a predicted output: agreement, difference, the cursor after it; the distribution is
unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Controller, Drafter, Parts, Shape, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.lookup.prediction import MAX_DRAFT, MIN_DRAFT, PredictionCursor, PredictionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.suite import ragged
from outpace.proof.with_prediction import predicting
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

FILE = list(range(100, 140))


def after(*parts: Sequence[int], tokens: Sequence[int] = FILE) -> list[int]:
    """What is expected after an answer that was committed in these parts."""
    cursor = PredictionCursor(tokens)
    for part in parts:
        cursor.read(part)
    return cursor.following(100)


def test_a_draft_is_as_long_as_the_agreement_before_it() -> None:
    assert after() == FILE[:MIN_DRAFT]
    assert after(FILE[:4], FILE[4:9]) == FILE[9:18]
    assert after(FILE[:25]) == FILE[25:]
    assert len(after(range(1000), tokens=range(2000))) == MAX_DRAFT
    cursor = PredictionCursor(FILE)
    assert cursor.following(3) == FILE[:3] and cursor.following(0) == []


def test_nothing_is_drafted_where_the_answer_has_departed() -> None:
    assert after([5]) == []
    assert after(FILE[:10], [5, 6]) == []
    assert after(FILE) == []  # nor behind the end
    assert after(FILE, [5]) == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([*FILE[:10], 5, FILE[11]], id="replaced"),
        pytest.param([*FILE[:10], 5, 6, 7, 8, FILE[10], FILE[11]], id="inserted"),
        pytest.param([*FILE[:6], FILE[11]], id="deleted"),
        pytest.param([5, 6, FILE[10], FILE[11]], id="preamble"),
        pytest.param([*FILE[:30], FILE[11]], id="moved back"),
    ],
)
def test_the_cursor_is_set_again_after_a_difference(answer: list[int]) -> None:
    assert after(answer) == after(answer[:-1], answer[-1:]) == FILE[12 : 12 + MIN_DRAFT]


def test_of_several_occurrences_the_next_one_is_used() -> None:
    tokens = [1, 7, 10, 2, 7, 20, 3, 7, 30, 4, 8, 40]
    assert after([1, 7, 10, 9, 7], tokens=tokens)[0] == 20
    assert after([1, 7, 10, 2, 7, 20, 9, 7], tokens=tokens)[0] == 30
    assert after([1, 7, 10, 9, 3, 7], tokens=tokens)[0] == 30  # a longer n-gram has priority
    assert after([*tokens, 9, 7], tokens=tokens)[0] == 30  # there is no next one
    # a place that turned out wrong does not count as one that was reached
    assert after([1, 7, 10, 9], [8], [9], [7], tokens=tokens)[0] == 20


def test_an_empty_prediction_leaves_the_drafter_alone() -> None:
    assert after(tokens=[]) == after(FILE, tokens=[]) == []
    steps = run([[]], Fixed(2))
    assert steps == run(None, Fixed(2))


def run(predictions: Sequence[Sequence[int]] | None, controller: Controller) -> list[list[int]]:
    """Trees of one row, a step each."""
    target, drafter = TableTarget(8, seed=1), DraftModel(TableTarget(8, seed=2))
    predicted = PredictionDrafter(drafter)
    parts = Parts(target, drafter if predictions is None else predicted, Rejection(), controller)
    params = [SamplingParams(1.0, max_tokens=12, seed=3)]
    session = Session(parts, [torch.tensor([0, 1])], params, LazyTargetProbs)
    for slot, prediction in enumerate(predictions or ()):
        predicted.predict(slot, prediction)
    return [step.draft.tree.tokens.tolist() for step in session.steps()]


def greedy(length: int) -> list[int]:
    parts = Parts(TableTarget(8, seed=1), NoDraft(), Match(), Fixed(0))
    session = Session(parts, [torch.tensor([0, 1])], [SamplingParams(max_tokens=length)], LazyTargetProbs)
    list(session.steps())
    return session.request(0).output()


def drafts(prediction: Sequence[int], sampling: SamplingParams) -> tuple[list[Step], PredictionDrafter]:
    predicted = PredictionDrafter(NGram(2))
    session = Session(
        Parts(TableTarget(8, seed=1), predicted, Match(), Fixed(4)),
        [torch.tensor([0, 1])],
        [sampling],
        LazyTargetProbs,
    )
    predicted.predict(0, prediction)
    return list(session.steps()), predicted


def test_a_right_prediction_is_taken_in_doubling_steps_to_the_last_token() -> None:
    text = greedy(60)
    steps, _ = drafts(text, SamplingParams(max_tokens=60))
    assert [len(step.draft.tree) - 1 for step in steps] == [8, 9, 19, 20]  # the last one is what is left
    assert [len(step.generated[0]) for step in steps] == [9, 10, 20, 21]
    assert sum((step.generated[0] for step in steps), []) == text


def test_a_draft_ends_with_the_text() -> None:
    text = greedy(40)
    stop = text[5]
    steps, _ = drafts(text, SamplingParams(max_tokens=40, stop=(stop,)))
    assert len(steps) == 1 and steps[0].draft.tree.tokens.tolist() == [1, *text[: text.index(stop) + 1]]


DRAFTERS: dict[str, Callable[[Models], tuple[Drafter, Controller]]] = {
    "sampled chain": lambda models: (DraftModel(models.drafts[0]), Fixed(2)),
    "sampled tree": lambda models: (DraftModel(models.drafts[0]), Fixed(Shape.branching((2,)))),
    "likeliest tree": lambda models: (
        DraftModel(models.drafts[0], sampled=False),
        Fixed(Shape.branching((2, 1))),
    ),
    "n-grams": lambda models: (NGram(2, allow_shorter=True), Fixed(3)),
    "nothing": lambda models: (NoDraft(), Fixed(0)),
}


@pytest.mark.parametrize("make", [tables, transformers_models])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_is_the_targets(name: str, make: Callable[[], Models]) -> None:
    models = make()

    def build() -> Parts:
        drafter, controller = DRAFTERS[name](models)
        return Parts(models.target, drafter, Rejection(), controller)

    # one token more where the proof stays small: after a difference the cursor is set again
    cases = ragged(3)
    if name in ("n-grams", "nothing", "likeliest tree"):
        cases.append(Case((0, 1), SamplingParams(temperature=1.0, max_tokens=4)))
    found = enumerate_distributions(predicting(build), cases)
    assert largest_error(found, models.logits, cases) < BOUND
    if name.startswith("sampled"):  # both drafters had their turns: plain decoding takes one run a text
        assert found.runs > sum(map(len, found.distributions))
