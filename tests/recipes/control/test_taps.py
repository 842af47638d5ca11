"""TAPS: trees of several heads, of which one is verified, or all as one; or one head with mean weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import outpace
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.models.heads.averaged import averaged
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.control.taps import mean_draft_probs, taps
from outpace.recipes.heads.eagle2 import eagle2
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB, NODES, TOKENS = 8, 9, 24
PROMPTS = ([1, 2, 6, 0, 3], [5, 0, 3, 3], [7, 4])
GREEDY = SamplingParams(0, max_tokens=TOKENS)
SIZE = {"depth": 3, "width": 3, "num_nodes": NODES}
ROUTINGS = ("merged", "confidence", "average")


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def heads() -> tuple[EagleModel, ...]:
    return tuple(EagleModel(HeadModel(untrained_eagle(target(), seed=seed))) for seed in (2, 5))


def build(routing: str, given: Sequence[EagleModel] = ()) -> Parts:
    return taps.build(target(), heads=tuple(given) or heads(), routing=routing, **SIZE)


def session_of(parts: Parts, prompts: Sequence[Sequence[int]], params: SamplingParams = GREEDY) -> Session:
    tensors = [torch.tensor(each) for each in prompts]
    return Session(parts, tensors, [params] * len(prompts), LazyTargetProbs)


def steps_of(parts: Parts, prompt: Sequence[int], params: SamplingParams = GREEDY) -> list[Step]:
    """The steps of one request in which something was generated."""
    return [step for step in session_of(parts, [prompt], params).steps() if step.generated[0]]


def first_tree(head: EagleModel, text: Sequence[int]) -> TokenTree:
    """What a head drafts after a text that is a prompt: in a run of its own."""
    short = SamplingParams(0, max_tokens=SIZE["depth"] + 1)
    return steps_of(eagle2.build(target(), head=head, **SIZE), text, short)[0].draft.tree


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """The token sequences of all draft nodes of a tree with one row."""
    tokens = tree.tokens.tolist()
    return {tuple(tokens[node] for node in tree.forest.path(end)[1:]) for end in range(1, len(tree))}


def text_before(step: Step) -> list[int]:
    return step.ctx.tokens[0].tolist()[: step.ctx.committed[0]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_greedy_texts_are_plain_decodings(routing: str) -> None:
    def texts(parts: Parts) -> list[list[int]]:
        session = session_of(parts, PROMPTS)
        list(session.steps())
        return [session.request(slot).text().tolist() for slot in range(len(PROMPTS))]

    assert texts(build(routing)) == texts(autoregressive.build(target()))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_merged_trees_hold_each_path_of_every_head_once_and_keep_what_the_best_keeps(
    prompt: Sequence[int],
) -> None:
    shared = differ = 0
    for step in steps_of(build("merged"), prompt)[:-3]:  # the last drafts are shorter
        own = [first_tree(head, text_before(step)) for head in heads()]
        assert paths(step.draft.tree) == paths(own[0]) | paths(own[1])
        assert len(step.draft.tree) - 1 == len(paths(step.draft.tree))  # no path is there twice
        shared += len(paths(own[0]) & paths(own[1]))
        new = step.generated[0]
        kept = [tree.forest.depths[tree.match([new])[0]] for tree in own]
        assert len(new) - 1 == max(kept)
        differ += kept[0] != kept[1]
    assert shared and differ


@pytest.mark.slow
def test_a_head_that_is_given_twice_drafts_as_if_it_were_given_once() -> None:
    for routing in ROUTINGS:
        twice, once = (steps_of(build(routing, heads()[:1] * count), PROMPTS[0]) for count in (2, 1))
        alone = steps_of(eagle2.build(target(), head=heads()[0], **SIZE), PROMPTS[0])
        for steps in (twice, once):
            assert [each.generated for each in steps] == [each.generated for each in alone]
            trees = zip(steps, alone, strict=True)
            assert all(paths(one.draft.tree) == paths(other.draft.tree) for one, other in trees)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_most_confident_tree_is_verified_and_the_other_heads_keep_up(temperature: float) -> None:
    """After steps in which another head's tree was verified a head drafts what it drafts in a new run."""
    chosen = list[int]()
    for prompt in PROMPTS[:2]:
        params = SamplingParams(temperature, max_tokens=TOKENS, seed=4)
        for step in steps_of(build("confidence"), prompt, params)[:-3]:
            own = [first_tree(head, text_before(step)) for head in heads()]
            means = [mean_draft_probs(tree)[0] for tree in own]
            best = int(means[1] > means[0])
            assert paths(step.draft.tree) == paths(own[best]) != paths(own[1 - best])
            assert step.draft.tree.claim is None
            chosen.append(best)
    changes = sum(one != other for one, other in zip(chosen, chosen[1:], strict=False))
    assert changes > 3  # so each head was passed over, and then chosen


