"""Sampling settings, several samples and log probabilities through the Python interface."""

from __future__ import annotations

import json

import pytest
import torch

import outpace
from tests.tiers import only

PROMPTS = ["def add(a, b):", "class Stack:\n    def push", "for"]
METHODS = ["prompt-lookup", "speculative-sampling", "mcsd", "specinfer", "traversal"]
SETTINGS = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {40: 3.0, "50": -float("inf")}},
    {"bad_words": ["self", [75], [212, 75]]},
    {"min_tokens": 12, "ignore_eos": False},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.2, "presence_penalty": 0.4, "logit_bias": {40: 2.0}, "min_tokens": 9},
]


def options(method, draft):
    known = outpace.recipes.get(method).options
    return {"draft": draft} if "draft" in known else {"drafts": (draft,)} if "drafts" in known else {}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *(("speculative-sampling", settings) for settings in SETTINGS),
        *((method, SETTINGS[-1]) for method in ("prompt-lookup", "specinfer")),
        *(
            pytest.param(method, settings, marks=pytest.mark.slow)
            for method in ("prompt-lookup", "mcsd", "specinfer", "traversal")
            for settings in SETTINGS
            if method in ("mcsd", "traversal") or settings is not SETTINGS[-1]
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "+".join(given),
)
def test_greedy_text_is_that_of_plain_decoding(loaded, method, settings):
    target, draft = loaded
    settings = {"max_tokens": 16, "temperature": 0, **settings}
    plain = outpace.generate(target, PROMPTS, "autoregressive", **settings)
    found = outpace.generate(target, PROMPTS, method, **options(method, draft), **settings)
    assert [result.tokens for result in found] == [result.tokens for result in plain]
    assert [result.finish_reason for result in found] == [result.finish_reason for result in plain]


@pytest.mark.parametrize("method", ["prompt-lookup", "mcsd"])
@pytest.mark.parametrize(
    "settings", [*SETTINGS, {"min_p": 0.05}, {"typical_p": 0.8}], ids=lambda settings: "+".join(settings)
)
def test_sampled_text_by_matching_is_that_of_plain_decoding(loaded, method, settings):
    target, draft = loaded
    settings = {"max_tokens": 16, "temperature": 0.9, "seed": 3, **settings}
    plain = outpace.generate(target, PROMPTS, "autoregressive", **settings)
    how = {**options(method, draft), "naive": True} if method == "mcsd" else {}
    found = outpace.generate(target, PROMPTS, method, **how, **settings)
    assert [result.tokens for result in found] == [result.tokens for result in plain]


