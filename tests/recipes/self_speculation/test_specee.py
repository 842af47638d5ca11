"""SpecEE: tokens leave the target early when a predictor finds their prediction final."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from outpace.core.contracts import Guarantee, Parts, Prompt, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.predictor import ExitPredictor, features, untrained_exit_predictor
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.predictor import Pair, PredictorError
from outpace.models.slim.exit_forward import ExitRule
from outpace.models.slim.exit_target import ExitTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.proof.option_values import choices
from outpace.proof.suite import Subject, exact_limit, ragged
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.self_speculation.specee import specee
from tests.models.conftest import build
from tests.tiers import slow


@pytest.fixture(scope="module")
def models():
    return transformers_models()


@pytest.mark.parametrize("options", [{}, slow({"scheduled": False}), slow({"threshold": 0.8})], ids=str)
def test_the_distribution_is_that_of_the_definition(options, models) -> None:
    proof = Subject(specee, next(choices(specee, models)) | options, models).prove(ragged, 60)
    assert proof.verdict == "as stated", (proof.verdict, proof.error, proof.loss)


@pytest.mark.slow
def test_threshold_1_and_the_role_of_a_drafter_are_exact(models) -> None:
    assert exact_limit(specee, models, 60).verdict == "exact"
    proof = Subject(specee, next(choices(specee, models)) | {"role": "drafter"}, models).prove(ragged, 200)
    assert proof.as_promised and proof.loss is None and proof.accepted > 10


def test_what_each_role_promises(models) -> None:
    options = next(choices(specee, models))
    promises = [
        specee.build(models.target, **options | each).guarantee
        for each in ({}, {"role": "drafter"}, {"threshold": 1.0})
    ]
    assert promises == [Guarantee.LOSSY, Guarantee.EXACT, Guarantee.EXACT] and specee.guarantee is promises[0]


@pytest.mark.parametrize("threshold", [-1.0, 2.0, float("nan")])
def test_a_threshold_that_is_no_probability(threshold: float, models) -> None:
    options = next(choices(specee, models)) | {"threshold": threshold}
    with pytest.raises(ValueError, match=f"threshold is {threshold}; give a probability from 0 to 1"):
        specee.build(models.target, **options)


@pytest.fixture
def deep():
    """A target of eight layers with a head and a predictor, all untrained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from outpace.models.hf.target import HFTarget

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    target = HFTarget(LlamaForCausalLM(config).double().eval())
    return target, HeadModel(untrained_eagle(target)), untrained_exit_predictor(target)


def greedy(parts: Parts, num_tokens: int = 24) -> tuple[list[int], ExitTarget]:
    """A greedy text, token by token, and the target that it ran on."""
    target = parts.target
    assert isinstance(target, ExitTarget)
    text, cache = [3, 1, 4, 1, 5], target.open(1, 64)
    target.prefill([Prompt(torch.tensor(text))], (0,), cache, Want())
    for _ in range(num_tokens):
        tree = TokenTree.roots(torch.tensor(text[-1:]))
        text.append(int(target.score(tree, (0,), cache).logits.argmax()))
        cache.commit(tree, [0], (0,))
    return text[5:], target


def agreement(deep, num_tokens: int = 24) -> float:
    """The share of tokens of the whole target's greedy text that are also predicted with early exits, given
    those before them."""
    text, _ = greedy(built(deep, threshold=1.0), num_tokens)
    target, before, right = built(deep, scheduled=False).target, [3, 1, 4, 1, 5], 0
    cache = target.open(1, 64)
    target.prefill([Prompt(torch.tensor(before))], (0,), cache, Want())
    for token, following in zip([before[-1], *text], text, strict=False):
        tree = TokenTree.roots(torch.tensor([token]))
        right += int(target.score(tree, (0,), cache).logits.argmax()) == following
        cache.commit(tree, [0], (0,))
    return right / len(text)


def built(deep, **options) -> Parts:
    target, head, predictor = deep
    return specee.build(target, **{"head": head, "predictor": predictor} | options)


@pytest.mark.slow
def test_tokens_leave_early_only_if_the_best_token_is_a_candidate(deep, monkeypatch) -> None:
    _, with_check = greedy(built(deep, scheduled=False))
    agrees = agreement(deep)
    monkeypatch.setattr(
        ExitRule, "confirmed", lambda self, states, ids: torch.ones(len(states), dtype=torch.bool)
    )
    _, without = greedy(built(deep, scheduled=False))
    assert without.work.layer_tokens < with_check.work.layer_tokens
    assert agreement(deep) < agrees


