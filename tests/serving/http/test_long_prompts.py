"""Prompts that are far too long are refused before they are tokenized, and long ones hold back nobody."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import AddedToken, normalizers

from outpace.serving.http.logprob_formats import TokenBytes
from outpace.serving.http.preparation import LONG_BYTES, MAX_LONG, NUM_LONG_THREADS
from outpace.serving.http.prompt_length import LeastTokens

CHAT_PATH, TEXT_PATH, RESPONSE_PATH = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CHAT = {"model": "zoo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = "def add(a, b): return a + b\n"
NUM_REQUESTS = 8


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def watched(running: Any) -> Iterator[Any]:
    """A record of the long texts that the server tokenizes, which waits for `goes_on` within each."""
    tokenizer = running.service.tokenizer
    record = SimpleNamespace(goes_on=Event(), lengths=[], active=0, most=0, lock=Lock())

    class Watched(type(tokenizer)):
        def __call__(self, text: Any, *arguments: Any, **options: Any) -> Any:
            if len(text) > LONG_BYTES // 2:
                with record.lock:
                    record.lengths.append(len(text))
                    record.active += 1
                    record.most = max(record.most, record.active)
                record.goes_on.wait(120)
                record.active -= 1
            return super().__call__(text, *arguments, **options)

    kind, tokenizer.__class__ = type(tokenizer), Watched
    yield record
    record.goes_on.set()
    tokenizer.__class__ = kind


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT_PATH, {"prompt": TEXT * 10_000}, "prompt"),
        (TEXT_PATH, {"prompt": ["a", TEXT * 10_000]}, "prompt"),
        (CHAT_PATH, {"messages": said(TEXT * 10_000)}, "messages"),
        (CHAT_PATH, {"messages": said(TEXT) * 8000}, "messages"),
        (CHAT_PATH, CHAT | {"prediction": {"type": "content", "content": TEXT * 10_000}}, "prediction"),
        (RESPONSE_PATH, {"input": TEXT * 10_000}, "input"),
    ],
)
def test_a_far_too_long_prompt_is_not_tokenized(
    running: Any, watched: Any, path: str, body: Any, param: str
) -> None:
    status, found, _ = running.call(path, {"model": "zoo"} | body)
    assert (status, found["error"]["param"]) == (400, param), found
    assert found["error"]["code"] == "context_length_exceeded" and "at least" in found["error"]["message"]
    assert not watched.lengths


def test_long_prompts_are_tokenized_by_few_threads_and_short_ones_do_not_wait(
    running: Any, watched: Any, wait: Any
) -> None:
    long = {"model": "zoo", "prompt": "x" * (LONG_BYTES + 1000)}  # not refused by its length alone
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        waiting = [pool.submit(running.call, TEXT_PATH, long) for _ in range(NUM_REQUESTS)]
        wait(lambda: watched.active == NUM_LONG_THREADS)
        assert running.call(CHAT_PATH, CHAT)[0] == 200
        assert running.call("/tokenize", {"prompt": "a"})[0] == 200
        watched.goes_on.set()
        assert [each.result(120)[0] for each in waiting] == [400] * NUM_REQUESTS
    assert watched.most == NUM_LONG_THREADS and len(watched.lengths) == NUM_REQUESTS


def test_too_many_long_prompts_are_asked_to_come_later(
    running: Any, watched: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service.preparation, "_num_long", MAX_LONG)
    status, found, headers = running.call(TEXT_PATH, {"model": "zoo", "prompt": "x" * LONG_BYTES})
    assert status == 429 and headers["retry-after"] and "try again later" in found["error"]["message"]


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.NFKC(), normalizers.Strip()])
def test_no_text_has_fewer_tokens_than_the_bound(running: Any, model: Any, normalizer: Any) -> None:
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True, rstrip=True)})
    if normalizer is not None:
        tokenizer.backend_tokenizer.normalizer = normalizer
    bytes_of = copy.copy(running.service.bytes_of)
    bytes_of.tokenizer = tokenizer
    least = LeastTokens(bytes_of, running.service.vocab)
    spaces = " " * 400 + "\u3000" * 400
    for text in (
        "e\u0301" * 500,
        "\u1100\u1161\u11a8" * 300,
        "\U0001d400" * 300,
        f"a{spaces}<mask>{spaces}b",
        TEXT * 20,
    ):
        num_tokens = len(tokenizer(text)["input_ids"])
        assert least.exceeds(text, 0) <= num_tokens
    assert least.exceeds(TEXT * 1000, 0) > 400  # it is of use


def test_a_tokenizer_with_unknown_characters_has_no_bound(model: Any) -> None:
    class Bytes:
        add_up, tokenizer = True, model.tokenizer

        def __call__(self, token: int) -> bytes:
            return b"ab"[token : token + 1]  # all other bytes are one unknown token

    assert LeastTokens(cast(TokenBytes, Bytes()), 2).exceeds("z" * 10_000, 0) == 0


def test_variables_of_the_template_count_too(
    running: Any, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}"
    monkeypatch.setattr(running.service.tokenizer, "chat_template", template)
    for path, body in ((CHAT_PATH, CHAT), (RESPONSE_PATH, {"input": "Hello"})):
        status, found, _ = running.call(path, body | {"chat_template_kwargs": {"mood": TEXT * 10_000}})
        assert status == 400 and "at least" in found["error"]["message"]
    assert not watched.lengths
