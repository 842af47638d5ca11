"""Greedy multi-draft decoding: the drafted tokens are as described, and no rule accepts them more often."""

from __future__ import annotations

import pytest
import torch

from outpace.bench.measure.best_coupling import Draws, acceptance_bound
from outpace.core.claim import Drawn
from outpace.core.contracts import Verdict
from outpace.core.grower import Grower
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.greedy_last import greedy_last
from outpace.models.table import TableTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.verification.mcsd import mcsd
from outpace.recipes.verification.optimal_mdsd import optimal_mdsd
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection


def pair(seed: int, vocab: int = 4) -> tuple[TableTarget, TableTarget]:
    return TableTarget(vocab, seed=seed, order=2), TableTarget(vocab, seed=seed + 100, order=2)


def accepted(seed: int, widths: tuple[int, ...], vocab: int = 4) -> float:
    target, draft = pair(seed, vocab)
    return expected_accepted(lambda: optimal_mdsd.build(target, draft=draft, widths=widths), len(widths))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_accepted_as_often_as_any_rule_could(seed: int, width: int) -> None:
    target, draft = pair(seed)
    p, q = (model.logits[model.state((0,))].softmax(0) for model in (target, draft))
    top = q.topk(width - 1).indices.tolist()
    rest = q.clone()
    rest[top] = 0
    best = acceptance_bound(p, [Draws(rest / rest.sum(), 1, False)], top)
    assert accepted(seed, (width,)) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_one_candidate_a_level_is_speculative_sampling(seed: int) -> None:
    target, draft = pair(seed)
    chain = expected_accepted(lambda: speculative_sampling.build(target, draft=draft, depth=2), 2)
    assert accepted(seed, (1, 1)) == pytest.approx(chain, abs=1e-12)


def test_every_token_as_a_candidate_is_always_accepted() -> None:
    assert accepted(0, (4,)) == pytest.approx(1, abs=1e-12)
    assert accepted(0, (9,)) == pytest.approx(1, abs=1e-12)  # more than there are


@pytest.mark.slow
def test_on_average_it_accepts_more_than_independent_draws() -> None:
    def independent(seed: int) -> float:
        target, draft = pair(seed, 6)
        return expected_accepted(lambda: mcsd.build(target, draft=draft, widths=(2,), replace=True), 1)

    assert sum(accepted(seed, (2,), 6) - independent(seed) for seed in range(25)) > 0


def grown(q: torch.Tensor, widths: list[int], **options: bool) -> Grower:
    grower = Grower(torch.zeros(len(q), dtype=torch.int64), **options)
    greedy_last(grower, list(range(len(q))), widths, q, KeyedNoise([0] * len(q), [1] * len(q), [1] * len(q)))
    return grower


def test_the_likeliest_are_chosen_and_the_last_is_drawn_from_the_rest() -> None:
    q = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.4, 0.2, 0.2, 0.2]], dtype=torch.float64)
    tree = grown(q, [3, 1], confidence=True).tree()
    claim = tree.claim
    assert isinstance(claim, Drawn) and tree.confidence is not None
    children = tree.forest.children
    assert [len(below) for below in children[:2]] == [3, 1]
    first, second, last = children[0]
    assert tree.tokens[[first, second]].tolist() == [1, 2] and claim.row[first] == claim.row[second] == -1
    torch.testing.assert_close(claim.q[claim.row[last]], torch.tensor([0.5, 0, 0, 0.5]).double())
    torch.testing.assert_close(claim.q[claim.row[children[1][0]]], q[1])
    assert tree.confidence.exp()[[first, second]].tolist() == pytest.approx([0.5, 0.3])


def test_equal_probabilities_are_decided_once() -> None:
    tree = grown(torch.full((1, 6), 1 / 6), [4]).tree()
    tokens = [int(tree.tokens[child]) for child in tree.forest.children[0]]
    assert len(set(tokens)) == 4


def test_nothing_is_drawn_where_nothing_is_left() -> None:
    tree = grown(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]), [3, 3]).tree()
    assert [len(below) for below in tree.forest.children[:2]] == [2, 1]
    assert tree.claim is None


def test_the_default_tree_has_one_chosen_and_one_drawn_child_a_node() -> None:
    parts = optimal_mdsd.build(TableTarget(6, seed=1), draft=TableTarget(6, seed=2, order=2))
    session = Session(
        parts, [torch.tensor([0])], [SamplingParams(temperature=1.0, max_tokens=9, seed=1)], LazyTargetProbs
    )
    draft = next(iter(session.steps())).draft
    claim, forest = draft.tree.claim, draft.tree.forest
    assert isinstance(claim, Drawn) and draft.forwards == 4 and len(draft.tree) == 1 + 30
    for children in forest.children:
        assert [claim.row[child] >= 0 for child in children] in ([], [False, True])


class Distributions:
    """A distribution at each node, in place of a target's."""

    seconds = 0.0

    def __init__(self, p: torch.Tensor) -> None:
        self.p, self.requested = p, set[int]()

    def probs(self, nodes: list[int]) -> torch.Tensor:
        self.requested |= set(nodes)
        return self.p[nodes]

    def choose(self, nodes: list[int], noise: KeyedNoise, use: str = "target") -> list[int]:
        return self.probs(nodes).argmax(-1).tolist()


def test_nearly_equal_distributions_in_single_precision_give_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    seen: list[torch.Tensor] = []

    class Watched(KeyedNoise):
        def choose(self, probs: torch.Tensor, key: object) -> torch.Tensor:
            seen.append(probs)
            return super().choose(probs, key)

    for seed in range(200):
        logits = (torch.randn(1, 500, generator=generator) * 3).bfloat16()
        q = (logits.float() + 1e-6 * torch.randn(1, 500, generator=generator)).softmax(-1)
        noise = Watched([seed], [1], [1])
        grower = Grower(torch.zeros(1, dtype=torch.int64))
        greedy_last(grower, [0], [3], q, noise)
        tree = grower.tree()
        distribution = Distributions(logits.float().softmax(-1).expand(len(tree), -1))
        verdict = Rejection().verify(tree, distribution, None, noise)
        assert isinstance(verdict, Verdict) and distribution.requested <= {0, *verdict.leaf}
    assert seen and all(
        bool((distribution >= 0).all()) and abs(float(distribution.sum()) - 1) < 1e-4 for distribution in seen
    )
