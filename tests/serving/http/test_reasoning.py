"""Reasoning before the answer: found in the text, limited in length, and free of the answer's constraints."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from outpace.sampling.thinking import Phase
from outpace.serving.http import service
from outpace.serving.http.output import CallDelta, ReasoningDelta, TextDelta, TextOutput
from outpace.serving.http.reasoning.formats import FORMATS, THINK, reasoning_of
from outpace.serving.http.reasoning.output import ReasoningOutput
from outpace.serving.http.tool_calls.formats import FORMATS as CALLS
from outpace.serving.http.tool_calls.found_calls import FoundCalls
from tests.tiers import slow

HELLO = [{"role": "user", "content": "Say hello to Noah."}]
GREEDY = {"model": "zoo", "messages": HELLO, "max_tokens": 60, "temperature": 0}
TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}"
)
START = "{% if add_generation_prompt %}<|assistant|>"
# in the style of DeepSeek-R1, which writes the start tag, and of Qwen3, which leaves it to the model
OPEN = TURNS + START + "<think>\n{% endif %}"
SWITCH = TURNS + START + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"


def parsed(pieces: list[str], *, is_open: bool, calls: bool = False) -> tuple[str, str, int]:
    """Reasoning, answer and number of calls."""
    answer = partial(FoundCalls, CALLS["hermes"], {}) if calls else TextOutput
    parser = ReasoningOutput(THINK, answer, is_open=is_open)
    reasoning, text = "", ""
    for delta in [each for piece in pieces for each in parser.push(piece)] + parser.finish():
        if isinstance(delta, ReasoningDelta):
            assert not text
            reasoning += delta.text
        elif isinstance(delta, TextDelta):
            assert "".join(pieces)[delta.start :].startswith(delta.text)
            text += delta.text
        else:
            assert calls or not isinstance(delta, CallDelta)
    return reasoning, text, parser.num_calls


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "answer"),
    [
        ("<think>\nI see.\n</think>\n\nYes.", False, "I see.", "Yes."),
        ("I see.\n\nSo: yes.</think>Yes. </think>", True, "I see.\n\nSo: yes.", "Yes. </think>"),
        ("\n<think></think>Yes.\n", False, "", "Yes.\n"),
        (" Yes <think>no</think>", False, "", " Yes <think>no</think>"),
        ("<thin", False, "", "<thin"),
        ("<thinking> Yes", False, "", "<thinking> Yes"),
        ("I see </thin", True, "I see </thin", ""),
        ("<think>I see", False, "I see", ""),
        ("", True, "", ""),
        ("\n<think>I see</think>Yes", True, "I see", "Yes"),
        ("<thin", True, "<thin", ""),
        ("  \n", False, "", "  \n"),
        ("a < b </think></think>", True, "a < b", "</think>"),
        ('x<tool_call></think>A <tool_call>{"name": "f"}</tool_call>', True, "x<tool_call>", "A"),
    ],
)
def test_thoughts_are_found_in_any_division(text: str, is_open: bool, reasoning: str, answer: str) -> None:
    draw = random.Random(text)
    divisions = [[text], list(text), *([text[:at], text[at:]] for at in range(len(text)))]
    for _ in range(20):
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(4))
        divisions.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    calls = "f" in text and "name" in text
    for pieces in divisions:
        assert parsed(pieces, is_open=is_open, calls=calls) == (reasoning, answer, int(calls))


def test_the_format_is_that_of_the_chat_template(model: Any) -> None:
    class Tokenizer:
        chat_template: Any = None

    for name, own in FORMATS.items():
        Tokenizer.chat_template = f"{{{{ m.content.split('{own.end}')[-1] }}}}"
        assert reasoning_of(Tokenizer(), None) == replace(own, is_always=False)
        assert reasoning_of(Tokenizer(), "none") is None and reasoning_of(model.tokenizer, name) == own
    assert reasoning_of(model.tokenizer, None) is None
    with pytest.raises(ValueError, match="no reasoning parser 'other': use one of deepseek_r1, "):
        reasoning_of(model.tokenizer, "other")


@pytest.mark.parametrize(
    ("prompt", "prefill", "phase"),
    [
        ("<|assistant|><think>\n", None, Phase.THINKING),
        ("<|assistant|><think>\n\n</think>\n\n", None, Phase.ANSWER),
        ("What is </think>?<|assistant|>", None, Phase.UNDECIDED),
        ("<|assistant|><think>I see", "<think>I see", Phase.THINKING),
        ("<|assistant|><think>I see</think>Yes", "<think>I see</think>Yes", Phase.ANSWER),
        ("<|assistant|>Yes, ", "Yes, ", Phase.ANSWER),
        ("<|assistant|><think>", "", Phase.THINKING),
    ],
)
def test_where_a_text_begins(prompt: str, prefill: str | None, phase: Phase) -> None:
    assert THINK.phase_after(prompt, prefill) is phase
    expected = Phase.THINKING if phase is Phase.UNDECIDED else phase
    assert FORMATS["deepseek_r1"].phase_after(prompt, prefill) is expected


@pytest.fixture(scope="module")
def thinker(model: Any, serve: Any) -> Any:
    """A server whose template opens the reasoning."""
    with serve(model, chat_template=OPEN) as running:
        yield running


@pytest.fixture(scope="module")
def hybrid(model: Any, serve: Any) -> Any:
    """A server whose template leaves the start tag to the model, or turns thinking off."""
    with serve(model, chat_template=SWITCH) as running:
        yield running


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets models write a text and nothing else."""
    resolve = service.resolve_settings

    def write(text: str) -> None:
        given = {"grammar": f"root ::= {json.dumps(text)}"}
        monkeypatch.setattr(service, "resolve_settings", lambda *a, **k: resolve(*a, **k | given))
        monkeypatch.setattr(service.Thinking, "restrict", lambda self, settings, vocab: settings)

    return write


