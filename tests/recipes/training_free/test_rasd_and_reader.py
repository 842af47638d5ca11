"""RASD and READER: a model's tree and found text together, exact with drawn and chosen siblings side by
side."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from outpace.core.contracts import Parts, Recipe, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.training_free.rasd import rasd
from outpace.recipes.training_free.reader import reader
from outpace.recipes.verification.mcsd import mcsd
from outpace.sampling.target_probs import LazyTargetProbs

BOTH = pytest.mark.parametrize("recipe", [rasd, reader], ids=lambda recipe: recipe.name)
CODE = "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3


def steps(parts: Parts, prompts: list[list[int]], sampling: SamplingParams) -> list[Step]:
    session = Session(
        parts, [torch.tensor(each) for each in prompts], [sampling] * len(prompts), LazyTargetProbs
    )
    return [step for step in session.steps() if step.scores.logits is not None]


@BOTH
@pytest.mark.parametrize("sampled", [False, True])
def test_the_distribution_is_the_targets_with_a_corpus(recipe: Recipe, sampled: bool, tmp_path: Path) -> None:
    target, draft = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
    store.save(SuffixArray.build([[0, 1, 2, 0, 1, 1], [2, 1, 0, 1, 2, 2, 0, 1, 0]]), tmp_path / "corpus")
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=1.0, max_tokens=3)),
        Case((1, 0), SamplingParams(temperature=0.7, max_tokens=3, stop=(2,))),
        Case((2, 0, 1), SamplingParams(temperature=0.0, max_tokens=4)),
    ]
    mixed = 0

    def build() -> Parts:
        parts = recipe.build(
            target,
            draft=draft,
            widths=(2,),
            sampled=sampled,
            index=str(tmp_path / "corpus"),
            min_ngram=1,
            nodes=6,
        )
        observe = parts.drafter.observe

        def counted(step: Step) -> None:
            nonlocal mixed
            claim = step.draft.tree.claim
            if claim is not None:
                rows = step.draft.tree.forest.num_rows
                mixed += -1 in claim.row[rows:] and max(claim.row) >= 0
            observe(step)

        parts.drafter.observe = counted
        return parts

    found = enumerate_distributions(build, cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND
    assert (mixed > 0) == sampled


@cache
def zoo(name: str):
    return load(resolve(f"zoo:{name}"))


def length(parts: Parts, text: str, tokens: int = 64) -> float:
    prompt = zoo("target")[1](text)["input_ids"]
    return tokens / len(steps(parts, [prompt], SamplingParams(max_tokens=tokens)))


@pytest.mark.slow
@BOTH
def test_text_that_repeats_is_accepted_further_than_by_the_model_alone(recipe: Recipe) -> None:
    target, draft = zoo("target")[0], zoo("draft")[0]
    alone = length(mcsd.build(target, draft=draft, widths=(4, 2, 1, 1)), CODE)
    assert length(recipe.build(target, draft=draft), CODE) > 1.1 * alone


@BOTH
def test_rows_draft_the_same_alone_and_together(recipe: Recipe) -> None:
    target, draft = zoo("target")[0], zoo("draft")[0]
    prompt = zoo("target")[1](CODE)["input_ids"]
    one = steps(recipe.build(target, draft=draft), [prompt], SamplingParams(max_tokens=24))
    two = steps(recipe.build(target, draft=draft), [prompt, prompt], SamplingParams(max_tokens=24))
    assert [2 * len(step.draft.tree) for step in one] == [len(step.draft.tree) for step in two]


@BOTH
def test_options_that_mean_nothing_are_refused(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="at least one"):
        recipe.build(TableTarget(3), draft=TableTarget(3), nodes=0)
    with pytest.raises(ValueError, match="min_ngram"):
        recipe.build(TableTarget(3), draft=TableTarget(3), min_ngram=0)