@pytest.mark.parametrize("method", only(["prompt-lookup", "specinfer", "traversal"], METHODS))
def test_a_stop_string_ends_it_where_plain_decoding_would(loaded, method):
    """Also inside an accepted path of a tree."""
    target, draft = loaded
    settings = {"max_tokens": 24, "temperature": 0, **options(method, draft)}
    whole = outpace.generate(target, PROMPTS[0], method, **settings)[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    result = outpace.generate(target, PROMPTS[0], method, stop=stop, **settings)[0]
    assert (result.text, result.stop_reason) == (whole.text[: whole.text.index(stop)], stop)
    later = outpace.generate(
        target, PROMPTS[0], method, stop=stop, min_tokens=len(result.tokens), **settings
    )[0]
    assert later.tokens[: len(result.tokens)] == result.tokens and len(later.tokens) > len(result.tokens)


@pytest.mark.parametrize("method", only(["prompt-lookup", "specinfer"], METHODS))
def test_the_end_of_text_waits_for_min_tokens(loaded, method):
    target, draft = loaded
    settings = {"max_tokens": 30, "temperature": 0, **options(method, draft)}
    usual = outpace.generate(target, PROMPTS[0], method, ignore_eos=True, **settings)[0]
    target.defaults.eos_token_id = [0, usual.tokens[4]]
    try:
        early = outpace.generate(target, PROMPTS[0], method, **settings)[0]
        late = outpace.generate(target, PROMPTS[0], method, min_tokens=20, **settings)[0]
    finally:
        target.defaults.eos_token_id = 0
    assert len(early.tokens) <= 5 and len(late.tokens) >= 20
    assert usual.tokens[4] not in late.tokens[:20]


def test_several_samples_have_seeds_of_their_own(loaded):
    target, draft = loaded
    settings = {"draft": draft, "max_tokens": 12, "temperature": 1.0}
    found = outpace.generate(target, PROMPTS[:2], n=3, seed=7, batch=4, **settings)
    seeds = [result.statistics.seed for result in found]
    assert len(found) == 6 and seeds[0] == seeds[3] == 7 and len(set(seeds[:3])) == 3
    assert found[0].tokens == outpace.generate(target, PROMPTS[0], seed=7, **settings)[0].tokens
    for index, result in enumerate(found):
        alone = outpace.generate(target, PROMPTS[index // 3], seed=seeds[index], **settings)[0]
        assert alone.tokens == result.tokens
    assert len({tuple(result.tokens) for result in found[:3]}) == 3


def expected(target, prompt, tokens, k):
    """Raw log probabilities from one plain forward."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target.name, dtype=torch.float64)
    ids = target.tokenizer(prompt)["input_ids"]
    with torch.inference_mode():
        raw = model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    return raw[range(len(tokens)), tokens].tolist(), raw.topk(k).indices.tolist()


@pytest.mark.parametrize("method", ["autoregressive", "prompt-lookup", "speculative-sampling", "mcsd"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs_are_those_of_plain_decoding(loaded, method, temperature):
    target, draft = loaded
    settings = {
        "max_tokens": 14,
        "temperature": temperature,
        "seed": 5,
        "repetition_penalty": 1.2,
        **options(method, draft),
    }
    result = outpace.generate(target, PROMPTS, method, logprobs=3, **settings)[0]
    raw, top = expected(target, PROMPTS[0], result.tokens, 3)
    assert [each.token for each in result.logprobs] == result.tokens
    assert [each.raw for each in result.logprobs] == pytest.approx(raw, abs=1e-9)
    assert [[other.token for other in each.top] for each in result.logprobs] == top
    assert all(each.processed > -float("inf") for each in result.logprobs)
    if temperature == 0:
        assert all(each.processed == 0 for each in result.logprobs)
    else:
        assert any(abs(each.raw - each.processed) > 0.01 for each in result.logprobs)
    assert outpace.generate(target, PROMPTS[0], method, **settings)[0].logprobs is None
    own = outpace.generate(target, PROMPTS[0], method, logprobs=0, **settings)[0].logprobs
    assert [each.raw for each in own] == pytest.approx(raw, abs=1e-9) and not any(each.top for each in own)


def test_processed_logprobs_are_those_of_the_distribution(loaded):
    """Settings that only scale and cut are undone by hand."""
    target, draft = loaded
    settings = {"max_tokens": 10, "temperature": 0.5, "top_k": 2, "seed": 1, "draft": draft}
    for each in outpace.generate(target, PROMPTS[0], logprobs=2, **settings)[0].logprobs:
        distribution = torch.tensor([2 * other.raw for other in each.top], dtype=torch.float64).log_softmax(0)
        assert [other.processed for other in each.top] == pytest.approx(distribution.tolist(), abs=1e-9)


def test_logprobs_end_with_the_text_and_are_json(loaded):
    target, draft = loaded
    settings = {"draft": draft, "max_tokens": 24, "temperature": 0, "logprobs": 2}
    whole = outpace.generate(target, PROMPTS[0], **settings)[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = outpace.generate(target, PROMPTS[0], stop=stop, **settings)[0]
    assert [each.token for each in cut.logprobs] == cut.tokens
    logprobs = json.loads(json.dumps(cut.as_dict(), allow_nan=False))["logprobs"]
    assert len(logprobs) == len(cut.tokens) and [len(each["top"]) for each in logprobs] == [2] * len(logprobs)
    assert min(other["processed"] for each in logprobs for other in each["top"]) == -9999.0
    stream = outpace.stream(target, PROMPTS[0], **settings)
    assert (
        [each for piece in stream.pieces() for each in piece.logprobs]
        == stream.result.logprobs
        == whole.logprobs
    )


def test_logprobs_of_a_draft_that_a_stop_string_cuts_are_those_of_its_first_tokens(loaded):
    target = loaded[0]  # drafts for itself, so that whole drafts are accepted
    settings = {"draft": target, "depth": 6, "max_tokens": 24, "temperature": 0, "logprobs": 0}
    whole = outpace.generate(target, PROMPTS[0], **settings)[0]
    for place in (1, 4, 7):
        cut = outpace.generate(target, PROMPTS[0], stop=whole.text[place : place + 2], **settings)[0]
        first = whole.logprobs[: len(cut.tokens)]
        assert [each.token for each in cut.logprobs] == cut.tokens == [each.token for each in first]
        assert [each.raw for each in cut.logprobs] == pytest.approx([each.raw for each in first], abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": 0}, "n is 0; use at least 1"),
        ({"n": 2, "temperature": 0}, "n is 2, but at temperature 0 all samples are the same"),
        ({"logprobs": -1}, "logprobs is -1; use a number of tokens from 0 to 320"),
        ({"logprobs": 321}, "logprobs is 321"),
        ({"logit_bias": {320: 1.0}}, "logit_bias names token 320, but the model's tokens are 0 to 319"),
        ({"bad_words": [[320]]}, "bad_words names token 320"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9 and max_tokens 8"),
        ({"min_p": 2, "temperature": 1}, "min_p is 2"),
    ],
)
def test_invalid_values_are_refused(loaded, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        outpace.generate(loaded[0], "def", "prompt-lookup", **settings)


def test_a_stream_is_one_text(loaded):
    with pytest.raises(ValueError, match="one prompt and one sample, not 2"):
        outpace.stream(loaded[0], "def", "prompt-lookup", n=2, temperature=1)


def test_min_tokens_never_exceed_the_models_maximum_length(loaded):
    prompts, limits = [[5] * 250, [5] * 240], {"max_tokens": 50, "min_tokens": 40}
    results = outpace.generate(loaded[0], prompts, "prompt-lookup", **limits)
    assert [len(result.tokens) for result in results] == [6, 16]
