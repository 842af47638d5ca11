"""Settings that are not given come from the checkpoint, whose settings are applied or refused."""

from __future__ import annotations

import numpy
import pytest
from transformers import GenerationConfig

from outpace.api.settings import MAX_TOKENS, UNSUPPORTED, UNSUPPORTED_IN_SAMPLING, resolve_settings


def resolve(defaults=None, tokenizer=None, *, vocab=None, stop=None, ignore_eos=False, **given):
    return resolve_settings(given, defaults, tokenizer, vocab=vocab, stop=stop, ignore_eos=ignore_eos)


def shown(settings):
    params = settings.params
    return params.temperature, params.top_k, params.top_p, params.max_tokens


def test_without_defaults_decoding_is_greedy():
    settings = resolve(None, None)
    assert shown(settings) == (0, 0, 1, MAX_TOKENS)


def test_a_checkpoint_that_samples_is_sampled_from():
    defaults = GenerationConfig(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=7, eos_token_id=[3, 4]
    )
    settings = resolve(defaults, None)
    assert shown(settings) == (0.6, 20, 0.9, 7)
    assert settings.params.stop == (3, 4)


def test_the_caller_has_the_last_word():
    defaults = GenerationConfig(do_sample=True, temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=7)
    settings = resolve(defaults, None, temperature=0, max_tokens=3)
    assert shown(settings) == (0, 0, 1, 3)
    assert resolve(defaults, None, temperature=1.0, top_k=0).params.top_p == 0.9
    assert resolve(defaults, None, ignore_eos=True).params.stop == ()


def test_a_checkpoint_that_does_not_sample_is_greedy_whatever_its_temperature():
    assert resolve(GenerationConfig(temperature=0.6), None).params.temperature == 0


def test_the_tokenizer_knows_the_end_where_the_checkpoint_does_not():
    class Words:
        eos_token_id = 9

    assert resolve(GenerationConfig(), Words()).params.stop == (9,)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"bad_words_ids": [[3], [1, 2]]}, {"bad_words": ((3,), (1, 2))}),
        ({"suppress_tokens": [3]}, {"logit_bias": ((3, float("-inf")),)}),
        ({"min_new_tokens": 4}, {"min_tokens": 4}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"do_sample": True, "min_p": 0.1}, {"min_p": 0.1}),
        ({"do_sample": True, "typical_p": 0.9}, {"typical_p": 0.9}),
    ],
)
def test_what_changes_the_distribution_and_can_be_applied_is_applied(settings, found):
    params = resolve(GenerationConfig(**settings), None).params
    assert {name: getattr(params, name) for name in found} == found


def test_the_caller_overrides_the_checkpoint_setting_by_setting():
    defaults = GenerationConfig(
        do_sample=True,
        min_p=0.1,
        typical_p=0.9,
        repetition_penalty=1.2,
        bad_words_ids=[[3]],
        suppress_tokens=[3, 4],
        min_new_tokens=4,
    )
    params = resolve(
        defaults,
        None,
        min_p=0.0,
        typical_p=1.0,
        repetition_penalty=1.0,
        bad_words=(),
        logit_bias={"4": 2},
        min_tokens=0,
    ).params
    assert (
        params.min_p,
        params.typical_p,
        params.repetition_penalty,
        params.bad_words,
        params.min_tokens,
    ) == (0, 1, 1, (), 0)
    assert dict(params.logit_bias) == {3: float("-inf"), 4: 2.0}
    assert resolve(defaults, None, max_tokens=2).params.min_tokens == 2  # what is left of a default


def test_a_bad_word_is_forbidden_as_first_word_and_after_a_space():
    class Words:
        eos_token_id = None

        def __call__(self, text, add_special_tokens):
            assert not add_special_tokens
            return {"input_ids": [len(text)]}

    assert resolve(None, Words(), bad_words="abc").params.bad_words == ((3,), (4,))
    assert resolve(None, Words(), bad_words=["abc", [1, 2]]).params.bad_words == ((3,), (4,), (1, 2))


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_applied_is_refused(name):
    defaults = GenerationConfig()
    setattr(defaults, name, 7)
    with pytest.raises(ValueError, match=f"sets {name}.*--no-defaults"):
        resolve(defaults, None)


