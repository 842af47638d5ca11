"""Right and wrong answers whose first error is marked, as labels of their tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from outpace.api.prompts import required

WRONG, RIGHT = 0, 1  # labels of tokens: of an error; of a right answer, or before an error
SKIPPED = -1  # label of tokens after an error, and of a prompt's

Marked = tuple[tuple[int, ...], tuple[int, ...]]  # tokens of an answer, their labels
FORM = '"prompt" and "answer", and for a wrong answer the "error" in it, or a "wrong" answer beside it'


def marked_answers(row: Any, tokenizer: Any) -> list[Marked]:
    """The answers of a row of data. "answer" is a text, or the last message is one of the assistant. "error":
    [begin, end], the characters of the answer that are its first error; without it the answer is right.
    "wrong": a wrong answer, whose error is the rest of the word in which it first differs from "answer".
    ValueError, with what a row looks like, if it has no answer or no such marks."""
    if not isinstance(row, Mapping):
        raise ValueError(f"no answer is marked: give a .jsonl file whose rows have {FORM}")
    answer, error, wrong = _answer(row), row.get("error"), row.get("wrong")
    if not isinstance(answer, str) or not answer:
        raise ValueError(f"a row has {FORM}")
    if error is not None and wrong is not None:
        raise ValueError('a row has either an "error" in its answer or a "wrong" answer beside it: give one')
    if wrong is None:
        return [_labelled(answer, None if error is None else _range(error, answer), tokenizer)]
    if not isinstance(wrong, str) or answer.startswith(wrong):
        raise ValueError('"wrong" is a text that differs from the answer before it ends: give such a text')
    begin = len(commonprefix([answer, wrong]))
    word = re.compile(r".\S*", re.DOTALL).match(wrong, begin)
    assert word is not None
    return [_labelled(answer, None, tokenizer), _labelled(wrong, word.span(), tokenizer)]


def _answer(row: Mapping[str, Any]) -> Any:
    messages = row.get("messages")
    if "answer" in row or not isinstance(messages, list) or not messages:
        return row.get("answer")
    last = messages[-1]
    return last.get("content") if isinstance(last, Mapping) and last.get("role") == "assistant" else None


def _range(error: Any, answer: str) -> tuple[int, int]:
    if isinstance(error, list) and len(error) == 2 and all(type(each) is int for each in error):
        begin, end = error
        if 0 <= begin < end <= len(answer):
            return begin, end
    raise ValueError(
        f'"error" is [begin, end], counted in characters of the answer, which has {len(answer)}: give such a '
        "range of at least one"
    )


def _labelled(answer: str, error: tuple[int, int] | None, tokenizer: Any) -> Marked:
    encode = required(tokenizer, "a marked answer")
    if not getattr(encode, "is_fast", False):
        raise ValueError("the tokenizer does not say which characters a token has: use a fast tokenizer")
    found: Any = encode(answer, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    labels = [_label(begin, end, error) for begin, end in found["offset_mapping"]]
    return tuple(found["input_ids"]), tuple(labels)


def _label(begin: int, end: int, error: tuple[int, int] | None) -> int:
    if error is None or end <= error[0]:
        return RIGHT
    return WRONG if begin < error[1] else SKIPPED
