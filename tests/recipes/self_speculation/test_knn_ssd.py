"""KNN-SSD: a request's skip set follows from its prompt, and sets are searched by what they cost and gain."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

import outpace
from outpace.api.prompts import encode
from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.indexes import store
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import cost_without, without
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.self_speculation.knn_ssd.recipe import alternate_layers, knn_ssd, prompt_states
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.skip_sets import anchored, best_set, speed
from outpace.verifiers.match import Match
from zoo_training import prompts, tasks
from zoo_training.corpus import read_corpus

LAYERS = 4
SETS = [SkipSet.of_layers([2]), SkipSet(frozenset({1}), frozenset({3}))]
# two kinds of prompts: of low and of high tokens
DOMAINS = [
    [torch.randint(low, low + 12, (8,), generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    for low in (0, 40)
]


@pytest.fixture(scope="module")
def target() -> HFTarget:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=LAYERS, initializer_range=0.3, **shape)
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():  # a layer that hardly does anything
        model.model.layers[2].self_attn.o_proj.weight *= 0.02
        model.model.layers[2].mlp.down_proj.weight *= 0.02
    return HFTarget(model)


@pytest.fixture(scope="module")
def anchors(target, tmp_path_factory) -> str:
    states = [prompt_states(target, prompts[:12]) for prompts in DOMAINS]
    path = tmp_path_factory.mktemp("sets") / "my.sets"
    store.save(SkipSetAnchors.build(states, SETS, LAYERS), path)
    return str(path)


def run(parts, prompts, temperature: float = 0.0, **options):
    sampling = [SamplingParams(temperature, max_tokens=12, seed=seed) for seed in range(len(prompts))]
    session = Session(parts, prompts, sampling, LazyTargetProbs, **options)
    routes, sets = parts.drafter._drafter._skip_sets, {}
    for step in session.steps():
        sets |= {slot: routes.of(slot) for slot in step.ctx.slots if routes.of(slot) is not None}
    return [session.request(slot).output() for slot in range(len(prompts))], sets


@pytest.mark.slow
def test_held_out_prompts_get_the_set_of_their_domain(target, anchors: str) -> None:
    prompts = [prompt for pair in zip(DOMAINS[0][12:], DOMAINS[1][12:], strict=True) for prompt in pair]
    for temperature in (0.0, 1.0):
        parts = knn_ssd.build(target, anchors=anchors, threshold=0.05, depth=4)
        outputs, sets = run(parts, prompts, temperature)
        right = [sets[slot] == SETS[slot % 2] for slot in range(len(prompts))]
        assert sum(right) / len(right) > 0.9
        if not temperature:
            session = Session(
                autoregressive.build(target), prompts, [SamplingParams(max_tokens=12)] * 16, LazyTargetProbs
            )
            list(session.steps())
            assert outputs == [session.request(slot).output() for slot in range(16)]


def test_the_set_is_that_of_the_whole_prompt_however_it_is_read(target, anchors: str) -> None:
    index = store.load(SkipSetAnchors, anchors)
    for prompt in (DOMAINS[0][15], DOMAINS[1][15], DOMAINS[0][16][:1]):
        expected = index.domain(prompt_states(target, [prompt])[0])
        for part in (3, 512):
            parts = knn_ssd.build(target, anchors=anchors)
            _, sets = run(parts, [prompt], prompt_tokens=part)
            assert sets[0] == (alternate_layers(LAYERS) if expected is None else SETS[expected])


def test_the_state_of_a_prompt_is_the_mean_over_its_tokens_however_it_is_read(target, anchors: str) -> None:
    prompt = DOMAINS[0][15]
    with torch.no_grad():
        states = target.model.base_model(prompt[None], use_cache=False).last_hidden_state[0]
    np.testing.assert_allclose(prompt_states(target, [prompt])[0], states.mean(0).numpy(), atol=1e-5)
    for part in (3, 512):
        parts, found = knn_ssd.build(target, anchors=anchors), []
        index = parts.drafter._drafter._skip_sets._anchors
        index.domain = lambda state, found=found: found.append(state)
        run(parts, [prompt], prompt_tokens=part)
        np.testing.assert_allclose(found, [states.mean(0).numpy()], atol=1e-5)


def test_a_strange_prompt_has_every_second_layer_skipped(target, anchors: str) -> None:
    index = store.load(SkipSetAnchors, anchors)
    index.reach[:] = 0
    parts = knn_ssd.build(target, anchors=anchors)
    parts.drafter._drafter._skip_sets._anchors = index
    assert run(parts, [DOMAINS[0][17]])[1] == {0: SkipSet.of_layers([1, 3])}


@pytest.mark.slow
def test_the_search_finds_the_layer_that_does_little(target) -> None:
    found = best_set(target, DOMAINS[0][:2], trials=7)
    assert 2 in found.attention | found.mlp
    assert speed(target, found, DOMAINS[0][:2]) >= speed(target, alternate_layers(LAYERS), DOMAINS[0][:2])


def test_speed_is_tokens_by_weights_that_are_read(target) -> None:
    assert cost_without(target, SkipSet()) == 1
    layer = sum(weight.numel() for weight in target.model.model.layers[0].parameters())
    whole = LAYERS * layer + 64 * 32
    assert cost_without(target, SkipSet.of_layers([1, 3])) == pytest.approx((whole - 2 * layer) / whole)
    mlp = sum(weight.numel() for weight in target.model.model.layers[0].mlp.parameters())
    assert cost_without(target, SkipSet(mlp=frozenset({1}))) == pytest.approx((whole - mlp) / whole)
    assert speed(target, SkipSet.of_layers(range(LAYERS)), DOMAINS[0][:1]) == 0
    assert speed(target, SkipSet(), DOMAINS[0][:1]) == 1
    # 32 tokens, by the forwards of the target and those of the draft, which cost less
    skip_set = SkipSet.of_layers([1, 3])
    drafter = SelfDraft(DraftModel(without(target, skip_set), sampled=False))
    parts = Parts(target, drafter, Match(), Confidence(12, 0.8))
    session = Session(parts, DOMAINS[0][:1], [SamplingParams(max_tokens=32)], LazyTargetProbs)
    steps = list(session.steps())
    seconds = len(steps) + cost_without(target, skip_set) * sum(step.draft.forwards for step in steps)
    assert speed(target, skip_set, DOMAINS[0][:1]) == pytest.approx(32 / seconds)


def test_anchors_of_table_models() -> None:
    table = TableTarget(5, seed=1, order=2)
    made = anchored(table, [[[0, 1, 2], [1, 2]], [[4, 4, 4]]], trials=3)
    assert made.metadata == {"domains": 2, "anchors": 2, "layers": 4}


def test_errors(target, anchors: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no index file none: build one with"):
        knn_ssd.build(target, anchors="none")
    table = TableTarget(5, seed=1, order=2)
    with pytest.raises(ValueError, match="a domain has no prompts: give texts for each"):
        anchored(table, [[]], trials=1)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 64}
    narrow = HFTarget(LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **shape)).eval())
    with pytest.raises(ValueError, match="model with 32 channels and this one has 16: build them again"):
        run(knn_ssd.build(narrow, anchors=anchors), [DOMAINS[0][0]])
    short = HFTarget(LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **shape)).eval())
    with pytest.raises(ValueError, match="for a model of 4 layers and this one has 2: build them again"):
        knn_ssd.build(short, anchors=anchors)


@pytest.mark.slow
def test_prompts_of_the_package_s_target_are_told_apart() -> None:
    """Four kinds of prompts, of which the anchors have seen others: the paper expects nine of ten right."""
    loaded = outpace.load("zoo:target", dtype="float32")
    kinds, pick = ("code", "arithmetic", "edit", "chat"), random.Random(0)

    def states(kind: str, count: int, *, held_out: bool) -> NDArray[np.float32]:
        corpus = read_corpus()
        if kind == "code":
            documents = corpus.held_out if held_out else corpus.train
            texts: list[Any] = [prompts.code(document, pick) for document in pick.choices(documents, k=count)]
        elif held_out:
            texts = [task.messages for task in tasks.held_out(kind, count)]
        else:
            texts = [tasks.make(kind, pick).messages for _ in range(count)]
        tokens = [encode(loaded.tokenizer, text, loaded.target.vocab) for text in texts]
        return prompt_states(loaded.target, [torch.tensor(each) for each in tokens])

    seen = [states(kind, 24, held_out=False) for kind in kinds]
    anchors = SkipSetAnchors.build(seen, [SkipSet.of_layers({index}) for index in range(len(kinds))], 8)
    for index, kind in enumerate(kinds):
        found = [anchors.domain(state) for state in states(kind, 20, held_out=True)]
        assert found.count(index) > 18, (kind, found)
