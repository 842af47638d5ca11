"""SPRINTER: the output has the distribution that its steps state, mistakes in the rule are caught, and the
target is called less often the more is trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import (
    Frontier,
    Guarantee,
    Parts,
    Scores,
    StepReference,
    TargetProbs,
    Verdict,
)
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.plain_drafts import hidden_after
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.predictor import PredictorError
from outpace.models.predictors.trust.predictor import TrustPredictor, untrained_trust_predictor
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.recipes import get
from outpace.recipes.relaxed.sprinter.last_token import LastToken
from outpace.recipes.relaxed.sprinter.recipe import sprinter
from outpace.recipes.relaxed.sprinter.trusted_run import TrustedRun
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rows import keys
from tests.tiers import only

CHANGED = SamplingParams(
    0.9, max_tokens=3, stop=(1,), top_k=2, repetition_penalty=1.5, bad_words=((0, 2),), min_tokens=2
)
CASES = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=4)),
    Case((2,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
    Case((1, 0), SamplingParams(0.0, max_tokens=4)),
    Case((0, 1, 2), CHANGED),
]


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def build(kind: str = "table", **options: Any) -> Parts:
    of = models(kind)
    given = {"draft": of.drafts[0], "predictor": untrained_trust_predictor(of.drafts[0])} | options
    return sprinter.build(of.target, **given)


def error(make: Callable[[], Parts], stated: Parts, kind: str = "table", cases: list[Case] = CASES) -> float:
    found = enumerate_distributions(make, cases)
    assert found.counts.accepted
    return largest_error(found, promised(stated.reference, models(kind).logits), cases)


@pytest.mark.parametrize("kind", only(["table"], ["table", "transformers"]))
def test_the_output_has_the_distribution_of_its_steps(kind: str) -> None:
    parts = build(kind)
    assert isinstance(parts.reference, StepReference) and parts.guarantee is Guarantee.LOSSY
    assert error(lambda: build(kind), parts, kind) < BOUND


def test_it_is_far_from_the_target_s_distribution_and_without_trust_it_is_that() -> None:
    proof = prove_default(get("sprinter"), tables(), 100)
    assert proof.verdict == "as stated" and proof.deepest >= 2 and proof.loss is not None and proof.loss > 0.1
    limit = exact_limit(get("sprinter"), tables(), 100)
    assert limit.verdict == "exact" and limit.accepted
    for options in ({"threshold": 1.0}, {"depth": 1}):
        parts = build(**options)
        assert parts.reference is None and parts.guarantee is Guarantee.EXACT
        assert error(lambda parts=parts: parts, parts) < BOUND


class OtherToken(LastToken):
    """Mistake: the first token of a draft is tested, and the others behind it stay or fall with it."""

    def tested(self, tree: TokenTree) -> list[int]:
        return [nodes[min(1, len(nodes) - 1)] for nodes in tree.forest.nodes]


class Again(LastToken):
    """The bonus tokens after accepted or rejected tokens are drawn again, from the target's distribution."""

    after_accepted: bool

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, target_probs, scores, noise), tree.forest
        bonus = list(verdict.bonus)
        for row, leaf in enumerate(verdict.leaf):
            if bool(forest.children[leaf]) is not self.after_accepted and len(forest.nodes[row]) > 1:
                before = max(forest.parents[leaf], row) if self.after_accepted else leaf
                key = keys([leaf], forest, "again")
                bonus[row] = int(noise.choose(target_probs.probs([before]), key))
        return replace(verdict, bonus=bonus)


class BonusBefore(Again):
    """Mistake: the bonus token after an accepted token from the distribution before that token."""

    after_accepted = True


class NoResidual(Again):
    """Mistake: the token in the place of a rejected one from the target's whole distribution."""

    after_accepted = False


@pytest.mark.parametrize("mistake", [OtherToken, BonusBefore, NoResidual])
def test_a_mistake_in_the_rule_is_caught(mistake: type[LastToken]) -> None:
    cases = [Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=3))]
    assert error(lambda: replace(build(), verifier=mistake(20)), build(), cases=cases) > 10 * CAUGHT


