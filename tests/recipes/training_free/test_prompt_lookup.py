"""Prompt lookup: fast where text repeats, harmless where it does not."""

from __future__ import annotations

from random import Random

import torch

from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.recipes.training_free.prompt_lookup import prompt_lookup
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB = 40


def counting() -> TableTarget:
    """A model that counts upwards without end."""
    model = TableTarget(VOCAB, order=1)
    model.logits = torch.zeros_like(model.logits)
    for state in range(2 * VOCAB):
        model.logits[state, (state % VOCAB + 1) % VOCAB] = 20.0
    return model


def steps(model: TableTarget, prompt: list[int], tokens: int, temperature: float = 0.0) -> list[Step]:
    sampling = SamplingParams(temperature, max_tokens=tokens, seed=1)
    session = Session(prompt_lookup.build(model), [torch.tensor(prompt)], [sampling], LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def test_copying_accepts_more_than_five_tokens_a_step() -> None:
    found = steps(counting(), [*range(VOCAB), 0], 120)
    assert sum(len(step.generated[0]) for step in found) / len(found) > 5


def test_random_text_is_mostly_not_drafted() -> None:
    flat = TableTarget(VOCAB, order=1, spread=0.0)
    random = Random(0)
    found = steps(flat, [random.randrange(VOCAB) for _ in range(20)], 60, temperature=1.0)
    nodes = [len(step.draft.tree) for step in found]
    # only whole continuations of ten tokens count, so an accidental match of one token needs ten more after
    # it
    assert sum(size == 1 for size in nodes) / len(nodes) > 0.3
    assert sum(len(step.generated[0]) for step in found) == 60


def test_a_second_turn_gains_more_than_the_first() -> None:
    question = [3, 30, 31, 32, 5]
    first = steps(counting(), question, 25)
    answer = [token for step in first for token in step.generated[0]]
    second = steps(counting(), [*question, *answer, 30, 5], 25)
    assert len(second) < len(first)


def test_defaults_are_the_papers() -> None:
    options = prompt_lookup.options
    assert (options["max_ngram"].default, options["depth"].default, options["allow_shorter"].default) == (
        3,
        10,
        False,
    )