@pytest.mark.slow
def test_rows_of_a_batch_are_routed_apart() -> None:
    together: dict[int, list[Any]] = {slot: [] for slot in range(len(PROMPTS))}
    mixed = 0
    for step in session_of(build("confidence"), PROMPTS).steps():
        for row, slot in enumerate(step.ctx.slots):
            if step.generated[row]:
                together[slot].append(step.generated[row])
        mixed += len(step.ctx.slots) > 1
    for slot, prompt in enumerate(PROMPTS):
        assert together[slot] == [step.generated[0] for step in steps_of(build("confidence"), prompt)]
    assert mixed > 3


def test_an_averaged_head_has_the_mean_of_the_weights() -> None:
    first, second = heads()
    before = [{name: each.clone() for name, each in head.head.own.items()} for head in heads()]
    made = averaged(heads(), target())
    assert made.head.is_for(target()) and made.head.lm_head is target().head
    for name, mean in made.head.own.items():
        expected = (first.head.own[name] + second.head.own[name]) / 2
        assert torch.allclose(mean, expected, atol=1e-12)
    assert not torch.equal(made.head.own["fc.weight"], first.head.own["fc.weight"])
    for head, weights in zip(heads(), before, strict=True):  # the heads stay as they were
        assert all(torch.equal(each, weights[name]) for name, each in head.head.own.items())
    assert averaged(heads(), target()) is made  # made once
    assert averaged(heads()[::-1], target()) is not made
    assert averaged(heads()[:1], target()) is first
    three = averaged((*heads(), first), target()).head.own["fc.weight"]
    assert torch.allclose(three, (2 * first.head.fc.weight + second.head.fc.weight) / 3, atol=1e-12)
    step = steps_of(build("average"), PROMPTS[0])[0]
    assert paths(step.draft.tree) == paths(first_tree(EagleModel(made), PROMPTS[0]))


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(ValueError, match="taps needs heads: give one head or more"):
        taps.build(target(), heads=())
    other = untrained_eagle(target(), seed=3)
    other.fc = nn.Linear(32, 16, bias=False, dtype=torch.float64)
    unlike = (heads()[0], EagleModel(HeadModel(other)))
    with pytest.raises(
        ValueError, match="weights have different shapes and cannot be averaged: use the rout"
    ):
        build("average", unlike)
    build("merged", unlike)
    assert isinstance(build("merged").controller, Fixed)


def test_heads_are_folders(tiny, loaded, tmp_path: Path) -> None:
    model, _ = loaded
    for seed in range(2):
        save_head(untrained_eagle(model.target, seed=seed), tmp_path / str(seed), model.target)
    given = f"{tmp_path / '0'},{tmp_path / '1'}"
    expected = outpace.generate(model, "def add", method="autoregressive", max_tokens=6)
    for routing in ROUTINGS:
        found = outpace.generate(model, "def add", method="taps", heads=given, routing=routing, max_tokens=6)
        assert found[0].tokens == expected[0].tokens and found[0].statistics.num_draft_tokens > 0
    with pytest.raises(ValueError, match="taps needs heads: a folder with a draft head that was trained for"):
        outpace.generate(model, "def", method="taps", max_tokens=4)
