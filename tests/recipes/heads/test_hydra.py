"""Hydra: candidates depend on the path; with a prefix layer, on the hidden states of the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.hydra.head import HydraHead, PrefixLayer, untrained_hydra
from outpace.models.heads.hydra.kind import HydraModel
from outpace.models.heads.position_head import PositionHead, random_parameters, ready
from outpace.models.heads.position_model import PositionModel
from outpace.proof.models import peaked_tables
from outpace.proof.suite import Subject, ragged
from outpace.recipes.heads.hydra import hydra
from tests.recipes.heads.position_heads import (
    COUNTED,
    adding,
    check_ranks,
    counting,
    hidden_states,
    plain,
    share_accepted,
    small,
    steps_of,
    zeroed,
)


def opened(head: PositionHead) -> HydraModel:
    return HydraModel(PositionModel(head))


def without_prefix(seed: int = 0) -> PositionHead:
    return random_parameters(HydraHead(small(), 4, num_layers=2), seed)


def reference(head: PositionHead, hidden: Tensor, read: Sequence[int]) -> Tensor:
    own, position = head.own, len(read) - 1
    num_layers = head.num_layers if isinstance(head, HydraHead) else 0
    states = torch.cat((hidden, *small().embed(torch.tensor(read))))

    def layer(name: str) -> Tensor:
        return own[f"{name}.weight"] @ states + own[f"{name}.bias"]

    mixer = f"mixers.{position}"
    states = layer(f"{mixer}.residual") + nn.functional.silu(layer(f"{mixer}.linear"))
    for index in range(num_layers - 1):
        states = states + nn.functional.silu(layer(f"blocks.{position}.layers.{index}"))
    return layer(f"lm_heads.{position}")


@torch.no_grad()
def prefixed(layer: PrefixLayer, text: Tensor) -> Tensor:  # (T,) -> (T, D)
    """The layer's outputs over a text, computed at once and without a KV cache."""
    states = hidden_states(text)
    positions = torch.arange(len(text))[None]
    return layer(text[None], positions, features=states[None], use_cache=False).logits[0]


@pytest.mark.parametrize("tree", ["static", "chain"])
def test_every_node_has_the_candidates_of_its_head_after_its_path(tree: str) -> None:
    head = without_prefix(seed=2)
    generated, steps = steps_of(hydra.build(small(), head=opened(head), tree=tree, num_nodes=20))
    assert generated == plain(small())
    assert check_ranks(steps, partial(reference, head)) > 50


@pytest.mark.parametrize("prompt_tokens", [512, 3])
def test_with_a_prefix_layer_the_whole_text_counts(prompt_tokens: int) -> None:
    """However many tokens a step commits and however prompts are divided, all of them are in the layer's KV
    cache, and no rejected one."""
    head = untrained_hydra(small(), seed=2)
    assert isinstance(head, HydraHead) and head.prefix is not None
    parts = hydra.build(small(), head=opened(head), num_nodes=30)
    generated, steps = steps_of(parts, prompt_tokens=prompt_tokens)
    assert generated == plain(small())
    assert len({len(each) for step in steps for each in step.generated}) > 1
    assert check_ranks(steps, partial(reference, head), partial(prefixed, head.prefix)) > 100


def test_nodes_below_different_parents_have_different_candidates() -> None:
    _, steps = steps_of(hydra.build(small(), head=opened(without_prefix(seed=2))))
    forest, tokens = steps[0].draft.tree.forest, steps[0].draft.tree.tokens.tolist()
    best = {tokens[forest.children[node][0]] for node in forest.children[0] if forest.children[node]}
    assert len(best) > 1


@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize("source", [0, 1, 2])
def test_each_input_is_the_token_it_should_be(source: int, shift: int) -> None:
    """Input 0, the hidden state, names the root, input 1 is the root and input 2 the first draft token: heads
    that add the distance to one of them are right."""
    target = counting()
    head = zeroed(HydraHead(target, 3, bias=False))
    assert isinstance(head, HydraHead)
    for position in range(3):
        place = min(source, position + 1)
        at = slice(place * COUNTED, (place + 1) * COUNTED)
        head.own[f"mixers.{position}.residual.weight"].data[:, at] = adding(0)
        distance = position + 1 - max(place - 1, 0) + shift
        head.own[f"lm_heads.{position}.weight"].data = adding(distance)
    parts = hydra.build(target, head=opened(ready(head)), tree="chain")
    assert share_accepted(parts) == (shift == 0)


@pytest.mark.slow
def test_without_a_prefix_layer_it_is_exact_too() -> None:
    models = peaked_tables()
    target = models.target
    assert isinstance(target, TargetWithLayers)
    head = opened(random_parameters(HydraHead(target, 4), 1))
    for tree in ("static", "chain"):
        proof = Subject(hydra, {"head": head, "tree": tree}, models).prove(ragged, 300)
        assert proof.holds and proof.accepted, proof.verdict


def test_rows_of_a_batch_draft_as_alone() -> None:
    params = [SamplingParams(0.9, max_tokens=8, seed=seed) for seed in range(3)]
    prompts = ([3, 1, 4, 1, 5], [2, 6], [7, 7, 7, 7])
    head = opened(untrained_hydra(small(), seed=2))
    together, _ = steps_of(hydra.build(small(), head=head), prompts, params)
    alone = [
        steps_of(hydra.build(small(), head=head), [prompt], [each])[0][0]
        for prompt, each in zip(prompts, params, strict=True)
    ]
    assert together == alone
