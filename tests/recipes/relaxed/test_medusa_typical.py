"""Typical acceptance: the output has the distribution that its steps state, mistakes in the rule are caught,
and more is accepted than a draw from the target takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Guarantee, Parts, StepReference
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.models.heads.position_model import PositionModel
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import difference, plain_distribution, promised
from outpace.proof.suite import CAUGHT, prove_default
from outpace.recipes import get
from outpace.recipes.relaxed.medusa_typical.recipe import medusa_typical
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.typical import NEVER, Typical

CASES = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=4)),
    Case((2,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
    Case((1, 0), SamplingParams(0.0, max_tokens=4)),
]
SAID = "def add(a, b):"


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def head(kind: str) -> MedusaModel:
    target = models(kind).target
    return MedusaModel(PositionModel(untrained_medusa(target, seed=1)))


def with_draft(kind: str = "table", depth: int = 2, **thresholds: float) -> Parts:
    return medusa_typical.build(models(kind).target, draft=models(kind).drafts[0], depth=depth, **thresholds)


def with_head(kind: str = "table", num_nodes: int = 6, **thresholds: float) -> Parts:
    return medusa_typical.build(
        models(kind).target, head=head(kind), num_nodes=num_nodes, depth=2, **thresholds
    )


def error(build: Callable[[], Parts], cases: Sequence[Case] = CASES, kind: str = "table") -> float:
    parts = build()
    found = enumerate_distributions(build, cases)
    assert found.counts.accepted
    return largest_error(found, promised(parts.reference, models(kind).logits), cases)


@pytest.mark.parametrize("kind", ["table", "transformers"])
@pytest.mark.parametrize("build", [with_draft, with_head])
def test_the_output_has_the_distribution_of_its_steps(build: Callable[[str], Parts], kind: str) -> None:
    assert isinstance(build(kind).reference, StepReference)
    assert error(lambda: build(kind), kind=kind) < 1e-12


def test_sampling_parameters_change_drafts_and_law_alike() -> None:
    params = SamplingParams(
        0.9, max_tokens=4, stop=(1,), top_k=2, repetition_penalty=1.5, bad_words=((0, 2),), min_tokens=2
    )
    for build in (with_draft, with_head):
        assert error(build, [Case((0, 1, 2), params), Case((2, 2), params)]) < 1e-12


@pytest.mark.slow
def test_the_distribution_is_far_from_the_target_s_and_the_exact_limit_has_it() -> None:
    proof = prove_default(get("medusa-typical"), tables(), 300)
    assert proof.verdict == "as stated" and proof.loss is not None and proof.loss > 0.1
    exact = with_draft(epsilon=1.0, delta=NEVER)
    assert exact.reference is None and exact.guarantee is Guarantee.EXACT
    found = enumerate_distributions(lambda: exact, CASES)
    assert not found.counts.accepted and largest_error(found, models("table").logits, CASES) < 1e-12
    # a threshold of 1 alone is not enough: the other one decides where the target is less sure
    assert with_draft(epsilon=1.0).guarantee is Guarantee.LOSSY


class Swapped(Typical):
    """Mistake: the thresholds in the other order, as in a part of the published code."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(delta, epsilon)


class Untempered(Typical):
    """Mistake: the entropy of another distribution than the one that is sampled from."""

    def thresholds(self, probs: Tensor) -> Tensor:
        return super().thresholds((0.5 * probs.log()).softmax(-1))


class FirstPath(Typical):
    """Mistake: the first of several longest paths, not the most probable."""

    def verify(self, tree, target_probs, scores, noise):
        verdict = super().verify(tree, target_probs, scores, noise)
        leaves, forest, tokens = list(verdict.leaf), tree.forest, tree.tokens.tolist()
        probs = target_probs.probs(None)
        passes = probs > self.thresholds(probs)[:, None]
        for row, leaf in enumerate(verdict.leaf):
            for node in forest.nodes[row]:
                path = forest.path(node)
                whole = all(passes[a, tokens[b]] for a, b in zip(path, path[1:], strict=False))
                if whole and forest.depths[node] == forest.depths[leaf]:
                    leaves[row] = node
                    break
        return replace(verdict, leaf=leaves)


class WholeBonus(Typical):
    """Mistake: the bonus token from the whole distribution."""

    def bonus_probs(self, probs: Tensor, passes: Tensor) -> Tensor:
        return probs


class ResidualBonus(Typical):
    """Mistake: the bonus token from what is left when the passing tokens are taken away."""

    def bonus_probs(self, probs: Tensor, passes: Tensor) -> Tensor:
        left = torch.where(passes, 0.0, probs)
        return left / left.sum() if bool(left.sum() > 0) else probs


