"""Options of the server: defaults of requests, the maximum length, other sites, the version."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from typing import Any

import openai
import pytest
from transformers import GenerationConfig

import outpace

CODE = "def add(a, b):"


def complete(running: Any, **given: Any) -> Any:
    return running.client().completions.create(**{"model": "zoo", "prompt": CODE} | given)


@pytest.mark.slow
def test_requests_have_the_servers_defaults_unless_they_say_otherwise(model: Any, serve: Any) -> None:
    overrides = {"temperature": 0, "repetition_penalty": 1.4, "max_new_tokens": 20, "min_new_tokens": 2}

    def expected(**given: Any) -> str:
        chosen = {"max_tokens": 16, "temperature": 0, "repetition_penalty": 1.4} | given
        return outpace.generate(model, CODE, "autoregressive", **chosen)[0].text

    with serve(model, overrides=overrides) as running:
        assert complete(running).choices[0].text == expected()
        own = {"repetition_penalty": 1.0}
        assert complete(running, extra_body=own).choices[0].text == expected(repetition_penalty=1.0)
        extra = {"ignore_eos": True}
        assert complete(running, max_tokens=50, extra_body=extra).usage.completion_tokens == 20
        message = {"role": "user", "content": "Say hello to Noah."}
        chat = running.client().chat.completions.create(model="zoo", messages=[message], extra_body=extra)
        assert chat.usage.completion_tokens == 20


@pytest.mark.parametrize(
    "overrides", [{"heat": 1}, {"temperature": -1}, {"top_p": "x"}, {"max_new_tokens": 0}]
)
def test_wrong_defaults_are_refused_at_the_start(model: Any, serve: Any, overrides: Any) -> None:
    with (
        pytest.raises(ValueError, match="heat is no|temperature is -1|top_p is 'x'|max_tokens is 0"),
        serve(model, overrides=overrides),
    ):
        pass


def test_other_sites_are_allowed_by_name(model: Any, serve: Any, running: Any) -> None:
    def preflight(server: Any, origin: str) -> Any:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        headers["Access-Control-Request-Headers"] = "authorization,content-type"
        url = f"{server.url}/v1/completions"
        request = urllib.request.Request(url, headers=headers, method="OPTIONS")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.headers
        except urllib.request.HTTPError as error:
            return error.headers

    name = "Access-Control-Allow-Origin"
    with serve(model, api_keys=["one"], allowed_origins=["https://a.example"]) as server:
        assert preflight(server, "https://a.example")[name] == "https://a.example"
        assert preflight(server, "https://b.example")[name] is None
        # an error, too, has the header, or the page could not read it
        status, _, headers = server.call("/v1/models", Origin="https://a.example")
        assert status == 401 and headers[name] == "https://a.example"
    with serve(model, allowed_origins=["*"]) as server:
        assert preflight(server, "https://b.example")[name] == "*"
    assert preflight(running, "https://a.example")[name] is None


def test_the_version_and_the_description_are_there(running: Any) -> None:
    assert running.call("/version")[:2] == (200, {"version": outpace.__version__})
    assert "/v1/completions" in running.call("/openapi.json")[1]["paths"]


def test_the_maximum_length_is_the_one_asked_for(model: Any, serve: Any) -> None:
    with serve(model, max_length=20) as running:
        assert running.client().models.list().data[0].max_model_len == 20
        with pytest.raises(openai.BadRequestError, match="at most 20"):
            complete(running, prompt=CODE * 10)


@pytest.mark.slow
def test_without_its_settings_a_checkpoint_still_ends_its_texts(model: Any, serve: Any) -> None:
    [plain] = outpace.generate(model, CODE, "autoregressive", max_tokens=16)
    end = next(each for each in plain.tokens[4:] if each not in plain.tokens[:4])
    defaults = GenerationConfig(eos_token_id=[0, end], repetition_penalty=1.8, max_length=9, num_beams=4)
    options = {"use_defaults": False, "overrides": {"temperature": 0, "min_new_tokens": 2}}
    with serve(replace(model, defaults=defaults), **options) as running:
        [choice] = complete(running).choices
    before = plain.tokens[: plain.tokens.index(end)]
    assert (choice.text, choice.finish_reason) == (model.tokenizer.decode(before), "stop")


@pytest.mark.parametrize(("overrides", "most"), [({}, None), ({"max_new_tokens": 28}, 28)])
def test_an_answer_without_a_limit_ends_at_the_checkpoints_max_length(
    model: Any, serve: Any, overrides: dict[str, Any], most: int | None
) -> None:
    given = {"model": "zoo", "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
    given |= {"extra_body": {"ignore_eos": True}}
    limited = replace(model, defaults=GenerationConfig(max_length=24))
    with serve(limited, overrides=overrides) as running:
        client = running.client()
        free = client.chat.completions.create(**given)
        assert free.usage.completion_tokens == (most or 24 - free.usage.prompt_tokens)
        assert free.choices[0].finish_reason == "length"
        asked = client.chat.completions.create(**given, max_tokens=40)
        assert asked.usage.completion_tokens == min(40, most or 40)
        if not overrides:
            long = given | {"messages": [{"role": "user", "content": CODE * 20}]}
            with pytest.raises(openai.BadRequestError, match="max_length 24.*: set max_completion_tokens"):
                client.chat.completions.create(**long)
