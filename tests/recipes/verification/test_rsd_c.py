"""RSD-C: different children of a node are worth more than independent ones."""

from __future__ import annotations

import pytest
import torch

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.proof.expected_acceptance import expected_accepted
from outpace.recipes.verification.mcsd import mcsd
from outpace.recipes.verification.rsd_c import rsd_c
from outpace.sampling.target_probs import LazyTargetProbs

BUDGET = 30  # draft nodes


def pair(seed: int) -> tuple[TableTarget, TableTarget]:
    return TableTarget(3, seed=seed, order=2), TableTarget(3, seed=seed + 100, order=2)


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(2,), (2, 1)])
def test_accepts_more_than_independent_children_on_average(widths: tuple[int, ...]) -> None:
    without, independent = 0.0, 0.0
    for seed in range(12 if len(widths) == 1 else 4):
        target, draft = pair(seed)
        without += expected_accepted(
            lambda t=target, d=draft: rsd_c.build(t, draft=d, widths=widths), len(widths)
        )
        independent += expected_accepted(
            lambda t=target, d=draft: mcsd.build(t, draft=d, widths=widths, replace=True), len(widths)
        )
    assert without > independent


def test_as_many_children_as_tokens_are_always_accepted() -> None:
    target, draft = pair(0)
    assert expected_accepted(lambda: rsd_c.build(target, draft=draft, widths=(3,)), 1) == pytest.approx(
        1, abs=1e-12
    )


def test_the_default_tree_spends_the_budget() -> None:
    nodes, level = 0, 1
    for width in rsd_c.options["widths"].default:
        level *= width
        nodes += level
    assert nodes == BUDGET


def test_children_are_different_and_come_in_the_order_of_perturbed_scores() -> None:
    # the largest of log q plus Gumbel noise is a draw from q, the next one a draw from what is left of q
    target, draft = TableTarget(4, seed=1, order=1), TableTarget(4, seed=2, order=1)
    q = draft.logits[draft.state((0,))].softmax(0).tolist()
    found: dict[tuple[int, ...], float] = {}
    pending = [Branch((), 0)]
    while pending:
        branch = pending.pop()

        def noise(
            seeds: object, turns: list[int], lengths: list[int], branch: Branch = branch
        ) -> EnumeratedNoise:
            return EnumeratedNoise([branch], turns, lengths)

        parts = rsd_c.build(target, draft=draft, widths=(3,))
        sampling = [SamplingParams(temperature=1.0, max_tokens=2)]
        step = next(iter(Session(parts, [torch.tensor([0])], sampling, LazyTargetProbs, noise=noise).steps()))
        children = tuple(step.draft.tree.tokens[1:].tolist())
        found[children] = found.get(children, 0.0) + branch.probability
        pending += [Branch(script, 0) for script in branch.left_open]
    assert len(found) == 24
    for children, probability in found.items():
        first, second, third = (q[token] for token in children)
        assert probability == pytest.approx(
            first * second / (1 - first) * third / (1 - first - second), abs=1e-12
        )
