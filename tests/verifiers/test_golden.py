"""Acceptance of each rule on small distributions, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Target, Verifier
from outpace.core.grower import Grower
from outpace.core.noise import Key
from outpace.core.tree import Shape
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.greedy_last import greedy_last
from outpace.drafters.model.grow import grow
from outpace.models.table import TableTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.verifiers.block import Block
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from outpace.verifiers.traversal import Traversal


def flat(*distribution: float) -> TableTarget:
    """A model whose distribution is the same everywhere."""
    model = TableTarget(len(distribution), order=1)
    model.logits = (
        torch.tensor(distribution, dtype=torch.float64).log().expand(2 * len(distribution), -1).contiguous()
    )
    return model


def accepted(target: Target, drafter: Callable[[], Drafter], verifier: Verifier, shape: Shape) -> float:
    return expected_accepted(lambda: Parts(target, drafter(), verifier, Fixed(shape)), shape.depth)


P, Q = flat(1 / 3, 2 / 3), flat(2 / 3, 1 / 3)
P3, Q3 = flat(0.3, 0.4, 0.3), flat(0.6, 0.3, 0.1)
PAIR = Shape.branching((2,))


class TopTwo:
    """The two likeliest tokens, chosen."""

    want = DraftModel.want
    learns_across_rows = drafts_across_rows = False
    claims = ()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        grower = Grower(ctx.roots)
        grower.add_chosen([0, 0], Q3.logits[0].topk(2).indices)
        return Draft(grower.tree())

    def observe(self, step: object) -> None: ...
    def release(self, slots: object) -> None: ...


def test_token_level_rejection_accepts_ten_ninths_of_two() -> None:
    assert accepted(P, lambda: DraftModel(Q), Rejection(), Shape.branching((1, 1))) == pytest.approx(
        10 / 9, abs=1e-12
    )


def test_one_draw_is_accepted_with_the_overlap_of_the_distributions() -> None:
    assert accepted(P3, lambda: DraftModel(Q3), Rejection(), Shape.branching((1,))) == pytest.approx(
        0.70, abs=1e-12
    )


def test_two_independent_draws() -> None:
    assert accepted(P3, lambda: DraftModel(Q3, replace=True), Rejection(), PAIR) == pytest.approx(
        0.82, abs=1e-12
    )


def test_two_draws_without_replacement() -> None:
    assert accepted(P3, lambda: DraftModel(Q3), Rejection(), PAIR) == pytest.approx(0.875, abs=1e-12)


def test_the_likeliest_token_and_one_drawn_from_the_rest() -> None:
    assert accepted(
        P3, lambda: DraftModel(Q3, growth=partial(grow, children=greedy_last)), Rejection(), PAIR
    ) == pytest.approx(0.95, abs=1e-12)


@pytest.mark.parametrize("verifier", [Rejection(), Match()])
def test_the_two_likeliest_tokens(verifier: Verifier) -> None:
    assert accepted(P3, TopTwo, verifier, PAIR) == pytest.approx(0.70, abs=1e-12)


class GivenDraws:
    """The tree a -> {b, c}, c -> {a}, as if it had just been drawn without replacement."""

    want = DraftModel.want
    learns_across_rows = drafts_across_rows = False
    claims = (Drawn,)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        q = Q3.logits[:1].exp()
        grower = Grower(ctx.roots)
        a, c = grower.add_drawn([0], q, 2, Given([0, 2]))
        grower.add_drawn([a], q, 2, Given([1, 2]))
        grower.add_drawn([c], q, 1, Given([0]))
        return Draft(grower.tree())

    def observe(self, step: object) -> None: ...
    def release(self, slots: object) -> None: ...


class Given:
    """Noise with given draws."""

    def __init__(self, columns: list[int]) -> None:
        self._columns = columns

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return torch.tensor([self._columns])

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return torch.tensor(self._columns)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        raise AssertionError("only draws are given")


def test_a_given_tree_of_draws_without_replacement_top_down() -> None:
    # a is kept half the time and b below it always; else c is always kept, and a below it half the time
    assert accepted(P3, GivenDraws, Rejection(), Shape.branching((1, 1))) == pytest.approx(1.75, abs=1e-12)


def test_every_token_drawn_is_always_accepted() -> None:
    assert accepted(P3, lambda: DraftModel(Q3), Rejection(), Shape.branching((3,))) == pytest.approx(
        1, abs=1e-12
    )


def test_a_draft_of_the_target_itself_is_always_accepted() -> None:
    assert accepted(P3, lambda: DraftModel(P3), Rejection(), Shape.branching((1, 1))) == pytest.approx(
        2, abs=1e-12
    )


def test_identical_drafters_are_independent_draws_of_one() -> None:
    two = accepted(
        P3,
        lambda: UnionDrafter([DraftModel(Q3, replace=True) for _ in range(2)]),
        Rejection(random_order=True),
        Shape((0,)),
    )
    assert two == pytest.approx(0.82, abs=1e-12)


def test_matching_accepts_less_than_rejection() -> None:
    def overlap(p: Tensor, q: Tensor) -> float:
        return float((p * q).sum())

    matched = accepted(P3, lambda: DraftModel(Q3), Match(), Shape.branching((1,)))
    assert matched == pytest.approx(overlap(P3.logits[0].exp(), Q3.logits[0].exp()), abs=1e-12)
    assert matched < 0.70


def test_a_block_keeps_eleven_ninths_of_two() -> None:
    assert accepted(P, lambda: DraftModel(Q), Block(), Shape.branching((1, 1))) == pytest.approx(
        11 / 9, abs=1e-12
    )


def test_a_given_tree_of_draws_without_replacement_bottom_up() -> None:
    # a b is kept 2/3 of the time, else a c 7/11 of it, else c alone or with the a below it, each as often
    assert accepted(P3, GivenDraws, Traversal(), Shape.branching((1, 1))) == pytest.approx(64 / 33, abs=1e-12)
