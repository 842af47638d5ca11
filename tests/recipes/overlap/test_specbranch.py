"""SpecBranch: exact with any number of branches and every cut; a cut by a drawn token's own probability is
caught; without cuts and branches it is PEARL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.predictor import Pair, PredictorError
from outpace.models.predictors.rollback.predictor import (
    ALL,
    NONE,
    SOME,
    RollbackPredictor,
    untrained_rollback_predictor,
)
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import tables, transformers_models
from outpace.proof.suite import CAUGHT
from outpace.recipes.overlap.pearl import pearl
from outpace.recipes.overlap.specbranch import cuts
from outpace.recipes.overlap.specbranch.branches import num_branches
from outpace.recipes.overlap.specbranch.cuts import largest_probs
from outpace.recipes.overlap.specbranch.recipe import specbranch
from tests.tiers import slow

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
MODELS = tables()


class Always(RollbackPredictor):
    """Foresees the same of every draft."""

    def __init__(self, foreseen: int) -> None:
        super().__init__(MODELS.target.vocab, 4, 3)
        self.foreseen = foreseen

    def classes(self, features: Tensor) -> list[int]:
        assert features.shape[1] == 5 * self.hidden_size
        return [self.foreseen] * len(features)


def parts(foreseen: int | None = SOME, **options: Any) -> Parts:
    predictor = untrained_rollback_predictor(MODELS.target) if foreseen is None else Always(foreseen)
    given = {"draft": MODELS.drafts[0], "predictor": predictor, "depth": 3, "overlap": False}
    return specbranch.build(MODELS.target, **given | options)


def error(foreseen: int | None = SOME, **options: Any) -> float:
    try:
        found = enumerate_distributions(lambda: parts(foreseen, **options), CASES)
    except Leak:  # a run ends otherwise alone than in a batch
        return 1.0
    assert found.counts.accepted or foreseen == NONE
    assert found.counts.deepest >= 2 or foreseen != ALL
    return largest_error(found, MODELS.logits, CASES)


@pytest.mark.parametrize(
    ("k_max", "foreseen"),
    [(1, SOME), slow(6, None), slow(1, None), slow(2, None), slow(6, SOME), slow(6, ALL)],
)
def test_the_distribution_is_the_target_s_with_any_number_of_branches(
    k_max: int, foreseen: int | None
) -> None:
    assert error(foreseen, k_max=k_max, eps=0.6) < 1e-12


@pytest.mark.slow
def test_cutting_by_a_drawn_token_s_own_probability_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(chain: TokenTree) -> list[float]:
        claim = chain.claim
        assert isinstance(claim, Drawn)
        tokens = chain.token_list()
        return [float(claim.q[claim.row[node], tokens[node]]) for node in range(1, len(chain))]

    options: Any = {"k_max": 1, "eps": 0.3, "depth": 2}
    assert error(**options) < 1e-12
    monkeypatch.setattr(cuts, "largest_probs", own)
    assert error(**options) > CAUGHT


def test_the_largest_probability_is_that_of_the_distribution_not_of_the_token() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    forest, confidence = Forest.chain((3,)), torch.tensor([1.0, 0.3, 0.1, 0.6]).log()
    chain = TokenTree(torch.tensor([0, 1, 0, 2]), forest, confidence, Drawn(q, (-1, 0, 1, -1), (False,) * 2))
    assert largest_probs(chain) == pytest.approx([0.5, 0.8, 0.6])
    assert largest_probs(TokenTree(chain.tokens, forest)) == [1.0] * 3


def test_there_are_more_branches_the_less_sure_the_draft_model_is() -> None:
    largest = (0.05, 0.3, 0.5, 0.7, 0.9, 1.0)
    assert [num_branches(each, 6) for each in largest] == [5, 4, 3, 1, 1, 1]
    assert {num_branches(each, 1) for each in largest} == {1}


def trace(made: Parts, params: Sequence[SamplingParams]) -> list[Any]:
    found = list[Any]()

    def noted(step: Step) -> None:
        tree = step.draft.tree
        verdict = list(step.verdict.leaf), list(step.verdict.bonus)
        found.append((tree.token_list(), tree.forest, step.draft.forwards, verdict, step.generated))

    found.append(texts(made, [[0, 1, 2], [2], [1, 1]], params, observe=noted))
    return found


def test_without_cuts_and_branches_it_is_pearl() -> None:
    params = [SamplingParams(t, max_tokens=40, seed=s) for s, t in enumerate((0.0, 1.0, 0.7))]
    of_pearl = pearl.build(MODELS.target, draft=MODELS.drafts[0], depth=3, sampled=False, overlap=False)
    assert trace(parts(ALL, k_max=1, sampled=False), params) == trace(of_pearl, params)


def steps_of(made: Parts, params: SamplingParams) -> list[Step]:
    steps = list[Step]()
    texts(made, [[0, 1, 2]], [params], observe=steps.append)
    return steps


@pytest.mark.slow
def test_drafts_are_cut_as_foreseen() -> None:
    params = SamplingParams(1.0, max_tokens=200, seed=1)

    def read(foreseen: int, eps: float) -> int:
        return max(len(step.draft.tree) - 1 for step in steps_of(parts(foreseen, eps=eps), params))

    assert [read(NONE, 0.4), read(SOME, 1.0), read(SOME, 0.0), read(ALL, 1.0)] == [0, 0, 2, 2]


@pytest.mark.slow
def test_branches_are_hit_as_often_as_the_target_samples_their_first_tokens() -> None:
    """And more often the more there are."""
    rates = dict[int, float]()
    for k_max in (1, 6):
        made, seen = parts(NONE, k_max=k_max), list[Any]()
        propose = made.drafter.propose

        def noted(*of: Any, propose: Any = propose, seen: Any = seen) -> Any:
            seen.append(draft := propose(*of))
            return draft

        made.drafter.propose = noted
        steps = steps_of(made, SamplingParams(1.0, max_tokens=400, seed=7))
        hits, mass, text = 0, 0.0, [0, 1, 2]
        for step, draft in zip(steps, seen, strict=False):
            tokens, children = draft.tree.token_list(), draft.tree.forest.children[0]
            p = MODELS.target.logits[MODELS.target.state(text)].softmax(-1)
            mass += sum(float(p[tokens[child]]) for child in children)
            hits += step.generated[0][0] in [tokens[child] for child in children]
            text += step.generated[0]
        rates[k_max] = hits / len(seen)
        assert rates[k_max] == pytest.approx(mass / len(seen), abs=0.05)
    assert rates[1] + 0.1 < rates[6]


def test_texts_do_not_depend_on_the_thread_or_on_other_rows() -> None:
    prompts = [[0, 1, 1, 0, 1], [1], [1, 2]]
    params = [SamplingParams(t, max_tokens=30, seed=s, stop=(2,) * s) for s, t in enumerate((1.0, 0.0, 0.7))]
    found = [texts(parts(None, overlap=overlap), prompts, params) for overlap in (True, False)]
    assert found[0] == found[1]
    for own, prompt, each in zip(found[0], prompts, params, strict=True):
        assert texts(parts(None), [prompt], [each]) == [own]


def test_predictors_are_saved_and_those_of_other_models_refused(tmp_path: Path) -> None:
    models = transformers_models()
    predictor = untrained_rollback_predictor(models.target)
    assert predictor.num_layers == 2
    predictor.trained_for = Pair("a draft", "a target")
    save_predictor(predictor, tmp_path)
    found = load_predictor(RollbackPredictor, tmp_path)
    features = torch.randn(5, 48)
    assert found.sizes == predictor.sizes and torch.equal(found(features), predictor(features))
    dead = untrained_rollback_predictor(MODELS.target)
    dead.output.bias.data[1] = float("nan")
    chains = TableTarget(3)
    chains.chains_only = True
    for given, message in (
        ({"predictor": found}, "reads 2 layers with 16 numbers, and this target has 4 with 3"),
        ({"predictor": RollbackPredictor(3, 5, 4)}, "reads 5 layers with 3 numbers"),
        ({"predictor": dead}, "has weights that are infinite or NaN: train it again"),
        ({"depth": 0}, "depth is 0: a branch has 1 token or more"),
        ({"eps": 1.5}, "eps is 1.5: give a probability from 0 to 1"),
        ({"k_max": 0}, "k_max is 0: a draft has 1 branch or more"),
        ({"draft": chains}, "this draft model reads chains only: give k_max=1"),
    ):
        with pytest.raises(ValueError, match=message):
            parts(**given)
    with pytest.raises(PredictorError, match="was trained for another draft model"):
        specbranch.build(models.target, draft=models.drafts[0], predictor=found)
    with pytest.raises(PredictorError, match="there is no folder .*: make one with `outpace train specbr"):
        load_predictor(RollbackPredictor, tmp_path / "none")