def streamed(client: Any, **given: Any) -> tuple[str, str, str]:
    """Reasoning under both names, and the answer."""
    reasoning = content = text = ""
    for chunk in client.chat.completions.create(**given, stream=True):
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning", None) or ""
        content += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
    return reasoning, content, text


@pytest.mark.slow
def test_thoughts_of_a_message(hybrid: Any, writes: Any) -> None:
    client = hybrid.client()
    writes("<think>\nNoah is a name.\n</think>\n\nHello, Noah!")
    found = client.chat.completions.create(**GREEDY)
    message = found.choices[0].message
    assert (message.reasoning, message.content) == ("Noah is a name.", "Hello, Noah!")
    assert message.reasoning_content == message.reasoning
    assert 5 < found.usage.completion_tokens_details.reasoning_tokens < found.usage.completion_tokens - 3
    assert streamed(client, **GREEDY) == ("Noah is a name.", "Noah is a name.", "Hello, Noah!")
    without = {"extra_body": {"include_reasoning": False}}
    assert streamed(client, **GREEDY, **without) == ("", "", "Hello, Noah!")
    [choice] = client.chat.completions.create(**GREEDY, **without).choices
    assert choice.message.content == "Hello, Noah!" and not hasattr(choice.message, "reasoning")
    for off in (
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ):
        [choice] = client.chat.completions.create(**GREEDY, **off).choices
        assert choice.message.content.startswith("<think>")  # thinking is off: all of it is the answer


@pytest.mark.slow
def test_thoughts_of_a_response(thinker: Any, writes: Any) -> None:
    client = thinker.client()
    writes("Noah is a name.</think>Hello, Noah!")
    given = {"model": "zoo", "input": "Say hello to Noah.", "max_output_tokens": 60, "temperature": 0}
    whole = client.responses.create(**given)
    reasoning, message = whole.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Noah is a name.")
    assert message.content[0].text == whole.output_text == "Hello, Noah!"
    assert whole.usage.output_tokens_details.reasoning_tokens > 5
    events = list(client.responses.create(**given, stream=True))
    deltas = [each.delta for each in events if each.type == "response.reasoning_text.delta"]
    [done] = [each for each in events if each.type == "response.reasoning_text.done"]
    assert "".join(deltas) == done.text == "Noah is a name."
    assert [each.type for each in events[-1].response.output] == ["reasoning", "message"]
    # the reasoning of an earlier turn reach the template
    turns = [
        *(each.model_dump(exclude_none=True) for each in whole.output),
        {"role": "user", "content": "Again."},
    ]
    again = client.responses.create(**given | {"input": turns})
    alone = client.responses.create(**given | {"input": turns[1:]})
    assert again.usage.input_tokens > alone.usage.input_tokens + 5


SCHEMA = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
JSON = {"response_format": {"type": "json_schema", "json_schema": {"name": "lamp", "schema": SCHEMA}}}


