"""POST /v1/responses, by the openai client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

HELLO = "Say hello to Noah."
GREEDY = {"model": "zoo", "input": HELLO, "max_output_tokens": 10, "temperature": 0}
LAMP = {
    "type": "function",
    "name": "lamp",
    "parameters": {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}},
        "required": ["color"],
    },
}
OPENING = ["response.created", "response.in_progress", "response.output_item.added"]


def chat_text(client: Any, messages: Any) -> str:
    found = client.chat.completions.create(model="zoo", messages=messages, max_tokens=10, temperature=0)
    return found.choices[0].message.content


def test_a_response_has_every_field_of_the_clients_types(running: Any) -> None:
    _, found, _ = running.call("/v1/responses", GREEDY)
    assert Response.model_validate(found).status == "incomplete"


@pytest.mark.slow
def test_the_text_is_that_of_the_chat(client: Any) -> None:
    expected = chat_text(client, [{"role": "user", "content": HELLO}])
    found = client.responses.create(**GREEDY)
    assert found.output_text == expected
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 10 and found.usage.total_tokens == found.usage.input_tokens + 10
    ended = client.responses.create(**GREEDY, extra_body={"stop": expected[4:7]})
    assert ended.status == "completed" and ended.output_text == expected[: expected.index(expected[4:7])]
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": HELLO},
    ]
    parts = [{"type": "input_text", "text": HELLO}]
    items = [messages[1], messages[2], {"type": "message", "role": "user", "content": parts}]
    found = client.responses.create(**GREEDY | {"input": items, "instructions": "Be kind."})
    assert found.output_text == chat_text(client, messages)


@pytest.mark.slow
def test_a_stream_has_the_events_of_a_message(client: Any) -> None:
    whole = client.responses.create(**GREEDY)
    events = list(client.responses.create(**GREEDY, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [*OPENING, "response.content_part.added"]
    assert set(kinds[4:-4]) == {"response.output_text.delta"} and len(kinds[4:-4]) > 1
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text == events[-4].text
    last = events[-1].response
    again = client.responses.create(**GREEDY)
    assert last.output_text == whole.output_text and last.usage == again.usage  # both with the prefix cache
    assert last.output[0].id == events[4].item_id and last.output[0].status == "incomplete"


@pytest.mark.slow
def test_the_clients_stream_helper_understands_it(client: Any) -> None:
    given = {name: value for name, value in GREEDY.items() if name != "max_output_tokens"}
    with client.responses.stream(**given, extra_body={"stop": "e"}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().status == "completed"


def test_log_probabilities_come_with_the_text(client: Any) -> None:
    given = GREEDY | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [part] = client.responses.create(**given).output[0].content
    assert "".join(each.token for each in part.logprobs) == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    deltas = [e for e in client.responses.create(**given, stream=True) if e.type.endswith("text.delta")]
    assert [each.logprob for delta in deltas for each in delta.logprobs] == [e.logprob for e in part.logprobs]


@pytest.mark.slow
def test_a_forced_call_is_an_item_of_the_output(client: Any) -> None:
    given = GREEDY | {"max_output_tokens": 80, "tools": [LAMP], "tool_choice": "required"}
    whole = client.responses.create(**given)
    [call] = whole.output
    assert (call.type, call.name, whole.status) == ("function_call", "lamp", "completed")
    assert json.loads(call.arguments)["color"] in ("red", "blue") and whole.tools[0].name == "lamp"
    events = list(client.responses.create(**given, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == OPENING
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments == events[-3].arguments
    answered = [
        {"role": "user", "content": HELLO},
        {"type": "function_call", "call_id": "1", "name": "lamp", "arguments": call.arguments},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    assert client.responses.create(**GREEDY | {"input": answered}).output_text


def test_a_json_schema_is_followed(client: Any) -> None:
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
    wanted = {"format": {"type": "json_schema", "name": "task", "schema": schema}}
    found = client.responses.create(**GREEDY | {"max_output_tokens": 30}, text=wanted)
    assert set(json.loads(found.output_text)) == {"done"}