@pytest.mark.parametrize("role", ["target", slow("drafter")])
def test_rows_of_a_model_that_reads_them_one_by_one(role) -> None:
    """A forward of such a model has one row, with the candidates of that row."""
    target = HFTarget(build("diffllama"))
    assert not target.forward.packs
    parts = built(
        (target, HeadModel(untrained_eagle(target)), untrained_exit_predictor(target)),
        role=role,
        threshold=1.0 if role == "target" else 0.5,
    )
    prompts = [[5, 9, 31, 7], [8, 3], [44, 12, 60]]
    sampling = [SamplingParams(0.0, max_tokens=5)] * 3
    assert texts(parts, prompts, sampling) == texts(autoregressive.build(target), prompts, sampling)


def rule(**changes) -> ExitRule:
    """A rule whose head's logits are the states themselves, and whose predictor returns what it is given."""
    parts = {
        "predictor": SimpleNamespace(probability=lambda given, layer: given),
        "head": lambda states: states,
    }
    return ExitRule(**{**parts, "threshold": 0.5, "layers": frozenset({3}), **changes})


def test_a_token_leaves_if_the_best_token_of_the_vocabulary_is_a_candidate() -> None:
    states = torch.tensor([[0.0, 5.0, 1.0, 2.0]]).expand(2, -1)
    assert rule().confirmed(states, torch.tensor([[3, 1], [2, 3]])).tolist() == [True, False]
    assert rule().passes(torch.tensor([0.4, 0.5, 0.6]), 1).tolist() == [False, False, True]


def test_layers_of_the_predictor_and_two_around_each_recent_exit_are_checked() -> None:
    layers = range(1, 16)
    assert [each for each in layers if rule().is_checked(each, ())] == [3]
    assert [each for each in layers if rule().is_checked(each, (6, 12))] == [
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        11,
        12,
        13,
        14,
    ]
    assert all(rule(layers=None).is_checked(each, ()) for each in layers)


def test_scheduled_layers_are_fewer(deep) -> None:
    _, every = greedy(built(deep, scheduled=False))
    _, scheduled = greedy(built(deep))
    assert scheduled.num_checks < every.num_checks


@pytest.mark.slow
def test_the_head_is_asked_only_where_the_predictor_is_sure(deep) -> None:
    counts = []
    for threshold in (0.0, 0.5, 0.9, 1.0):
        _, target = greedy(built(deep, threshold=threshold, scheduled=False))
        counts.append(target.work.head_tokens)
    assert counts[0] > 0 and counts[-1] == 0 and target.work.layer_tokens == 8 * target.work.tokens


def test_chains_are_read_token_by_token(deep) -> None:
    """The logits of a drafted chain are those of its tokens one after the other."""
    texts = []
    for together in (True, False):
        target = built(deep).target
        cache = target.open(1, 64)
        target.prefill([Prompt(torch.tensor([3, 1, 4, 1]))], (0,), cache, Want())
        tokens = torch.tensor([1, 5, 9, 2])
        tree = TokenTree(tokens, Forest.chain((3,)))
        if together:
            texts.append(target.score(tree, (0,), cache).logits)
            continue
        found = []
        for token in tokens:
            root = TokenTree.roots(token[None])
            found.append(target.score(root, (0,), cache).logits)
            cache.commit(root, [0], (0,))
        texts.append(torch.cat(found))
    assert (texts[0] - texts[1]).abs().max() < 1e-9


def test_features() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    given, probs = features(logits, None)
    assert torch.equal(given[0, 8:], given[0, 4:8]) and probs.sum() == pytest.approx(1)
    later, more = features(2 * logits, probs)
    assert torch.equal(later[0], torch.cat((2 * logits[0], more[0], more[0] - probs[0]))) and later[0, 8] > 0
    again, _ = features(logits + 1, probs)
    assert again[0, 8:].abs().max() < 1e-6 and features(torch.zeros(1, 3), None)[0].shape == (1, 12)


def test_a_predictor_in_a_folder(deep, tmp_path: Path) -> None:
    target, head, predictor = deep
    predictor.trained_for = Pair("head", "another")
    save_predictor(predictor, tmp_path / "p")
    loaded = load_predictor(ExitPredictor, tmp_path / "p")
    given = torch.randn(5, 12)
    assert torch.allclose(loaded.probability(given, 3), predictor.float().probability(given, 3))
    assert loaded.layers == predictor.layers == {1, 3, 5, 7}
    with pytest.raises(PredictorError, match="trained for another head"):
        specee.build(target, head=head, predictor=loaded)
    with pytest.raises(PredictorError, match="of 3 layers: give that one, or train"):
        specee.build(target, head=head, predictor=ExitPredictor(2))
    with pytest.raises(PredictorError, match="there is no folder .*outpace train specee"):
        load_predictor(ExitPredictor, tmp_path / "none")
    (tmp_path / "p" / "config.json").write_text("{}")
    with pytest.raises(PredictorError, match="holds no predictor of early exits"):
        load_predictor(ExitPredictor, tmp_path / "p")
