"""Falcon: two levels from each forward over a block of two tokens, and their training with glances."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.heads.falcon.head import untrained_falcon
from outpace.models.heads.falcon.lesson import glanced
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.falcon import falcon
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.in_blocks import in_blocks
from tests.tiers import slow

VOCAB = 12
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4), (5, 5, 8, 2, 0, 1, 9, 9, 4, 7, 11))


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def decode(parts: Parts, prompts: Any = PROMPTS) -> tuple[list[list[int]], list[Any]]:
    """In a batch whose prompts are read in parts."""
    params = [SamplingParams(0.0, max_tokens=14)] * len(prompts)
    tensors = [torch.tensor(each) for each in prompts]
    session = Session(parts, tensors, params, LazyTargetProbs, prompt_tokens=3)
    steps = [step for step in session.steps() if any(step.generated)]
    return [session.request(slot).text().tolist() for slot in range(len(prompts))], steps


def features_of(text: Tensor) -> Tensor:  # (T - 1, D)
    with torch.no_grad():
        return target().model.model(text[None], use_cache=False).last_hidden_state[0, :-1]


def plain_levels(head: Any, text: Tensor, path: list[int]) -> list[Tensor]:
    """The logits after the text and after each token of the path, by forwards over all tokens without a
    cache."""
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    tokens = torch.cat((text, torch.tensor(path, dtype=torch.int64)))
    features, levels = features_of(text), list[Tensor]()
    with torch.no_grad():
        while len(levels) <= len(path):
            count = len(features)
            reduced, _ = plain.reduce(plain.embedded(tokens[None, 1 : count + 1]), features[None])
            mask = torch.ones(count, count, dtype=torch.bool).tril()
            mask[-2, -1] = True  # the first token of the last block sees the second
            at = torch.arange(count)[None]
            states = plain.states(reduced, reduced, at, mask[None, None], None)[0, -2:]
            levels += plain.lm_head(states)
            features = torch.cat((features, states))
    return levels[: len(path) + 1]


@pytest.mark.parametrize("tree", [slow("dynamic"), "chain"])
def test_drafts_are_those_of_forwards_over_the_whole_text(tree: Any) -> None:
    head, drafted, deepest = untrained_falcon(target(), 4), 0, 0
    parts = falcon.build(target(), head=HeadModel(head), tree=tree, width=2, num_nodes=9, depth=5)
    found, steps = decode(parts)
    assert found == decode(autoregressive.build(target()))[0]
    for step in steps:
        forest, tokens = step.draft.tree.forest, step.draft.tree.tokens.tolist()
        assert step.draft.forwards == -(-min(5, max(step.ctx.max_draft_depth)) // 2)
        for row in range(len(step.ctx.slots)):
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            for node in forest.nodes[row][1:]:
                path = [tokens[each] for each in forest.path(node)[1:]]
                ranks = plain_levels(head, text, path[:-1])[-1].argsort(descending=True).tolist()
                assert path[-1] in ranks[: 2 if tree == "dynamic" else 1]
                drafted, deepest = drafted + 1, max(deepest, len(path))
    assert drafted > 40 and deepest == (4 if tree == "dynamic" else 5)
    assert sum(len(new) - 1 for step in steps for new in step.generated if new) > 2  # accepted


def test_in_training_every_block_is_read_as_while_drafting() -> None:
    head: Any = untrained_falcon(target(), 4)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 3, 1, 9, 11, 2, 0, 4, 4]])
    features = torch.stack([features_of(text) for text in tokens])
    columns = torch.zeros(2, 8, dtype=torch.bool)
    columns[0, [1, 2, 6]], columns[1, [3, 4]] = True, True
    steps = list(in_blocks(head, tokens, features, columns, 2))
    found = torch.stack([head.lm_head(each.outputs) for each in steps], 1)
    for of_column, (row, column) in zip(found, columns.nonzero().tolist(), strict=True):
        levels = plain_levels(head, tokens[row, : column + 2], tokens[row, column + 2 :].tolist()[:1])
        assert (of_column - torch.stack(levels)[:2]).abs().max() < 1e-9
    sum(each.outputs.square().sum() for each in steps).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in head.own.values())


def test_glances_put_the_answer_in_place_of_the_block_that_shall_predict_it() -> None:
    head: Any = untrained_falcon(target(), 4)
    tokens = torch.arange(40)[None] % VOCAB
    features = torch.arange(39.0, dtype=torch.float64)[None, :, None].expand(1, 39, 16).contiguous()
    columns = torch.zeros(1, 39, dtype=torch.bool)
    columns[0, 5:30:4] = True
    read, given = glanced(head, tokens, features, columns, torch.Generator().manual_seed(1))
    moved = (given[0, :, 0] != features[0, :, 0]).nonzero()[:, 0].tolist()
    assert len(moved) == 2 and moved[1] == moved[0] + 1 and moved[0] + 1 in range(5, 30, 4)
    begin = moved[0] + 1
    assert given[0, moved, 0].tolist() == [begin + 1, begin + 2]
    assert read[0, begin : begin + 2].tolist() == tokens[0, begin + 2 : begin + 4].tolist()
    assert int((read != tokens).sum()) == 2


@pytest.mark.slow
def test_a_compiled_head_drafts_the_same() -> None:
    pytest.importorskip("openvino")
    model = HFTarget(copy.deepcopy(target().model).float(), compile=True)
    head, found = untrained_falcon(model, 4), []
    for compile in (False, True):
        parts = falcon.build(model, head=HeadModel(head, compile=compile), tree="chain", depth=4)
        found.append([step.draft.tree.tokens.tolist() for step in decode(parts)[1]])
    assert found[0] == found[1]
