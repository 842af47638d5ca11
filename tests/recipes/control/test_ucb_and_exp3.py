"""UCBSpec and EXP3Spec: how methods are named, and which of them drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, Parts, Recipe, Step, Target
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.methods import Methods, check_rejection
from outpace.drafters.lookup.ngram import NGram
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.models import peaked_tables, tables
from outpace.proof.option_values import choices
from outpace.proof.per_row_controller import ControllersApart
from outpace.proof.suite import Subject, ragged
from outpace.recipes import Method, configure, get, parse_methods
from outpace.recipes._methods import methods_of
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes.control.exp3_spec import exp3_spec
from outpace.recipes.control.ucb_spec import ucb_spec
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.recipes.counting_model import counting

VOCAB = 60
RECIPES = [ucb_spec, exp3_spec]
OPENER = FunctionOpener(lambda value: counting(VOCAB))


def opened(recipe: Recipe, **options: Any) -> dict[str, Any]:
    return configure(recipe, counting(VOCAB), options, OPENER)


def methods(recipe: Recipe, draft: Target | None = None, **options: Any) -> dict[str, Parts]:
    """The arms of the recipe with these options, by name."""
    given = options if draft is None else options | {"draft": draft}
    return opened(recipe, **given)["arms"].parts(counting(VOCAB), draft)


def steps(parts: Parts, prompt: Sequence[int], tokens: int) -> list[Step]:
    """The steps of a request, whose times follow from numbers of nodes."""
    timed = ControllersApart(lambda: parts.controller)
    sampling = [SamplingParams(max_tokens=tokens, seed=1)]
    session = Session(replace(parts, controller=timed), [torch.tensor(prompt)], sampling, LazyTargetProbs)
    return list(session.steps())


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_usual_methods_are_those_that_are_possible(recipe: Recipe) -> None:
    lookups = ["prompt-lookup", "suffix-decoding", "token-recycling"]
    assert list(methods(recipe)) == lookups
    assert list(methods(recipe, counting(VOCAB))) == [*lookups, "speculative-sampling"]


@pytest.mark.parametrize(
    "arms",
    [
        "prompt-lookup:depth=8:max_ngram=2,mcsd:widths=(3,1)",
        "(prompt-lookup:depth=8,max_ngram=2,mcsd:widths=(3,1))",
        ["prompt-lookup:depth=8,max_ngram=2", "mcsd:widths=(3,1)"],
    ],
)
def test_methods_are_named_with_their_options(arms: Any) -> None:
    found = methods(ucb_spec, counting(VOCAB), arms=arms)
    assert list(found) == ["prompt-lookup:depth=8,max_ngram=2", "mcsd:widths=(3,1)"]
    named = parse_methods("ucb-spec:arms=(prompt-lookup:depth=8,max_ngram=2,mcsd:widths=(3,1))")
    assert len(named) == 1 and list(methods(ucb_spec, counting(VOCAB), **named[0].options)) == list(found)


def test_each_build_has_parts_of_its_own() -> None:
    options = opened(ucb_spec)
    first, second = (options["arms"].parts(counting(VOCAB)) for _ in range(2))
    assert all(first[name].drafter is not second[name].drafter for name in first)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"arms": "prompt-lookup"}, "one arm"),
        ({"arms": "prompt-lookup,prompt-lookpu"}, "did you mean prompt-lookup"),
        ({"arms": "prompt-lookup,prompt-lookup"}, "named twice"),
        ({"arms": "prompt-lookup,mcsd"}, "mcsd needs draft"),
        ({"arms": "prompt-lookup,ucb-spec"}, "chooses among methods itself"),
        ({"arms": "prompt-lookup:deep=3,token-recycling"}, "prompt-lookup called deep"),
        ({"arms": ""}, "no method was named"),
        ({"arms": "depth=3"}, "option without a method"),
        ({"lengths": (0, -2)}, "use 0 for no draft"),
        ({"lengths": (2, 4), "reward": "tokens"}, "reward=speed"),
    ],
)
def test_unsuited_options_are_refused(recipe: Recipe, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        recipe(counting(VOCAB), **opened(recipe, **options))


def test_names_that_were_not_opened_are_refused() -> None:
    with pytest.raises(ValueError, match="recipes.configure"):
        ucb_spec(counting(VOCAB))
    assert str(Methods("prompt-lookup")) == "prompt-lookup"


def test_methods_that_rejection_does_not_verify_are_refused() -> None:
    class Other(Claim):
        pass

    class Accepting(Rejection):
        accepts: tuple[type[Claim], ...] = (Other,)

    class Lossy(Match):
        guarantee = Guarantee.LOSSY

    target, claiming = counting(VOCAB), NGram()
    claiming.claims = (Other,)
    with pytest.raises(ValueError, match="odd claims Other"):
        check_rejection({"odd": Parts(target, claiming, Accepting(), Fixed(1))})
    with pytest.raises(ValueError, match="does not keep"):
        check_rejection({"lossy": Parts(target, NGram(), Lossy(), Fixed(1))})


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_method_that_suits_the_text_drafts_most_steps(recipe: Recipe) -> None:
    """Tokens that repeat nothing are guessed by the draft model alone; the lookup knows repeated ones."""
    target = counting(400)
    draft, wrong = counting(400), counting(400)
    wrong.logits = wrong.logits.roll(1, -1)
    arms = "speculative-sampling:depth=3,prompt-lookup:depth=6"

    def share(draft: TableTarget, prompt: Sequence[int], by_model: bool) -> float:
        """Of the steps in which the draft model drafts, or the lookup."""
        given = configure(recipe, target, {"arms": arms, "draft": draft}, FunctionOpener(lambda value: draft))
        found = [step.draft.forwards > 0 for step in steps(recipe(target, **given), prompt, 350)]
        return found.count(by_model) / len(found)

    least = 0.8 if recipe is ucb_spec else 0.55  # EXP3 goes on trying the other
    assert share(draft, [0], by_model=True) > least
    assert share(wrong, [*range(400), 0, 1, 2], by_model=False) > least


@pytest.mark.parametrize(("perfect", "usual"), [(True, 3), (False, 0)])
def test_the_length_of_one_draft_models_chains_is_chosen(perfect: bool, usual: int) -> None:
    """A perfect draft is worth drafting, as deep as the method itself drafts; a useless one is not."""
    target, draft = counting(400), counting(400)
    draft.logits = draft.logits.roll(0 if perfect else 1, -1)
    options = {"arms": "speculative-sampling:depth=3", "draft": draft, "lengths": "0,1,3"}
    given = configure(ucb_spec, target, options, FunctionOpener(lambda value: draft))
    drafted = Counter(len(step.draft.tree) - 1 for step in steps(ucb_spec(target, **given), [0], 120))
    assert drafted.most_common(1)[0][0] == usual and drafted[usual] > 0.6 * drafted.total()
    assert set(drafted) >= {0, 1, 3}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("speculative-sampling", "lookahead", "block-verification"), marks=pytest.mark.slow),
        ("specinfer", "eagle", "medusa"),
        pytest.param(("smartspec", "prompt-lookup"), marks=pytest.mark.slow),
        pytest.param(("lookup-or-draft", "prompt-lookup"), marks=pytest.mark.slow),
        pytest.param(("eagle3", "mcsd", "sam-decoding"), marks=pytest.mark.slow),
        pytest.param(("stand", "optimal-mdsd", "omnidraft"), marks=pytest.mark.slow),
    ],
)
def test_methods_of_every_kind_are_exact_together(names: Sequence[str]) -> None:
    models = peaked_tables()
    arms = []
    for name in names:
        options = next(choices(get(name), models))
        arms.append(Method(name, options | {"depth": 2} if "depth" in get(name).options else options))
    opened = methods_of(arms, FunctionOpener(lambda value: models.drafts[0]))
    proof = Subject(ucb_spec, {"arms": opened}, models).prove(ragged, 500)
    assert proof.holds and proof.accepted > 50, proof.verdict


def test_rows_whose_times_depend_on_one_another_are_independent() -> None:
    models = tables()
    arms = [
        Method("speculative-sampling", {"draft": each, "depth": 1 + at})
        for at, each in enumerate(models.drafts)
    ]
    opened = methods_of(arms, FunctionOpener(lambda value: models.drafts[0]))
    groups = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=3),) * 2)]
    enumeration = enumerate_joint(lambda: ucb_spec(models.target, arms=opened), groups)
    assert largest_joint_error(enumeration, models.logits, groups) < BOUND
    assert enumeration.counts.accepted > 100
