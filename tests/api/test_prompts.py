"""What may be given as a prompt."""

from __future__ import annotations

import pytest
import torch

from outpace.api.prompts import encode, prompt_list

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def words(tiny):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.target)


@pytest.mark.parametrize("one", ["text", [1, 2], MESSAGES])
def test_one_prompt_or_several(one):
    assert prompt_list(one) == [one]
    assert prompt_list([one, one]) == [one, one]


def test_tensors_are_token_ids():
    assert prompt_list(torch.tensor([1, 2])) == [[1, 2]]
    assert prompt_list(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert prompt_list([torch.tensor([1, 2]), torch.tensor([3])])[1].tolist() == [3]


def test_each_kind_becomes_tokens(words):
    assert encode(words, "def", 320) == words("def")["input_ids"]
    assert encode(words, [5, 6], 320) == [5, 6]
    assert encode(words, torch.tensor([5, 6]), 320) == [5, 6]
    assert words.decode(encode(words, MESSAGES, 320)) == "<user>hello\n<assistant>"


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([5, 320], "token 320, but the model's tokens are 0 to 319"),
        ([5, -1], "token -1"),
        ([5, "word"], "the prompt has .word. in it: give text, a list of token ids"),
        ([{"role": "user"}], "a role and a content"),
    ],
)
def test_invalid_input_is_refused(words, prompt, sentence):
    with pytest.raises(ValueError, match=sentence):
        encode(words, prompt, 320)


def test_no_prompt_at_all():
    with pytest.raises(ValueError, match="at least one"):
        prompt_list([])


def test_tools_and_refusals_are_the_templates(words, monkeypatch):
    template = (
        "{% for tool in tools or [] %}{{ tool.name }}{% else %}{{ raise_exception('no tools') }}{% endfor %}"
    )
    monkeypatch.setattr(words, "chat_template", template)
    tools = [{"name": "return"}, {"name": "def"}]
    assert words.decode(encode(words, MESSAGES, 320, tools=tools)) == "returndef"
    with pytest.raises(ValueError, match="chat template refuses the messages: no tools"):
        encode(words, MESSAGES, 320)


def test_messages_need_a_chat_template(words):
    class Plain:
        chat_template = None

    with pytest.raises(ValueError, match="no chat template"):
        encode(Plain(), MESSAGES, 320)
    with pytest.raises(ValueError, match="without a tokenizer"):
        encode(None, "text", 320)


def test_a_number_of_torch_is_no_prompt(words):
    for given in (torch.tensor(5), [torch.tensor(5)]):
        with pytest.raises(ValueError, match="cannot be tensor.*give text or a list of token ids"):
            [encode(words, prompt, 320) for prompt in prompt_list(given)]


def test_text_of_a_token_that_the_model_has_not(tokenizers):
    words = tokenizers.byte_level()
    words.add_tokens(["<extra>"])
    vocab = len(words) - 1
    assert encode(words, "def", vocab)
    with pytest.raises(
        ValueError, match=f"has token {vocab} of the tokenizer, but the model's tokens are 0 to"
    ):
        encode(words, "def <extra>", vocab)


def test_messages_that_the_template_cannot_use(words, monkeypatch):
    monkeypatch.setattr(words, "chat_template", "{{ '<user>' + messages[0].content }}")
    with pytest.raises(ValueError, match="chat template cannot use the messages .TypeError"):
        encode(words, [{"role": "user", "content": 5}], 320)
