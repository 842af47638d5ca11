"""What a user may give as a prompt, as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]  # text, token ids, or the messages of a chat
Prediction = str | Sequence[int]  # what the answer probably is


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several."""
    if isinstance(prompts, str):
        return [prompts]
    given = _plain(prompts)
    if given and isinstance(given[0], int | Mapping):
        return [given]
    if not given:
        raise ValueError("there is no prompt: give at least one")
    return given


def encode(tokenizer: Any, prompt: Prompt, vocab: int, where: str = "the prompt") -> list[int]:
    """The token ids of one prompt."""
    given = prompt if isinstance(prompt, str) else _plain(prompt)
    if isinstance(given, str):
        if not given:
            raise ValueError(f"{where} is empty: give it some text")
        tokens = needs(tokenizer, "text")(given)["input_ids"]
    elif given and isinstance(given[0], Mapping):
        tokens = chat(tokenizer, given)
    else:
        tokens = given
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise ValueError(
                f"{where} is a mixture: give text, a list of token ids, or a list of chat messages"
            )
        if strange := [token for token in tokens if not 0 <= token < vocab]:
            raise ValueError(f"{where} holds token {strange[0]}, but the model's tokens are 0 to {vocab - 1}")
    if not tokens:
        raise ValueError(f"{where} is empty: give it at least one token")
    return list(tokens)


def predictions(
    tokenizer: Any, given: Prediction | Sequence[Prediction | None] | None, count: int, vocab: int
) -> list[list[int]]:
    """The token ids expected after each of `count` prompts: one prediction for all of them, or one each."""
    if given is None:
        return [[]] * count
    each = given if isinstance(given, str) else _plain(given)
    if isinstance(each, str) or not each or isinstance(each[0], int):
        each = [each] * count
    if len(each) != count:
        raise ValueError(
            f"there are {count} prompts and {len(each)} predictions: give one prediction, or one each"
        )
    return [_expected(tokenizer, prediction, vocab) for prediction in each]


def _expected(tokenizer: Any, prediction: Prediction | None, vocab: int) -> list[int]:
    if prediction is None:
        return []
    tokens = prediction if isinstance(prediction, str) else _plain(prediction)
    if isinstance(tokens, str):
        words = needs(tokenizer, "a prediction in text")
        tokens = words(tokens, add_special_tokens=False, verbose=False)["input_ids"]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise ValueError("a prediction is text or a list of token ids")
    if strange := [token for token in tokens if not 0 <= token < vocab]:
        raise ValueError(
            f"a prediction holds token {strange[0]}, but the model's tokens are 0 to {vocab - 1}"
        )
    return list(tokens)


def chat(tokenizer: Any, messages: Sequence[Any]) -> list[int]:
    """The token ids of a conversation, ready for the model's answer."""
    if not getattr(needs(tokenizer, "chat messages"), "chat_template", None):
        raise ValueError(
            "this model has no chat template: give text instead of messages, or choose a chat model"
        )
    wrong = [m for m in messages if not isinstance(m, Mapping) or not {"role", "content"} <= m.keys()]
    if wrong:
        raise ValueError(f"a chat message has a role and a content, this one does not: {wrong[0]!r}")
    encoded = tokenizer.apply_chat_template(
        [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return encoded["input_ids"]


def needs(tokenizer: Any, what: str) -> Any:
    """The tokenizer, or one sentence about its absence."""
    if tokenizer is None:
        raise ValueError(f"this model came without a tokenizer, so {what} cannot be read: give token ids")
    return tokenizer


def _plain(values: Any) -> list[Any]:
    """Tensors and arrays become lists."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
