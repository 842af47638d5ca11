"""Mistakes planted in the transformers path are caught by the enumeration, and without one it finds no
error."""

from __future__ import annotations

from functools import cache

import pytest

from outpace.proof.enumeration import BOUND
from outpace.proof.models import Models, transformers_models
from outpace.proof.mutants.transformers_path import TransformersMutant, decoding_error, transformers_mutants


@cache
def models(window: int | None) -> Models:
    return transformers_models(window)


@pytest.mark.parametrize("window", [None, 3])
def test_without_a_mistake_the_distribution_is_plain_decoding(window: int | None) -> None:
    assert decoding_error(models(window)) <= BOUND


@pytest.mark.parametrize("mutant", transformers_mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_caught(mutant: TransformersMutant) -> None:
    assert mutant.error(models(mutant.window)) > 1e6 * BOUND


def test_a_mistake_is_gone_once_its_context_closes() -> None:
    for mutant in transformers_mutants():
        with mutant.planted():
            pass
    assert decoding_error(models(None)) <= BOUND
