"""Proofs of LOSSY methods: the output is compared with the reference that is stated, which must differ from
the target, and at the method's exact limit with the target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Recipe, Reference, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.slim.slim_table import TableReference
from outpace.models.table import TableTarget
from outpace.proof.joint import prove_together
from outpace.proof.models import tables
from outpace.proof.suite import exact_limit, prove, prove_default
from outpace.verifiers.match import Match

MODELS = tables()


def warmer(target: Target, by: float) -> TableTarget:
    """A table with other probabilities than the target's, unless `by` is 0."""
    assert isinstance(target, TableTarget)
    table = TableTarget(target.vocab, order=3)
    table.logits = target.logits + by * torch.linspace(-1, 1, target.vocab, dtype=torch.float64)
    return table


def made(
    stated: Callable[[Target, float], Reference | None], *, lossy: bool = True, drafts: bool = False
) -> Recipe:
    """A method that decodes a warmer table than the target's and states a reference."""

    def other(target: Target, *, warmth: float = 0.5) -> Parts:
        table = warmer(target, warmth)
        drafter = DraftModel(MODELS.drafts[0], sampled=False) if drafts else NoDraft()
        return Parts(table, drafter, Match(), Fixed(2 * drafts), stated(target, warmth))

    guarantee = Guarantee.LOSSY if lossy else Guarantee.EXACT
    marked = recipe(paper="none", family="mine", guarantee=guarantee, exact_with={"warmth": 0.0})
    return marked(other)


def honest(target: Target, warmth: float) -> Reference | None:
    return TableReference(warmer(target, warmth)) if warmth else None


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [False, True])
def test_a_reference_that_is_true(drafts: bool) -> None:
    method = made(honest, drafts=drafts)
    proof = prove_default(method, MODELS, 300)
    assert proof.verdict == "as stated" and proof.holds and proof.loss is not None and proof.loss > 0.01
    assert proof.deepest == 2 * drafts
    assert exact_limit(method, MODELS, 300).verdict == "exact"
    verdicts = [each.verdict for each in prove(method, MODELS)]
    assert verdicts.count("exact") == 1 and set(verdicts) == {"exact", "as stated"}


def test_a_reference_that_is_false() -> None:
    proof = prove_default(made(lambda target, by: TableReference(warmer(target, by / 2))), MODELS, 300)
    assert proof.verdict == "WRONG" and not proof.holds and not proof.as_promised


def test_no_reference_although_the_output_is_not_the_target_s() -> None:
    assert prove_default(made(lambda target, by: None), MODELS, 300).verdict == "WRONG"


def test_a_reference_that_does_not_differ_proves_nothing() -> None:
    def nothing(target: Target, *, warmth: float = 0.0) -> Parts:
        return Parts(target, NoDraft(), Match(), Fixed(0), TableReference(warmer(target, 0.0)))

    marked = recipe(paper="none", family="mine", guarantee=Guarantee.LOSSY, exact_with={"warmth": 0.0})
    proof = prove_default(marked(nothing), MODELS, 300)
    assert proof.as_promised and not proof.holds and proof.verdict.startswith("EMPTY: on these models")


def test_an_exact_method_states_no_reference() -> None:
    assert "mark the recipe as LOSSY" in prove_default(made(honest, lossy=False), MODELS, 300).verdict


def test_a_lossy_verifier_needs_a_reference() -> None:
    class Relaxed(Match):
        guarantee = Guarantee.LOSSY

    def other(target: Target, *, loss: float = 0.5) -> Parts:
        return Parts(target, NoDraft(), Relaxed(), Fixed(0))

    marked = recipe(paper="none", family="mine", guarantee=Guarantee.LOSSY, exact_with={"loss": 0.0})
    assert "states no reference" in prove_default(marked(other), MODELS, 300).verdict


def test_the_exact_limit_is_exact() -> None:
    def warm(target: Target, warmth: float) -> Reference:
        return TableReference(warmer(target, warmth))

    assert "are to be EXACT" in exact_limit(made(warm), MODELS, 300).verdict
    wrong = made(lambda target, by: None if by == 0.5 else TableReference(warmer(target, by)))
    limit = recipe(paper="none", family="mine", guarantee=Guarantee.LOSSY, exact_with={"warmth": 0.5})
    assert exact_limit(limit(wrong.build), MODELS, 300).verdict == "WRONG"


@pytest.mark.slow
def test_rows_that_draft_for_one_another_have_the_stated_distribution() -> None:
    for stated, verdict in ((honest, "as stated"), (lambda target, by: None, "WRONG")):
        proofs = list(prove_together(made(stated), {"warmth": 0.5}, MODELS))
        assert {proof.verdict for proof in proofs} == {verdict}


def test_a_lossy_recipe_names_its_exact_limit() -> None:
    def lossy(target: Target, *, threshold: float = 0.5) -> Parts:
        raise NotImplementedError

    with pytest.raises(TypeError, match="lossy is LOSSY: name the option values of its exact limit"):
        recipe(paper="none", family="mine", guarantee=Guarantee.LOSSY)(lossy)
    with pytest.raises(
        TypeError, match="lossy has no option drift, which exact_with, proven_with or presets name"
    ):
        recipe(paper="none", family="mine", guarantee=Guarantee.LOSSY, exact_with={"drift": 0})(lossy)


def test_the_guarantee_of_parts_is_lossy_with_a_reference() -> None:
    exact, lossy = (made(honest).build(MODELS.target, warmth=warmth) for warmth in (0.0, 0.5))
    assert (exact.guarantee, lossy.guarantee) == (Guarantee.EXACT, Guarantee.LOSSY)
