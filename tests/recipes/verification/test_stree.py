"""STree: trees of a draft model's most probable tokens, on targets with recurrent layers and on any other."""

from __future__ import annotations

import pytest

from outpace.core.sampling_params import SamplingParams
from outpace.models.eager.recurrent_forward import RecurrentForward
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.models import RECURRENT_CODES, RecurrentCode, recurrent_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.verification.stree import stree

PROMPTS = [[0, 1, 2, 0, 1], [2, 2], [1]]


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_is_accepted_further_than_the_chain_in_it(seed: int) -> None:
    target, draft = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 100, order=2)
    chain, tree = (
        expected_accepted(lambda widths=widths: stree.build(target, draft=draft, widths=widths), 2)
        for widths in ((1, 1), (2, 1))
    )
    assert tree > chain


@pytest.mark.parametrize("code", RECURRENT_CODES)
def test_texts_of_a_recurrent_target_are_those_of_plain_decoding(code: RecurrentCode) -> None:
    models = recurrent_models(code)
    target, draft = models.target, models.drafts[0]
    assert isinstance(target, HFTarget) and isinstance(target.forward, RecurrentForward)
    assert set(target.forward.products) == {0}, "its recurrent layer reads trees in one product"
    sampling = [SamplingParams(temperature, max_tokens=12, seed=3) for temperature in (0.0, 0.8, 1.0)]
    expected = texts(autoregressive.build(target), PROMPTS, sampling)
    assert texts(stree.build(target, draft=draft), PROMPTS, sampling) == expected
