"""The format of tool calls is that of the chat template, or the one that is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from outpace.api.detokenizer import Detokenizer
from outpace.api.settings import resolve_settings
from outpace.serving.http import service
from outpace.serving.http.tool_calls.formats import FORMATS, format_of

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
END = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
# templates of each family's kind, in few words
TEMPLATES = {
    "hermes": CALLS
    + '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
    "qwen3_coder": CALLS
    + "{{ '<tool_call>\n<fun' + 'ction=' + f.name + '>\n' }}{% for k, v in f.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "glm45": CALLS
    + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
    "llama3_json": CALLS + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "pythonic": CALLS
    + "[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})]",
    "mistral": "{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}",
}


def with_template(model: Any, template: str | None) -> Any:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model.tokenizer.backend_tokenizer)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_format_is_found_in_what_the_template_writes(model: Any, name: str) -> None:
    shown = "{{ '<tool_call> are calls' if tools and name_of_none }}"  # not written
    tokenizer = with_template(model, shown + TURNS + TEMPLATES[name] + "{% endfor %}" + END)
    assert format_of(tokenizer, None) is FORMATS[name]
    assert format_of(tokenizer, "hermes") is FORMATS["hermes"]


def test_a_template_that_refuses_is_searched(model: Any) -> None:
    refusing = "{{ raise_exception('no') }}<function={{ 1 }}>"
    assert format_of(with_template(model, refusing), None) is FORMATS["qwen3_coder"]
    for template in (None, "{{ messages[-1].content }}", "{% if %}"):
        assert format_of(with_template(model, template), None) is FORMATS["hermes"]
    with pytest.raises(ValueError, match="no tool call parser 'other': use one of hermes, qwen3_coder"):
        format_of(model.tokenizer, "other")


def test_special_tokens_of_calls_are_in_the_text(model: Any) -> None:
    tokenizer = with_template(model, None)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[ARGS]", "[HIDDEN]"]})
    given = 'Yes[TOOL_CALLS]stop[ARGS]{"a": "é"}[HIDDEN]'
    tokens = tokenizer(given, add_special_tokens=False)["input_ids"]
    settings = resolve_settings({}, None, tokenizer, stop="[TOOL_CALLS]x", shown=FORMATS["mistral"].special)
    detokenizer = Detokenizer(tokenizer, [], settings.stop, 0, settings.special_tokens, settings.shown)
    text = ""
    for token in tokens:
        detokenizer.push([token])
        text += detokenizer.piece()
    assert text + detokenizer.finish() == given.replace("[HIDDEN]", "")
    assert "TOOL" not in tokenizer.decode(tokens, skip_special_tokens=True)


def test_a_stop_string_may_have_a_special_token_that_is_shown(model: Any) -> None:
    tokenizer = with_template(model, None)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    settings = resolve_settings({}, None, tokenizer, stop="[TOOL_CALLS]st", shown=["[TOOL_CALLS]"])
    detokenizer = Detokenizer(tokenizer, [], settings.stop, 0, settings.special_tokens, settings.shown)
    detokenizer.push(tokenizer("Yes[TOOL_CALLS]stop", add_special_tokens=False)["input_ids"])
    assert (detokenizer.finish(), detokenizer.stopped) == ("Yes", "[TOOL_CALLS]st")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=lamp>\n<parameter=level>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        ("mistral", '[TOOL_CALLS]lamp[ARGS]{"level": 3}'),
    ],
)
def test_calls_of_a_server_with_a_parser(
    model: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    resolve = service.resolve_settings
    grammar = f"root ::= {json.dumps('Yes. ' + text)}"  # the model can write nothing else
    schema = {"type": "object", "properties": {"level": {"type": "integer"}}}
    given = {
        "model": "zoo",
        "messages": [{"role": "user", "content": "Say hello to Noah."}],
        "temperature": 0,
        "max_tokens": 90,
        "tools": [{"type": "function", "function": {"name": "lamp", "parameters": schema}}],
    }
    with serve(model, tool_call_parser=name) as running:
        monkeypatch.setattr(
            service, "resolve_settings", lambda *a, **k: resolve(*a, **k | {"grammar": grammar})
        )
        client = running.client()
        [whole] = client.chat.completions.create(**given).choices
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**given, stream=True)]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Yes.")
    [call] = whole.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("lamp", {"level": 3})
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    first, second = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert (first.function.name, second.function.arguments) == ("lamp", call.function.arguments)


def test_an_unknown_parser_is_refused(model: Any, serve: Any) -> None:
    with (
        pytest.raises(ValueError, match="no tool call parser 'other'"),
        serve(model, tool_call_parser="other"),
    ):
        pass


def test_a_format_and_tools_are_refused_together(client: Any) -> None:
    import openai

    tool = {"type": "function", "function": {"name": "stop"}}
    given = {
        "model": "zoo",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "tools": [tool],
    }
    wanted = {"response_format": {"type": "json_object"}}
    for choice in ({}, {"tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError, match="tools cannot be called in the format that"):
            client.chat.completions.create(**given, **wanted, **choice)
    assert client.chat.completions.create(**given, **wanted, tool_choice="none").choices[0].message.content
