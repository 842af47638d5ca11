"""Double: lookups speed up the draft model and extend what the target reads; without them it is PEARL."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.lookup import ngram
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import tables
from outpace.recipes.overlap.double.recipe import double
from outpace.recipes.overlap.pearl import pearl

MODELS = tables(2)
CASES = [
    Case((0, 1, 0, 1), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
PROMPTS = [[0, 1, 1, 0, 1], [1], [0, 0, 1]]
SAMPLING = [SamplingParams(t, max_tokens=30, seed=s) for s, t in enumerate((1.0, 0.0, 0.7))]


def build(target: TableTarget = MODELS.target, draft: TableTarget = MODELS.drafts[0], **options: Any) -> Any:
    return double.build(target, draft=draft, **{"depth": 3, "lookup_depth": 2, "overlap": False} | options)


def decode(
    parts: Any, prompt: list[int], tokens: int, temperature: float = 0.0
) -> tuple[list[int], list[Step]]:
    steps = list[Step]()
    params = SamplingParams(temperature, max_tokens=tokens, seed=3)
    return texts(parts, [prompt], [params], observe=steps.append)[0], steps


def test_the_distribution_is_the_target_s() -> None:
    found = enumerate_distributions(build, CASES)
    assert found.counts.accepted and found.counts.deepest >= 2
    assert largest_error(found, MODELS.logits, CASES) < 1e-12


def test_without_lookups_it_is_pearl(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ngram.chain([], 0, ())
    monkeypatch.setattr(ngram.NGramLookup, "look_up", lambda self, ctx, plan: [nothing] * len(plan.depth))
    greedy = SamplingParams(max_tokens=30)
    for prompt in PROMPTS:
        traces = list[list[tuple[int, list[int]]]]()
        for parts in (build(), pearl.build(MODELS.target, draft=MODELS.drafts[0], depth=3, overlap=False)):
            steps = list[Step]()
            texts(parts, [prompt], [greedy], observe=steps.append)
            traces.append([(len(step.draft.tree), step.generated[0]) for step in steps])
        assert traces[0] == traces[1]


def test_texts_do_not_depend_on_the_thread_or_on_other_rows() -> None:
    together = texts(build(overlap=True), PROMPTS, SAMPLING)
    for text, prompt, params in zip(together, PROMPTS, SAMPLING, strict=True):
        assert texts(build(), [prompt], [params]) == [text]


def cycle(length: int) -> TableTarget:
    """A model whose greedy text counts from 0 to `length` - 1 over and over."""
    table = TableTarget(length, order=1)
    table.logits = torch.full((2 * length, length), -20.0, dtype=torch.float64)
    for state in range(2 * length):
        table.logits[state, (state % length + 1) % length] = 20.0
    return table


def test_a_text_that_repeats_itself_is_faster_than_the_draft_model_allows() -> None:
    model = cycle(5)
    prompt = [0, 1, 2, 3, 4, 0, 1]
    text, steps = decode(build(model, model, depth=4, lookup_depth=10, max_ngram=3), prompt, 60)
    assert text == [(index + 2) % 5 for index in range(60)]
    other, ahead = decode(pearl.build(model, draft=model, depth=4, overlap=False), prompt, 60)
    assert other == text and len(steps) < 0.6 * len(ahead)
    forwards = sum(step.draft.forwards for step in steps)
    assert forwards < sum(step.draft.forwards for step in ahead), "the draft model reads less often, too"
