"""Speculative contrastive decoding: the output has the contrasted distribution, and mistakes are caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Guarantee, Parts, StatedProbs
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.model.plain_drafts import logits_after
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.recipes import get
from outpace.recipes.relaxed.scd.contrast import Contrast
from outpace.recipes.relaxed.scd.contrasted import Contrasted
from outpace.recipes.relaxed.scd.recipe import scd
from outpace.verifiers.rejection import Rejection
from tests.recipes.relaxed.last_steps import PlainBonus, PlainResidual
from tests.tiers import only

SAMPLED = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=3)),
    Case((2,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
    Case((1, 0, 2), SamplingParams(1.6, max_tokens=2)),
]
CHANGED = SamplingParams(
    0.7, max_tokens=3, stop=(1,), top_k=2, repetition_penalty=1.5, bad_words=((0, 2),), min_tokens=2
)
CASES = [*SAMPLED, Case((1, 0), SamplingParams(0.0, max_tokens=4)), Case((0, 1, 2), CHANGED)]


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def build(kind: str = "table", **options: Any) -> Parts:
    of = models(kind)
    return scd.build(of.target, draft=of.drafts[0], **{"depth": 2, "alpha": 0.3} | options)


def errors(make: Callable[[], Parts], stated: Parts, cases: list[Case], kind: str) -> tuple[float, float]:
    """The largest differences from the distribution that `stated` has and from the target's."""
    found, logits = enumerate_distributions(make, cases), models(kind).logits
    assert found.counts.accepted
    own = promised(stated.reference, logits)
    return largest_error(found, own, cases), largest_error(found, logits, cases)


@pytest.mark.parametrize(
    ("kind", "verification"),
    only([("table", "token")], product(["table", "transformers"], ["token", "block"])),
)
def test_the_output_has_the_contrasted_distribution_and_not_the_target_s(
    kind: str, verification: str
) -> None:
    parts = build(kind, verification=verification)
    assert isinstance(parts.reference, StatedProbs) and parts.guarantee is Guarantee.LOSSY
    assert errors(lambda: build(kind, verification=verification), parts, CASES, kind)[0] < 1e-12
    assert errors(lambda: build(kind, verification=verification), parts, SAMPLED, kind)[1] > 0.05


def test_the_recipe_is_proven_and_its_exact_limit_is_exact() -> None:
    proof = prove_default(get("scd"), tables(), 200)
    assert proof.verdict == "as stated" and proof.loss is not None and proof.loss > 0.1
    limit = exact_limit(get("scd"), tables(), 200)
    assert limit.verdict == "exact" and limit.accepted


def test_without_contrast_and_limit_the_rule_itself_gives_the_target_s_distribution() -> None:
    parts = replace(build(), verifier=Contrasted(Contrast(0.0, 0.0), Rejection()), reference=None)
    assert largest_error(enumerate_distributions(lambda: parts, CASES), models("table").logits, CASES) < 1e-12


def test_logits_computed_by_hand() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2]]).double().log()
    draft = torch.tensor([[0.8, 0.1, 0.1]]).double().log()
    found = Contrast(0.5, 0.5)(target, draft)  # 0.2 is less than half of 0.5
    first, second = (1.5 * math.log(p) - 0.5 * math.log(q) for p, q in ((0.5, 0.8), (0.3, 0.1)))
    assert torch.allclose(found, torch.tensor([[first, second, -math.inf]]).double())
    excluded = draft.masked_fill(torch.tensor([[False, True, False]]), -math.inf)
    assert Contrast(0.5, 0.0)(target, excluded)[0, 1] == target[0, 1]


@pytest.mark.slow
def test_at_temperature_0_the_text_is_that_of_contrastive_search_token_by_token() -> None:
    model, draft = (outpace.load(name, dtype="float64") for name in ("zoo:target", "zoo:draft"))
    prompt = model.tokenizer("def add(a, b):")["input_ids"]
    text = list(prompt)
    for _ in range(12):
        expert, amateur = (logits_after(each.target, tuple(text)) for each in (model, draft))
        text.append(int(Contrast(0.5, 0.1)(expert[None], amateur[None]).argmax()))
    [found] = outpace.generate(
        model, prompt, method="scd", draft=draft, temperature=0, max_tokens=12, stop=[]
    )
    assert found.tokens == text[len(prompt) :]
    assert found.statistics.num_accepted_draft_tokens
    assert "the target contrasted with the draft model" in str(found.reference)


def limit_after_contrast(target: Tensor, draft: Tensor) -> Tensor:
    """Mistake: the limit holds for the contrasted probabilities."""
    found = Contrast(0.5, 0.0)(target, draft)
    return found.masked_fill(found < found.amax(-1, keepdim=True) + math.log(0.3), -math.inf)


def swapped(target: Tensor, draft: Tensor) -> Tensor:
    """Mistake: the models' parts are swapped."""
    return Contrast(0.5, 0.3)(draft, target)


def no_limit(target: Tensor, draft: Tensor) -> Tensor:
    """Mistake: every token is plausible."""
    return Contrast(0.5, 0.0)(target, draft)


def cooled_first(target: Tensor, draft: Tensor) -> Tensor:
    """Mistake: a temperature on each model's logits, and again on the difference."""
    return Contrast(0.5, 0.3)(target / 0.7, draft / 0.7)


@pytest.mark.parametrize("mistake", [limit_after_contrast, swapped, no_limit, cooled_first])
def test_a_mistake_in_the_logits_is_caught(mistake: Callable[[Tensor, Tensor], Tensor]) -> None:
    made: Any = mistake
    wrong = Contrasted(made, Rejection())
    assert errors(lambda: replace(build(), verifier=wrong), build(), SAMPLED, "table")[0] > 10 * CAUGHT


@pytest.mark.parametrize("mistake", [PlainBonus, PlainResidual])
def test_a_mistake_in_the_rule_is_caught(mistake: type) -> None:
    wrong = type("Wrong", (mistake, Contrasted), {})(Contrast(0.5, 0.3), Rejection())
    assert errors(lambda: replace(build(), verifier=wrong), build(), SAMPLED, "table")[0] > 10 * CAUGHT


def test_a_stated_distribution_that_is_wrong_is_caught() -> None:
    for other in (build(beta=0.4), build(alpha=0.9)):
        assert errors(lambda: build(), other, SAMPLED, "table")[0] > CAUGHT


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beta": -0.1}, "beta is -0.1: give"),
        ({"alpha": 1.5}, "alpha is 1.5: give"),
        ({"beta": math.nan}, "beta is nan: give"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(**options)