@pytest.mark.parametrize("mistake", [Swapped, Untempered, FirstPath, WholeBonus, ResidualBonus])
def test_a_mistake_in_the_rule_is_caught(mistake: type[Typical]) -> None:
    thresholds = {"epsilon": 0.2, "delta": 0.7} if mistake is Swapped else {"epsilon": 0.4, "delta": 0.5}

    def build() -> Parts:
        parts = with_head(num_nodes=8, **thresholds)
        return replace(parts, verifier=mistake(**thresholds))

    cases = [Case((0, 0, 1), SamplingParams(1.4, max_tokens=4)), *CASES]
    assert error(lambda: with_head(num_nodes=8, **thresholds), cases) < 1e-12
    found = enumerate_distributions(build, cases)
    reference = with_head(num_nodes=8, **thresholds).reference
    assert largest_error(found, promised(reference, models("table").logits), cases) > 10 * CAUGHT


def test_a_stated_step_that_is_wrong_is_caught() -> None:
    parts = with_draft()
    other = with_draft(epsilon=0.6, delta=0.9).reference
    found = enumerate_distributions(lambda: parts, CASES)
    assert largest_error(found, promised(other, models("table").logits), CASES) > CAUGHT


def test_what_steps_add_behind_the_end_does_not_count() -> None:
    """Of one step of three tokens, with a stop token and a limit inside it."""

    class Steps:
        description = "a step"

        def step(self, text, limit, request):
            assert 1 <= limit <= request.sampling.max_tokens
            yield 0.25, (0, 1, 2)
            yield 0.75, (2, 2, 0)

    logits = models("table").logits
    found = plain_distribution(promised(Steps(), logits), (0,), SamplingParams(1.0, max_tokens=4, stop=(1,)))
    expected = {(0, 1): 0.25, (2, 2, 0, 0): 0.75 * 0.25, (2, 2, 0, 2): 0.75 * 0.75}
    assert difference(found, expected) < 1e-12


def test_accepted_tokens_are_above_the_threshold_and_smaller_thresholds_accept_more() -> None:
    lengths = list[float]()
    for scale in (10.0, 8.0, 4.0):
        steps, verifier = list(), Typical(0.09 * scale, 0.3 * scale)
        parts = replace(with_head("transformers", 20), verifier=verifier)
        prompts = [torch.tensor([token, 1, 2]) for token in range(3)] * 8
        params = [SamplingParams(1.0, max_tokens=24, seed=seed) for seed in range(len(prompts))]
        texts(parts, [each.tolist() for each in prompts], params, KeyedNoise, LazyTargetProbs, steps.append)
        generated = sum(len(new) for step in steps for new in step.generated)
        lengths.append(generated / sum(len(new) > 0 for step in steps for new in step.generated))
        for step in (each for each in steps if each.scores.logits is not None):
            probs = LazyTargetProbs(step.scores, step.draft.tree, step.ctx).probs(None)
            bounds, forest = verifier.thresholds(probs), step.draft.tree.forest
            for leaf in step.verdict.leaf:
                path = forest.path(leaf)
                for before, node in zip(path, path[1:], strict=False):
                    assert probs[before, step.draft.tree.tokens[node]] > bounds[before]
    assert lengths[0] < lengths[1] < lengths[2]


def test_more_siblings_pass_where_the_target_is_less_sure() -> None:
    flat, peaked = torch.tensor([[0.25] * 4, [0.94, 0.02, 0.02, 0.02]], dtype=torch.float64)
    rule = Typical(0.09, 0.3)
    counts = [(each > rule.thresholds(each[None])).sum().item() for each in (flat, peaked)]
    assert counts == [4, 1]


@pytest.mark.slow
def test_with_the_package_s_heads_greedy_text_is_plain_and_more_is_accepted_at_higher_temperatures() -> None:
    target = outpace.load("zoo:target", dtype="float32")
    given = {"head": "zoo:medusa", "num_nodes": 15, "max_tokens": 48}
    (plain,) = outpace.generate(target, SAID, method="autoregressive", max_tokens=48)
    (greedy,) = outpace.generate(target, SAID, method="medusa-typical", **given)
    assert greedy.tokens == plain.tokens and "typical acceptance" in str(greedy.reference)
    lengths = {
        method: sum(
            outpace.generate(target, SAID, method=method, temperature=0.9, seed=seed, **given)[
                0
            ].statistics.mean_acceptance_length
            for seed in range(3)
        )
        for method in ("medusa", "medusa-typical")
    }
    assert lengths["medusa-typical"] > lengths["medusa"]


@pytest.mark.slow
def test_bad_input_is_said() -> None:
    target = models("table").target
    with pytest.raises(ValueError, match=r"epsilon is 0 and delta 0\.3: give numbers above 0"):
        medusa_typical.build(target, head=head("table"), epsilon=0)
    loaded = outpace.load("zoo:target", dtype="float32")
    with pytest.raises(ValueError, match="depends on the method's own drafts: leave out the predicted"):
        outpace.generate(loaded, SAID, method="medusa-typical", head="zoo:medusa", prediction="return a + b")
    with pytest.raises(ValueError, match="medusa-typical needs head or draft"):
        outpace.generate("zoo:layerskip", SAID, method="medusa-typical")
