"""Every recipe has the output distribution it promises and drafts are accepted in the proof; mutants are
caught."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from outpace.core.contracts import Guarantee, StatedProbs, StepReference
from outpace.proof.models import RECURRENT_CODES, Models, peaked_tables
from outpace.proof.mutants.recurrent_path import recurrent_mutants
from outpace.proof.mutants.transformers_path import transformers_mutants
from outpace.proof.option_values import THRESHOLD, choices
from outpace.proof.suite import CAUGHT, PLANS, exact_limit, mistakes, prove, prove_default
from outpace.recipes import entries, find, get, names
from tests.tiers import OF_FAMILIES, PARTS_OF, WITHOUT_MODELS, of_families, with_parts_of_their_own


@cache
def models(kind: str) -> Models:
    return PLANS[kind].models()


# runs of methods whose drafters, one for each run, have a network that learns
FEWER = {"aurora": 60}


@pytest.mark.parametrize("name", of_families(names()))
def test_drafts_are_accepted_and_the_distribution_is_the_promised_one(name: str) -> None:
    recipe = get(name)
    most = FEWER.get(name, 200)
    proof = prove_default(recipe, models("peaked"), most)
    if (
        proof.allowed and proof.accepted < 100 and name not in FEWER
    ):  # longer texts, so that more than a first token is accepted
        proof = prove_default(recipe, models("peaked"), 600)
    assert proof.outcomes >= 5
    is_lossy = recipe.guarantee is Guarantee.LOSSY
    assert is_lossy or recipe.guarantee is Guarantee.EXACT
    assert proof.verdict == ("as stated" if is_lossy else "exact")
    assert proof.accepted > 0 or not proof.allowed
    if is_lossy:
        assert exact_limit(recipe, models("peaked"), 200).verdict == "exact"


# `outpace audit --all` enumerates longer texts, on the other kinds of models too
PLANNED = {
    "table": replace(PLANS["table"], most=200, most_varied=60, more=500),
    "transformers": replace(PLANS["transformers"], most=100, most_varied=50, more=400),
}


def needs_own_drafts(name: str) -> bool:
    """Whether a method's distribution is stated for its own drafts alone, not for a predicted output."""
    recipe, of = get(name), models("table")
    reference = recipe.build(of.target, **next(choices(recipe, of))).reference
    return isinstance(reference, StatedProbs | StepReference)


# runs of methods whose texts have to be longer for accepted drafts: lookahead drafts n-grams of its own text,
# the others draft after a first step and end many drafts after a token
LONGER = {
    "lookahead": 2000,
    "clasp": 500,
    "del-decoding": 300,
    "knn-ssd": 1500,
    "layerskip": 300,
    "medusa": 400,
    "mlp-speculator": 400,
    "redrafter": 400,
    "pearl": 600,
    "quicksilver": 300,
    "specbranch": 600,
}
# the same for proofs that are repeated: of these a token that is drafted is accepted two steps later
MORE = {"duodecoding": 800, "pearl": 900, "specbranch": 900}
LONGER_ON_MODELS = {"specbranch": 1500}  # instead of both, on transformers models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "table") for name in with_parts_of_their_own(names())),
        *((name, "transformers") for name in with_parts_of_their_own(names()) if name not in WITHOUT_MODELS),
    ],
)
def test_the_distribution_is_the_promised_one_with_every_option(name: str, kind: str) -> None:
    plan = PLANNED[kind]
    plan = replace(plan, most=LONGER.get(name, plan.most), more=MORE.get(name, plan.more))
    if kind == "transformers" and name in LONGER_ON_MODELS:
        plan = replace(plan, most=LONGER_ON_MODELS[name], more=LONGER_ON_MODELS[name])
    proofs = list(prove(get(name), models(kind), plan))
    assert {0.0, 0.7, 1.0} <= {temperature for proof in proofs for temperature in proof.temperatures}
    assert {256} <= {proof.batch for proof in proofs}
    assert any(proof.predicted for proof in proofs) != needs_own_drafts(name)
    # drafts of 0.4 times a match's length have one token in texts as short as these
    short = [proof for proof in proofs if proof.options.get("max_spec_factor") == THRESHOLD]
    assert all(proof.as_promised and proof.accepted for proof in short)
    proofs = [proof for proof in proofs if proof not in short]
    for proof in proofs:
        assert proof.holds, f"{proof.options} {proof.settings}: {proof.verdict}, error {proof.error}"
    verdicts = {proof.verdict for proof in proofs}
    is_lossy = get(name).guarantee is Guarantee.LOSSY
    assert verdicts == ({"as stated", "exact"} if is_lossy else {"exact"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle2", "eagle3", "fr-spec"])
def test_proofs_of_adaptive_trees_have_trees_of_adaptive_sizes(name: str) -> None:
    plan = replace(PLANS["table"], most=200, most_varied=50)
    proofs = [each for each in prove(get(name), models("table"), plan) if each.options.get("adaptive")]
    assert proofs and all(proof.holds and not proof.same_as_default for proof in proofs)


def test_methods_with_the_parts_of_others_are_known_and_the_others_are_tested() -> None:
    assert {*PARTS_OF} | WITHOUT_MODELS <= {*names()} and {*PARTS_OF.values()} <= {
        *with_parts_of_their_own(names())
    }


def test_every_family_has_a_method_in_the_quick_tier() -> None:
    families = {entry.name: entry.family for entry in entries()}
    assert sorted(families[name] for name in OF_FAMILIES) == sorted({*families.values()})


def test_twenty_mistakes_or_more_are_planted() -> None:
    assert len(mistakes()) >= 20 and len(find()) >= 20


# those of the transformers path are planted in test_transformers_mutants.py and models/test_recurrent.py
ON_TABLES = sorted(
    mistakes().keys()
    - {mutant.name for mutant in transformers_mutants()}
    - {mutant.name for code in RECURRENT_CODES for mutant in recurrent_mutants(code)}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TABLES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    assert mistakes()[name]() > CAUGHT


def test_fixtures_are_removed_with_their_models() -> None:
    small = peaked_tables()
    folder = small.folder
    assert folder.is_dir() and len(small.texts) > 10
    del small
    assert not folder.exists()
