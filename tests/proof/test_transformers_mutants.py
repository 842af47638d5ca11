"""Mistakes planted in the transformers path are caught by the enumeration, and without one it finds no
error."""

from __future__ import annotations

from functools import cache

import pytest

from outpace.proof.enumeration import BOUND
from outpace.proof.models import Models, transformers_models
from outpace.proof.mutants.transformers_path import decoding_error, transformers_mutants
from tests.tiers import only, slow


@cache
def models(window: int | None) -> Models:
    return transformers_models(window)


# of position ids, attention masks, the cache and the order of rows
QUICK = {
    "position ids by cache slot",
    "sibling visible",
    "accepted node missing in the cache",
    "rows mixed up",
    "missing entries visible",
}
MUTANTS = {mutant.name: mutant for mutant in transformers_mutants()}


@pytest.mark.parametrize("window", [slow(None), 3])  # without one: the last test
def test_without_a_mistake_the_distribution_is_plain_decoding(window: int | None) -> None:
    assert decoding_error(models(window)) <= BOUND


@pytest.mark.parametrize("name", only(QUICK, MUTANTS))
def test_a_planted_mistake_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.error(models(mutant.window)) > 1e6 * BOUND


def test_a_mistake_is_gone_once_its_context_closes() -> None:
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
    assert decoding_error(models(None)) <= BOUND
