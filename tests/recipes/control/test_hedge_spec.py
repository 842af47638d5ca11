"""HedgeSpec with draft models that are right for a part of the vocabulary each."""

from __future__ import annotations

import pytest
import torch

from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.models import peaked_tables, tables
from outpace.proof.suite import Subject, ragged
from outpace.recipes.control.hedge_spec.recipe import hedge_spec
from outpace.sampling.target_probs import LazyTargetProbs
from tests.recipes.counting_model import counting

VOCAB, HALF = 120, 60


def expert(first: int, end: int) -> TableTarget:
    """Right after the tokens from `first` to before `end` only."""
    model = counting(VOCAB)
    last = torch.arange(len(model.logits)) % VOCAB
    right = (first <= last) & (last < end)
    model.logits = torch.where(right[:, None], model.logits, model.logits.roll(1, -1))
    return model


def run(prompts: list[int], tokens: int, temperature: float = 1.0, **options: str) -> list[Step]:
    drafts = (expert(HALF, VOCAB), expert(0, HALF), expert(0, 0))
    parts = hedge_spec(counting(VOCAB), drafts=drafts, depth=4, **options)
    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=3)] * len(prompts)
    session = Session(parts, [torch.tensor([prompt]) for prompt in prompts], sampling, LazyTargetProbs)
    steps = list(session.steps())
    for slot, prompt in enumerate(prompts):
        assert session.request(slot).output() == [(prompt + count) % VOCAB for count in range(1, tokens + 1)]
    return steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"loss": "rate"}, {"estimate": "token"}])
def test_the_right_draft_model_drafts_after_a_few_steps(temperature: float, options: dict[str, str]) -> None:
    lengths = [len(step.generated[0]) for step in run([0], 50, temperature, **options)]
    assert lengths[8:-1] and set(lengths[8:-1]) == {5}


def test_rows_have_draft_models_of_their_own() -> None:
    steps = run([0, HALF], 50)
    lengths = [[len(row) for row in step.generated] for step in steps]
    assert lengths[5:8] == [[5, 5]] * 3


def test_the_draft_model_changes_with_the_text() -> None:
    lengths = [len(step.generated[0]) for step in run([35], 80)]
    assert lengths[2:5] == [5, 5, 5] and 1 in lengths[5:] and lengths[-6:-1] == [5] * 5, lengths


@pytest.mark.slow
def test_both_estimates_and_losses_are_exact_with_two_draft_models() -> None:
    for models in (tables(), peaked_tables()):
        for options in ({}, {"estimate": "token"}, {"loss": "rate"}):
            subject = Subject(hedge_spec, {"drafts": models.drafts, "depth": 2, **options}, models)
            proof = subject.prove(ragged, 400)
            assert proof.holds and proof.accepted > 20, (models.name, options, proof.verdict)


def test_unsuited_options_are_refused() -> None:
    with pytest.raises(ValueError, match="one draft model or more"):
        hedge_spec(counting(VOCAB), drafts=())
    with pytest.raises(ValueError, match="use 1 or more"):
        hedge_spec(counting(VOCAB), drafts=(counting(VOCAB),), depth=0)
