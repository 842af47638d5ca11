"""Judge Decoding: the output has the distribution that its steps state, mistakes in the rule are caught, and
a trained judge sees errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.core.contracts import Guarantee, Parts, Scores, StepReference, TargetProbs, Verdict
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.judge.predictor import JudgePredictor, untrained_judge
from outpace.models.predictors.predictor import Pair, PredictorError
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.recipes import get
from outpace.recipes.relaxed.judge_decoding.judged import LM_HEAD_INPUT, Judged
from outpace.recipes.relaxed.judge_decoding.recipe import judge_decoding
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.run import train
from outpace.verifiers.match import Match
from tests.tiers import only
from zoo_training.marked_answers import rows

CHANGED = SamplingParams(
    0.9, max_tokens=4, stop=(1,), top_k=2, repetition_penalty=1.5, bad_words=((0, 2),), min_tokens=2
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
    given = {"draft": of.drafts[0], "judge": untrained_judge(of.target), "depth": 3} | options
    return judge_decoding.build(of.target, **given)


def error(make: Callable[[], Parts], stated: Parts, kind: str = "table") -> float:
    found = enumerate_distributions(make, CASES)
    assert found.counts.accepted
    return largest_error(found, promised(stated.reference, models(kind).logits), CASES)


@pytest.mark.parametrize("kind", only(["table"], ["table", "transformers"]))
def test_the_output_has_the_distribution_of_its_steps(kind: str) -> None:
    parts = build(kind)
    assert isinstance(parts.reference, StepReference) and parts.guarantee is Guarantee.LOSSY
    assert error(lambda: build(kind), parts, kind) < BOUND


def test_it_is_far_from_the_target_s_distribution_and_without_the_judge_it_is_that() -> None:
    proof = prove_default(get("judge-decoding"), tables(), 100)
    assert proof.verdict == "as stated" and proof.deepest >= 2 and proof.loss is not None and proof.loss > 0.1
    limit = exact_limit(get("judge-decoding"), tables(), 100)
    assert limit.verdict == "exact" and limit.accepted
    parts = build(threshold=1.0)
    assert parts.reference is None and parts.guarantee is Guarantee.EXACT and not parts.want.hidden
    assert error(lambda: parts, parts) < BOUND
    assert build().want.hidden == {LM_HEAD_INPUT} and not build().want.outputs_at_prompt


class Before(Judged):
    """Mistake: the judge reads the state before the token."""

    def right(self, tree: TokenTree, scores: Scores) -> list[bool]:
        after = super().right(tree, scores)
        return [after[max(parent, 0)] for parent in tree.forest.parents]


class JudgedBonus(Judged):
    """Mistake: where the judge finds the token before the bonus token right, it takes the draft's token."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, right = super().verify(tree, target_probs, scores, noise), self.right(tree, scores)
        pairs = zip(verdict.leaf, verdict.bonus, strict=True)
        below, tokens = tree.forest.children, tree.token_list()
        bonus = [tokens[below[leaf][0]] if below[leaf] and right[leaf] else token for leaf, token in pairs]
        return replace(verdict, bonus=bonus)


