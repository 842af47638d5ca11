"""POST /v1/completions, by the openai client."""

from __future__ import annotations

from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import ByT5Tokenizer

import outpace
from outpace.api.logprobs import Logprob

CODE = "def add(a, b):"


def complete(client: Any, prompt: Any = CODE, **given: Any) -> Any:
    return client.completions.create(**{"model": "zoo", "prompt": prompt, "temperature": 0} | given)


def test_the_text_is_that_of_plain_decoding(client: Any, model: Any) -> None:
    [expected] = outpace.generate(model, CODE, "autoregressive", max_tokens=16, temperature=0)
    found = complete(client)  # 16 tokens, as in OpenAI's API
    assert found.choices[0].text == expected.text and found.usage.completion_tokens == 16
    tokens = model.tokenizer(CODE)["input_ids"]
    again = complete(client, tokens)
    assert again.choices[0].text == expected.text
    streamed = complete(client, stream=True, stream_options={"include_usage": True})
    *chunks, counts = streamed
    assert "".join(each.choices[0].text for each in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert not counts.choices and counts.usage == again.usage  # both found the prompt in the prefix cache
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, counts = complete(client, stream=True, stream_options=options)
    assert chunks[-1].usage.completion_tokens == 16 > chunks[0].usage.completion_tokens > 0


def test_several_prompts_have_n_samples_each(client: Any, model: Any) -> None:
    prompts = [CODE, "import os\n"]
    sampled = {"temperature": 0.8, "max_tokens": 6, "seed": 4, "n": 2}
    expected = [result.text for result in outpace.generate(model, prompts, "autoregressive", **sampled)]
    found = complete(client, prompts, **sampled, extra_body={"speculation": False})
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in found.choices] == expected
    assert found.usage.prompt_tokens == sum(len(model.tokenizer(each)["input_ids"]) for each in prompts)
    streamed = [""] * 4
    for chunk in complete(client, prompts, **sampled, stream=True, extra_body={"speculation": False}):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == expected
    ids = [model.tokenizer(each)["input_ids"] for each in prompts]
    assert [each.text for each in complete(client, ids, max_tokens=4).choices] == [
        each.text for each in complete(client, prompts, max_tokens=4).choices
    ]


def test_choices_come_in_the_order_of_the_prompts_whichever_ends_first(client: Any) -> None:
    prompts = [CODE, "import os\n"]
    long, short = (complete(client, prompt).choices[0].text for prompt in prompts)
    stop = next(short[at : at + 3] for at in range(2, len(short)) if short[at : at + 3] not in long)
    found = complete(client, prompts, stop=stop)
    assert [each.text for each in found.choices] == [long, short[: short.index(stop)]]
    assert [each.finish_reason for each in found.choices] == ["length", "stop"]


def test_prompt_and_answer_have_at_most_the_maximum_length(model: Any, serve: Any) -> None:
    length = len(model.tokenizer(CODE)["input_ids"])
    with serve(model, max_length=length + 5) as running:
        for given in ({}, {"max_tokens": 3}):
            found = complete(running.client(), **given, extra_body={"ignore_eos": True})
            assert found.usage.completion_tokens == given.get("max_tokens", 5)
            assert found.choices[0].finish_reason == "length"


def test_a_top_k_of_minus_1_is_no_limit(client: Any) -> None:
    given = {"temperature": 1, "seed": 3, "max_tokens": 6}
    found = [complete(client, **given, extra_body=each).choices[0].text for each in ({}, {"top_k": -1})]
    assert found[0] == found[1]