@pytest.mark.parametrize("temperature", [slow(0), 1.0])
@pytest.mark.parametrize("name", ["thinker", slow("hybrid")])
def test_a_budget_ends_thoughts_and_constraints_begin_then(
    request: pytest.FixtureRequest, model: Any, name: str, temperature: float
) -> None:
    client = request.getfixturevalue(name).client()
    start, end = (
        model.tokenizer(tag, add_special_tokens=False)["input_ids"] for tag in ("<think>", "</think>")
    )
    bias = {} if name == "thinker" else {str(start[0]): 100}  # the model thinks only if it is made to
    for budget in (0, 1, 7):
        given = GREEDY | JSON | {"temperature": temperature, "seed": budget, "logit_bias": bias}
        given["extra_body"] = {"thinking_token_budget": budget}
        found = client.chat.completions.create(**given)
        [choice] = found.choices
        assert json.loads(choice.message.content)["color"] in ("red", "blue")
        assert choice.finish_reason == "stop"
        assert found.usage.completion_tokens_details.reasoning_tokens == budget + len(end)
        if temperature == 0:
            reasoning = getattr(choice.message, "reasoning", None) or ""
            assert streamed(client, **given) == (reasoning, reasoning, choice.message.content)


def test_a_model_that_may_think_may_answer_at_once(hybrid: Any) -> None:
    found = hybrid.client().chat.completions.create(**GREEDY | JSON)
    assert json.loads(found.choices[0].message.content)["color"] in ("red", "blue")
    assert found.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("given", [{}, JSON])
def test_drafts_change_no_text_with_a_budget(thinker: Any, given: dict[str, Any]) -> None:
    client = thinker.client()
    texts = []
    for speculation in (True, False):
        extra = {"thinking_token_budget": 5, "speculation": speculation, "include_metrics": True}
        found = client.chat.completions.create(**GREEDY | {"max_tokens": 40} | given, extra_body=extra)
        message = found.choices[0].message
        texts.append((message.reasoning, message.content))
        drafted = found.metrics["speculative_decoding"]["num_draft_tokens"]
        assert bool(drafted) == bool(speculation)
    assert texts[0] == texts[1] and texts[0][0]


@pytest.mark.slow
def test_a_forced_call_after_thoughts(thinker: Any) -> None:
    tool = {"type": "function", "function": {"name": "lamp", "parameters": SCHEMA}}
    given = GREEDY | {"tools": [tool], "tool_choice": "required", "extra_body": {"thinking_token_budget": 4}}
    [choice] = thinker.client().chat.completions.create(**given).choices
    assert choice.finish_reason == "tool_calls" and choice.message.reasoning
    assert json.loads(choice.message.tool_calls[0].function.arguments)["color"] in ("red", "blue")


def test_a_budget_needs_a_model_that_thinks(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="needs a model that thinks") as error:
        client.chat.completions.create(**GREEDY, extra_body={"thinking_token_budget": 5})
    assert error.value.param == "thinking_token_budget"
    given = GREEDY | {"max_tokens": 2}
    assert client.chat.completions.create(**given, extra_body={"thinking_token_budget": -1}).choices
    assert client.chat.completions.create(**given, reasoning_effort="high").choices  # no effect


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    "given",
    [
        {"structured_outputs": {"choice": ["red", "blue"]}},
        {"guided_regex": "red|blue"},
        {"guided_grammar": 'root ::= "red" | "blue"'},
        {"guided_json": {"enum": ["red", "blue"]}},
    ],
)
def test_every_constraint_begins_after_thoughts(thinker: Any, path: str, given: dict[str, Any]) -> None:
    said = {"input": "Say hello."} if path == "/v1/responses" else {"messages": HELLO}
    status, found, _ = thinker.call(path, {"temperature": 0, "thinking_token_budget": 4} | said | given)
    assert status == 200
    if path == "/v1/responses":
        thoughts, answer = (item["content"][0]["text"] for item in found["output"])
    else:
        message = found["choices"][0]["message"]
        thoughts, answer = message["reasoning"], message["content"]
    assert thoughts and answer.strip('"') in ("red", "blue")


def test_tokens_that_are_to_end_the_text_end_thoughts_too(thinker: Any, model: Any) -> None:
    token = model.tokenizer("x", add_special_tokens=False)["input_ids"][0]
    extra = {"guided_choice": ["red", "blue"], "stop_token_ids": [token], "thinking_token_budget": 4}
    given = GREEDY | {"logit_bias": {str(token): 100}, "extra_body": extra}
    found = thinker.client().chat.completions.create(**given)
    assert (found.choices[0].finish_reason, found.usage.completion_tokens) == ("stop", 1)
