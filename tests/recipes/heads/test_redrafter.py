"""ReDrafter: its recurrence, and a beam search whose paths share their beginnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from outpace.core.contracts import Parts
from outpace.models.heads.position_head import PositionHead, random_parameters, ready
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.redrafter.head import ReDrafterHead, untrained_redrafter
from outpace.models.heads.redrafter.kind import ReDrafterModel
from outpace.recipes.heads.redrafter import redrafter
from tests.recipes.heads.position_heads import (
    COUNTED,
    GREEDY,
    PROMPTS,
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


def opened(head: PositionHead) -> ReDrafterModel:
    return ReDrafterModel(PositionModel(head))


def narrow() -> PositionHead:
    return random_parameters(ReDrafterHead(small(), num_layers=1, exit_size=10), 3)


def reference(head: PositionHead, hidden: Tensor, read: Sequence[int]) -> Tensor:
    own = head.own
    state = torch.zeros_like(hidden)
    for token in read:
        embedded = small().embed(torch.tensor(token))
        state = nn.functional.silu(
            own["rnn_w.weight"] @ embedded + own["rnn_u.weight"] @ state + own["rnn_u.bias"]
        )
    states = torch.cat((hidden, state))
    if "input_proj.weight" in own:
        states = own["input_proj.weight"] @ states + own["input_proj.bias"]
    for layer in range(head.num_layers if isinstance(head, ReDrafterHead) else 0):
        inner = own[f"blocks.layers.{layer}.weight"] @ states + own[f"blocks.layers.{layer}.bias"]
        states = states + nn.functional.silu(inner)
    return own["lm_head.weight"] @ states


HEADS = [lambda: untrained_redrafter(small(), seed=2), narrow]


@pytest.mark.parametrize("made", HEADS, ids=["two blocks", "a projection"])
def test_every_step_follows_the_formula(made: Callable[[], PositionHead]) -> None:
    head = made()
    generated, steps = steps_of(redrafter.build(small(), head=opened(head), tree="chain"), prompt_tokens=3)
    assert generated == plain(small())
    assert check_ranks(steps, partial(reference, head)) > 50


@torch.no_grad()
def beam_search(
    head: PositionHead, hidden: Tensor, root: int, depth: int, width: int, top_k: int
) -> list[tuple[int, ...]]:
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(depth):
        found: list[tuple[float, tuple[int, ...]]] = []
        for score, path in beams:
            likely = reference(head, hidden, [root, *path]).topk(top_k)
            for value, token in zip(
                likely.values.log_softmax(-1).tolist(), likely.indices.tolist(), strict=True
            ):
                found.append((score + value, (*path, token)))
        beams = sorted(found, reverse=True)[:width]
    return [path for _, path in beams]


@pytest.mark.parametrize(
    ("depth", "width", "top_k"), [(4, 6, 5), (3, 9, VOCAB), (2, 1, VOCAB), (5, 2, VOCAB)]
)
def test_the_tree_is_a_beam_search_with_shared_beginnings(depth: int, width: int, top_k: int) -> None:
    head = untrained_redrafter(small(), seed=2)
    parts = redrafter.build(small(), head=opened(head), depth=depth, width=width, top_k=top_k)
    generated, steps = steps_of(parts)
    assert generated == plain(small())
    step = steps[1]
    tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
    confidence = step.draft.tree.confidence
    assert confidence is not None
    for row, text in enumerate(step.ctx.tokens):
        hidden = hidden_states(text[:-1])[-1]
        beams = beam_search(head, hidden, int(text[-1]), depth, width, top_k)
        leaves = [node for node in forest.nodes[row] if not forest.children[node]]
        paths = [tuple(tokens[node] for node in forest.path(leaf)[1:]) for leaf in leaves]
        assert sorted(paths) == sorted(beams)
        prefixes = {beam[:end] for beam in beams for end in range(1, depth + 1)}
        assert len(forest.nodes[row]) - 1 == len(prefixes) <= width * depth


def test_one_beam_is_the_greedy_chain() -> None:
    head = opened(untrained_redrafter(small(), seed=2))
    one = steps_of(redrafter.build(small(), head=head, width=1))
    chain = steps_of(redrafter.build(small(), head=head, tree="chain"))
    assert one[0] == chain[0]
    assert [s.draft.tree.tokens.tolist() for s in one[1]] == [s.draft.tree.tokens.tolist() for s in chain[1]]


def test_more_beams_need_no_more_steps() -> None:
    head = opened(untrained_redrafter(small(), seed=2))

    def num_steps(width: int) -> int:
        parts: Parts = redrafter.build(small(), head=head, width=width)
        return sum(len(steps_of(parts, [prompt], GREEDY[:1])[1]) for prompt in PROMPTS)

    counts = [num_steps(width) for width in (1, 4, 12)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_the_first_token_read_is_the_root(shift: int) -> None:
    target = counting()
    head = zeroed(ReDrafterHead(target))
    head.own["rnn_w.weight"].data = 9 * adding(0)
    head.own["lm_head.weight"].data[:, COUNTED:] = adding(1 + shift)
    parts = redrafter.build(target, head=opened(ready(head)), tree="chain")
    assert share_accepted(parts) == (shift == 0)


def test_the_hidden_state_is_that_from_which_the_root_was_sampled() -> None:
    target = counting()
    head = zeroed(ReDrafterHead(target))
    head.own["lm_head.weight"].data[:, :COUNTED] = adding(1)
    parts = redrafter.build(target, head=opened(ready(head)), tree="chain", depth=1)
    assert share_accepted(parts) == 1