def test_the_prompt_is_echoed(client: Any) -> None:
    text = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == CODE + text
    assert "".join(each.choices[0].text for each in complete(client, echo=True, stream=True)) == CODE + text
    prompts = [CODE, "import os\n"]
    samples = complete(client, prompts, echo=True, n=2, temperature=1, max_tokens=1).choices
    assert all(samples[index].text.startswith(prompts[index // 2]) for index in range(4))


def test_log_probabilities_are_those_of_plain_decoding(client: Any, model: Any) -> None:
    [expected] = outpace.generate(model, CODE, "autoregressive", max_tokens=10, temperature=0, logprobs=2)
    choice = complete(client, max_tokens=10, logprobs=2).choices[0]
    found = choice.logprobs
    assert found.token_logprobs == pytest.approx([each.raw for each in expected.logprobs], abs=1e-9)
    assert "".join(found.tokens) == choice.text
    assert [
        choice.text[at:][: len(t)] for at, t in zip(found.text_offset, found.tokens, strict=True)
    ] == found.tokens
    for own, tokens, other in zip(found.top_logprobs, found.tokens, expected.logprobs, strict=True):
        assert tokens in own
        assert sorted(own.values(), reverse=True) == pytest.approx([top.raw for top in other.top], abs=1e-9)
    chunks = [each.choices[0].logprobs for each in complete(client, max_tokens=10, logprobs=2, stream=True)]
    joined = [each for each in chunks if each]
    assert [t for each in joined for t in each.tokens] == found.tokens
    assert [t for each in joined for t in each.text_offset] == found.text_offset
    zero = complete(client, max_tokens=3, logprobs=0).choices[0].logprobs
    assert [len(each) for each in zero.top_logprobs] == [1, 1, 1]


def test_offsets_count_the_characters_of_the_text(client: Any, running: Any) -> None:
    bytes_of = running.service.bytes_of
    part = next(token for token in range(running.service.vocab) if bytes_of(token) == b"\xac")
    given = {"max_tokens": 6, "logprobs": 0, "logit_bias": {str(part): 100}}
    # each of these bytes is no character, and the text has a replacement character for it
    choice = complete(client, **given).choices[0]
    assert choice.text == "\N{REPLACEMENT CHARACTER}" * 6 and choice.logprobs.text_offset == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    streamed = complete(client, **given, stream=True, extra_body={"speculation": False})
    chunks = [each.choices[0].logprobs for each in streamed]
    assert [at for each in chunks if each for at in each.text_offset] == [0, 1, 2, 3, 4, 5]


def test_tokens_of_one_character_begin_at_the_same_offset() -> None:
    pytest.importorskip("fastapi")
    from outpace.serving.http.logprob_formats import TextPlaces

    pieces = (b"a", b"\xe2", b"\x82", b"\xac\xe2", b"\x82\xac", b"b")
    bytes_of: Any = SimpleNamespace(add_up=True, in_text=pieces.__getitem__)
    for num_prompt, offsets in ((0, [0, 1, 1, 1, 2, 3]), (2, [0, 0, 1, 2])):
        place_of = TextPlaces(bytes_of, range(num_prompt))  # the second prompt ends within a character
        assert [place_of(token)[0] for token in range(num_prompt, 6)] == offsets


@pytest.mark.parametrize("num_prompt", [0, 1, 2, 3])
def test_offsets_of_a_slow_tokenizer_count_the_characters_of_the_text(num_prompt: int) -> None:
    """It has no bytes by which its tokens are known, and decodes a part of a character to nothing."""
    pytest.importorskip("fastapi")
    from outpace.serving.http.logprob_formats import TextPlaces, TokenBytes, completion_logprobs

    words = ByT5Tokenizer()
    tokens = words("a€é\U0001f389b", add_special_tokens=False)["input_ids"] + [words.eos_token_id] * 2
    bytes_of = TokenBytes(words, len(words))
    place_of = TextPlaces(bytes_of, tokens[:num_prompt])
    found = completion_logprobs([Logprob(each, 0.0, 0.0) for each in tokens[num_prompt:]], bytes_of, place_of)
    offsets = [0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5]  # in the text of all tokens
    assert found["text_offset"] == [max(0, each - (num_prompt > 0)) for each in offsets[num_prompt:]]


def test_a_stream_of_several_prompts_has_the_log_probabilities_and_counts_of_each(client: Any) -> None:
    prompts = [CODE, "import os\n"]
    given = {"max_tokens": 8, "logprobs": 0, "extra_body": {"include_metrics": True}}
    whole, *alone = (complete(client, prompt, **given) for prompt in (prompts, *prompts))
    offsets: list[list[int]] = [[], []]
    chunks = list(complete(client, prompts, **given, stream=True))
    for chunk in chunks:
        if found := chunk.choices[0].logprobs:
            offsets[chunk.choices[0].index] += found.text_offset
    assert [getattr(each, "metrics", None) for each in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].metrics == whole.metrics
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert offsets == [each.choices[0].logprobs.text_offset for each in alone]
    counts = [each.metrics["speculative_decoding"] for each in (whole, *alone)]
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert counts[0][name] == counts[1][name] + counts[2][name]
    accepted_at = [each["num_accepted_tokens_per_pos"] for each in counts]
    assert accepted_at[0] == [sum(each) for each in zip_longest(*accepted_at[1:], fillvalue=0)]
    assert all(sum(at) == each["num_accepted_tokens"] for at, each in zip(accepted_at, counts, strict=True))


def test_the_end_of_text_ends_it_unless_it_is_ignored(client: Any, model: Any) -> None:
    end = {str(model.tokenizer.eos_token_id): 100}
    [choice] = complete(client, logit_bias=end).choices
    assert (choice.text, choice.finish_reason) == ("", "stop")
    found = complete(client, logit_bias=end, max_tokens=4, logprobs=0, extra_body={"ignore_eos": True})
    assert found.usage.completion_tokens == 4 and found.choices[0].finish_reason == "length"
    # special tokens are not in the text, so they have no length
    assert found.choices[0].text == "" and found.choices[0].logprobs.text_offset == [0, 0, 0, 0]
