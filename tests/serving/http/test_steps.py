"""`include_steps`: what was drafted and accepted in every step, in the chunks of a stream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from outpace.serving.http import service

HELLO = [{"role": "user", "content": "Say hello to Noah."}]
GREEDY = {"model": "zoo", "messages": HELLO, "max_tokens": 24, "temperature": 0, "stream": True}


def answer(client: Any, *, extra: dict[str, Any] | None = None, **given: Any) -> tuple[str, list[Any], Any]:
    """Text, steps and acceptance statistics of a streamed answer with one sample."""
    body = {"include_steps": True, "include_metrics": True} | (extra or {})
    chunks = list(client.chat.completions.create(**GREEDY | given, extra_body=body))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    found = [step for chunk in chunks if (step := getattr(chunk.choices[0], "step", None))]
    return text, found, chunks[-1].metrics["speculative_decoding"]


def test_steps_are_those_that_the_statistics_count(client: Any) -> None:
    text, steps, counts = answer(client)
    assert "".join(token for step in steps for token in step["tokens"]) == text
    drafted = [step for step in steps if step["draft"]]
    assert len(drafted) == counts["num_drafts"] > 1
    assert sum(len(step["draft"]) for step in steps) == counts["num_draft_tokens"]
    assert sum(len(step["accepted"]) for step in steps) == counts["num_accepted_tokens"] > 0
    assert {step["method"] for step in drafted} == {"speculative-sampling"}
    for step in steps:
        above = None
        for place, node in enumerate(step["accepted"]):
            assert step["draft"][node] == {"token": step["tokens"][place], "parent": above}
            above = node
    assert all(len(step["tokens"]) == len(step["accepted"]) + 1 for step in steps[:-1])


@pytest.mark.slow
def test_steps_are_only_in_streams_that_ask_for_them(client: Any) -> None:
    for extra in ({}, {"include_steps": False}):
        chunks = client.chat.completions.create(**GREEDY, extra_body=extra)
        assert not any(hasattr(chunk.choices[0], "step") for chunk in chunks)
    with pytest.raises(openai.BadRequestError, match="include_steps needs stream") as caught:
        client.chat.completions.create(**GREEDY | {"stream": False}, extra_body={"include_steps": True})
    assert caught.value.body["param"] == "include_steps"


def test_continuations_of_texts_have_steps_too(client: Any) -> None:
    given = {"model": "zoo", "prompt": "Say hello", "max_tokens": 24, "temperature": 0, "stream": True}
    extra = {"include_steps": True, "include_metrics": True}
    chunks = list(client.completions.create(**given, extra_body=extra))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    steps = [step for chunk in chunks if (step := getattr(chunk.choices[0], "step", None))]
    assert text and text == "".join(token for step in steps for token in step["tokens"])
    assert (
        sum(len(step["accepted"]) for step in steps)
        == (chunks[-1].metrics["speculative_decoding"]["num_accepted_tokens"])
    )
    assert not any(hasattr(chunk.choices[0], "step") for chunk in client.completions.create(**given))
    with pytest.raises(openai.BadRequestError, match="include_steps needs stream"):
        client.completions.create(**given | {"stream": False}, extra_body={"include_steps": True})


@pytest.mark.slow
def test_a_step_names_what_drafted_it(client: Any) -> None:
    text, steps, _ = answer(client, extra={"speculation": False})
    assert all((step["method"], step["draft"], step["accepted"]) == (None, [], []) for step in steps)
    assert "".join(step["tokens"][0] for step in steps) == text
    _, steps, _ = answer(client, extra={"speculation": {"method": "prompt-lookup"}})
    assert {step["method"] for step in steps} == {"prompt-lookup", None}
    _, steps, _ = answer(client, prediction={"type": "content", "content": text})
    first, *_ = steps
    assert first["method"] == "prediction" and len(first["accepted"]) == 8


def test_every_sample_has_its_own_steps(client: Any) -> None:
    texts, joined = ["", ""], ["", ""]
    given = GREEDY | {"temperature": 0.9, "n": 2, "seed": 3}
    for chunk in client.chat.completions.create(**given, extra_body={"include_steps": True}):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        step = getattr(choice, "step", {"tokens": [], "draft": []})
        joined[choice.index] += "".join(step["tokens"])
        above = [node["parent"] for node in step["draft"]]
        assert above == ([None, *range(len(above) - 1)] if above else [])  # a chain
    assert joined == texts and texts[0] != texts[1]


def test_characters_of_several_tokens_are_whole(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Straße 😀, naïve"
    resolve = service.resolve_settings
    grammar = f'root ::= "{text}"'  # the model can write nothing else
    monkeypatch.setattr(service, "resolve_settings", lambda *a, **k: resolve(*a, **k | {"grammar": grammar}))
    found, steps, _ = answer(client, max_tokens=60)
    tokens = [token for step in steps for token in step["tokens"]]
    assert "".join(tokens) == found == text
    assert "" in tokens and any("😀" in token for token in tokens)


def test_a_stop_string_is_among_the_tokens_but_not_in_the_text(client: Any) -> None:
    whole, _, _ = answer(client)
    stop = whole[9:13]
    found, steps, _ = answer(client, stop=stop)
    joined = "".join(token for step in steps for token in step["tokens"])
    assert found == whole[: whole.index(stop)] and joined.startswith(found + stop)
    assert len(steps[-1]["accepted"]) <= len(steps[-1]["tokens"])


def test_steps_come_while_a_tool_call_is_held_back(client: Any) -> None:
    tool = {
        "type": "function",
        "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}},
    }
    given = GREEDY | {"max_tokens": 40, "tools": [tool], "tool_choice": "required"}
    chunks = list(client.chat.completions.create(**given, extra_body={"include_steps": True}))
    steps = [step for chunk in chunks if (step := getattr(chunk.choices[0], "step", None))]
    call = json.loads("".join(token for step in steps for token in step["tokens"]))
    assert call["name"] == "stop"


def test_the_tokens_of_steps_are_those_of_the_text(client: Any, model: Any) -> None:
    user = model.tokenizer.convert_tokens_to_ids("<|user|>")
    _, [first, *_], _ = answer(client)
    end = model.tokenizer(first["tokens"][0], add_special_tokens=False)["input_ids"]
    for extra, given, text in (
        ({}, {"logit_bias": {str(user): 100}, "max_tokens": 2}, ""),
        ({"skip_special_tokens": False}, {"logit_bias": {str(user): 100}, "max_tokens": 2}, "<|user|>" * 2),
        ({"stop_token_ids": end}, {}, ""),
        ({"stop_token_ids": end, "include_stop_str_in_output": True}, {}, first["tokens"][0]),
    ):
        found, steps, _ = answer(client, extra=extra, **given)
        assert "".join(token for step in steps for token in step["tokens"]) == found == text
