"""RSD-C: different children of a node are worth more than independent ones."""

from __future__ import annotations

import pytest

from outpace.law.acceptance import expected_accepted
from outpace.models.toy import Table
from outpace.recipes.mcsd import mcsd
from outpace.recipes.rsd_c import rsd_c

BUDGET = 30  # draft nodes


def pair(seed: int) -> tuple[Table, Table]:
    return Table(3, seed=seed, order=2), Table(3, seed=seed + 100, order=2)


@pytest.mark.parametrize("widths", [(2,), (2, 1)])
def test_accepts_more_than_independent_children_on_average(widths: tuple[int, ...]) -> None:
    without, independent = 0.0, 0.0
    for seed in range(12 if len(widths) == 1 else 4):
        target, draft = pair(seed)
        without += expected_accepted(lambda t=target, d=draft: rsd_c.build(t, draft=d, widths=widths), len(widths))
        independent += expected_accepted(
            lambda t=target, d=draft: mcsd.build(t, draft=d, widths=widths, replace=True), len(widths)
        )
    assert without > independent


def test_as_many_children_as_tokens_are_always_accepted() -> None:
    target, draft = pair(0)
    assert expected_accepted(lambda: rsd_c.build(target, draft=draft, widths=(3,)), 1) == pytest.approx(1, abs=1e-12)


def test_the_default_tree_spends_the_budget() -> None:
    nodes, level = 0, 1
    for width in rsd_c.options["widths"].default:
        level *= width
        nodes += level
    assert nodes == BUDGET