@pytest.mark.parametrize("name", UNSUPPORTED_IN_SAMPLING)
def test_what_only_sampling_reads_is_refused_only_then(name):
    defaults = GenerationConfig()
    setattr(defaults, name, 0.3)
    resolve(defaults, None, temperature=0)
    with pytest.raises(ValueError, match=name):
        resolve(defaults, None, temperature=1)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_k": -1, "temperature": 1}, "top_k is -1"),
        ({"top_p": 0.0, "temperature": 1}, "top_p is 0.0"),
        ({"min_p": 1.5, "temperature": 1}, "min_p is 1.5; use a number from 0 to 1"),
        ({"typical_p": 0.0, "temperature": 1}, "typical_p is 0.0"),
        ({"repetition_penalty": -1}, "repetition_penalty is -1"),
        ({"presence_penalty": 3}, "presence_penalty is 3"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9 and max_tokens 8"),
        (
            {"logit_bias": {320: 1.0}, "vocab": 320},
            "logit_bias names token 320, but the model's tokens are 0 to 319",
        ),
        ({"logit_bias": {"word": 1.0}}, "logit_bias maps token ids to numbers"),
        ({"logit_bias": [1, 2]}, "logit_bias maps token ids to numbers"),
        ({"bad_words": [[5, 320]], "vocab": 320}, "bad_words names token 320"),
        ({"bad_words": ["  "]}, "bad word is empty"),
        ({"bad_words": ["no"]}, "bad words in text need a tokenizer"),
        ({"stop": ""}, "stop string is empty"),
        ({"stop": ["a", ""]}, "stop string is empty"),
        ({"stop": 5}, "stop is 5; use a string, or a list of strings"),
    ],
)
def test_impossible_values_are_refused_before_anything_runs(params, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve(None, None, **params)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_tokens": "4"}, "max_tokens is '4'; use a whole number"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5; use a whole number"),
        ({"temperature": "1"}, "temperature is '1'; use a number"),
        ({"top_k": True, "temperature": 1}, "top_k is True; use a whole number"),
    ],
)
def test_values_of_a_wrong_type_are_refused(given, sentence):
    with pytest.raises(TypeError, match=sentence):
        resolve(**given)


def test_a_minimum_of_the_checkpoint_is_cut_to_the_default_maximum():
    assert resolve(GenerationConfig(min_new_tokens=10_000)).params.min_tokens == MAX_TOKENS


def test_a_minimum_of_the_checkpoint_is_cut_to_a_maximum_of_numpy():
    defaults = GenerationConfig(min_new_tokens=4)
    assert resolve(defaults, max_tokens=numpy.int64(2)).params.min_tokens == 2


@pytest.mark.parametrize(
    "given", [{"stop": ["-", "<end>"]}, {"defaults": GenerationConfig(stop_strings=["<end>"])}]
)
def test_a_stop_string_that_is_a_special_token_is_found_by_its_id(tokenizers, given):
    """Special tokens are not in the text, so that the string would never occur."""
    words = tokenizers.byte_level()
    settings = resolve(tokenizer=words, ignore_eos=True, **given)
    assert settings.params.stop == (words.eos_token_id,) and "<end>" in settings.stop
    assert resolve(tokenizer=words, ignore_eos=True, stop=["a", "<en"]).params.stop == ()
    assert resolve(tokenizer=words, stop="<end>").params.stop == (words.eos_token_id,)
    # a token whose text is left out at the beginning of a text is none
    assert resolve(tokenizer=tokenizers.sentence_piece(), ignore_eos=True, stop="\u2581").params.stop == ()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"bad_words": 5}, "bad_words is 5; use a list of texts or of lists of token ids"),
        ({"bad_words": [5, 6]}, r"bad_words is \[5, 6\]; use a list of texts"),
        ({"bad_words": [["a"]]}, "a token of bad_words is 'a'; use a whole number"),
        ({"bad_words": ["\ud800"]}, "a bad word is not UTF-8 text"),
        ({"stop": "\ud800"}, "a stop string is not UTF-8 text"),
        ({"logit_bias": {3.7: 1}}, "logit_bias maps token ids to numbers"),
    ],
)
def test_wrong_words_and_tokens_are_explained(given, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        resolve(None, None, **given)
