"""Speculative cascades: the output has the distribution that each rule states, and mistakes are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.claim import DrawnBeside
from outpace.core.contracts import Guarantee, Parts, Scores, StatedProbs, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.recipes import get
from outpace.recipes.relaxed.speculative_cascades.recipe import speculative_cascades
from outpace.recipes.relaxed.speculative_cascades.rules import Deferral, Rule
from outpace.recipes.relaxed.speculative_cascades.transformed import Transformed
from outpace.verifiers.rejection import Rejection
from tests.recipes.relaxed.last_steps import LastStep, PlainBonus, PlainResidual
from tests.tiers import only

RULES, VERIFICATIONS = get_args(Rule), ("token", "block")
SAMPLED = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=3)),
    Case((2,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
    Case((1, 0, 2), SamplingParams(1.6, max_tokens=2)),
]
CHANGED = SamplingParams(
    0.7, max_tokens=3, stop=(1,), top_k=2, repetition_penalty=1.5, bad_words=((0, 2),), min_tokens=2
)
# prompts after which the models are more and less sure
MANY = [
    Case((one, other), SamplingParams(heat, max_tokens=2))
    for one in range(3)
    for other in range(3)
    for heat in (0.4, 2.0)
]
CASES = [*SAMPLED, Case((1, 0), SamplingParams(0.0, max_tokens=4)), Case((0, 1, 2), CHANGED)]
P, Q = torch.tensor([[0.3, 0.4, 0.3]]).double(), torch.tensor([[0.6, 0.3, 0.1]]).double()
SAID = "def add(a, b):"


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def build(rule: str = "token-v3", kind: str = "table", **options: Any) -> Parts:
    of = models(kind)
    options = {"alpha": 0.3, "depth": 2} | options
    return speculative_cascades.build(of.target, draft=of.drafts[0], rule=rule, **options)


def errors(make: Callable[[], Parts], stated: Parts, cases: list[Case], kind: str) -> tuple[float, float]:
    """The largest differences from the distribution that `stated` has and from the target's."""
    found, logits = enumerate_distributions(make, cases), models(kind).logits
    assert found.counts.accepted
    return largest_error(found, promised(stated.reference, logits), cases), largest_error(
        found, logits, cases
    )


@pytest.mark.parametrize(
    ("rule", "kind", "verification"),
    only(
        [*product(RULES, ["table"], ["token"]), ("opt", "table", "block")],
        product(RULES, ["table", "transformers"], VERIFICATIONS),
    ),
)
def test_the_output_has_the_stated_distribution_and_not_the_target_s(
    rule: str, kind: str, verification: str
) -> None:
    parts = build(rule, kind, verification=verification)
    assert isinstance(parts.reference, StatedProbs) and parts.guarantee is Guarantee.LOSSY
    error, _ = errors(lambda: build(rule, kind, verification=verification), parts, CASES, kind)
    assert error < 1e-12
    _, loss = errors(lambda: build(rule, kind, verification=verification), parts, SAMPLED, kind)
    assert loss > 0.05


def test_the_recipe_is_proven_and_its_exact_limit_is_exact() -> None:
    proof = prove_default(get("speculative-cascades"), tables(), 200)
    assert proof.verdict == "as stated" and proof.loss is not None and proof.loss > 0.1
    limit = exact_limit(get("speculative-cascades"), tables(), 200)
    assert limit.verdict == "exact" and limit.accepted


@pytest.mark.parametrize("rule", only(["chow", "token-v3"], RULES))
def test_with_alpha_minus_1_all_rules_but_opt_give_the_target_s_distribution(rule: Rule) -> None:
    parts = build(rule, alpha=-1.0)
    if rule == "opt":
        assert parts.guarantee is Guarantee.LOSSY
        _, loss = errors(lambda: build(rule, alpha=-1.0), parts, SAMPLED, "table")
        assert loss > CAUGHT
        return
    assert parts.reference is None and parts.guarantee is Guarantee.EXACT
    lossy = build(rule)  # the rule itself, in place of the shortcut to plain rejection
    parts = replace(lossy, verifier=Transformed(Deferral(rule, -1.0).mixed, Rejection()), reference=None)
    found = enumerate_distributions(lambda: parts, CASES)
    assert largest_error(found, models("table").logits, CASES) < 1e-12


