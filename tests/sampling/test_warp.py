"""Distributions after temperature, top-k and top-p equal those of the installed transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from outpace.core.sampling_params import SamplingParams
from outpace.sampling import warp as module
from outpace.sampling.topk import WIDE_ROW
from outpace.sampling.warp import warp

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("vocabulary", [7, 3000, WIDE_ROW + 3])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 5000])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999, 1.0])
def test_distributions_equal_transformers(
    vocabulary: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(6, vocabulary, generator=GENERATOR, dtype=torch.float64) * 2
    theirs = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        theirs.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        theirs.append(TopPLogitsWarper(top_p))
    expected = theirs(torch.zeros(6, 1, dtype=torch.int64), logits.clone()).softmax(-1)
    ours = warp(logits, [SamplingParams(temperature, top_k, top_p)] * 6)
    assert torch.allclose(ours, expected, atol=1e-12)


def test_a_head_too_short_for_top_p_falls_back_to_the_whole_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(3, 500, generator=GENERATOR, dtype=torch.float64)
    sampling = [SamplingParams(1.0, top_p=0.95)] * 3
    expected = warp(logits, sampling)
    monkeypatch.setattr(module, "HEAD", 4)
    assert torch.equal(warp(logits, sampling), expected)


@pytest.mark.parametrize("top_k", [1, 3, 20, 40])
def test_of_equal_logits_top_k_keeps_all(top_k: int) -> None:
    logits = torch.randn(6, WIDE_ROW, generator=GENERATOR)
    logits[1, ::700] = 7.0  # some, which are among the tokens that are looked at, and many
    logits[2, ::100] = 7.0
    logits[3] = logits[3].bfloat16()
    expected = TopKLogitsWarper(top_k)(torch.zeros(6, 1, dtype=torch.int64), logits.clone()).softmax(-1)
    found = warp(logits, [SamplingParams(1.0, top_k)] * 6)
    assert torch.equal(found > 0, expected > 0) and torch.allclose(found, expected)
    assert int((found[2] > 0).sum()) > top_k


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1.0, top_k=5),
        SamplingParams(0.7, top_k=20, top_p=0.8),
        SamplingParams(1.0, top_p=0.9),
        SamplingParams(1.0, min_p=0.05),
        SamplingParams(1.0, top_k=30, typical_p=0.9),
    ],
)
def test_a_row_does_not_depend_on_the_others(sampling: SamplingParams) -> None:
    logits = torch.randn(5, WIDE_ROW, generator=GENERATOR)
    logits[1] *= 20
    logits[2, ::100] = 9.0
    logits[3, 4], logits[4, 5] = float("nan"), float("inf")
    before, together = logits.clone(), warp(logits, [sampling] * 5)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    for row in range(3):
        assert torch.equal(together[row], warp(logits[row : row + 1], [sampling])[0])
        assert together[row].sum() == pytest.approx(1, abs=1e-5)
    assert together[3:].isnan().all()  # so that every token shows it


def test_rows_with_settings_of_their_own() -> None:
    logits = torch.randn(3, 50, generator=GENERATOR, dtype=torch.float64)
    sampling = [SamplingParams(0.0), SamplingParams(0.7), SamplingParams(1.0, top_k=3)]
    together = warp(logits, sampling)
    for row, each in enumerate(sampling):
        assert torch.equal(together[row], warp(logits[row : row + 1], [each])[0])
    assert together[0].max() == 1 and int((together[2] > 0).sum()) == 3


def test_precision_is_at_least_float32_and_float64_stays() -> None:
    logits = torch.randn(2, 50, generator=GENERATOR)
    assert warp(logits.bfloat16(), [SamplingParams(1.0)] * 2).dtype == torch.float32
    assert warp(logits.double(), [SamplingParams(1.0)] * 2).dtype == torch.float64


@pytest.mark.parametrize(
    "options",
    [{"temperature": -0.1}, {"max_tokens": 0}, {"top_k": -1}, {"top_p": 0.0}, {"temperature": float("nan")}],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="use|ask"):
        SamplingParams(**options)  # one bad value each
