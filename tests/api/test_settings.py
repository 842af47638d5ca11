"""What the caller leaves open comes from the checkpoint; what the checkpoint asks for is honoured or refused."""

from __future__ import annotations

import pytest
from transformers import GenerationConfig

from outpace.api.settings import MAX_TOKENS, OTHER_LAWS, OTHER_SAMPLING, settle


def test_without_defaults_decoding_is_greedy():
    settings = settle(None, None)
    assert (settings.temperature, settings.top_k, settings.top_p, settings.max_tokens) == (0, 0, 1, MAX_TOKENS)


def test_a_checkpoint_that_samples_is_sampled_from():
    defaults = GenerationConfig(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=7, eos_token_id=[3, 4]
    )
    settings = settle(defaults, None)
    assert (settings.temperature, settings.top_k, settings.top_p, settings.max_tokens) == (0.6, 20, 0.9, 7)
    assert settings.stop_tokens == (3, 4)


def test_the_caller_has_the_last_word():
    defaults = GenerationConfig(do_sample=True, temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=7)
    settings = settle(defaults, None, temperature=0, max_tokens=3)
    assert (settings.temperature, settings.top_k, settings.top_p, settings.max_tokens) == (0, 0, 1, 3)
    assert settle(defaults, None, temperature=1.0, top_k=0).top_p == 0.9
    assert settle(defaults, None, ignore_eos=True).stop_tokens == ()


def test_a_checkpoint_that_does_not_sample_is_greedy_whatever_its_temperature():
    assert settle(GenerationConfig(temperature=0.6), None).temperature == 0


def test_the_tokenizer_knows_the_end_where_the_checkpoint_does_not():
    class Words:
        eos_token_id = 9

    assert settle(GenerationConfig(), Words()).stop_tokens == (9,)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.2), ("no_repeat_ngram_size", 2), ("bad_words_ids", [[3]]), ("suppress_tokens", [3])],
)
def test_what_changes_the_law_and_can_be_applied_is_applied(name, value):
    assert len(settle(GenerationConfig(**{name: value}), None).processors) == 1


@pytest.mark.parametrize("name", [name for name, _ in OTHER_LAWS])
def test_what_cannot_be_applied_is_refused(name):
    defaults = GenerationConfig()
    setattr(defaults, name, 7)
    with pytest.raises(ValueError, match=f"sets {name}.*--no-defaults"):
        settle(defaults, None)


@pytest.mark.parametrize("name", [name for name, _ in OTHER_SAMPLING])
def test_what_only_sampling_reads_is_refused_only_then(name):
    defaults = GenerationConfig()
    setattr(defaults, name, 0.3)
    settle(defaults, None, temperature=0)
    with pytest.raises(ValueError, match=name):
        settle(defaults, None, temperature=1)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_k": -1, "temperature": 1}, "top_k is -1"),
        ({"top_p": 0.0, "temperature": 1}, "top_p is 0.0"),
        ({"stop": ""}, "stop string is empty"),
        ({"stop": ["a", ""]}, "stop string is empty"),
    ],
)
def test_impossible_wishes_are_told_before_anything_runs(wish, sentence):
    with pytest.raises(ValueError, match=sentence):
        settle(None, None, **wish)
