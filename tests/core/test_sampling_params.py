"""Sampling parameters: what is refused, what is normalised, and what the metadata of the fields states."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from outpace.core.sampling_params import LOGIT_PARAMETERS, PARAMETERS, SamplingParams


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("max_tokens", 2.5, "max_tokens is 2.5; use a whole number"),
        ("max_tokens", "4", "max_tokens is '4'; use a whole number"),
        ("seed", None, "seed is None; use a whole number"),
        ("top_k", True, "top_k is True; use a whole number"),
        ("temperature", "1", "temperature is '1'; use a number"),
        ("stop", 5, "stop is 5; use a tuple"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        replace(SamplingParams(), **{name: value})


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-7, float("inf"), float("nan")])
def test_a_temperature_that_overflows_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature is .*use 0 for greedy decoding"):
        SamplingParams(temperature=temperature)


def test_numpy_integers_become_python_integers() -> None:
    numbers = {"seed": numpy.int64(2**62), "max_tokens": numpy.int32(3)}
    params = replace(SamplingParams(), **numbers)
    assert type(params.seed) is int and type(params.max_tokens) is int


def test_every_parameter_has_a_help_text() -> None:
    assert all(parameter.metadata["help"].endswith(".") for parameter in PARAMETERS)


def test_only_logit_parameters_change_logits() -> None:
    assert not SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.9).changes_logits
    changed = SamplingParams(temperature=0.5, presence_penalty=1.0)
    assert changed.changes_logits and not changed.without_logit_changes.changes_logits
    assert changed.without_logit_changes == SamplingParams(temperature=0.5)
    assert {each.name for each in LOGIT_PARAMETERS} >= {"logit_bias", "grammar", "min_tokens"}
    assert replace(changed, presence_penalty=0.0).changes_logits is False
