"""Medusa: head k is for the token k positions after the root, and one set of candidates serves a depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from outpace.core.claim import Drawn
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.lookup.rank_template import falling_accuracies
from outpace.models.heads.medusa.head import MedusaHead, untrained_medusa
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.models.heads.position_head import PositionHead, ready
from outpace.models.heads.position_model import PositionModel
from outpace.proof.decode_all import texts
from outpace.recipes.heads.medusa import medusa
from tests.recipes.heads.position_heads import (
    GREEDY,
    PROMPTS,
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


def opened(head: PositionHead) -> MedusaModel:
    return MedusaModel(PositionModel(head))


def reference(head: PositionHead, hidden: Tensor, read: Sequence[int]) -> Tensor:
    assert isinstance(head, MedusaHead)
    own, position = head.own, len(read) - 1
    layer = f"blocks.{position}.layers.0"
    inner = own[f"{layer}.weight"] @ hidden + own[f"{layer}.bias"]
    return own[f"lm_heads.{position}.weight"] @ (hidden + nn.functional.silu(inner))


@pytest.mark.parametrize("tree", ["static", "chain"])
def test_every_node_has_the_candidates_of_its_head_at_the_newest_hidden_state(tree: str) -> None:
    head = untrained_medusa(small(), seed=3)
    parts = medusa.build(small(), head=opened(head), tree=tree, num_nodes=20)
    generated, steps = steps_of(parts, prompt_tokens=3)
    assert generated == plain(small())
    assert check_ranks(steps, lambda hidden, read: reference(head, hidden, read)) > 100


def test_all_nodes_of_a_depth_have_the_same_candidates() -> None:
    parts = medusa.build(small(), head=opened(untrained_medusa(small(), seed=3)))
    _, steps = steps_of(parts)
    several = 0
    for step in steps:
        forest, tokens = step.draft.tree.forest, step.draft.tree.tokens.tolist()
        assert len(step.draft.tree) <= 64 * forest.num_rows
        for row in range(forest.num_rows):
            found = [[tokens[c] for c in forest.children[n]] for n in forest.children[row]]
            found = sorted((each for each in found if each), key=len)
            several += len(found) > 1
            assert all(one == found[-1][: len(one)] for one in found)
    assert several


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_head_k_is_for_the_token_k_positions_after_the_root(shift: int) -> None:
    """The hidden state names the root: a head that adds k is right, one that adds k + 1 or k - 1 never."""
    target = counting()
    head = zeroed(MedusaHead(target, 3))
    assert isinstance(head, MedusaHead)
    for position, linear in enumerate(head.lm_heads):
        linear.get_parameter("weight").data = adding(position + 1 + shift)
    parts = medusa.build(target, head=opened(ready(head)), tree="chain")
    assert share_accepted(parts) == (shift == 0)


def test_a_drawn_chain_carries_the_distributions_of_the_heads() -> None:
    head = untrained_medusa(small(), seed=3)
    params = SamplingParams(0.8, max_tokens=8, seed=1)
    _, steps = steps_of(medusa.build(small(), head=opened(head), tree="chain"), [[3, 1, 4]], [params])
    step = steps[0]
    claim, hidden = step.draft.tree.claim, hidden_states(step.ctx.tokens[0][:-1])[-1]
    assert isinstance(claim, Drawn) and len(claim.q) == 5
    for depth, q in enumerate(claim.q):
        expected = (reference(head, hidden, [0] * (depth + 1)) / 0.8).softmax(-1)
        torch.testing.assert_close(q, expected)


def test_a_tree_of_first_ranks_is_the_chain() -> None:
    head = untrained_medusa(small(), seed=3)
    head.rank_accuracies = ((0.5,), (0.4,), (0.3,), (0.2,), (0.1,))
    static, chain = (medusa.build(small(), head=opened(head), tree=tree) for tree in ("static", "chain"))
    drafts = [
        [step.draft.tree.tokens.tolist() for step in steps_of(parts, sampling=GREEDY)[1]]
        for parts in (static, chain)
    ]
    assert drafts[0] == drafts[1]


def test_measured_accuracies_shape_the_tree_and_fewer_heads_limit_it() -> None:
    head = untrained_medusa(small())
    head.rank_accuracies = ((0.9, 0.05), (0.8, 0.1))
    _, steps = steps_of(medusa.build(small(), head=opened(head), num_nodes=4), [[3, 1]], [GREEDY[0]])
    # rank 0, below it ranks 0 and 1, and rank 1
    assert steps[0].draft.tree.forest.parents == (-1, 0, 0, 1, 1)
    two = ready(MedusaHead(small(), 2))
    _, steps = steps_of(medusa.build(small(), head=opened(two)), [[3, 1]], [GREEDY[0]])
    assert max(steps[0].draft.tree.forest.depths) == 2


def test_more_nodes_accept_at_least_as_many_tokens() -> None:
    head = untrained_medusa(small(), seed=3)
    counts = []
    for tree in ("chain", "static"):
        _, steps = steps_of(medusa.build(small(), head=opened(head), tree=tree))
        counts.append(len(steps))
    assert counts[1] <= counts[0]


def test_default_accuracies_are_shares() -> None:
    for at_depth in falling_accuracies(5):
        assert sum(at_depth) < 1 and at_depth == sorted(at_depth, reverse=True)


def test_nan_in_a_head_is_reported() -> None:
    head = untrained_medusa(small())
    head.own["lm_heads.1.weight"].data[0, 0] = float("nan")
    for tree in ("static", "chain"):
        parts = medusa.build(small(), head=opened(head), tree=tree)
        with pytest.raises(ValueError, match="NaN or infinite logits"):
            steps_of(parts)


def test_prompts_need_no_forwards_of_their_own_and_stale_states_are_not_used() -> None:
    """However a prompt is divided, drafts are the same; the first comes after the step that reads its end."""
    head = opened(untrained_medusa(small(), seed=3))
    drafts = list[list[list[int]]]()
    for prompt_tokens in (512, 3, 2):
        parts = medusa.build(small(), head=head)
        assert not parts.want.outputs_at_prompt
        steps: list[Step] = []
        texts(parts, PROMPTS[:1], GREEDY[:1], observe=steps.append, prompt_tokens=prompt_tokens)
        assert all(
            bool(step.draft.forwards) == (step.ctx.committed[0] > len(PROMPTS[0])) for step in steps[:-1]
        )
        drafts.append([step.draft.tree.tokens.tolist() for step in steps if step.draft.forwards])
        assert check_ranks(steps, partial(reference, untrained_medusa(small(), seed=3))) > 20
    assert drafts[0] == drafts[1] == drafts[2]
