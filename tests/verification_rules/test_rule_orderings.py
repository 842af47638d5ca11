"""Which verification rule accepts more at one node: the formulas in orderings.py give the same
acceptance probabilities as enumeration, and the inequalities between rules hold for random p and q."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.verification_rules.orderings import greedy_last, k_sequential, margins, recursive
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Verifier
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.greedy_last import greedy_last as all_but_one
from outpace.drafters.model.grow import AddChildren, grow, with_replacement
from outpace.models.table import TableTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.rejection import Rejection


def distributions(vocab: int, seed: int, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(2, vocab, dtype=torch.float64, generator=generator) * spread).softmax(-1)
    return p, q


def enumerated(p: Tensor, q: Tensor, count: int, verifier: Verifier, children: AddChildren) -> float:
    models = []
    for distribution in (p, q):
        model = TableTarget(len(distribution), order=1)
        model.logits = distribution.log().expand(2 * len(distribution), -1).contiguous()
        models.append(model)
    target, draft = models
    growth = partial(grow, children=children)
    parts = Parts(target, DraftModel(draft, growth=growth), verifier, Fixed(Shape.branching((count,))))
    return expected_accepted(lambda: parts, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_are_what_the_rules_keep(seed: int, count: int) -> None:
    p, q = distributions(4, seed)
    kept = enumerated(p, q, count, Rejection(), with_replacement)
    assert recursive(p, q, count) == pytest.approx(kept, abs=1e-12)
    # a token drawn again from what is left counts as kept too, but at the smallest scale that does not happen
    kept = enumerated(p, q, count, KSequential(tolerance=0), with_replacement)
    assert k_sequential(p, q, count) == pytest.approx(kept, abs=1e-12)
    kept = enumerated(p, q, count, Rejection(), all_but_one)
    assert greedy_last(p, q, count)[0] == pytest.approx(kept, abs=1e-12)


@pytest.mark.parametrize("spread", [0.3, 1.5, 6.0])
def test_they_hold_on_random_distributions(spread: float) -> None:
    for seed in range(20):
        for count in (1, 2, 4):
            assert min(margins(*distributions(50, seed, spread), count).values()) >= -1e-9


def test_equal_distributions_and_distributions_apart() -> None:
    p, _ = distributions(6, 0)
    assert recursive(p, p, 3) == k_sequential(p, p, 3) == 1.0
    one, other = torch.eye(4, dtype=torch.float64)[:2]
    assert recursive(one, other, 3) == k_sequential(one, other, 3) == 0.0
    assert min(margins(one, other, 3).values()) >= -1e-9
