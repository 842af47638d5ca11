"""POST /v1/chat/completions, by the openai client."""

from __future__ import annotations

import json
from typing import Any

import pytest

import outpace
from outpace.serving.http import service

HELLO = [{"role": "user", "content": "Say hello to Noah."}]
GREEDY = {"model": "zoo", "messages": HELLO, "max_tokens": 12, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "done": {"type": "boolean"}},
    "required": ["name", "done"],
}
LAMP = {
    "type": "function",
    "function": {
        "name": "lamp",
        "parameters": {
            "type": "object",
            "properties": {"color": {"$ref": "#/$defs/color"}},
            "required": ["color"],
            "$defs": {"color": {"enum": ["red", "blue"]}},
        },
    },
}
STOP = {
    "type": "function",
    "function": {"name": "stop", "description": "Stop.", "parameters": {"type": "object", "properties": {}}},
}


def plain(model: Any, **options: Any) -> Any:
    """The results of plain decoding."""
    return outpace.generate(model, HELLO, "autoregressive", **options)


def test_the_text_is_that_of_plain_decoding(client: Any, model: Any) -> None:
    [expected] = plain(model, max_tokens=12, temperature=0)
    found = client.chat.completions.create(**GREEDY)
    [choice] = found.choices
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and choice.logprobs is None
    assert found.model == "zoo" and found.object == "chat.completion"
    assert found.usage.completion_tokens == 12
    assert found.usage.prompt_tokens == expected.statistics.num_prompt_tokens
    assert found.usage.total_tokens == found.usage.prompt_tokens + 12


@pytest.mark.slow
def test_a_stream_has_the_same_text_and_ends_with_the_usage(client: Any) -> None:
    whole = client.chat.completions.create(**GREEDY, seed=1)
    chunks = list(
        client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
    )
    first, *middle, last, counts = chunks
    assert first.choices[0].delta.role == "assistant" and first.object == "chat.completion.chunk"
    text = "".join(each.choices[0].delta.content for each in middle)
    assert text == whole.choices[0].message.content and len(middle) > 1
    assert [each.choices[0].finish_reason for each in (first, last)] == [None, "length"]
    again = client.chat.completions.create(**GREEDY, seed=1)
    assert not counts.choices and counts.usage == again.usage  # both found the prompt in the prefix cache
    assert all(each.usage is None for each in chunks[:-1])
    without = list(client.chat.completions.create(**GREEDY, stream=True))
    assert all(each.choices and each.usage is None for each in without)


def test_every_chunk_of_a_stream_may_have_the_counts_so_far(client: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    sampled = GREEDY | {"temperature": 0.5, "n": 2}
    *chunks, last, counts = client.chat.completions.create(**sampled, stream=True, stream_options=options)
    assert last.choices[0].finish_reason and last.usage.completion_tokens == 24
    assert last.usage.total_tokens == counts.usage.total_tokens
    so_far = [each.usage.completion_tokens for each in chunks]
    assert so_far[0] == 0 and so_far == sorted(so_far) and len(set(so_far)) > 2
    assert {each.usage.prompt_tokens for each in chunks} == {counts.usage.prompt_tokens}
    del options["include_usage"]  # as in vLLM it has no effect alone
    [first, *_] = client.chat.completions.create(**GREEDY, stream=True, stream_options=options)
    assert first.usage is None


def test_a_stream_ends_with_done(running: Any) -> None:
    _, text, headers = running.call("/v1/chat/completions", GREEDY | {"stream": True})
    assert headers["content-type"].startswith("text/event-stream")
    events = text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]" and all(event.startswith("data: {") for event in events[:-1])


@pytest.mark.slow
def test_samples_have_seeds_derived_from_the_given_one(client: Any, model: Any) -> None:
    sampled = {"max_tokens": 8, "temperature": 0.8, "seed": 7, "n": 3}
    expected = [result.text for result in plain(model, **sampled)]
    given = {"model": "zoo", "messages": HELLO, "extra_body": {"speculation": False}} | sampled
    found = client.chat.completions.create(**given)
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in found.choices]
    assert texts == expected and len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**given, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == expected


