"""What of a checkpoint ends a text: end-of-text tokens and max_length, as in transformers' generate."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import outpace
from outpace.api.model import as_model
from outpace.api.settings import MAX_TOKENS, only_ends, resolve_settings

PROMPT = "def add(a, b):"
METHODS = {"autoregressive": False, "speculative-sampling": True}  # name -> whether it has a draft model


@pytest.fixture
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64)


@pytest.fixture
def draft(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.draft, dtype=torch.float64)


@pytest.fixture(scope="module")
def words(tiny):
    return AutoTokenizer.from_pretrained(tiny.target)


def written(model, words, **options):
    """The new tokens of transformers' own greedy decoding."""
    inputs = words(PROMPT, return_tensors="pt")
    return model.generate(**inputs, do_sample=False, **options)[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_text_ends_with_its_turn_also_without_the_checkpoints_settings(model, draft, words, method):
    usual = written(model, words, max_new_tokens=24)
    model.generation_config.eos_token_id = [0, usual[9]]
    model.generation_config.repetition_penalty = 1.6  # dropped
    options = {"draft": draft} if METHODS[method] else {}
    found = outpace.generate(
        model, PROMPT, method, tokenizer=words, max_tokens=24, defaults=False, **options
    )[0]
    assert found.tokens == usual[: usual.index(usual[9]) + 1]
    assert (found.finish_reason, found.stop_reason) == ("stop", usual[9])


def test_the_advice_for_a_setting_that_is_refused_keeps_the_end_of_text():
    defaults = GenerationConfig(eos_token_id=[3, 4], stop_strings=["###"], num_beams=4, top_k=7, max_length=9)
    with pytest.raises(ValueError, match="sets num_beams.*defaults=False"):
        resolve_settings({}, defaults)
    settings = resolve_settings({}, only_ends(defaults))
    assert (settings.params.stop, settings.stop) == ((3, 4), ("###",))
    assert (settings.params.top_k, settings.params.max_tokens, settings.max_length) == (0, MAX_TOKENS, None)


def test_a_checkpoint_whose_generation_config_names_no_end_has_that_of_its_config(model):
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = 5
    assert as_model(model).defaults.eos_token_id == 5
    assert model.generation_config.eos_token_id is None  # the model is not changed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 21}])
def test_a_text_ends_at_the_checkpoints_max_length_unless_new_tokens_are_counted(
    model, draft, words, method, options
):
    model.generation_config.max_length = 19  # prompt included
    usual = written(model, words, **options)
    assert len(usual) == 21 if options else len(usual) < 19
    chosen = {"draft": draft} if METHODS[method] else {}
    limit = {"max_tokens": options["max_new_tokens"]} if options else {}
    found = outpace.generate(model, PROMPT, method, tokenizer=words, **limit, **chosen)[0]
    assert (found.tokens, found.finish_reason) == (usual, "length")
    inside = written(model, words, custom_generate=outpace.hf(method, **chosen), **options)
    assert inside == usual


def test_a_max_length_above_the_usual_number_of_tokens_is_reached():
    settings = resolve_settings({}, GenerationConfig(max_length=1000))
    assert settings.row_params(0, settings.free_length(10, 2048)).max_tokens == 990 > MAX_TOKENS
    assert settings.row_params(0, settings.free_length(10, 500)).max_tokens == 490
    # new tokens take precedence, whoever counts them
    for given, count in (({"max_tokens": 7}, 7), ({}, 8)):
        config = GenerationConfig(max_length=1000, max_new_tokens=8)
        assert resolve_settings(given, config).row_params(0, 2000).max_tokens == count


def test_a_prompt_as_long_as_max_length_is_refused_as_by_transformers(model, words):
    model.generation_config.max_length = 3
    with pytest.raises(ValueError, match="max_length"):
        written(model, words)
    with pytest.raises(ValueError, match=r"max_length 3, prompt included: set max_tokens"):
        outpace.generate(model, PROMPT, "autoregressive", tokenizer=words)
