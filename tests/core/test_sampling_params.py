"""Sampling parameters: what is refused, what is normalised, and what the metadata of the fields states."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy
import pytest
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation import logits_process

from outpace.core.sampling_params import (
    BY_NAME,
    LOGIT_PARAMETERS,
    PARAMETERS,
    TRUNCATIONS,
    SamplingParams,
)
from outpace.sampling.warp import CUTS

ROOT = Path(__file__).resolve().parent.parent.parent


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
    assert SamplingParams(seed=10**400, temperature=1).seed == 10**400


def test_every_parameter_has_a_help_text() -> None:
    assert all(parameter.help.endswith(".") for parameter in PARAMETERS)


def test_a_truncation_has_a_function_and_the_processors_of_transformers_exist() -> None:
    assert {each.name for each in TRUNCATIONS} == {"top_k", *CUTS}
    for each in PARAMETERS:
        kind, _, attribute = each.processor.partition(".")
        if kind:
            source = inspect.getsource(getattr(logits_process, kind).__mro__[0])
            assert attribute in source, each.name


def test_processors_of_transformers_come_in_the_order_of_the_declarations() -> None:
    config = {each.transformers: 2 if isinstance(each.default, int) else 0.5 for each in TRUNCATIONS}
    config |= {"do_sample": True, "temperature": 0.5, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    config |= {"bad_words_ids": [[1]], "sequence_bias": [[[2], 1.0]]}
    config = GenerationConfig(**config)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1))
    model._prepare_special_tokens(config)
    found = model._get_logits_processor(config, input_ids_seq_length=1)
    declared = [*LOGIT_PARAMETERS, BY_NAME["temperature"], *TRUNCATIONS]
    names = [each.processor.partition(".")[0] for each in declared if each.processor]
    assert [type(each).__name__ for each in found] == names


def test_what_is_written_from_the_declarations_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = import_module("sampling_parameters")
    for page in script.SECTIONS:
        assert script.filled(page) == page.read_text(encoding="utf-8"), "run scripts/sampling_parameters.py"


def test_only_logit_parameters_change_logits() -> None:
    assert not SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.9).changes_logits
    changed = SamplingParams(temperature=0.5, presence_penalty=1.0)
    assert changed.changes_logits and not changed.without_logit_changes.changes_logits
    assert changed.without_logit_changes == SamplingParams(temperature=0.5)
    assert {each.name for each in LOGIT_PARAMETERS} >= {"logit_bias", "grammar", "min_tokens"}
    assert replace(changed, presence_penalty=0.0).changes_logits is False
