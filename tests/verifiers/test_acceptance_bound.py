"""The bound of the acceptance probability is the optimal transport, and no rule accepts more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from benchmarks.verification_rules.inclusion import inclusion_probabilities
from outpace.bench.measure import best_coupling as bound
from outpace.bench.measure.best_coupling import Draws, acceptance_bound, acceptance_bounds
from outpace.models.table import TableTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.recipes import get

P3, Q3 = torch.tensor([[0.3, 0.4, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)
REPLACE = pytest.mark.parametrize("replace", [True, False], ids=["independent", "distinct"])


def random_distribution(size: int, generator: torch.Generator, spread: float = 2.0) -> Tensor:
    return (torch.randn(size, dtype=torch.float64, generator=generator) * spread).softmax(0)


def orders(q: Sequence[float], count: int, replace: bool) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every sequence of draws with its probability."""
    total = sum(q)
    if not count or total <= 0:
        yield (), 1.0
        return
    for token, weight in enumerate(q):
        if weight > 0:
            left = list(q) if replace else [0.0 if other == token else each for other, each in enumerate(q)]
            for rest, probability in orders(left, count - 1, replace):
                yield (token, *rest), probability * weight / total


def drafts(draws: Sequence[Draws], chosen: Sequence[int] = ()) -> dict[frozenset[int], float]:
    """Every set of drafted tokens with its probability."""
    found = {frozenset(chosen): 1.0}
    for each in draws:
        wider: dict[frozenset[int], float] = {}
        for tokens, probability in orders(each.q.tolist(), each.count, each.replace):
            for before, other in found.items():
                wider[before | set(tokens)] = wider.get(before | set(tokens), 0.0) + probability * other
        found = wider
    return found


def transport(p: Tensor, sets: dict[frozenset[int], float]) -> float:
    """The most mass that p can move to drafts that hold the token, by linear programming."""
    pairs = [(token, index) for index, tokens in enumerate(sets) for token in tokens]
    limits = np.zeros((len(p) + len(sets), len(pairs)))
    for column, (token, index) in enumerate(pairs):
        limits[token, column] = limits[len(p) + index, column] = 1
    return -linprog(-np.ones(len(pairs)), A_ub=limits, b_ub=[*p.tolist(), *sets.values()], method="highs").fun


def best_set(p: Tensor, sets: dict[frozenset[int], float]) -> float:
    """The dual, over every set of tokens."""
    every = chain.from_iterable(combinations(range(len(p)), size) for size in range(len(p) + 1))
    return min(
        float(p[list(kept)].sum()) + 1 - sum(c for tokens, c in sets.items() if tokens <= set(kept))
        for kept in every
    )


