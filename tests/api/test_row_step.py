"""The record of a step in one row of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from outpace.api.row_step import RowStep
from outpace.core.contracts import Draft, Verdict
from outpace.core.tree import Forest, TokenTree

# two rows with nodes in turns: row 0 has 2, 4 below it and 5 below that; row 1 has 3, with 6 and 7 below it
PARENTS = [-1, -1, 0, 1, 2, 4, 3, 3]
TOKENS = torch.arange(10, 18)


def step(leaf: list[int]) -> Any:
    tree = TokenTree(TOKENS, Forest.of(PARENTS, 2))
    return SimpleNamespace(draft=Draft(tree), verdict=Verdict(leaf, [20, 21]))


def test_nodes_are_numbered_within_their_row() -> None:
    first = RowStep.of(step([4, 7]), 0, 2, ["a", "b", "c"])
    assert (first.draft, first.parents, first.accepted) == ([12, 14, 15], [-1, 0, 1], [0, 1])
    second = RowStep.of(step([4, 7]), 1, 2, ["a", "b", "c"])
    assert (second.draft, second.parents, second.accepted) == ([13, 16, 17], [-1, 0, 0], [0, 2])
    assert second.texts == ["a", "b", "c"] and not second.is_prediction


def test_tokens_after_the_end_of_the_text_are_not_accepted() -> None:
    assert RowStep.of(step([5, 3]), 0, 1, ["a"]).accepted == [0]
    assert RowStep.of(step([0, 1]), 0, 0, ["a"]).accepted == []


def test_drafts_of_a_prediction_are_known() -> None:
    assert RowStep.of(step([0, 1]), 0, 0, ["a"], predicted=[12]).is_prediction
