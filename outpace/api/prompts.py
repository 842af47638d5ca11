"""Conversion of prompts (text, token ids or chat messages) and predicted outputs to token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from numpy import ndarray
from torch import Tensor

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]  # text, token ids, or the messages of a chat
Prediction = str | Sequence[int]  # predicted output, as text or token ids


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts from one prompt or several; ValueError for an empty list."""
    if isinstance(prompts, str):
        return [prompts]
    given = _plain(prompts, "a prompt")
    if given and (isinstance(given[0], Mapping) or _is_token(given[0])):
        return [given]
    if not given:
        raise ValueError("there is no prompt: give at least one")
    return given


def encode(
    tokenizer: Any,
    prompt: Prompt,
    vocab: int,
    where: str = "the prompt",
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template: Mapping[str, Any] = MappingProxyType({}),
    check: Callable[[str], object] | None = None,
) -> list[int]:
    """The token ids of one prompt, special tokens of the tokenizer or chat template included.

    Raises ValueError for an empty or malformed prompt, for ids outside 0 to `vocab` - 1, or without the
    tokenizer that text and messages need. `where` names the prompt in the message. `tools`: the functions
    that a chat model may call, in the form of OpenAI's API. `template`: arguments of the tokenizer's
    apply_chat_template, variables of the template among them. `check` is called with the text that is about
    to be tokenized, and may raise.
    """
    given = prompt if isinstance(prompt, str) else _plain(prompt, where)
    if isinstance(given, str):
        if not given:
            raise ValueError(f"{where} is empty: give it some text")
        check_text(given, where)
        if check is not None:
            check(given)
        tokens = required(tokenizer, "text")(given)["input_ids"]
    elif given and isinstance(given[0], Mapping):
        tokens = chat(tokenizer, given, tools, template, check)
    else:
        tokens = _token_ids(given, where, "text, a list of token ids, or a list of chat messages", vocab)
    if not tokens:
        raise ValueError(f"{where} is empty: give it at least one token")
    if max(tokens) >= vocab:
        raise ValueError(
            f"{where} has token {max(tokens)} of the tokenizer, but the model's tokens are 0 to {vocab - 1}: "
            "use the tokenizer that belongs to the model, or leave out that token's text"
        )
    return list(tokens)


def encode_predictions(
    tokenizer: Any, given: Prediction | Sequence[Prediction | None] | None, count: int, vocab: int
) -> list[list[int]]:
    """Token ids of the predicted output of each of `count` prompts; empty lists where there is none.

    given: one prediction for all prompts or a list of one per prompt; ValueError for a wrong number.
    """
    if given is None:
        return [[]] * count
    each = given if isinstance(given, str) else _plain(given, "a prediction")
    if isinstance(each, str) or not each or _is_token(each[0]):
        each = [each] * count
    if len(each) != count:
        raise ValueError(
            f"there are {count} prompts and {len(each)} predictions: give one prediction, or one each"
        )
    return [_prediction(tokenizer, prediction, vocab) for prediction in each]


def _prediction(tokenizer: Any, prediction: Prediction | None, vocab: int) -> list[int]:
    if prediction is None:
        return []
    tokens = prediction if isinstance(prediction, str) else _plain(prediction, "a prediction")
    if isinstance(tokens, str):
        check_text(tokens, "a prediction")
        encode_text = required(tokenizer, "a prediction in text")
        tokens = encode_text(tokens, add_special_tokens=False, verbose=False)["input_ids"]
    return _token_ids(tokens, "a prediction", "text or a list of token ids", vocab)


def chat(
    tokenizer: Any,
    messages: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template: Mapping[str, Any] = MappingProxyType({}),
    check: Callable[[str], object] | None = None,
) -> list[int]:
    """Token ids of chat messages in the model's chat template, generation prompt included unless `template`,
    the arguments of apply_chat_template, says otherwise. `check` is called with their text in it before that
    is tokenized.

    Raises ValueError without a tokenizer or chat template, for a message without role or content, and for
    messages that the template refuses.
    """
    if not getattr(required(tokenizer, "chat messages"), "chat_template", None):
        raise ValueError(
            "this model has no chat template: give text instead of messages, or choose a chat model"
        )
    wrong = [m for m in messages if not isinstance(m, Mapping) or not {"role", "content"} <= m.keys()]
    if wrong:
        raise ValueError(f"a chat message has a role and a content, but this one has not: {wrong[0]!r}")

    def applied(*, tokenize: bool) -> Any:
        try:
            return tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else list(tools),
                tokenize=tokenize,
                return_dict=tokenize,
                **{"add_generation_prompt": True} | dict(template),
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses the messages: {error}") from error
        except Exception as error:  # a template is a program, and is given values that it does not expect
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"the model's chat template cannot use the messages ({reason})") from error

    if check is not None:
        check(applied(tokenize=False))
    return applied(tokenize=True)["input_ids"]


def required(tokenizer: Any, what: str) -> Any:
    """The tokenizer; ValueError if it is None, with `what` (the input that needs it) in the message."""
    if tokenizer is None:
        raise ValueError(f"this model came without a tokenizer, so {what} cannot be encoded: give token ids")
    return tokenizer


def check_text(text: str, where: str) -> None:
    """Raise ValueError for text with lone surrogates, which Python decodes from bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text (at character {error.start}): convert it to UTF-8"
        ) from None


def _token_ids(values: Sequence[Any], where: str, choices: str, vocab: int) -> list[int]:
    for value in values:
        if not _is_token(value):
            raise ValueError(f"{where} has {value!r:.60} in it: give {choices}")
        if not 0 <= value < vocab:
            raise ValueError(f"{where} has token {value}, but the model's tokens are 0 to {vocab - 1}")
    return [int(value) for value in values]


def _is_token(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _plain(values: Any, where: str) -> list[Any]:
    """A list from a sequence, tensor or array; ValueError for another type."""
    if isinstance(values, Tensor | ndarray) and values.ndim:
        return values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray):
        raise ValueError(
            f"{where} cannot be {values!r:.60} ({type(values).__name__}): give text or a list of token ids"
        )
    return list(values)
