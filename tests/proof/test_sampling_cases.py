"""The sampling parameters of the proofs: each is set, and each changes the reference distribution."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from outpace.core.sampling_params import PARAMETERS
from outpace.proof.sampling_cases import STOP, SamplingParams, crossed, options, stated

VOCAB = 3
TEXTS = list(product(range(VOCAB), repeat=4))
LOGITS = torch.randn((len(TEXTS), VOCAB), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOT_CROSSED = {"no_repeat_ngram_size"}  # it would leave no continuation of grammar and bad words


def test_every_parameter_that_warps_is_among_the_cases() -> None:
    assert {each.name for each in PARAMETERS if each.warps} - NOT_CROSSED == set(options(VOCAB))


@pytest.mark.parametrize("name", options(VOCAB))
def test_a_parameter_changes_the_distribution(name: str) -> None:
    plain = SamplingParams(temperature=1.0, stop=STOP, max_tokens=8)
    changed = SamplingParams(**{"temperature": 1.0, "stop": STOP, "max_tokens": 8} | options(VOCAB)[name])
    shown = [stated(LOGITS.clone(), TEXTS, params, prompt=3) for params in (plain, changed)]
    assert not torch.allclose(*shown)


@pytest.mark.parametrize("num_parameters", [2, 5, 11, 12, 15, 16, 30])
def test_any_two_parameters_meet_in_a_request(monkeypatch: pytest.MonkeyPatch, num_parameters: int) -> None:
    names = [str(number) for number in range(num_parameters)]
    module = "outpace.proof.sampling_cases"
    monkeypatch.setattr(f"{module}.options", lambda vocab: dict.fromkeys(names))
    monkeypatch.setattr(f"{module}._request_params", lambda vocab, chosen, max_tokens: set(chosen))
    requests = list(crossed(VOCAB, 4))
    for one, other in combinations(names, 2):
        found = {(one in request, other in request) for request in requests}
        assert found == set(product((True, False), repeat=2))
    assert num_parameters not in (11, 12, 15) or len(requests) == 7