def test_a_seed_repeats_a_text_with_drafts_too(client: Any) -> None:
    given = {"model": "zoo", "messages": HELLO, "max_tokens": 10, "seed": 3}
    texts = {client.chat.completions.create(**given).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.slow
def test_stop_strings_end_the_text_before_them(client: Any) -> None:
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    for stop in (whole[5:8], [whole[5:8], "never"]):
        [choice] = client.chat.completions.create(**GREEDY, stop=stop).choices
        assert choice.message.content == whole[: whole.index(whole[5:8])]
        assert choice.finish_reason == "stop"
    streamed = client.chat.completions.create(**GREEDY, stop=whole[5:8], stream=True)
    text = "".join(each.choices[0].delta.content or "" for each in streamed)
    assert text == whole[: whole.index(whole[5:8])]


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_log_probabilities_are_those_of_plain_decoding(client: Any, model: Any, temperature: float) -> None:
    given = {"max_tokens": 10, "temperature": temperature, "seed": 5}
    body = {"model": "zoo", "messages": HELLO, "logprobs": True, "top_logprobs": 3} | given
    found = client.chat.completions.create(**body, extra_body={"include_metrics": True})
    assert found.metrics["speculative_decoding"]["num_accepted_tokens"] > 0
    entries = found.choices[0].logprobs.content
    tokens = [model.tokenizer.convert_tokens_to_ids(model.tokenizer.tokenize(e.token))[:1] for e in entries]
    assert len(tokens) == found.usage.completion_tokens
    # sampled texts of methods differ, so the values are compared by reading the text as a prompt
    text = found.choices[0].message.content
    assert b"".join(bytes(each.bytes) for each in entries).decode().startswith(text)
    if temperature == 0:
        [expected] = plain(model, logprobs=3, **given)
        for entry, other in zip(entries, expected.logprobs, strict=True):
            assert entry.logprob == pytest.approx(other.raw, abs=1e-9)
            assert [top.logprob for top in entry.top_logprobs] == pytest.approx([t.raw for t in other.top])
            assert entry.top_logprobs[0].token == entry.token
    streamed = [
        entry
        for chunk in client.chat.completions.create(**body, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == entries


@pytest.mark.slow
def test_sampling_parameters_have_an_effect(client: Any, model: Any) -> None:
    def text(**given: Any) -> str:
        found = client.chat.completions.create(**GREEDY | {"max_tokens": 8} | given)
        return found.choices[0].message.content

    usual = text()
    token = model.tokenizer("x", add_special_tokens=False)["input_ids"][0]
    assert text(logit_bias={str(token): 100}) == "x" * 8
    first = usual.split()[0]
    assert first not in text(extra_body={"bad_words": [first]})
    for name in ("presence_penalty", "frequency_penalty"):
        assert text(**{name: 2.0}) == plain(model, max_tokens=8, temperature=0, **{name: 2.0})[0].text
    for name, value in (("repetition_penalty", 1.8), ("min_tokens", 8)):
        [expected] = plain(model, max_tokens=8, temperature=0, **{name: value})
        assert text(extra_body={name: value}) == expected.text
    sampled = {"temperature": 1.0, "seed": 11, "max_tokens": 8}
    for name, value in (("top_p", 0.5), ("top_k", 2), ("min_p", 0.4)):
        [expected] = plain(model, **{name: value}, **sampled)
        assert text(extra_body={name: value, "speculation": False}, **sampled) == expected.text


def test_the_temperature_is_1_unless_given(client: Any, model: Any) -> None:
    given = {"model": "zoo", "messages": HELLO, "max_tokens": 8, "seed": 2}
    found = client.chat.completions.create(**given, extra_body={"speculation": False})
    assert found.choices[0].message.content == plain(model, max_tokens=8, seed=2, temperature=1)[0].text


@pytest.mark.slow
def test_speculation_is_chosen_per_request(client: Any) -> None:
    texts, drafts = set(), {}
    for value in (True, False, {"method": "prompt-lookup"}, {"num_speculative_tokens": 1}):
        found = client.chat.completions.create(
            **GREEDY, extra_body={"speculation": value, "include_metrics": True}
        )
        texts.add(found.choices[0].message.content)
        drafts[str(value)] = found.metrics["speculative_decoding"]
    assert len(texts) == 1
    on, off, lookup, short = drafts.values()
    assert on["num_accepted_tokens"] == sum(on["num_accepted_tokens_per_pos"]) > 0
    assert on["mean_acceptance_length"] == 1 + on["num_accepted_tokens"] / on["num_drafts"]
    assert off["num_drafts"] == off["num_draft_tokens"] == 0 and not off["num_accepted_tokens_per_pos"]
    assert lookup != on
    assert short["num_draft_tokens"] == short["num_drafts"] > 0


def test_metrics_come_with_the_last_chunk_of_a_stream(client: Any) -> None:
    for options in ({}, {"stream_options": {"include_usage": True}}):
        chunks = client.chat.completions.create(
            **GREEDY, stream=True, extra_body={"include_metrics": True}, **options
        )
        *others, last = chunks
        assert last.metrics["speculative_decoding"]["num_drafts"] > 0
        assert not any(hasattr(each, "metrics") for each in others)


@pytest.mark.slow
def test_a_prediction_is_drafted_and_counted(client: Any) -> None:
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    for predicted in (whole, [{"type": "text", "text": whole}]):
        found = client.chat.completions.create(**GREEDY, prediction={"type": "content", "content": predicted})
        assert found.choices[0].message.content == whole
        assert found.usage.completion_tokens_details.accepted_prediction_tokens > 6
    wrong = client.chat.completions.create(**GREEDY, prediction={"type": "content", "content": "}}}}}}"})
    assert wrong.usage.completion_tokens_details.rejected_prediction_tokens > 0
    assert wrong.choices[0].message.content == whole


@pytest.mark.slow
def test_a_json_schema_is_followed(client: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "task", "schema": SCHEMA, "strict": True}}
    given = GREEDY | {"max_tokens": 40, "response_format": wanted}
    [choice] = client.chat.completions.create(**given).choices
    found = json.loads(choice.message.content)
    assert set(found) == {"name", "done"} and isinstance(found["done"], bool)
    assert choice.finish_reason == "stop"
    [choice] = client.chat.completions.create(**GREEDY, response_format={"type": "json_object"}).choices
    assert choice.message.content.startswith("{") and "\n" not in choice.message.content
    text = client.chat.completions.create(**GREEDY, response_format={"type": "text"})
    assert (
        text.choices[0].message.content == client.chat.completions.create(**GREEDY).choices[0].message.content
    )


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "lamp"}}], ids=["any", "one"]
)
def test_a_forced_call_follows_the_tools_schema(client: Any, choice: Any) -> None:
    given = GREEDY | {"max_tokens": 80, "tools": [LAMP, STOP], "tool_choice": choice}
    [whole] = client.chat.completions.create(**given).choices
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    [call] = whole.message.tool_calls
    assert call.id.startswith("call_") and call.function.name in ("lamp", "stop")
    arguments = json.loads(call.function.arguments)
    assert arguments == {} if call.function.name == "stop" else arguments["color"] in ("red", "blue")
    if choice != "required":
        assert call.function.name == "lamp"
    deltas = [
        chunk.choices[0].delta.tool_calls[0]
        for chunk in client.chat.completions.create(**given, stream=True)
        if chunk.choices[0].delta.tool_calls
    ]
    first, *others = deltas
    assert first.function.name == call.function.name and first.id and first.function.arguments == ""
    assert all(each.index == 0 and each.id is None for each in others)
    assert "".join(each.function.arguments for each in others) == call.function.arguments


