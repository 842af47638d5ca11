"""Jakiro and Gumiho: the first levels of a draft from forwards, the last ones from a head's tail."""

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
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.gumiho.head import untrained_gumiho
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.jakiro.head import untrained_jakiro
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.gumiho import gumiho
from outpace.recipes.heads.jakiro import jakiro
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.with_tail import with_tail
from tests.tiers import slow

VOCAB = 12
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))
RECIPES = {"jakiro": jakiro, "gumiho": gumiho}
UNTRAINED = {"jakiro": untrained_jakiro, "gumiho": untrained_gumiho}
FORWARDS = {"jakiro": 4, "gumiho": 2}  # of a draft of 5 tokens
TRAINED = {"jakiro": 2, "gumiho": 7}  # draft tokens that are learned


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def head_of(name: str) -> Any:
    return UNTRAINED[name](target(), seed=4)


def steps_of(parts: Parts, prompts: Any = PROMPTS, lengths: tuple[int, ...] = (14, 9)) -> list[Any]:
    params = [SamplingParams(0.0, max_tokens=length) for length in lengths[: len(prompts)]]
    session = Session(parts, [torch.tensor(each) for each in prompts], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def plain_levels(head: DraftHead, text: Tensor, path: list[int], depth: int) -> list[Tensor]:
    """The logits after the text and after each token of the path, in a draft of `depth` levels, by forwards
    without a cache."""
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    tokens = torch.cat((text, torch.tensor(path, dtype=torch.int64)))
    with torch.no_grad():
        features = target().model.model(text[None], use_cache=False).last_hidden_state[0, :-1]
        count, levels = head.levels_with_forwards(depth), list[Tensor]()
        read = list[Tensor]()  # outputs at the text's last token and the tokens of the path
        for end in range(len(text), len(text) + min(count, len(path) + 1)):
            at = torch.arange(end - 1)[None]
            with OutputCapture(plain, len(plain.layers)).capture(frozenset({-1, 0}), True) as found:
                levels.append(plain(tokens[None, 1:end], at, None, features[None]).logits[0, -1])
            features = torch.cat((features, found[-1][0, -1:]))
            read.append(found[plain.tail_layer][0, -1])
        if len(path) >= count:
            nodes = path[count - head.tail_reads : count]
            above = torch.stack(read[count - head.tail_reads : count])[None]
            embedded = head.embed_tokens(torch.tensor([nodes]))
            further = head.lm_head(head.tail(embedded, above, depth - count))[0]
            levels += [*further][: len(path) + 1 - count]
    return levels


@pytest.mark.parametrize("tree", ["dynamic", slow("chain")])
@pytest.mark.parametrize("name", RECIPES)
def test_drafts_are_those_of_forwards_over_the_whole_text(name: str, tree: Any) -> None:
    head, drafted, deepest = head_of(name), 0, 0
    parts = RECIPES[name].build(target(), head=HeadModel(head), tree=tree, width=2, num_nodes=8, depth=5)
    for step in steps_of(parts):
        forest, tokens = step.draft.tree.forest, step.draft.tree.tokens.tolist()
        plans = [min(5, each) for each in step.ctx.max_draft_depth]
        assert step.draft.forwards == min(FORWARDS[name], max(plans))
        for row in range(len(step.ctx.slots)):
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            for node in forest.nodes[row][1:]:
                path = [tokens[each] for each in forest.path(node)[1:]]
                ranks = plain_levels(head, text, path[:-1], 5)[-1].argsort(descending=True).tolist()
                assert path[-1] in ranks[: 2 if tree == "dynamic" else 1]
                drafted, deepest = drafted + 1, max(deepest, len(path))
    assert drafted > 25 and deepest == 5


@pytest.mark.parametrize("name", RECIPES)
def test_texts_are_the_target_s_and_drafts_do_not_depend_on_the_batch(name: str) -> None:
    head = HeadModel(head_of(name))
    parts = RECIPES[name].build(target(), head=head, width=3, num_nodes=9)
    params = [SamplingParams(0.0, max_tokens=length) for length in (14, 9)]
    assert texts(parts, PROMPTS, params) == texts(autoregressive.build(target()), PROMPTS, params)
    together = steps_of(parts)
    assert len(together) < 13
    for row, length in enumerate((14, 9)):
        alone = steps_of(parts, PROMPTS[row : row + 1], (length,))
        beside = [step for step in together if row in step.ctx.slots]
        for step, own in zip(beside, alone, strict=False):
            nodes = step.draft.tree.forest.nodes[step.ctx.slots.index(row)]
            assert sorted(step.draft.tree.tokens[list(nodes)]) == sorted(own.draft.tree.tokens)


@pytest.mark.parametrize("name", RECIPES)
def test_in_training_the_head_reads_what_it_reads_while_drafting(name: str) -> None:
    head: Any = head_of(name)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 3, 1, 9, 11, 2, 0, 4, 4]])
    with torch.no_grad():
        features = target().model.model(tokens, use_cache=False).last_hidden_state[:, :-1]
    columns = torch.zeros(2, 8, dtype=torch.bool)
    columns[0, [1, 2]], columns[1, [0, 3]] = True, True
    steps = list(with_tail(head, tokens, features, columns, 5))
    assert [each.step for each in steps] == [0, 1, 2, 3, 4]
    found = torch.stack([head.lm_head(each.outputs) for each in steps], 1)
    for of_column, (row, column) in zip(found, columns.nonzero().tolist(), strict=True):
        path = tokens[row, column + 2 :].tolist()[:4]
        levels = plain_levels(head, tokens[row, : column + 2], path, 5)
        for logits, expected in zip(of_column, levels, strict=False):
            assert (logits - expected).abs().max() < 1e-9
    steps = list(with_tail(head, tokens, features, columns, TRAINED[name]))
    sum(each.outputs.square().sum() for each in steps).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in head.own.values())


def test_experts_are_mixed_by_the_papers_formulas() -> None:
    head: Any = head_of("jakiro")
    both, states = head.norm, torch.randn(6, head.config.hidden_size, dtype=torch.float64)
    with torch.no_grad():
        normed = both.norm(states)
        numbers = both.router(normed)
        one, other = both.experts[0](normed), both.experts[1](normed)
        weights = numbers[:, :2].softmax(-1)
        expected = states + weights[:, :1] * one + weights[:, 1:] * other
        assert (both(states) - expected).abs().max() < 1e-12
        weights = numbers[:, 2:].softmax(-1)
        sign = (numbers[:, 2:3] - numbers[:, 3:]).sign()
        assert len(sign.unique()) == 2  # the larger weight is now one expert's, now the other's
        expected = states + sign * (weights[:, :1] * one - weights[:, 1:] * other)
        assert (both.contrast(states) - expected).abs().max() < 1e-12
        serial = both(states)
        both.router.weight[2:] = 0
        assert torch.equal(both(states), serial)  # each output has weights of its own
        both.experts[1].load_state_dict(both.experts[0].state_dict())
        assert (both(states) - states - one).abs().max() < 1e-12
        assert torch.equal(both.contrast(states), states)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_compiled_heads_draft_the_same(name: str) -> None:
    pytest.importorskip("openvino")
    model = HFTarget(copy.deepcopy(target().model).float(), compile=True)
    head = UNTRAINED[name](model, seed=4)
    found = []
    for compile in (False, True):
        opened = HeadModel(head, compile=compile)
        assert (opened.model.compiled is not None) == compile
        parts = RECIPES[name].build(model, head=opened, tree="chain", depth=5)
        found.append([step.draft.tree.tokens.tolist() for step in steps_of(parts)])
    assert found[0] == found[1]