class AfterAnError(Judged):
    """Mistake: tokens that the judge finds right are accepted behind one that it does not."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, right = super().verify(tree, target_probs, scores, noise), self.right(tree, scores)
        last = [
            max([leaf, *(n for n in nodes[1:] if right[n])])
            for leaf, nodes in zip(verdict.leaf, tree.forest.nodes, strict=True)
        ]
        return Verdict(last, target_probs.choose(last, noise))


@pytest.mark.parametrize("mistake", [Before, JudgedBonus, AfterAnError])
def test_a_mistake_in_the_rule_is_caught(mistake: type[Judged]) -> None:
    wrong = mistake(untrained_judge(models("table").target), 0.5)
    assert error(lambda: replace(build(), verifier=wrong), build()) > 10 * CAUGHT


def test_a_stated_step_that_is_wrong_is_caught() -> None:
    other = untrained_judge(models("table").target, seed=1)
    for given in ({"judge": other}, {"depth": 1}):
        assert error(build, build(**given)) > CAUGHT


def test_at_least_as_much_is_accepted_as_by_matching() -> None:
    compared: list[tuple[int, int]] = []

    class Compared(Judged):
        def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
            verdict = super().verify(tree, target_probs, scores, noise)
            standard = Match().verify(tree, target_probs, scores, noise)
            depths = tree.forest.depths
            pairs = zip(standard.leaf, verdict.leaf, strict=True)
            compared.extend((depths[one], depths[other]) for one, other in pairs)
            return verdict

    parts = replace(build(depth=6), verifier=Compared(untrained_judge(models("table").target), 0.5))
    params = [SamplingParams(0.7 * (seed % 2), max_tokens=60, seed=seed) for seed in range(6)]
    texts(parts, [[token, 1, 2] for token in range(3)] * 2, params, KeyedNoise, LazyTargetProbs)
    assert all(standard <= judged for standard, judged in compared)
    assert sum(judged - standard for standard, judged in compared) > 20


def test_bad_input_is_said(loaded: Any, tiny: Any, tmp_path: Path) -> None:
    for value in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"threshold is {value}; give a probability from 0 to 1"):
            build(threshold=value)
    of = models("table")
    with pytest.raises(PredictorError, match="states of 3 numbers, and this one's have 5: give the"):
        judge_decoding.build(TableTarget(5), draft=TableTarget(5), judge=untrained_judge(of.target))
    judge = untrained_judge(of.target)
    save_predictor(judge, tmp_path / "good")
    again, hidden = load_predictor(JudgePredictor, tmp_path / "good"), torch.ones(2, 3)
    assert again.trained_for is None and again.right(hidden) == pytest.approx(judge.right(hidden), abs=1e-6)
    with torch.no_grad():
        judge.output.bias[0] = torch.nan
    save_predictor(judge, tmp_path / "nan")
    target, draft = loaded

    def said(folder: Path | str | None) -> str:
        given = {} if folder is None else {"judge": folder}
        with pytest.raises(ValueError) as caught:
            outpace.generate(target, "def", method="judge-decoding", draft=draft, **given)
        return str(caught.value)

    command = "`outpace train judge-decoding --target TARGET --data FILE --output FOLDER`"
    assert "nan has weights that are not finite numbers: train it again, or restore" in said(tmp_path / "nan")
    assert said(tmp_path / "none") == f"there is no folder {tmp_path / 'none'}: make one with {command}"
    assert said(tiny.target).endswith(
        f"give a folder with one for judge-decoding, or make one with {command}"
    )
    assert said(None).endswith(f"a folder with a predictor for the target; train one with {command}")
    judge = untrained_judge(target.target)
    judge.trained_for = Pair(None, "another")
    save_predictor(judge, tmp_path / "another")
    assert "trained for another target: give the models that it was trained for" in said(tmp_path / "another")


@pytest.mark.slow
def test_a_trained_judge_rejects_wrong_digits_far_more_than_right_ones(tmp_path: Path) -> None:
    data = tmp_path / "marked.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(500, seed=1)))
    model = outpace.load("zoo:target", dtype="float32")
    changes = ["steps=300", "capture.disk_gigabytes=1", "held_out=0.25"]
    run = train("judge-decoding", target=model, data=str(data), output=tmp_path / "judge", changes=changes)
    last: Any = run.evaluations[-1]
    assert last.auc > 0.7 and (1 - last.let_through) > 2.5 * (1 - last.accepted)
    # an untrained judge tells nothing
    untrained = train(
        "judge-decoding",
        target=model,
        data=str(data),
        output=tmp_path / "untrained",
        captured=tmp_path / "judge" / "work",
        changes=["steps=1", "evaluate_every=1", "optimizer.rate=1e-9", *changes[1:]],
    )
    first: Any = untrained.evaluations[-1]
    assert first.auc < 0.65
    (found,) = outpace.generate(
        model,
        "What is 12 + 31?",
        method="judge-decoding",
        draft="zoo:draft",
        judge=str(run.folder),
        max_tokens=24,
    )
    assert "a trained judge" in str(found.reference)
