"""Every wrong request gets one sentence in OpenAI's format, with the right status."""

from __future__ import annotations

import copy
import dataclasses
import http.client
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "zoo", "messages": HELLO, "max_tokens": 2, "temperature": 0}
HELLO_ONLY = {"model": "zoo", "messages": HELLO}
BAD_SCHEMA = {"type": "json_schema", "schema": {"type": "nothing"}}
TEXT = {"model": "zoo", "prompt": "def", "max_tokens": 2, "temperature": 0}
CHAT_PATH, TEXT_PATH, RESPONSE_PATH = "/v1/chat/completions", "/v1/completions", "/v1/responses"
IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}]
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT_PATH, CHAT | {"temperature": "hot"}, "temperature", "is 'hot'; use a number"),
        (CHAT_PATH, CHAT | {"temperature": True}, "temperature", "use a number"),
        (CHAT_PATH, CHAT | {"temperature": -1}, "temperature", "positive number"),
        (CHAT_PATH, CHAT | {"max_tokens": 1.5}, "max_tokens", "use a whole number"),
        (CHAT_PATH, CHAT | {"max_tokens": 0}, "max_tokens", "at least one token"),
        (
            CHAT_PATH,
            HELLO_ONLY | {"max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens is 0",
        ),
        (
            CHAT_PATH,
            HELLO_ONLY | {"max_completion_tokens": 3, "min_tokens": 5},
            "min_tokens",
            "and max_completion_tokens 3",
        ),
        (TEXT_PATH, TEXT | {"max_tokens": -1}, "max_tokens", "max_tokens is -1"),
        (
            RESPONSE_PATH,
            {"model": "zoo", "input": "x", "max_output_tokens": 0},
            "max_output_tokens",
            "max_output_tokens is 0",
        ),
        (
            RESPONSE_PATH,
            {
                "model": "zoo",
                "input": "x",
                "text": {"format": BAD_SCHEMA},
            },
            "text.format",
            "text.format cannot be read",
        ),
        (CHAT_PATH, CHAT | {"top_p": 2}, "top_p", "at most 1"),
        (CHAT_PATH, CHAT | {"n": 0}, "n", "at least 1"),
        (CHAT_PATH, CHAT | {"n": 2}, "n", "temperature 0"),
        (CHAT_PATH, CHAT | {"stop": 3}, "stop", "use a string or a list"),
        (CHAT_PATH, CHAT | {"stream": "yes"}, "stream", "true or false"),
        (CHAT_PATH, CHAT | {"logit_bias": {"a": 1}}, "logit_bias", "token ids to numbers"),
        (CHAT_PATH, CHAT | {"logit_bias": {"99999": 1}}, "logit_bias", "0 to 4095"),
        (CHAT_PATH, CHAT | {"messages": []}, "messages", "at least one element"),
        (CHAT_PATH, CHAT | {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'user'"),
        (
            CHAT_PATH,
            CHAT | {"messages": [{"role": "user", "content": IMAGE}]},
            "messages[0].content[0].type",
            "'text'",
        ),
        (CHAT_PATH, {"model": "zoo"}, "messages", "is missing"),
        (
            CHAT_PATH,
            CHAT | {"messages": [{"role": "user", "content": "x " * 3000}]},
            "messages",
            "at most 2048",
        ),
        (CHAT_PATH, CHAT | {"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (CHAT_PATH, CHAT | {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
        (CHAT_PATH, CHAT | {"response_format": {"type": "json_schema"}}, "response_format", "has no schema"),
        (CHAT_PATH, CHAT | {"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            CHAT_PATH,
            CHAT | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "tools are: f",
        ),
        (
            CHAT_PATH,
            CHAT | {"speculation": {"method": "magic"}},
            "speculation.method",
            "has speculative-sampling",
        ),
        (CHAT_PATH, CHAT | {"speculation": 3}, "speculation", "true or false or an object"),
        (TEXT_PATH, TEXT | {"prompt": ""}, "prompt", "is empty"),
        (TEXT_PATH, TEXT | {"prompt": []}, "prompt", "at least one"),
        (TEXT_PATH, TEXT | {"prompt": [4096]}, "prompt", "0 to 4095"),
        (TEXT_PATH, TEXT | {"prompt": "x " * 3000}, "prompt", "at most 2048"),
        (TEXT_PATH, TEXT | {"suffix": "x"}, "suffix", "leave it out"),
        (TEXT_PATH, TEXT | {"best_of": 3}, "best_of", "n samples"),
        (TEXT_PATH, TEXT | {"echo": True, "logprobs": 1, "stream": True}, "stream", "leave out stream"),
        (TEXT_PATH, TEXT | {"max_tokens": 0}, "max_tokens", "at least one token"),
        (CHAT_PATH, CHAT | {"prompt_logprobs": 21}, "prompt_logprobs", "at most 20"),
        (TEXT_PATH, TEXT | {"prompt": ["a", "b"], "n": 100, "temperature": 1}, "n", "at most 128"),
        (RESPONSE_PATH, {"model": "zoo", "input": []}, "input", "at least one element"),
        (
            RESPONSE_PATH,
            {"model": "zoo", "input": "x", "previous_response_id": "y"},
            "previous_response_id",
            "whole input",
        ),
        (RESPONSE_PATH, {"model": "zoo", "input": "x", "background": True}, "background", "use stream"),
    ],
)
def test_a_wrong_value_is_named(running: Any, path: str, body: Any, param: str, words: str) -> None:
    status, found, _ = running.call(path, body)
    error = found["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert words in error["message"] and "\n" not in error["message"] and "pydantic" not in error["message"]


def test_what_is_not_json_is_refused(running: Any) -> None:
    for body, words in (
        (b'{"model": ', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff", "cannot be read"),
        (b'{"model": "zoo", "prompt": "\\ud800"}', "valid Unicode"),
        (
            b'{"model": "zoo", "prompt": "a", "extra": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
            "cannot be read",
        ),
        (b'{"model": "zoo", "prompt": "a", "max_tokens": ' + b"1" * 5000 + b"}", "cannot be read"),
    ):
        status, found, _ = running.call(TEXT_PATH, body)
        assert status == 400 and words in found["error"]["message"], found
    status, found, _ = running.call(TEXT_PATH, b"{}", Content_Type="text/plain")
    assert status == 400 and "content-type application/json" in found["error"]["message"]


def test_an_unknown_model_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**CHAT | {"model": "other"})
    assert caught.value.code == "model_not_found" and "use zoo" in caught.value.message


def test_a_long_prompt_has_openais_code(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**TEXT | {"prompt": [5] * 2048})
    assert caught.value.code == "context_length_exceeded"


def test_a_bad_schema_is_refused(client: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="response_format cannot be read"):
        client.chat.completions.create(**CHAT, response_format=wanted)


def test_excluding_every_token_fails_the_request_alone(client: Any) -> None:
    nothing = {str(token): float("-inf") for token in range(4096)}
    body = CHAT | {"logit_bias": nothing}
    with pytest.raises((openai.BadRequestError, ValueError)):
        client.chat.completions.create(**body)
    assert client.chat.completions.create(**CHAT).choices


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_keys_limits_and_sizes(model: Any, serve: Any) -> None:
    with serve(model, api_keys=["one", "two"], rate_limit=3, max_request_bytes=500) as running:
        with pytest.raises(openai.AuthenticationError) as caught:
            running.client("three").completions.create(**TEXT)
        assert caught.value.code == "invalid_api_key"
        assert (
            running.call("/v1/models")[0] == 401 and running.call("/v1/models", Authorization="one")[0] == 401
        )
        assert running.call("/health")[0] == running.call("/metrics")[0] == 200
        key = {"Authorization": "Bearer one"}
        status, found, _ = running.call(TEXT_PATH, TEXT | {"prompt": "x" * 600}, **key)
        assert status == 413 and "at most 500 bytes" in found["error"]["message"]
        pieces = [b'{"prompt": "', *[b"x" * 100] * 6, b'"}']
        assert _chunked(running, pieces, key, seconds=0.05)[0] == 413  # no piece alone is too large
        assert _chunked(running, [b'{"model": "zoo", "max_tokens": 1,', b'"prompt": "a"}'], key)[0] == 200
        with pytest.raises(openai.RateLimitError) as limited:
            running.client("one").completions.create(**TEXT)
        assert 0 < int(limited.value.response.headers["retry-after"]) <= 60
        assert running.client("two").completions.create(**TEXT).choices
        assert running.client("one").models.list().data  # only requests for work count


def _chunked(
    running: Any, pieces: list[bytes], headers: dict[str, str], seconds: float = 0
) -> tuple[int, bytes]:
    """Status and body of the response to a POST without Content-Length, with pauses of so many seconds."""

    def slowly() -> Iterator[bytes]:
        for piece in pieces:
            time.sleep(seconds)
            yield piece

    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
    given = {"Content-Type": "application/json"} | headers
    connection.request("POST", TEXT_PATH, slowly(), given, encode_chunked=True)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_a_failure_of_the_server_is_an_error_500(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.service, "requests", lambda *_, **__: 1 / 0)
    status, found, _ = running.call(TEXT_PATH, TEXT)
    assert (status, found["error"]["type"]) == (500, "server_error")
    assert "division" not in found["error"]["message"]


def test_a_failure_of_decoding_ends_a_stream_with_an_error(
    running: Any, model: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(model.target, "score", lambda *_, **__: 1 / 0)
    assert running.call(TEXT_PATH, TEXT)[0] == 500
    with pytest.raises(openai.APIError, match="server's log"):
        list(running.client().completions.create(**TEXT, stream=True))
    monkeypatch.undo()
    assert running.client().completions.create(**TEXT).choices


def test_text_of_a_token_that_the_model_has_not_is_refused(model: Any, serve: Any) -> None:
    """The forward would fail, and with it the requests of all clients."""
    words = copy.deepcopy(model.tokenizer)
    words.add_tokens(["<extra>"])
    with serve(dataclasses.replace(model, tokenizer=words), "prompt-lookup") as running:
        prediction = {"type": "content", "content": "<extra>"}
        for path, body, param in (
            (TEXT_PATH, TEXT | {"prompt": "def <extra>"}, "prompt"),
            (CHAT_PATH, CHAT | {"messages": [{"role": "user", "content": "<extra>"}]}, "messages"),
            (CHAT_PATH, CHAT | {"prediction": prediction}, "prediction"),
        ):
            status, found, _ = running.call(path, body)
            assert status == 400 and found["error"]["param"] == param
            assert f"the model's tokens are 0 to {running.service.vocab - 1}" in found["error"]["message"]
