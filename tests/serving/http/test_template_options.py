"""What requests say about the chat template."""

from __future__ import annotations

from typing import Any

import openai
import pytest

HELLO = [{"role": "user", "content": "Say hello to Noah."}]
GREEDY = {"model": "zoo", "temperature": 0, "max_tokens": 8}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ mood }}{{ reasoning_effort }}"
)


@pytest.fixture(scope="module")
def moody(model: Any, serve: Any) -> Any:
    with serve(model, chat_template=TEMPLATE) as running:
        yield running.client()


def num_prompt_tokens(client: Any, **given: Any) -> int:
    return client.chat.completions.create(messages=HELLO, **GREEDY, **given).usage.prompt_tokens


@pytest.mark.slow
def test_variables_reach_the_template(moody: Any) -> None:
    plain = num_prompt_tokens(moody)
    assert num_prompt_tokens(moody, extra_body={"chat_template_kwargs": {"mood": "calm and quiet"}}) > plain
    assert num_prompt_tokens(moody, reasoning_effort="medium") > plain
    assert num_prompt_tokens(moody, extra_body={"add_generation_prompt": False}) == plain - 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chat_template_kwargs": {"temper": "calm"}}, "'temper', which is not read by the chat template"),
        ({"chat_template_kwargs": {"tokenize": False}}, "'tokenize', which is no variable"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "'chat_template', which is no variable"),
        ({"chat_template": "{{ 1 }}"}, "chat_template is a program"),
        ({"continue_final_message": True}, "needs a text of the assistant as the last message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude one another"),
    ],
)
def test_what_has_no_effect_is_refused(moody: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        num_prompt_tokens(moody, extra_body=given)


@pytest.mark.slow
def test_the_last_message_is_continued(client: Any) -> None:
    [whole] = client.chat.completions.create(messages=HELLO, **GREEDY).choices
    text = whole.message.content
    for end in (2, 5):
        begun = [*HELLO, {"role": "assistant", "content": text[:end]}]
        found = client.chat.completions.create(
            messages=begun, **GREEDY, extra_body={"continue_final_message": True}
        )
        alone = client.completions.create(
            prompt=f"<|user|>{HELLO[0]['content']}<|end|><|assistant|>{text[:end]}", **GREEDY
        )
        assert found.choices[0].message.content == alone.choices[0].text
        assert found.usage.prompt_tokens == alone.usage.prompt_tokens
