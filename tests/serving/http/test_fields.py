"""Fields of requests: each is supported, refused, or known to have no effect."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import openai
import pytest

import outpace
from outpace.api.settings import resolve_settings
from outpace.core.sampling_params import PARAMETERS
from outpace.serving.http.schemas.chat import ChatBody
from outpace.serving.http.schemas.completions import CompletionBody
from outpace.serving.http.schemas.fields import MAX_STOPS, SamplingBody
from outpace.serving.http.schemas.responses import ResponseBody

CODE = "def add(a, b):"
HELLO = [{"role": "user", "content": "Hello"}]
CHAT_PATH, TEXT_PATH, RESPONSE_PATH = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES = {
    TEXT_PATH: {"model": "zoo", "prompt": CODE, "max_tokens": 2, "temperature": 0},
    CHAT_PATH: {"model": "zoo", "messages": HELLO, "max_tokens": 2, "temperature": 0},
    RESPONSE_PATH: {"model": "zoo", "input": "Hello", "max_output_tokens": 2, "temperature": 0},
}
# arguments of resolve_settings -> fields of requests, where they have other names
SETTINGS = {"given": None, "defaults": None, "tokenizer": None, "vocab": None}
SETTINGS |= {"grammar": "guided_grammar", "json_schema": "guided_json"}
SETTINGS |= {"most_tokens": None, "shown": None}  # of the server and of its formats


def complete(client: Any, prompt: Any = CODE, **given: Any) -> Any:
    return client.completions.create(**{"model": "zoo", "prompt": prompt, "temperature": 0} | given)


def test_every_sampling_parameter_and_setting_has_a_field() -> None:
    for body in (CompletionBody, ChatBody, ResponseBody):
        for parameter in PARAMETERS:
            name = parameter.field or parameter.name
            assert name in body.model_fields or name == "max_tokens", name
    for name in inspect.signature(resolve_settings).parameters:
        field = SETTINGS.get(name, name)
        assert field is None or field in SamplingBody.model_fields, name


@pytest.mark.slow
def test_sampling_parameters_change_the_text_as_in_python(client: Any, model: Any) -> None:
    for given in (
        {"typical_p": 0.3, "temperature": 1.0},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.5},
        {"min_p": 0.5, "temperature": 1.0},
        {"top_k": 2, "temperature": 1.0},
        {"bad_words": ["return"]},
    ):
        [expected] = outpace.generate(model, CODE, "autoregressive", max_tokens=24, seed=3, **given)
        extra = {"speculation": False, "ignore_eos": False} | given
        found = complete(client, max_tokens=24, seed=3, extra_body=extra)
        assert found.choices[0].text == expected.text, given


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_token", 5),
        ("use_beam_search", True),
        ("length_penalty", 2.0),
        ("allowed_token_ids", [1]),
        ("truncate_prompt_tokens", 5),
        ("return_token_ids", True),
        ("logits_processors", ["x"]),
        ("cache_salt", "x"),
        ("vllm_xargs", {"a": 1}),
        ("guided_whitespace_pattern", " "),
        ("documents", [{"text": "x"}]),
        ("spaces_between_special_tokens", False),
        ("structured_outputs", {"structural_tag": "{}"}),
        ("stream_options", {"continuous_usage": True}),
        ("speculation", {"num_speculative_token": 1}),
    ],
)
def test_a_field_that_is_not_supported_is_refused_by_name(
    running: Any, path: str, name: str, value: Any
) -> None:
    status, found, _ = running.call(path, BODIES[path] | {name: value})
    error = found["error"]
    if isinstance(value, dict) and name != "vllm_xargs":
        name += "." + next(iter(value))
    assert (status, error["param"]) == (400, name)
    assert error["message"] == f"{name} is not supported: leave it out"


@pytest.mark.parametrize("path", list(BODIES))
def test_fields_of_conversations_are_known(running: Any, path: str) -> None:
    given = {"include_reasoning": True, "chat_template": None}
    refused = {"thinking_token_budget": 3, "chat_template_kwargs": {"a": 1}, "parallel_tool_calls": True}
    if path == TEXT_PATH:
        for name, value in refused.items():
            status, found, _ = running.call(path, BODIES[path] | {name: value})
            assert (status, found["error"]["param"]) == (400, name)
    else:
        given |= {"thinking_token_budget": -1, "chat_template_kwargs": {}, "parallel_tool_calls": True}
    if path == CHAT_PATH:
        given |= {"continue_final_message": False, "add_generation_prompt": True, "reasoning_effort": "high"}
    if path == RESPONSE_PATH:
        given |= {"reasoning": {"effort": "high", "summary": "auto"}}
        status, found, _ = running.call(path, BODIES[path] | {"reasoning": {"budget": 3}})
        assert (status, found["error"]["param"]) == (400, "reasoning.budget")
    assert running.call(path, BODIES[path] | given)[0] == 200


@pytest.mark.parametrize("path", list(BODIES))
def test_fields_without_effect_are_accepted(running: Any, path: str) -> None:
    without_effect = {
        "metadata": {"a": "b"},
        "user": "me",
        "service_tier": "auto",
        "store": False,
        "priority": 3,
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "guided_decoding_backend": "xgrammar",
    }
    neutral = {
        "use_beam_search": False,
        "length_penalty": 1.0,
        "spaces_between_special_tokens": True,
        "skip_special_tokens": True,
        "truncate_prompt_tokens": None,
        "allowed_token_ids": None,
        "modalities": ["text"],
        "stop_token_ids": [],
        "something_new": None,
    }
    assert running.call(path, BODIES[path] | without_effect | neutral)[0] == 200


@pytest.mark.slow
def test_stop_token_ids_end_the_text_before_them(client: Any, model: Any) -> None:
    words = model.tokenizer
    [plain] = outpace.generate(model, CODE, "autoregressive", max_tokens=16)
    token = next(each for each in plain.tokens[4:] if each not in plain.tokens[:4])
    at = plain.tokens.index(token)
    before = words.decode(plain.tokens[:at])
    for extra in ({}, {"ignore_eos": True}, {"min_tokens": 2}):
        found = complete(client, logprobs=0, extra_body={"stop_token_ids": [token]} | extra)
        assert found.choices[0].text == before and found.choices[0].finish_reason == "stop"
        assert found.usage.completion_tokens == at + 1
    streamed = complete(client, stream=True, extra_body={"stop_token_ids": [token]})
    assert "".join(each.choices[0].text for each in streamed) == before
    wanted = {"stop_token_ids": [token], "include_stop_str_in_output": True}
    assert complete(client, extra_body=wanted).choices[0].text == words.decode(plain.tokens[: at + 1])
    with pytest.raises(openai.BadRequestError, match="stop_token_ids names token 4096"):
        complete(client, extra_body={"stop_token_ids": [4096]})
    with pytest.raises(openai.BadRequestError, match="stop_token_ids names token -1"):
        complete(client, extra_body={"stop_token_ids": [-1]})


@pytest.mark.slow
def test_the_stop_string_is_in_the_text_if_asked_for(client: Any) -> None:
    text = complete(client).choices[0].text
    stop = text[5:8]
    end = text.index(stop)
    for stream in (False, True):
        for included in (False, True):
            extra = {"include_stop_str_in_output": included}
            found = complete(client, stop=[stop], extra_body=extra, stream=stream)
            shown = "".join(e.choices[0].text for e in found) if stream else found.choices[0].text
            assert shown == text[: end + len(stop) * included]


def test_special_tokens_are_in_the_text_if_asked_for(client: Any, model: Any) -> None:
    end, user = model.tokenizer.eos_token_id, model.tokenizer.convert_tokens_to_ids("<|user|>")
    bias = {"logit_bias": {str(user): 100}, "max_tokens": 2}
    assert complete(client, **bias).choices[0].text == ""
    extra = {"skip_special_tokens": False}
    assert complete(client, **bias, extra_body=extra).choices[0].text == "<|user|>" * 2
    [choice] = complete(client, logit_bias={str(end): 100}, extra_body=extra).choices
    assert (choice.text, choice.finish_reason) == ("", "stop")
    extra["include_stop_str_in_output"] = True
    [choice] = complete(client, logit_bias={str(end): 100}, logprobs=0, extra_body=extra).choices
    assert (choice.text, choice.finish_reason) == (model.tokenizer.eos_token, "stop")
    places = complete(client, **bias, logprobs=0, extra_body=extra).choices[0].logprobs.text_offset
    assert places == [0, len("<|user|>")]


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
JSON, COLOR, NUMBER = r'\{"a": ?[12]\}', 'red|bl\\\\u"e\n|grün\U0001f600', "[0-9]{3}-[a-c]+x"
CHOICES = ["red", 'bl\\u"e\n', "grün\U0001f600"]
GRAMMAR = 'root ::= "yes " ("1" | "2") | "no"'


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("json", SCHEMA, JSON),
        ("json", json.dumps(SCHEMA), JSON),
        ("choice", CHOICES, "|".join(map(re.escape, CHOICES))),
        ("regex", NUMBER, NUMBER),
        ("grammar", GRAMMAR, "yes [12]|no"),
    ],
)
def test_the_output_follows_a_constraint(
    running: Any, path: str, kind: str, value: Any, pattern: str
) -> None:
    bound = {"max_output_tokens" if path == RESPONSE_PATH else "max_tokens": 60, "temperature": 1, "seed": 1}
    for given in ({f"guided_{kind}": value}, {"structured_outputs": {kind: value}}):
        status, found, _ = running.call(path, BODIES[path] | bound | given)
        assert status == 200, found
        if path == TEXT_PATH:
            text = found["choices"][0]["text"]
        elif path == CHAT_PATH:
            text = found["choices"][0]["message"]["content"]
        else:
            text = found["output"][0]["content"][0]["text"]
        assert re.fullmatch(pattern, text), text


@pytest.mark.slow
def test_a_json_object_is_generated(client: Any) -> None:
    extra = {"structured_outputs": {"json_object": True}, "disable_any_whitespace": None}
    text = complete(client, max_tokens=60, temperature=1, seed=2, extra_body=extra).choices[0].text
    assert text.startswith("{")


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex cannot be read"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar", "guided_grammar cannot be read"),
        ({"guided_json": "{"}, "guided_json", "guided_json cannot be read"),
        ({"guided_json": "[]"}, "guided_json", "no JSON object"),
        ({"guided_json": {"type": "nothing"}}, "guided_json", "guided_json cannot be read"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": [""]}, "guided_choice", "is empty"),
        ({"guided_choice": ["ab" * 20_000]}, "guided_choice", "shorten it"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "cannot be read"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.choice",
            "give one of them",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "give one of them"),
        ({"guided_regex": "a", "ignore_eos": True}, None, "a guided_regex needs a token that ends the text"),
        ({"stop": ["a"] * (MAX_STOPS + 1)}, "stop", f"at most {MAX_STOPS} elements"),
        ({"stop": "a" * 1000}, "stop", "at most 256 characters"),
        ({"bad_words": ["a"] * 1000}, "bad_words", "at most 256 elements"),
        ({"logit_bias": {str(each): 1 for each in range(9000)}}, "logit_bias", "at most 8192 elements"),
    ],
)
def test_a_wrong_constraint_or_list_is_refused(
    running: Any, path: str, given: Any, param: str | None, words: str
) -> None:
    status, found, _ = running.call(path, BODIES[path] | given)
    assert (status, found["error"]["param"]) == (400, param), found
    assert words in found["error"]["message"] and len(found["error"]["message"]) < 300


def test_a_constraint_beside_a_response_format_is_refused(running: Any) -> None:
    wanted = {"response_format": {"type": "json_object"}, "guided_regex": "a"}
    status, found, _ = running.call(CHAT_PATH, BODIES[CHAT_PATH] | wanted)
    assert status == 400 and "response_format and guided_regex" in found["error"]["message"]


@pytest.mark.parametrize("prompt", [[1] * 200_000 + ["a"], ["a"] * 200_000 + [1], 3, [[1], "a"]])
def test_a_prompt_of_mixed_types_is_refused_at_its_first_mistake(running: Any, prompt: Any) -> None:
    status, found, _ = running.call(TEXT_PATH, {"model": "zoo", "prompt": prompt})
    assert status == 400 and found["error"]["param"].startswith("prompt")


def test_a_single_tool_call_needs_a_forced_one(running: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    given = {"tools": tools, "parallel_tool_calls": False}
    status, found, _ = running.call(CHAT_PATH, BODIES[CHAT_PATH] | given)
    assert (status, found["error"]["param"]) == (400, "parallel_tool_calls")
    forced = given | {"tool_choice": "required", "max_tokens": 60}
    assert running.call(CHAT_PATH, BODIES[CHAT_PATH] | forced)[0] == 200
    assert running.call(CHAT_PATH, BODIES[CHAT_PATH] | {"parallel_tool_calls": False})[0] == 200


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "required"}])
@pytest.mark.parametrize("path", [CHAT_PATH, RESPONSE_PATH])
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("guided_choice", {"guided_choice": ["a"]}),
        ("structured_outputs.regex", {"structured_outputs": {"regex": "a"}}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("text.format", {"text": {"format": {"type": "json_object"}}}),
    ],
)
def test_a_constraint_beside_tools_that_may_be_called_is_refused(
    running: Any, path: str, choice: dict[str, Any], field: str, given: dict[str, Any]
) -> None:
    if {"response_format": RESPONSE_PATH, "text.format": CHAT_PATH}.get(field) == path:
        pytest.skip("a field of the other route")
    function = {"name": "f", "parameters": SCHEMA}
    tool = {"type": "function"} | ({"function": function} if path == CHAT_PATH else function)
    status, found, _ = running.call(path, BODIES[path] | {"tools": [tool]} | choice | given)
    assert (status, found["error"]["param"]) == (400, "tools")
    assert f"in the format that {field} gives" in found["error"]["message"]


def test_arguments_of_a_forced_call_have_no_end_of_text(running: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    given = {"tools": tools, "tool_choice": "required", "max_tokens": 60, "skip_special_tokens": False}
    given |= {"include_stop_str_in_output": True}
    _, found, _ = running.call(CHAT_PATH, BODIES[CHAT_PATH] | given)
    [call] = found["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
