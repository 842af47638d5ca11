"""polybasic, staged-sd and specmquant: three models, or n-grams and two, have the target's distribution; a
middle model pays where the inequality says so."""

from __future__ import annotations

from typing import Any

import pytest

import outpace
from benchmarks.stages import Run, prediction
from outpace.core.claim import Drawn
from outpace.core.contracts import Step
from outpace.core.noise import Key
from outpace.core.sampling_params import SamplingParams
from outpace.cost.stages import Chain, Stage, pays
from outpace.drafters.compose.staged import Staged
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import tables
from outpace.proof.suite import CAUGHT
from outpace.recipes.stages.polybasic import polybasic
from outpace.recipes.stages.specmquant import specmquant
from outpace.recipes.stages.staged_sd import staged_sd
from tests.tiers import slow

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
MODELS = tables(2)


def error(recipe: Any, **options: Any) -> float:
    middle = {} if recipe is staged_sd else {"middle": MODELS.drafts[1]}
    found = enumerate_distributions(
        lambda: recipe.build(MODELS.target, draft=MODELS.drafts[0], **middle, **options), CASES
    )
    assert found.counts.accepted and found.counts.deepest >= 2
    return largest_error(found, MODELS.logits, CASES)


@pytest.mark.parametrize("verification", ["block", slow("token")])
def test_three_models(verification: str) -> None:
    assert error(polybasic, depth=2, inner_depth=2, verification=verification) < 1e-12


def test_trees_for_a_small_model() -> None:
    assert error(specmquant, least=2, inner_depth=2, width=2, num_nodes=3) < 1e-12


@pytest.mark.parametrize("siblings", [1, slow(0)])
def test_n_grams_a_draft_model_and_its_siblings(siblings: int) -> None:
    assert error(staged_sd, depth=3, siblings=siblings) < 1e-12


def test_siblings_from_the_whole_distribution_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With replacement, while the claim says without."""

    def drawn_again(self: Staged, ctx: Any, rows: Any, logits: Any, drafted: Any) -> None:
        for row in rows:
            if drafted.q[row]:
                key = Key([row], [0], [0], "sibling")
                drafted.siblings[row] = ctx.noise.choose(drafted.q[row][0][:1], key).tolist()

    monkeypatch.setattr(Staged, "_add_siblings", drawn_again)
    assert error(staged_sd, depth=3, siblings=1) > CAUGHT


def test_a_draft_model_of_n_grams_runs_less_than_once_per_draft_token() -> None:
    steps: list[Step] = []
    parts = staged_sd.build(MODELS.target, draft=MODELS.drafts[0])
    text = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0]
    texts(parts, [text], [SamplingParams(1.0, max_tokens=60, seed=1)], observe=steps.append)
    drafted = sum(max(step.draft.tree.forest.depths) for step in steps)
    assert sum(step.draft.forwards for step in steps) < drafted
    claims = [step.draft.tree.claim for step in steps if len(step.draft.tree) > 1]
    assert claims and all(isinstance(claim, Drawn) for claim in claims)


def test_bad_depths_are_refused() -> None:
    for options in ({"depth": 0}, {"inner_depth": 0}):
        with pytest.raises(ValueError, match="each is 1 or more"):
            polybasic.build(MODELS.target, middle=MODELS.drafts[0], draft=MODELS.drafts[1], **options)
        with pytest.raises(ValueError, match="each is 1 or more"):
            staged_sd.build(MODELS.target, draft=MODELS.drafts[1], **options)
    with pytest.raises(ValueError, match="each is 1 or more"):
        specmquant.build(MODELS.target, middle=MODELS.drafts[0], draft=MODELS.drafts[1], least=0)


def test_the_inequality_of_a_new_stage() -> None:
    target, drafter, forwards = Stage(10.0, 3.0), 0.5, 4.0
    now = Chain((target,), drafter, forwards)
    assert now.seconds_per_token == pytest.approx(10 / 3 + 2 / 3)
    good, useless, found = Stage(2.0, 3.5), Stage(9.0, 2.0), list[bool]()
    for new, tokens in ((good, 6.0), (good, 3.1), (useless, 3.2), (useless, 9.0), (useless, 90.0)):
        # the paper's condition
        stated = new.seconds / new.tokens + forwards * drafter * (1 / new.tokens - 1 / target.tokens)
        saved = target.seconds * (1 / target.tokens - 1 / tokens)
        found.append(pays(now, Chain((Stage(10.0, tokens), new), drafter, forwards)))
        assert found[-1] == (stated < saved)
    assert found == [True, False, False, False, False]


def test_a_middle_model_is_predicted_from_pairs_and_a_useless_one_refused() -> None:
    small = Run(seconds=0.0, tokens=3.0, verify=10.0, draft=0.5, forwards=4.0, drafted=4.0)
    large = Run(seconds=0.0, tokens=7.0, verify=11.0, draft=2.0, forwards=10.0, drafted=10.0)
    inner = Run(seconds=0.0, tokens=4.0, verify=2.0, draft=0.5, forwards=4.0, drafted=4.0)
    found = prediction({"small": small, "large": large, "inner": inner}, depth=8)
    assert found.without == pytest.approx((10 + 4 * 0.5) / 3)
    assert found.with_middle == pytest.approx((11 + 2 * (2 + 4 * 0.5)) / 7)  # two rounds of the middle model
    assert found.inserted
    slow_middle = Run(seconds=0.0, tokens=4.0, verify=9.0, draft=0.5, forwards=4.0, drafted=4.0)
    assert not prediction({"small": small, "large": large, "inner": slow_middle}, depth=8).inserted


@pytest.mark.slow
def test_text_at_temperature_0_is_that_of_the_target_with_the_same_few_bits() -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    target = outpace.load("zoo:target", compile=True, weights="int4")
    prompts, options = ["def add(a, b):", "import os\n"], {"middle": "zoo:layerskip", "draft": "zoo:draft"}
    plain = outpace.generate(target, prompts, method="autoregressive", max_tokens=32)
    found = outpace.generate(target, prompts, method="specmquant", max_tokens=32, **options)
    assert [each.text for each in found] == [each.text for each in plain]
    assert all(each.statistics.mean_acceptance_length > 3 for each in found)
