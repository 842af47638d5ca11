"""Log probabilities of prompts: `echo` with `logprobs`, as for lm-eval, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from outpace.serving.prompt_reader import TOKENS_AT_ONCE
from outpace.zoo import path

CODE = "def add(a, b):\n    return a + b\n"
LONG = CODE * (2 * TOKENS_AT_ONCE // 12 + 1)


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(path("target"), dtype=torch.float64)


def expected(reference: Any, tokens: list[int]) -> torch.Tensor:
    """(T - 1, V) log-softmax of transformers before each token but the first."""
    with torch.no_grad():
        return reference(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)


def complete(client: Any, prompt: Any = CODE, **given: Any) -> Any:
    return client.completions.create(**{"model": "zoo", "prompt": prompt, "temperature": 0} | given)


@pytest.mark.parametrize("text", [CODE, LONG, "d"])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echoed_prompt_has_the_log_probabilities_of_transformers(
    client: Any, model: Any, reference: Any, text: str, max_tokens: int
) -> None:
    tokens = model.tokenizer(text)["input_ids"]
    assert text is not LONG or len(tokens) > 2 * TOKENS_AT_ONCE
    raw = expected(reference, tokens)
    answer = complete(client, text, echo=True, logprobs=2, max_tokens=max_tokens, seed=1)
    [choice] = answer.choices
    found, num = choice.logprobs, len(tokens)
    assert answer.usage.prompt_tokens == num and answer.usage.completion_tokens == max_tokens
    assert len(found.tokens) == len(found.token_logprobs) == num + max_tokens
    assert choice.finish_reason == "length" and choice.text.startswith(text)
    assert max_tokens or choice.text == text
    own = raw[range(num - 1), tokens[1:]].tolist()
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    assert found.token_logprobs[1:num] == pytest.approx(own, abs=1e-9)
    for at, top in enumerate(found.top_logprobs[1:num]):
        best = raw[at].topk(2).values.tolist()
        assert sorted(top.values(), reverse=True)[:2] == pytest.approx(best, abs=1e-9)
        # lm-eval takes the most probable of these as the greedy token
        assert (max(top, key=top.get) == found.tokens[at + 1]) == (
            own[at] == pytest.approx(best[0], abs=1e-12)
        )
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token


@pytest.mark.slow
def test_prompts_as_token_ids_are_read_beside_other_requests(client: Any, model: Any, reference: Any) -> None:
    texts = ["import os\n", "for i in range(3):", CODE]
    ids = [model.tokenizer(each)["input_ids"] for each in texts]
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(complete, client, "def f(", max_tokens=60, extra_body={"ignore_eos": True})
        choices = complete(client, ids, echo=True, logprobs=1, max_tokens=1).choices
        alone = complete(client, "def f(", max_tokens=60, extra_body={"ignore_eos": True})
        assert plain.result(120).choices[0].text == alone.choices[0].text
    for choice, tokens, text in zip(choices, ids, texts, strict=True):
        own = expected(reference, tokens)[range(len(tokens) - 1), tokens[1:]].tolist()
        assert choice.logprobs.token_logprobs[1:-1] == pytest.approx(own, abs=1e-9)
        assert choice.text == text + complete(client, tokens, max_tokens=1).choices[0].text


def test_vllms_prompt_logprobs_have_ranks(client: Any, model: Any, reference: Any) -> None:
    tokens = model.tokenizer(CODE)["input_ids"]
    raw = expected(reference, tokens)
    answer = complete(client, max_tokens=1, extra_body={"prompt_logprobs": 1})
    chosen = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True
    )
    chat = client.chat.completions.create(
        model="zoo",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=1,
        extra_body={"prompt_logprobs": 0},
    )
    assert len(chat.prompt_logprobs) == len(chosen["input_ids"]) and not chat.choices[0].logprobs
    first, *found = answer.choices[0].prompt_logprobs
    assert first is None and answer.choices[0].logprobs is None
    for at, (entries, token) in enumerate(zip(found, tokens[1:], strict=True)):
        rank = int((raw[at] > raw[at, token]).sum()) + 1
        assert entries[str(token)]["rank"] == rank
        assert entries[str(token)]["logprob"] == pytest.approx(float(raw[at, token]), abs=1e-9)
        best = int(raw[at].argmax())
        assert entries[str(best)]["rank"] == 1 and len(entries) == len({best, token})


@pytest.mark.slow
def test_a_prompt_is_read_within_the_memory_given(model: Any, serve: Any) -> None:
    def asked(running: Any) -> Any:
        return complete(running.client(), LONG, echo=True, logprobs=0, max_tokens=2).choices[0]

    with serve(model) as running:
        free = asked(running)
        needed = running.service.engine._scheduler._bytes_for({0: 330 + 64})
    with serve(model, kv_bytes=int(1.3 * needed)) as running, ThreadPoolExecutor(2) as pool:
        client = running.client()
        other = pool.submit(complete, client, "def f(", max_tokens=200, extra_body={"ignore_eos": True})
        assert asked(running) == free
        assert other.result(120).usage.completion_tokens == 200


def test_a_failure_while_a_prompt_is_read_ends_that_request_alone(
    running: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "zoo", "prompt": CODE, "max_tokens": 2, "temperature": 0}
    monkeypatch.setattr(model.target, "prefill", lambda *_, **__: 1 / 0)
    assert running.call("/v1/completions", body | {"prompt_logprobs": 0})[0] == 500
    monkeypatch.undo()
    assert running.call("/v1/completions", body | {"prompt_logprobs": 0})[0] == 200


def test_only_an_echo_may_generate_nothing(client: Any) -> None:
    answer = complete(client, echo=True, max_tokens=0)
    assert answer.choices[0].text == CODE and answer.usage.completion_tokens == 0