class Early(TrustedRun):
    """Mistake: the predictor reads the state before the token."""

    def _stopped(self, frontier: Frontier) -> list[bool]:
        trusted = self.trusts_after(frontier)
        return [not each for each in trusted]

    def trusts_after(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None  # states are logits, limited from below, in table models
        return [each > 0.5 for each in self._predictor.probs(frontier.logits.clamp(min=-1))]


def test_a_predictor_that_has_not_seen_the_token_is_caught() -> None:
    predictor = untrained_trust_predictor(models("table").drafts[0])
    assert error(lambda: replace(build(), controller=Early(predictor, 20, 0.5)), build()) > 10 * CAUGHT
    right = TrustedRun(predictor, 20, 0.5)
    assert error(lambda: replace(build(), controller=right), build()) < BOUND


def test_a_stated_step_that_is_wrong_is_caught() -> None:
    of = models("table")
    other = untrained_trust_predictor(of.drafts[0], seed=1)
    for given in ({"predictor": other}, {"depth": 2}):
        assert error(build, build(**given)) > CAUGHT


class Reading(TrustPredictor):
    """Notes the states that it is asked about, and trusts nothing from the third token on."""

    def probs(self, hidden: Tensor) -> list[float]:
        self.states.append(hidden)
        return [1.0 if len(self.states) < 3 else 0.0] * len(hidden)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_state_that_is_judged_is_the_one_after_the_token(temperature: float) -> None:
    of, predictor = models("transformers"), Reading(16)
    predictor.states = []
    parts = sprinter.build(of.target, draft=of.drafts[0], predictor=predictor)
    steps: list[Any] = []
    params = [SamplingParams(temperature, max_tokens=9, seed=3)]
    texts(parts, [[0, 1]], params, KeyedNoise, LazyTargetProbs, steps.append)
    tokens = steps[0].draft.tree.tokens.tolist()  # the root, which is 1, and three draft tokens
    assert len(tokens) == 4
    for count, hidden in enumerate(predictor.states[:3], 2):
        assert torch.allclose(hidden[0], hidden_after(of.drafts[0], (0, *tokens[:count])))


def test_the_target_is_called_less_often_the_more_is_trusted() -> None:
    calls, prompts = list[float](), [[token, 1, 2] for token in range(3)]
    for threshold in (1.0, 0.9, 0.5, 0.1, 0.0):
        steps: list[Any] = []
        params = [SamplingParams(1.0, max_tokens=60, seed=seed) for seed in range(len(prompts))]
        parts = build(threshold=threshold)
        texts(parts, prompts, params, KeyedNoise, LazyTargetProbs, steps.append)
        new = [len(row) for step in steps for row in step.generated if row]
        calls.append(len(new) / sum(new))
    assert calls == sorted(calls, reverse=True) and calls[0] > 0.5 > 0.1 > calls[-1]


def test_bad_input_is_said(loaded: Any, tmp_path: Any) -> None:
    for options, said in (
        ({"threshold": 1.5}, "threshold is 1.5; give a probability from 0 to 1"),
        ({"threshold": float("nan")}, "threshold is nan; give a probability from 0 to 1"),
        ({"depth": 0}, "depth is 0; give 1 or more tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            build(**options)
    of = models("table")
    with pytest.raises(PredictorError, match="hidden states of 3 numbers, and this one's have 5: give the"):
        sprinter.build(of.target, draft=TableTarget(5), predictor=untrained_trust_predictor(of.drafts[0]))
    predictor = untrained_trust_predictor(of.drafts[0])
    save_predictor(predictor, tmp_path / "good")
    assert load_predictor(TrustPredictor, tmp_path / "good").probs(torch.ones(2, 3)) == pytest.approx(
        predictor.probs(torch.ones(2, 3)), abs=1e-6
    )
    with torch.no_grad():
        predictor.output.weight[0, 1] = torch.nan
    save_predictor(predictor, tmp_path / "nan")
    with pytest.raises(PredictorError, match="nan has weights that are not finite numbers: train it again"):
        load_predictor(TrustPredictor, tmp_path / "nan")
    with pytest.raises(ValueError, match="sprinter needs predictor: .* `outpace train sprinter --target"):
        outpace.generate(loaded[0], "def", method="sprinter", draft=loaded[1])
