"""K-sequential selection: the smallest valid scale, the distributions it leaves, and what it accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Scores
from outpace.core.grower import Grower
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.rejection import residual
from outpace.verifiers.rho import any_accepted, least_rho

P3, Q3 = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)
TARGET, DRAFTS = TableTarget(3, seed=1), (TableTarget(3, seed=2, order=2), TableTarget(3, seed=3, order=1))
CASES = [
    Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, max_tokens=3)),
    Case((2, 2), SamplingParams(temperature=1.0, max_tokens=2)),
    Case((1,), SamplingParams(temperature=0.0, max_tokens=3)),
]


def flat(*distribution: float) -> TableTarget:
    model = TableTarget(len(distribution), order=1)
    model.logits = (
        torch.tensor(distribution, dtype=torch.float64).log().expand(2 * len(distribution), -1).contiguous()
    )
    return model


def error(
    drafter: Callable[[], Drafter], verifier: KSequential, *widths: int, cases: Sequence[Case] = CASES
) -> float:
    fixed = Fixed(Shape.branching(widths))
    found = enumerate_distributions(lambda: Parts(TARGET, drafter(), verifier, fixed), cases)
    return largest_error(found, table_logits(TARGET.logits, TARGET.state), cases)


def distributions(count: int, vocab: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        (torch.randn(count, vocab, dtype=torch.float64, generator=generator) * 1.5).softmax(-1),
        (torch.randn(count, vocab, dtype=torch.float64, generator=generator) * 1.5).softmax(-1),
    )


def test_the_scale_of_the_worked_example() -> None:
    p, q = torch.tensor([P3, Q3], dtype=torch.float64)[:, None]
    assert least_rho(p, q, [2])[0][0] == pytest.approx(1.4, abs=1e-12)


@pytest.mark.slow
def test_distribution_is_the_targets_when_two_drafters_draw_from_distributions_of_their_own() -> None:
    cases = [Case((0, 1, 2), SamplingParams(temperature=1.0, max_tokens=2))]
    both = [DraftModel(draft, replace=True) for draft in DRAFTS]
    assert error(lambda: UnionDrafter(both), KSequential(), 2, cases=cases) < BOUND


class Short:
    """Draws twice from a distribution over two listed tokens."""

    want = DraftModel.want
    learns_across_rows = drafts_across_rows = False
    claims: tuple[type[Claim], ...] = (Drawn,)

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        grower = Grower(ctx.roots)
        rows = [row for row, depth in enumerate(plan.depth) if depth]
        if rows:
            q = torch.tensor([[0.75, 0.25]], dtype=self._dtype).expand(len(rows), -1)
            ids = torch.tensor([[2, 0]]).expand(len(rows), -1)
            grower.add_drawn(rows, q, 2, ctx.noise, ids, replace=True)
        return Draft(grower.tree())

    def observe(self, step: object) -> None: ...
    def release(self, slots: object) -> None: ...


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_distribution_is_the_targets_when_the_draft_knows_fewer_tokens(dtype: torch.dtype) -> None:
    assert error(lambda: Short(dtype), KSequential(), 2) < BOUND


def test_draws_without_replacement_are_refused() -> None:
    with pytest.raises(ValueError, match="independent draws only"):
        error(lambda: DraftModel(DRAFTS[0]), KSequential(), 2)


def test_the_scale_is_the_smallest_valid_one_from_above() -> None:
    p, q = distributions(200, 12)
    num = [1 + row % 6 for row in range(200)]
    rho = least_rho(p, q, num)
    for row, ((at, _), k) in enumerate(zip(rho, num, strict=True)):
        assert 1 <= at <= k

        def excess(x: float, row: int = row, k: int = k) -> float:
            overlap = float(torch.minimum(p[row], x * q[row]).sum())
            return overlap - any_accepted(overlap / x, k)

        assert excess(at) >= -1e-14
        assert at == 1 or excess(at - 1e-9) < 0


def test_tolerance_bounds_what_is_given_up() -> None:
    p, q = distributions(100, 12)
    accepted = {}
    for tolerance in (0.0, 1e-2, 0.2, 1.0):
        found = least_rho(p, q, [4] * 100, tolerance)
        accepted[tolerance] = [any_accepted(overlap / at, 4) for at, overlap in found]
        assert all(
            overlap - each > -1e-14 for (_, overlap), each in zip(found, accepted[tolerance], strict=True)
        )
        assert all(
            most - 1e-13 - tolerance <= each
            for most, each in zip(accepted[0.0], accepted[tolerance], strict=True)
        )
    assert sum(accepted[0.0]) > sum(accepted[0.2]) > sum(accepted[1.0])


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_equals_the_formula(seed: int) -> None:
    (p,), (q,) = (distribution.unbind() for distribution in distributions(1, 4, seed))
    parts = Parts(
        flat(*p.tolist()),
        DraftModel(flat(*q.tolist()), replace=True),
        KSequential(tolerance=0),
        Fixed(Shape.branching((2,))),
    )
    rho, _ = least_rho(p[None], q[None], [2])[0]
    expected = any_accepted(float(torch.minimum(p / rho, q).sum()), 2)
    # a token drawn again from what is left counts as accepted too, but at the smallest scale that does not
    # happen
    assert expected_accepted(lambda: parts, 1) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [2, 8])
@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-5, 1e-2, 2.0, 30.0])
def test_single_precision_leaves_no_negative_mass(apart: float, k: int) -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(4, 50_000, generator=generator) * 3
    p = logits.bfloat16().float().softmax(-1)
    q = (logits + apart * torch.randn(4, 50_000, generator=generator)).bfloat16().float().softmax(-1)
    rho, factor = KSequential().scale(p, q, [k] * 4)
    scales = p.new_tensor([rho, factor])[:, :, None]
    used = torch.minimum(p / scales[0], q) * scales[1]
    left = residual(p, used, p)
    assert all(1 <= at <= k for at in rho) and all(
        0 <= each <= at for each, at in zip(factor, rho, strict=True)
    )
    assert float((p - used).min()) > -1e-6 * float(p.max())
    assert bool((left >= 0).all()) and left.sum(-1) == pytest.approx(torch.ones(4).tolist(), abs=1e-5)


def test_only_visited_nodes_are_requested() -> None:
    class Counting(LazyTargetProbs):
        requested: set[int] = set()

        def probs(self, nodes: Sequence[int] | None) -> Tensor:
            assert nodes is not None
            self.requested.update(nodes)
            return super().probs(nodes)

    vocab, generator = 50, torch.Generator().manual_seed(0)
    grower = Grower(torch.tensor([0]))
    noise = KeyedNoise([1], [1], [1])
    level = [0]
    for width in (4, 1, 1):
        q = torch.randn(len(level), vocab, generator=generator).softmax(-1)
        level = grower.add_drawn(level, q, width, noise, replace=True)
    tree = grower.tree()
    logits = torch.randn(len(tree), vocab, generator=generator)
    ctx = Context(
        (torch.tensor([0]),), (1,), (9,), (0,), TableTarget(2).open(1, 9), (SamplingParams(1.0),), noise
    )
    distribution = Counting(Scores(0, logits), tree, ctx)
    verdict = KSequential().verify(tree, distribution, Scores(0, logits), noise)
    assert distribution.requested == set(tree.forest.path(verdict.leaf[0]))
