"""Jakiro*: siblings of a static tree are drawn from one expert each (Jakiro's tree: test_tails.py)."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from outpace.core.claim import Drawn
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.jakiro.head import untrained_jakiro
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import peaked_tables, transformers_models
from outpace.proof.suite import Subject, ragged
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.eagle import eagle
from outpace.recipes.heads.jakiro import jakiro
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import ConfigError, changed
from outpace.training.methods import named

VOCAB = 12
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))
HOT = [SamplingParams(0.8, max_tokens=14, seed=3), SamplingParams(1.0, top_k=5, max_tokens=9, seed=4)]


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def head_of(contrast: bool = False) -> Any:
    return untrained_jakiro(target(), seed=4, contrast=contrast)


def steps_of(head: Any, prompts: Any = PROMPTS, params: Any = HOT, **options: Any) -> list[Step]:
    parts = jakiro.build(target(), head=HeadModel(head), tree="static", **options)
    session = Session(parts, [torch.tensor(each) for each in prompts], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


@torch.no_grad()
def plain_experts(head: Any, text: Tensor, path: list[int]) -> tuple[Tensor, Tensor]:  # (V,) each
    """The logits of the expert with the larger weight and of the other one after the text and a path, by
    forwards without a cache."""
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    tokens = torch.cat((text, torch.tensor(path, dtype=torch.int64)))
    features = target().model.model(text[None], use_cache=False).last_hidden_state[0, :-1]
    state = text.new_zeros(0)
    for end in range(len(text), len(tokens) + 1):
        at = torch.arange(end - 1)[None]
        with OutputCapture(plain, len(plain.layers)).capture(frozenset({-1, 0}), True) as found:
            plain(tokens[None, 1:end], at, None, features[None])
        features = torch.cat((features, found[-1][0, -1:]))
        state = found[0][0, -1]
    normed = head.norm.norm(state)
    first, second = (head.lm_head(state + expert(normed)) for expert in head.norm.experts)
    router = head.norm.router(normed)
    return (first, second) if router[0] >= router[1] else (second, first)


@pytest.mark.parametrize("contrast", [False, True])
def test_siblings_carry_the_distribution_of_their_own_expert(contrast: bool) -> None:
    head, compared, deepest, equal, pairs = head_of(contrast), 0, 0, 0, 0
    for step in steps_of(head):
        tree, forest = step.draft.tree, step.draft.tree.forest
        claim = tree.claim
        if claim is None:
            continue
        assert isinstance(claim, Drawn) and not any(claim.replace)
        for row, params in enumerate(step.ctx.sampling):
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            for node in forest.nodes[row]:
                children = forest.children[node]
                if not children:
                    continue
                path = tree.tokens[forest.path(node)[1:]].tolist()
                experts = plain_experts(head, text, path)
                expected = []
                for logits in experts:
                    warped = logits / params.temperature
                    if params.top_k:
                        warped[warped < warped.sort().values[-params.top_k]] = -torch.inf
                    expected.append(warped.softmax(-1))
                rows = list(dict.fromkeys(claim.row[child] for child in children))
                for q, own in zip(claim.q[rows], expected, strict=False):
                    torch.testing.assert_close(q, own.to(q), atol=1e-9, rtol=0)
                by_expert = [
                    [int(tree.tokens[child]) for child in children if claim.row[child] == each]
                    for each in rows
                ]
                # the experts take turns: with an odd number of children the first draws one more
                assert 0 <= len(by_expert[0]) - (len(by_expert[1]) if len(rows) > 1 else 0) <= 1
                assert all(len(set(each)) == len(each) for each in by_expert)
                if len(rows) > 1:
                    pairs, equal = pairs + 1, equal + (by_expert[0][0] == by_expert[1][0])
                compared, deepest = compared + 1, max(deepest, len(path))
    assert compared > 40 and pairs > 30 and deepest == 4
    assert equal < pairs  # an overlap below 100 %


def test_either_expert_may_have_the_larger_weight() -> None:
    """The order of the experts is that of their weights, not of their indices."""
    head = head_of()
    random = torch.Generator().manual_seed(0)
    both = head.norm
    states = torch.randn(50, head.config.hidden_size, dtype=torch.float64, generator=random)
    with torch.no_grad():
        normed = both.norm(states)
        numbers = both.router(normed)
        assert numbers.shape == (50, 2)
        outputs = [gelu(normed @ each.up.weight.T) @ each.down.weight.T for each in both.experts]
        weights = numbers.softmax(-1)
        expected = states + weights[:, :1] * outputs[0] + weights[:, 1:] * outputs[1]
        assert (both(states) - expected).abs().max() < 1e-12
        larger, smaller = both.apart(states)
        is_first = numbers[:, 0] > numbers[:, 1]
        assert is_first.any() and not is_first.all()
        for row, first in enumerate(is_first.tolist()):
            assert (larger[row] - states[row] - outputs[1 - first][row]).abs().max() < 1e-12
            assert (smaller[row] - states[row] - outputs[first][row]).abs().max() < 1e-12
        # the usual output is between them
        top = weights.max(-1, keepdim=True).values
        assert (top * larger + (1 - top) * smaller - both(states)).abs().max() < 1e-12


def test_at_temperature_0_it_is_eagle_s_tree_of_the_weighted_sum() -> None:
    head = HeadModel(head_of())
    params = [SamplingParams(0.0, max_tokens=14), SamplingParams(0.0, max_tokens=9)]
    ours, of_eagle = (
        [
            (step.draft.tree.tokens.tolist(), step.draft.tree.forest.parents)
            for step in Session(
                recipe.build(target(), head=head, tree="static"),
                [torch.tensor(each) for each in PROMPTS],
                params,
                LazyTargetProbs,
            ).steps()
        ]
        for recipe in (jakiro, eagle)
    )
    assert ours == of_eagle and max(len(tokens) for tokens, _ in ours) == 2 * 26
    expected = texts(autoregressive.build(target()), PROMPTS, params)
    assert texts(jakiro.build(target(), head=head, tree="static"), PROMPTS, params) == expected


def test_drafts_do_not_depend_on_the_batch() -> None:
    """Also not on rows whose trees end at other nodes, or are not drawn."""
    head, prompts = head_of(), (*PROMPTS, (5,), (2, 2), *((each, 1) for each in range(8)))
    params = [*HOT, SamplingParams(1.0, max_tokens=3, seed=5), SamplingParams(0.0, max_tokens=5)]
    params += [SamplingParams(1.5, max_tokens=9, seed=seed, stop=(0, 3, 6, 9)) for seed in range(8)]
    together = steps_of(head, prompts, params)
    for row, prompt in enumerate(prompts):
        alone = steps_of(head, [prompt], params[row : row + 1])
        beside = [step for step in together if row in step.ctx.slots]
        for step, own in zip(beside, alone, strict=True):
            nodes = step.draft.tree.forest.nodes[step.ctx.slots.index(row)]
            assert sorted(step.draft.tree.tokens[list(nodes)]) == sorted(own.draft.tree.tokens)


@pytest.mark.parametrize("tree", ["static", "chain", "dynamic"])
def test_the_distribution_is_the_target_s(tree: str) -> None:
    models = peaked_tables()
    target: Any = models.target
    head = HeadModel(untrained_jakiro(target, contrast=False))
    proof = Subject(jakiro, {"head": head, "tree": tree}, models).prove(ragged, 200)
    assert proof.holds and proof.accepted, proof.verdict


def test_a_head_is_read_as_it_was_written(tmp_path: Path) -> None:
    head = head_of()
    save_head(head, tmp_path, target())
    again: Any = load_head("jakiro", tmp_path, target())
    assert not again.has_contrast and again.own.keys() == head.own.keys()
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())


def test_a_head_without_a_second_output_is_trained(tmp_path: Path) -> None:
    method: Any = named("jakiro")
    model: Any = type("Opened", (), {"target": target()})
    config = changed(method.defaults(), ["head.contrast=false"])
    head = method.untrained(model, config)
    assert not head.has_contrast and head.tail_levels == 0
    assert method.lesson(head, target(), config).num_steps == 1
    save_head(head, tmp_path, target())
    assert not method.untrained(model, config, (), str(tmp_path)).has_contrast
    with pytest.raises(ConfigError, match=r"the head that is given has head\.contrast=false: add --set"):
        method.untrained(model, method.defaults(), (), str(tmp_path))


@pytest.mark.slow
def test_a_compiled_head_drafts_the_same() -> None:
    pytest.importorskip("openvino")
    model = HFTarget(copy.deepcopy(target().model).float(), compile=True)
    head = untrained_jakiro(model, seed=4, contrast=False)
    found = []
    for compile in (False, True):
        opened = HeadModel(head, compile=compile)
        assert (opened.model.compiled is not None) == compile
        parts = jakiro.build(model, head=opened, tree="static")
        session = Session(parts, [torch.tensor(each) for each in PROMPTS], HOT, LazyTargetProbs)
        found.append([step.draft.tree.tokens.tolist() for step in session.steps()])
    assert found[0] == found[1]
