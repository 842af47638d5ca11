"""SWIFT: sets that change are exact, and the set that is found drafts better than the one it begins with."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.core.contracts import Want
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.table import TableTarget
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.self_speculation.swift.recipe import SkipSetSearch, swift
from outpace.sampling.target_probs import LazyTargetProbs

LAYERS = 6
IDLE = SkipSet(frozenset({2, 4}), frozenset({2, 3}))  # sub-layers that hardly do anything
PROMPTS = [torch.tensor(text) for text in ([5, 9, 31, 7, 44, 5, 9], [8, 3], [60])]
TABLE = TableTarget(3, seed=1)


class Turns:
    """Skip sets that change with the length of the text."""

    learns_across_rows = False
    want = Want()
    sets = (SkipSet(frozenset({1})), SkipSet(frozenset({2}), frozenset({1})), SkipSet.of_layers([1, 2]))

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}

    def of(self, slot: int) -> SkipSet:
        return self.sets[self._lengths.get(slot, 0) % 3]

    def observe(self, step) -> None:
        for row, slot in enumerate(step.ctx.slots):
            self._lengths[slot] = step.ctx.committed[row] + len(step.generated[row])

    def release(self, slots) -> None:
        for slot in slots:
            self._lengths.pop(slot, None)


def test_sets_that_change_every_step_are_exact() -> None:
    def parts():
        made = swift.build(TABLE, threshold=0.5)
        made.drafter._drafter._skip_sets = Turns()
        return made

    cases = [Case((0, 1, 2), SamplingParams(1.0, top_k=2, max_tokens=5))]
    found = enumerate_distributions(parts, cases)
    assert largest_error(found, table_logits(TABLE.logits, TABLE.state), cases) < 1e-12
    assert found.counts.deepest >= 2


@pytest.fixture(scope="module")
def target() -> HFTarget:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=LAYERS, initializer_range=0.3, **shape)
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for layer in IDLE.attention:
            model.model.layers[layer].self_attn.o_proj.weight *= 0.02
        for layer in IDLE.mlp:
            model.model.layers[layer].mlp.down_proj.weight *= 0.02
    return HFTarget(model)


def decode(parts, temperature: float, max_tokens: int):
    sampling = [SamplingParams(temperature, max_tokens=max_tokens, seed=seed) for seed in range(3)]
    session = Session(parts, PROMPTS, sampling, LazyTargetProbs)
    steps = list(session.steps())
    return [session.request(slot).output() for slot in range(3)], steps


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_search_finds_sub_layers_that_do_little_and_drafts_better(temperature: float, target) -> None:
    parts = swift.build(target, window=16, skip_ratio=0.5, depth=4, threshold=0.05)
    search: SkipSetSearch = parts.drafter._drafter._skip_sets
    first = search.of(9)
    outputs, _ = decode(parts, temperature, 100)
    found = search.of(0)
    assert found != first and len(found) == len(first) == 4
    overlap = [len(each.attention & IDLE.attention) + len(each.mlp & IDLE.mlp) for each in (first, found)]
    assert overlap[1] > overlap[0]
    fixed = swift.build(target, window=1000, skip_ratio=0.5, depth=4, threshold=0.05)
    later, steps = decode(parts, temperature, 40)  # begins with the set that was found
    _, uniform = decode(fixed, temperature, 40)
    assert len(steps) < len(uniform)
    if temperature == 0:
        plain, _ = decode(autoregressive.build(target), 0.0, 100)
        assert outputs == plain and later == [each[:40] for each in plain]


def test_models_that_score_chains_only_draft_chains() -> None:
    class Chains(TableTarget):
        chains_only = True

    parts, sampling = swift.build(Chains(8, seed=1, order=2)), [SamplingParams(1.0, max_tokens=20)]
    steps = list(Session(parts, [torch.tensor([1, 2])], sampling, LazyTargetProbs).steps())
    assert all(step.draft.tree.forest.is_chain for step in steps)
    assert any(len(step.draft.tree) > 1 for step in steps)
