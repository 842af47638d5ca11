"""MLP speculator: its formulas, the token that each step reads, and the best of all paths tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from outpace.models.heads.mlp_speculator.head import MlpSpeculatorHead, untrained_mlp_speculator
from outpace.models.heads.mlp_speculator.kind import MlpSpeculatorModel
from outpace.models.heads.position_head import PositionHead, random_parameters, ready
from outpace.models.heads.position_model import PositionModel
from outpace.recipes.heads.mlp_speculator import mlp_speculator
from tests.recipes.heads.position_heads import (
    COUNTED,
    GREEDY,
    VOCAB,
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


def opened(head: PositionHead) -> MlpSpeculatorModel:
    return MlpSpeculatorModel(PositionModel(head))


def other() -> PositionHead:
    """A speculator with tied steps, a normed input and scales and shifts other than 1 and 0."""
    head = random_parameters(MlpSpeculatorHead(small(), 3, 10, tied=True, scale_input=True), 4)
    head.own["ln.0.weight"].data.uniform_(0.5, 2.0)
    head.own["ln.0.bias"].data.uniform_(-0.5, 0.5)
    return head


def reference(head: PositionHead, hidden: Tensor, read: Sequence[int]) -> Tensor:
    assert isinstance(head, MlpSpeculatorHead)
    of_state = 0.5 ** (0.5 / 3)
    of_token = sqrt((1 - of_state**2) * head.inner_size / 2)
    state = hidden / hidden.square().mean().sqrt() / sqrt(2) if head.scale_input else hidden
    for step, token in enumerate(read):
        first = 0 if head.tied else step
        projection = min(step, 1) if head.tied else step
        of_step = [
            head.own[name]
            for name in (f"proj.{projection}.weight", f"emb.{first}.weight", f"head.{first}.weight")
        ]
        state = of_state * (of_step[0] @ state) + of_token * of_step[1][token]
        state = state / state.square().mean().sqrt()  # the factor before has no effect
        state = nn.functional.gelu(state * head.own[f"ln.{first}.weight"] + head.own[f"ln.{first}.bias"])
        logits = of_step[2] @ state
    return logits


HEADS = [lambda: untrained_mlp_speculator(small(), seed=2), other]


@pytest.mark.parametrize("made", HEADS, ids=["own weights", "tied"])
def test_every_step_follows_the_formula(made: Callable[[], PositionHead]) -> None:
    head = made()
    parts = mlp_speculator.build(small(), head=opened(head), tree="chain")
    generated, steps = steps_of(parts, prompt_tokens=3)
    assert generated == plain(small())
    assert check_ranks(steps, partial(reference, head)) > 50


@torch.no_grad()
@pytest.mark.parametrize("made", HEADS, ids=["own weights", "tied"])
def test_the_tree_has_the_best_of_all_paths_tried(made: Callable[[], PositionHead]) -> None:
    head = made()
    parts = mlp_speculator.build(small(), head=opened(head), branching=(4, 3, 2), num_paths=5)
    _, steps = steps_of(parts, [[3, 1, 4], [5, 9]], GREEDY[:2])
    step = steps[0]
    tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
    for row, text in enumerate(step.ctx.tokens):
        hidden, root = hidden_states(text[:-1])[-1], int(text[-1])
        scored: list[tuple[float, tuple[int, ...]]] = []
        for ranks in product(range(4), range(3), range(2)):
            path, score = [root], 0.0
            for rank in ranks:
                best = reference(head, hidden, path).log_softmax(-1).topk(rank + 1)
                score += float(best.values[rank])
                path.append(int(best.indices[rank]))
            scored.append((score, tuple(path[1:])))
        expected = {path for _, path in sorted(scored, reverse=True)[:5]}
        leaves = [node for node in forest.nodes[row] if not forest.children[node]]
        assert {tuple(tokens[node] for node in forest.path(leaf)[1:]) for leaf in leaves} == expected
        prefixes = {path[:depth] for path in expected for depth in (1, 2, 3)}
        assert len(forest.nodes[row]) == 1 + len(prefixes)


@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize("of_token", [False, True], ids=["hidden state", "newest token"])
def test_state_and_token_are_those_of_the_root(of_token: bool, shift: int) -> None:
    """The hidden state names the root, and the first step reads the root itself."""
    target = counting()
    head = zeroed(MlpSpeculatorHead(target, 3, COUNTED))
    for step in range(3):
        source = head.own[f"emb.{step}.weight" if of_token else f"proj.{step}.weight"]
        source.data = 9 * adding(0)
        head.own[f"ln.{step}.weight"].data.fill_(1.0)
        head.own[f"head.{step}.weight"].data = adding((1 if of_token else step + 1) + shift)
    parts = mlp_speculator.build(target, head=opened(ready(head)), tree="chain")
    assert share_accepted(parts) == (shift == 0)


def test_half_of_the_state_is_the_contexts_after_the_last_step() -> None:
    head = untrained_mlp_speculator(small())
    assert isinstance(head, MlpSpeculatorHead)
    of_state = 0.5 ** (0.5 / 3)
    assert (of_state**2) ** 3 == pytest.approx(0.5)
    assert head.token_scale * of_state == pytest.approx(sqrt((1 - of_state**2) * head.inner_size / 2))


def test_a_search_without_paths_is_refused() -> None:
    head = opened(untrained_mlp_speculator(small()))
    for options in ({"num_paths": 0}, {"branching": (2, 0)}):
        with pytest.raises(ValueError, match="use numbers of at least one"):
            steps_of(mlp_speculator.build(small(), head=head, **options))


def test_more_tokens_than_the_vocabulary_may_be_asked_for() -> None:
    head = opened(untrained_mlp_speculator(small()))
    parts = mlp_speculator.build(small(), head=head, branching=(VOCAB + 3, 2), num_paths=99)
    assert steps_of(parts)[0] == plain(small())
