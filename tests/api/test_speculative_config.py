"""vLLM's speculative configuration is accepted as it is."""

from __future__ import annotations

import json
import warnings

import pytest

from outpace.api import parse_speculative_config


def test_ngram():
    config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    assert parse_speculative_config(config) == ("prompt-lookup", {"depth": 5, "max_ngram": 4})
    assert parse_speculative_config(json.dumps(config)) == parse_speculative_config(config)


def test_suffix():
    config = {
        "method": "suffix",
        "num_speculative_tokens": 16,
        "suffix_decoding_max_tree_depth": 32,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.2,
    }
    expected = {
        "depth": 16,
        "max_tree_depth": 32,
        "max_spec_factor": 2.0,
        "max_spec_offset": 0.0,
        "min_token_prob": 0.2,
    }
    assert parse_speculative_config(config) == ("suffix-decoding", expected)


@pytest.mark.parametrize(
    ("extra", "sampled"),
    [
        ({}, False),
        ({"draft_sample_method": "greedy"}, False),
        ({"draft_sample_method": "probabilistic"}, True),
    ],
)
def test_a_draft_model_is_greedy_unless_sampling_is_set(extra, sampled):
    config = {"model": "some/draft", "num_speculative_tokens": 3, **extra}
    expected = ("speculative-sampling", {"draft": "some/draft", "depth": 3, "sampled": sampled})
    assert parse_speculative_config(config) == expected
    assert parse_speculative_config({"method": "draft_model", **config}) == expected


def test_a_draft_with_another_vocabulary_and_block_verification():
    given = {"method": "draft_model", "model": "some/draft", "num_speculative_tokens": 3}
    expected = ("tli", {"draft": "some/draft", "depth": 3, "sampled": False})
    assert parse_speculative_config({**given, "use_heterogeneous_vocab": True}) == expected
    block = {**given, "rejection_sample_method": "block", "draft_sample_method": "probabilistic"}
    assert parse_speculative_config(block) == ("block-verification", {"draft": "some/draft", "depth": 3})
    plain = {**given, "use_heterogeneous_vocab": False, "rejection_sample_method": "standard"}
    assert parse_speculative_config(plain)[0] == "speculative-sampling"


def test_a_way_of_drafting_that_a_method_lacks_is_named():
    block = {"model": "some/draft", "rejection_sample_method": "block", "draft_sample_method": "greedy"}
    for config in (block, {"method": "ngram", "draft_sample_method": "probabilistic"}):
        with pytest.warns(UserWarning, match="draft_sample_method have no effect"):
            parse_speculative_config(config)


def test_a_model_without_a_method_is_told_by_what_its_folder_holds(tiny, tmp_path):
    from outpace.zoo import path

    assert parse_speculative_config({"model": tiny.draft})[0] == "speculative-sampling"
    heads = ("eagle", "eagle3", "medusa", "hydra", "mlp-speculator", "redrafter")
    for kind in heads:
        assert parse_speculative_config({"model": f"zoo:{kind}"}) == (kind, {"head": f"zoo:{kind}"})
    assert parse_speculative_config({"model": str(path("eagle"))})[0] == "eagle"
    assert parse_speculative_config({"model": str(tmp_path)})[0] == "speculative-sampling"


def test_names_of_our_own_pass_through():
    assert parse_speculative_config({"method": "prompt_lookup"})[0] == "prompt-lookup"


def test_keys_that_mean_nothing_here_are_named_once():
    config = {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "enforce_eager": True,
        "draft_tensor_parallel_size": 2,
    }
    with pytest.warns(
        UserWarning, match="enforce_eager, draft_tensor_parallel_size have no effect on prompt-lookup"
    ) as recorded:
        assert parse_speculative_config(config) == ("prompt-lookup", {"depth": 5})
    assert len(recorded) == 1


def test_no_warning_without_unsupported_settings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_speculative_config({"method": "ngram", "num_speculative_tokens": 5})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"method": "ngram", "num_spec_tokens": 5}, "unknown key 'num_spec_tokens'"),
        ({"num_speculative_tokens": 5}, "has no method"),
        ("{not json", "not JSON"),
        ("[1]", "JSON object"),
        ({"method": "ngrams"}, "no method ngrams"),
        ({"method": "draft_model", "model": "x", "draft_sample_method": "warm"}, "greedy or probabilistic"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "changes the output"),
        ({"model": "x", "revision": "main"}, "the revision of a draft cannot be chosen"),
        ({"method": "ngram", "rejection_sample_method": "block"}, "'block' is for a draft model only"),
        ({"method": "ngram", "rejection_sample_method": ["x"]}, "is not supported"),
        ({"method": "eagle", "model": "x", "use_heterogeneous_vocab": True}, "vocab is for a draft model"),
        ({"model": "x", "use_heterogeneous_vocab": "yes"}, "is true or false, not 'yes'"),
        (
            {"model": "x", "use_heterogeneous_vocab": True, "rejection_sample_method": "block"},
            "for the rejection_sample_method standard only",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_speculative_config(config)