@REPLACE
@pytest.mark.parametrize("seed", range(25))
def test_it_is_the_best_transport(seed: int, replace: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    size, count = 2 + seed % 4, 1 + seed % 5 % 4
    p, q = random_distribution(size, generator), random_distribution(size, generator)
    if seed % 4 == 1 and size > 2:
        q[0] = 0  # a truncated distribution
        q /= q.sum()
    chosen = [seed % size] if seed % 3 == 0 else []
    draws = [Draws(q, count, replace)]
    found = acceptance_bound(p, draws, chosen)
    assert found == pytest.approx(best_set(p, drafts(draws, chosen)), abs=1e-12)
    assert found == pytest.approx(transport(p, drafts(draws, chosen)), abs=1e-9)  # as exact as the solver


@pytest.mark.parametrize("seed", range(10))
def test_greedy_drafting_reaches_it(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = random_distribution(5, generator), random_distribution(5, generator)
    top = q.topk(1 + seed % 3).indices
    rest = q.clone()
    rest[top] = 0
    rest /= rest.sum()
    draws = [Draws(rest, 1, False)]
    off = torch.minimum(p, rest).sum()
    found = acceptance_bound(p, draws, top.tolist())
    assert found == pytest.approx(float(p[top].sum() + off), abs=1e-12)
    assert found == pytest.approx(transport(p, drafts(draws, top.tolist())), abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_draws_of_several_distributions_stay_below_it(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = random_distribution(4, generator)
    draws = [
        Draws(random_distribution(4, generator), 1 + seed % 2, True),
        Draws(random_distribution(4, generator), 2, seed % 3 == 0),
    ]
    assert acceptance_bound(p, draws) >= transport(p, drafts(draws)) - 1e-9


def test_numbers_worked_out_by_hand() -> None:
    assert acceptance_bound(P3, [Draws(Q3, 2, True)]) == pytest.approx(0.89, abs=1e-12)
    assert acceptance_bound(P3, [Draws(Q3, 2, False)]) == pytest.approx(139 / 140, abs=1e-12)
    assert acceptance_bound(P3, [Draws(Q3, 1, False)]) == pytest.approx(0.70, abs=1e-12)
    assert acceptance_bound(P3, [], [0, 1]) == pytest.approx(0.70, abs=1e-12)
    rest = torch.tensor([0, 0.75, 0.25]).double()
    assert acceptance_bound(P3, [Draws(rest, 1, False)], [0]) == pytest.approx(0.95, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_inclusion_probabilities(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    size, count = 3 + seed % 3, 1 + seed % 4
    q = random_distribution(size, generator)
    wanted = [
        sum(c for drawn, c in orders(q.tolist(), count, False) if token in drawn) for token in range(size)
    ]
    tokens = [size - 1, 0]
    assert inclusion_probabilities(Draws(q, count, False), tokens) == pytest.approx(
        [wanted[t] for t in tokens], abs=1e-12
    )


@pytest.mark.parametrize("count", [2, 3])
def test_a_nearly_certain_draft_is_no_trouble(count: int) -> None:
    for rest in (1e-6, 1e-9, 1e-12):
        q = torch.tensor([1 - rest, rest * 0.5, rest * 0.3, rest * 0.2], dtype=torch.float64)
        p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        draws = [Draws(q, count, False)]
        assert acceptance_bound(p, draws) == pytest.approx(best_set(p, drafts(draws)), abs=1e-9)


@REPLACE
def test_single_precision_gives_no_nonsense(replace: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, generator=generator) * 4
    p, q = logits.softmax(0), (logits + 1e-4 * torch.randn(2000, generator=generator)).softmax(0)
    one, two, four = (acceptance_bound(p, [Draws(q, count, replace)]) for count in (1, 2, 4))
    assert 0.999 < one <= two + 1e-6 <= four + 2e-6 <= 1 + 3e-6


def test_a_large_vocabulary_leaves_it_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = random_distribution(300, generator, 4.0), random_distribution(300, generator, 4.0)
    draws, tokens = Draws(q, 3, False), q.topk(3).indices.tolist()
    whole, probabilities = acceptance_bound(p, [draws]), inclusion_probabilities(draws, tokens)
    monkeypatch.setattr(bound, "MAX_EXACT_TOKENS", 100)
    assert whole <= acceptance_bound(p, [draws]) <= whole + 0.01
    fewer = inclusion_probabilities(draws, tokens)
    assert all(low <= high + 1e-12 for low, high in zip(fewer, probabilities, strict=True))
    assert fewer == pytest.approx(probabilities, abs=0.01)


def test_weights_scale_the_target() -> None:
    half, whole = acceptance_bounds(P3, [Draws(Q3, 2, True)], (), (0.5, 1.0))
    assert half == pytest.approx(min(0.5, best_set(0.5 * P3, drafts([Draws(Q3, 2, True)]))), abs=1e-12)
    assert whole == acceptance_bound(P3, [Draws(Q3, 2, True)])


@REPLACE
@pytest.mark.parametrize("seed", range(5))
def test_recursive_rejection_stays_below_it(seed: int, replace: bool) -> None:
    target, draft = TableTarget(4, seed=seed, order=1), TableTarget(4, seed=seed + 50, order=1)
    p, q = (model.logits[model.state((0,))].softmax(0) for model in (target, draft))
    accepted = expected_accepted(lambda: get("mcsd")(target, draft=draft, widths=(2,), replace=replace), 1)
    assert accepted <= acceptance_bound(p, [Draws(q, 2, replace)]) + 1e-12
