"""Several drafters whose trees are merged into one."""

from __future__ import annotations

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.grower import Grower
from outpace.core.noise import Key, KeyedNoise
from outpace.core.tree import TokenTree
from outpace.drafters.compose.union import independent_noise, merged_trees


def grown() -> TokenTree:
    noise = KeyedNoise([7], [1], [3])
    q = torch.tensor([[0.5, 0.3, 0.2]])
    grower = Grower(torch.tensor([1]))
    first = grower.add_drawn([0], q, 2, noise)
    grower.add_drawn(first[:1], q, 1, noise)
    return grower.tree()


def test_merged_trees_keep_both_claims() -> None:
    one = grown()
    both = merged_trees(one, grown())
    assert both.forest.parents == (-1, 0, 0, 1)  # equal texts are one node
    assert isinstance(both.claim, Drawn) and len(both.claim.q) == 4
    assert both.claim.row == (-1, 0, 0, 1)
    assert both.claim.draws == ((1, 0), (2, 0), (3, 1), (1, 2), (2, 2), (3, 3))
    chosen = Grower(torch.tensor([1]))
    chosen.add_chosen([0], torch.tensor([2]))
    mixed = merged_trees(one, chosen.tree())
    drawn = 2 in one.tokens[1:3].tolist()
    assert isinstance(mixed.claim, Drawn) and mixed.claim.row == (
        (-1, 0, 0, 1) if drawn else (-1, 0, 0, 1, -1)
    )
    with pytest.raises(ValueError, match="same roots"):
        merged_trees(one, TokenTree.roots(torch.tensor([2])))


def test_drafters_of_one_step_draw_with_independent_noise() -> None:
    noise, nodes = KeyedNoise([3], [1], [10]), range(200)
    distribution = torch.tensor([[0.5, 0.3, 0.2]]).expand(200, -1)
    key = Key([0] * 200, nodes, [0] * 200, "draft")
    one, two = (independent_noise(noise, index).choose(distribution, key) for index in (1, 2))
    assert one.tolist() != two.tolist()
