"""Of several drafters' trees the one with the largest mean draft probability is kept, in each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import NOTHING, Draft, Parts, Plan
from outpace.core.grower import Grower
from outpace.core.noise import Key
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.rows import joined_rows, tree_of_rows
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.proof.suite import CAUGHT, mistakes
from outpace.recipes.control.taps import MostConfident, mean_draft_probs
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match

Branch = Sequence[tuple[int, int, float]]  # (parent, token, draft probability) of nodes from 1 on


def tree(rows: Sequence[Branch], roots: Sequence[int]) -> TokenTree:
    """A tree for each row, with numbers of parents in the row."""
    grower = Grower(torch.tensor(roots), confidence=True)
    for row, branch in enumerate(rows):
        nodes = [row]
        for parent, token, prob in branch:
            nodes += grower.add_chosen([nodes[parent]], torch.tensor([token]), torch.tensor([prob]))
    return grower.tree()


class Given:
    """A drafter whose trees are given, by row."""

    learns_across_rows = drafts_across_rows = False
    want, claims = NOTHING, ()

    def __init__(self, rows: Sequence[Branch]) -> None:
        self.rows = rows

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = [self.rows[slot] for slot in ctx.slots]
        return Draft(tree(rows, ctx.roots.tolist()), forwards=2, seconds=0.5)

    def observe(self, step: Any) -> None: ...

    def release(self, slots: Sequence[int]) -> None: ...


def proposed(*drafters: Any, rows: int = 2) -> Draft:
    """The draft in the first step of a session."""
    drafter, target = MostConfident(drafters), TableTarget(5, seed=1)
    prompts = [torch.tensor([row]) for row in range(rows)]
    session = Session(
        Parts(target, drafter, Match(), Fixed(3)),
        prompts,
        [SamplingParams(0, max_tokens=9)] * rows,
        LazyTargetProbs,
    )
    ctx = session.context()
    return drafter.propose(ctx, Plan((3,) * rows))


def branches(found: TokenTree) -> list[list[tuple[int, int]]]:
    """(parent, token) of the draft nodes of each row, with numbers in the row."""
    forest, tokens = found.forest, found.tokens.tolist()
    return [
        [(forest.local[forest.parents[node]], tokens[node]) for node in nodes[1:]] for nodes in forest.nodes
    ]


ONE: list[Branch] = [[(0, 1, 0.9), (1, 2, 0.5)], [(0, 3, 0.2)]]  # means 0.7 and 0.2
TWO: list[Branch] = [[(0, 4, 0.6)], [(0, 2, 0.5), (0, 1, 0.3), (1, 4, 0.1)]]  # 0.6 and 0.3


def test_each_row_has_the_tree_of_the_larger_mean() -> None:
    draft = proposed(Given(ONE), Given(TWO))
    assert branches(draft.tree) == [[(0, 1), (1, 2)], [(0, 2), (0, 1), (1, 4)]]
    assert draft.tree.claim is None
    assert draft.tree.tokens[:2].tolist() == [0, 1]
    assert draft.forwards == 4 and draft.seconds == 1.0  # of both, as both have drafted
    again = proposed(Given(TWO), Given(ONE))
    assert branches(again.tree) == branches(draft.tree)
    assert branches(proposed(Given(ONE), Given([TWO[0]] * 2)).tree) == [
        [(0, 1), (1, 2)],
        [(0, 4)],
    ]


def test_of_equal_trees_the_first_stays_and_a_drafter_without_a_draft_loses() -> None:
    other: list[Branch] = [[(0, 2, 0.7), (0, 4, 0.7)], [(0, 2, 0.2)]]  # means as those of ONE
    assert mean_draft_probs(tree(other, [0, 1])) == pytest.approx([0.7, 0.2])
    same: list[Branch] = [[(0, 4, 0.2)], [(0, 4, 0.2)]]
    assert branches(proposed(Given(same), Given([[(0, 1, 0.2)]] * 2)).tree) == [[(0, 4)], [(0, 4)]]
    assert branches(proposed(NoDraft(), Given(same)).tree) == [[(0, 4)], [(0, 4)]]
    assert branches(proposed(NoDraft(), NoDraft()).tree) == [[], []]


def test_drafters_that_draw_are_refused() -> None:
    draft = TableTarget(5, seed=2)
    with pytest.raises(TypeError, match="a draft that claims Drawn cannot be chosen by its tokens: use"):
        MostConfident([DraftModel(draft, sampled=False), DraftModel(draft)])
    with pytest.raises(TypeError, match="drafts without draft probabilities cannot be compared"):
        mean_draft_probs(replace(tree(ONE, [0, 1]), confidence=None))


@pytest.mark.slow
def test_choosing_a_tree_by_its_drawn_tokens_is_caught() -> None:
    assert mistakes()["tree chosen by its drawn tokens"]() > CAUGHT


class Noise:
    """Draws the columns from the last on."""

    def choose(self, probs: torch.Tensor, key: Key) -> torch.Tensor:
        return torch.full((len(probs),), probs.shape[1] - 1)

    def draw(self, probs: torch.Tensor, k: int, key: Key, *, replace: bool) -> torch.Tensor:
        return torch.arange(probs.shape[1] - 1, -1, -1)[:k].expand(len(probs), -1)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [True for _ in accept]


def test_trees_of_rows_keep_their_claims() -> None:
    grower = Grower(torch.tensor([7, 8, 9]))
    q = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]])
    nodes = grower.add_drawn([0, 1, 2], q, [1, 2, 1], Noise())
    grower.add_drawn(nodes[1:2], q[:1], 1, Noise())
    whole = grower.tree()
    found = tree_of_rows(whole, [2, 1])
    claim: Claim | None = found.claim
    assert isinstance(claim, Drawn) and isinstance(whole.claim, Drawn)
    assert found.tokens.tolist()[:2] == [9, 8] and branches(found) == branches(whole)[:0:-1]
    for row, own in ((0, 2), (1, 1)):
        expected = [whole.claim.row[node] for node in whole.forest.nodes[own]]
        assert [claim.row[node] for node in found.forest.nodes[row]] == expected
    parts = [tree_of_rows(whole, rows) for rows in ([1], [0, 2])]
    again = joined_rows(parts, [[1], [0, 2]])
    assert branches(again) == branches(whole) and again.tokens[:3].tolist() == [7, 8, 9]