def test_a_call_that_the_model_writes_by_itself(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = '{"color": "red"}'
    text = f'Yes.\n<tool_call>\n{{"name": "lamp", "arguments": {arguments}}}\n</tool_call>'
    resolve = service.resolve_settings
    grammar = f"root ::= {json.dumps(text)}"  # the model can write nothing else
    monkeypatch.setattr(service, "resolve_settings", lambda *a, **k: resolve(*a, **k | {"grammar": grammar}))
    given = GREEDY | {"max_tokens": 80, "tools": [LAMP]}
    [whole] = client.chat.completions.create(**given).choices
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Yes.")
    [call] = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("lamp", arguments)
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**given, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    first, *others = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert first.id and first.function.name == "lamp"
    assert "".join(each.function.arguments for each in others) == arguments
    [without] = client.chat.completions.create(**given | {"tool_choice": "none"}).choices
    assert (without.finish_reason, without.message.content) == ("stop", text)


@pytest.mark.slow
def test_samples_with_calls_have_log_probabilities_of_every_token_once(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = '{"color": "red"}'
    text = f'Yes.\n<tool_call>\n{{"name": "lamp", "arguments": {arguments}}}\n</tool_call>'
    resolve = service.resolve_settings
    grammar = f"root ::= {json.dumps(text)}"
    monkeypatch.setattr(service, "resolve_settings", lambda *a, **k: resolve(*a, **k | {"grammar": grammar}))
    given = {"model": "zoo", "messages": HELLO, "max_tokens": 80, "tools": [LAMP], "n": 2, "logprobs": True}
    found = [{"text": "", "arguments": "", "tokens": b"", "reason": ""} for _ in range(2)]
    for chunk in client.chat.completions.create(**given, stream=True):
        [choice] = chunk.choices
        own = found[choice.index]
        own["text"] += choice.delta.content or ""
        own["arguments"] += "".join(each.function.arguments for each in choice.delta.tool_calls or ())
        own["tokens"] += b"".join(
            bytes(each.bytes) for each in (choice.logprobs.content if choice.logprobs else ())
        )
        own["reason"] = choice.finish_reason
    for own in found:
        assert own.pop("tokens").decode().startswith(text)
        assert own == {"text": "Yes.", "arguments": arguments, "reason": "tool_calls"}


@pytest.mark.slow
def test_a_call_that_is_cut_off_ended_by_its_length(client: Any) -> None:
    given = GREEDY | {"tools": [LAMP], "tool_choice": {"type": "function", "function": {"name": "lamp"}}}
    whole = client.chat.completions.create(**given | {"max_tokens": 80})
    num = whole.usage.completion_tokens - 3
    [choice], [other] = client.chat.completions.create(**given | {"max_tokens": num}).choices, whole.choices
    assert (choice.finish_reason, other.finish_reason) == ("length", "tool_calls")
    [call], [complete] = choice.message.tool_calls, other.message.tool_calls
    assert call.function.name == complete.function.name == "lamp"
    assert complete.function.arguments.startswith(call.function.arguments)


def test_tools_are_part_of_the_prompt_unless_they_are_switched_off(model: Any, serve: Any) -> None:
    template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[-1].content }}"
    with serve(model, chat_template=template) as running:
        counts = []
        for given in ({}, {"tool_choice": "none"}, {"tools": None}):
            body = GREEDY | {"max_tokens": 1, "tools": [LAMP]} | given
            _, found, _ = running.call("/v1/chat/completions", body)
            counts.append(found["usage"]["prompt_tokens"])
    assert counts[0] > counts[1] == counts[2]


def test_a_conversation_with_calls_and_parts_reaches_the_template(model: Any, serve: Any) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.color }}{% endfor %};{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "lamp", "arguments": '{"color": "red"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Make it "}, {"type": "text", "text": "red"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    with serve(model, chat_template=template) as running:
        _, found, _ = running.call("/tokenize", {"messages": messages})
    expected = "system:Be brief.;user:Make it red;assistant:red;tool:ok;"
    assert found["tokens"] == model.tokenizer(expected)["input_ids"]
