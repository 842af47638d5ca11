"""Recursive rejection in single precision: the residual is a distribution after any number of rejections."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Scores
from outpace.core.grower import Grower
from outpace.core.noise import TARGET, Key, KeyedNoise, Noise
from outpace.verifiers.rejection import RESIDUAL, Rejection, residual


class Unlucky(KeyedNoise):
    """Refuses whatever is not certain to be accepted, and looks at the distributions it is given."""

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        assert all(probability >= 0 for probability in accept)
        return [probability >= 1 for probability in accept]

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        assert bool((probs >= 0).all()) and probs.sum(-1).tolist() == pytest.approx(
            [1] * len(probs), abs=1e-4
        )
        self.last = key.use
        return super().choose(probs, key)


class Given:
    """Implementation of core.contracts.TargetProbs with the same distribution at every node."""

    seconds = 0.0

    def __init__(self, p: Tensor) -> None:
        self._p = p

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        assert nodes is not None
        return self._p.expand(len(nodes), -1)

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        assert nodes is not None
        return noise.choose(
            self.probs(nodes), Key([0] * len(nodes), list(nodes), [0] * len(nodes), use)
        ).tolist()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-5, 1e-2, 30.0])
def test_what_is_left_after_many_refusals_is_a_distribution(apart: float, replace: bool) -> None:
    generator, left = torch.Generator().manual_seed(0), 0
    for seed in range(60):
        logits, other = torch.randn(2, 400, generator=generator) * 3
        noise, grower = Unlucky([seed], [1], [1]), Grower(torch.tensor([0]))
        # independent draws may come from two distributions
        for shift in (apart, -apart) if replace else (apart,):
            grower.add_drawn(
                [0],
                (logits + shift * other).softmax(-1)[None],
                4,
                KeyedNoise([seed], [2], [1]),
                replace=replace,
            )
        tree = grower.tree()
        assert isinstance(tree.claim, Drawn)
        Rejection(random_order=replace).verify(tree, Given(logits.softmax(-1)), Scores(0, None), noise)
        left += noise.last == RESIDUAL
    assert left > 0 or apart < 1e-5  # below that rounding decides, which differs between CPUs


def test_a_refusal_that_only_rounding_allows_leaves_the_whole_distribution() -> None:
    p = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).softmax(-1)
    q = p.clone()
    q[0, 3] = torch.nextafter(q[0, 3], torch.tensor(1.0))
    assert torch.equal(residual(p, q, p), p)