@pytest.mark.parametrize(
    ("rule", "alpha", "expected"),
    [
        ("chow", 0.45, Q),  # 0.6 is at least 0.55
        ("chow", 0.35, P),
        ("diff", -0.15, Q),  # 0.6 is at least 0.4 + 0.15
        ("diff", -0.25, P),
        ("opt", -0.6, Q),  # TV is 0.3: 0.6 is at least 0.4 + 0.18
        ("opt", -0.8, P),
        ("token-v1", 0.05, [[0.72, 0.16, 0.12]]),  # 0.6 stays, 0.4 of the mass moves to p
        ("token-v2", 0.05, [[0.21, 0.58, 0.21]]),  # the target's most probable token stays, 0.7 moves
        ("token-v3", 0.0, [[0.21, 0.58, 0.21]]),
        ("token-v3", 0.3, Q),  # 0.3 is at least 0.28
        ("token-v3", 0.2, [[0.21, 0.58, 0.21]]),
    ],
)
def test_distributions_computed_by_hand(rule: Rule, alpha: float, expected: Any) -> None:
    found = Deferral(rule, alpha).mixed(P, Q, P.log(), Q.log())
    assert torch.allclose(found, torch.as_tensor(expected).double(), atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_mixtures_are_distributions_and_rules_for_whole_distributions_accept_more(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = (torch.randn(200, 5, generator=generator).double() * 2 for _ in range(2))
    p, q = (target / 0.7).softmax(-1), (draft / 0.7).softmax(-1)
    for alpha in (-0.5, 0.0, 0.4, 1.0):
        mixed = Deferral(rule, alpha).mixed(p, q, target, draft)
        assert torch.allclose(mixed.sum(-1), torch.ones(200).double()) and bool((mixed >= 0).all())
        if not rule.startswith("token"):
            accepted = [torch.minimum(each, q).sum(-1) for each in (p, mixed)]
            assert bool((accepted[1] >= accepted[0] - 1e-12).all())
    if rule == "opt":  # equal models have no distance: the draft model is kept
        assert torch.equal(Deferral(rule, 0.3).mixed(p, p, target, target), p)


Given = tuple[Tensor, Tensor, Tensor, Tensor]
MIXTURES: dict[str, Callable[[Deferral, Given], Tensor]] = {
    "thresholds on tempered distributions": lambda of, m: of.mixed(m[0], m[1], m[0].log(), m[1].log()),
    "untempered distributions mixed": lambda of, m: of.mixed(m[2].softmax(-1), m[3].softmax(-1), *m[2:]),
    "models swapped in the thresholds": lambda of, m: of.mixed(m[0], m[1], m[3], m[2]),
    "thresholds swapped": lambda of, m: Deferral(of.rule, 1 - of.alpha).mixed(*m),
}


class ParentAtLeaves(Transformed):
    """Mistake: after leaves the distribution from which they were drawn."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        claim, forest = tree.claim, tree.forest
        assert isinstance(claim, DrawnBeside)
        at = [
            node if below or node < forest.num_rows else forest.parents[node]
            for node, below in enumerate(forest.children)
        ]
        claim = replace(claim, after=claim.after[at], logits=claim.logits[at])
        return super().verify(replace(tree, claim=claim), target_probs, scores, noise)


# rules in which a mistake shows: OPT alone has thresholds on what is mixed, token rules have residuals
@pytest.mark.parametrize("rule", ["diff", "token-v1", "token-v3"])
@pytest.mark.parametrize("mistake", MIXTURES)
def test_a_mistake_in_a_mixture_is_caught(mistake: str, rule: Rule) -> None:
    deferral = Deferral(rule, 0.15)

    def mistaken() -> Parts:
        wrong = Transformed(lambda *m: MIXTURES[mistake](deferral, m), Rejection())
        return replace(build(rule, alpha=0.15), verifier=wrong)

    error, _ = errors(mistaken, build(rule, alpha=0.15), MANY, "table")
    assert error > 10 * CAUGHT


@pytest.mark.parametrize("mistake", [PlainBonus, PlainResidual, ParentAtLeaves])
def test_a_mistake_in_the_rule_is_caught(mistake: type) -> None:
    wrong = type("Wrong", (mistake, Transformed), {}) if issubclass(mistake, LastStep) else mistake

    def mistaken() -> Parts:
        return replace(build("token-v1"), verifier=wrong(Deferral("token-v1", 0.3).mixed, Rejection()))

    error, _ = errors(mistaken, build("token-v1"), SAMPLED, "table")
    assert error > 10 * CAUGHT


def test_a_stated_distribution_that_is_wrong_is_caught() -> None:
    for other in (build("token-v2"), build("token-v1", alpha=0.2)):
        assert errors(lambda: build("token-v1"), other, SAMPLED, "table")[0] > CAUGHT


@pytest.mark.slow
def test_with_the_package_s_models_more_is_accepted_than_by_an_exact_rule() -> None:
    target = outpace.load("zoo:target", dtype="float32")
    given: dict[str, Any] = {"temperature": 0.9, "max_tokens": 40}
    lengths = dict[object, float]()
    for name, options in (
        ("speculative-sampling", {}),
        ("speculative-cascades", {"rule": "opt"}),
        ("speculative-cascades", {"rule": "chow", "alpha": 0.6}),
    ):
        results = [
            outpace.generate(target, SAID, method=name, seed=seed, **given, **options)[0] for seed in range(2)
        ]
        lengths[options.get("rule")] = sum(each.statistics.mean_acceptance_length for each in results)
        if options:
            assert "a cascade of the draft model and the target by" in str(results[0].reference)
    assert lengths["opt"] > lengths[None] and lengths["chow"] > lengths[None]


def test_bad_input_is_said() -> None:
    with pytest.raises(ValueError, match=r"alpha is -1\.5: give a number of at least -1, the target's"):
        build(alpha=-1.5)
    loaded = outpace.load("zoo:target", dtype="float32")
    with pytest.raises(ValueError, match="depends on the method's own drafts: leave out the predicted"):
        outpace.generate(loaded, SAID, method="speculative-cascades", prediction="return a + b")
    of = models("table")
    with pytest.raises(TypeError, match="DraftModel claims Drawn, but Transformed accepts DrawnBeside"):
        plain = get("speculative-sampling").build(of.target, draft=of.drafts[0])
        replace(plain, verifier=Transformed(Deferral("opt", 0.3).mixed, Rejection()))
