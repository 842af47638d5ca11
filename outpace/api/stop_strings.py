"""Finds stop strings in generated text, also strings that contain a special token such as `<|im_end|>`, which
the text itself leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outpace.api.logprobs import token_text


def special_tokens(words: Sequence[str], tokenizer: Any) -> dict[int, str]:
    """Token id -> text of all special tokens if a stop string names one beside other text, as `<|im_end|>`
    and a line feed do; else none, as no text has to be searched for them."""
    if tokenizer is None or not any(_is_mixed(word, tokenizer) for word in words):
        return {}
    return all_special_tokens(tokenizer)


def all_special_tokens(tokenizer: Any) -> dict[int, str]:
    """Token id -> text of all special tokens."""
    ids = tokenizer.all_special_ids
    if getattr(tokenizer, "is_fast", False):  # it leaves out of a text more tokens than these
        ids = [token for token, each in tokenizer.added_tokens_decoder.items() if each.special]
    return dict(zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True))


def _is_mixed(word: str, tokenizer: Any) -> bool:
    tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
    names = zip(tokens, tokenizer.convert_ids_to_tokens(tokens), strict=True)
    return any(
        name in word and name != word and not token_text(tokenizer, token, skip_special_tokens=True)
        for token, name in names
    )


class StopStrings:
    """Searches one generated text for stop strings after each new token.

    The text is decoded without special tokens. Stop strings that contain one are searched for in a second
    copy of the text, in which special tokens are written out."""

    def __init__(self, words: Sequence[str], special_tokens: Mapping[int, str]) -> None:
        names = set(special_tokens.values())
        self._special = special_tokens
        self._marked = [word for word in words if word not in names and any(name in word for name in names)]
        self._plain = [word for word in words if word not in self._marked]
        self._shown = ""  # the text with special tokens; empty if no string names one
        self._places: list[tuple[int, int]] = []  # begin and end of each special token in `_shown`

    def find(self, text: str, before: int, token: int | None = None) -> tuple[int, int, str] | None:
        """Of the strings that end in what `token` added to the text after its first `before` characters, the
        one that begins first: (where it begins in the text, where it ends, the string). Called after every
        token."""
        found = [(at, at + len(word), word) for at, word in _found(self._plain, text, before)]
        if self._marked:
            start = len(self._shown)
            self._shown += text[before:]
            if token is not None and token in self._special:
                self._places.append((len(self._shown), len(self._shown) + len(self._special[token])))
                self._shown += self._special[token]
            found += [
                (self._in_text(at), self._in_text(at + len(word)), word)
                for at, word in _found(self._marked, self._shown, start)
            ]
        return min(found, default=None)

    def num_held(self, text: str) -> int:
        """How many characters at the end of the text may belong to a stop string that is not complete."""
        held = prefix_at_end(self._plain, text)
        if self._marked:
            begin = len(self._shown) - prefix_at_end(self._marked, self._shown)
            held = max(held, len(text) - self._in_text(begin))
        return held

    def _in_text(self, at: int) -> int:
        """The place in the text of character `at` of the text with special tokens."""
        return at - sum(min(end, at) - begin for begin, end in self._places if begin < at)


def _found(words: Sequence[str], text: str, before: int) -> list[tuple[int, str]]:
    """(Beginning, word) of the first occurrence of each word that ends after character `before`."""
    starts = [(text.find(word, max(0, before - len(word) + 1)), word) for word in words]
    return [(at, word) for at, word in starts if at >= 0]


def prefix_at_end(words: Sequence[str], text: str) -> int:
    """Length in characters of the longest suffix of the text that is a proper prefix of a word."""
    max_length = min(max(map(len, words), default=0) - 1, len(text))
    for length in range(max_length, 0, -1):
        if any(word.startswith(text[-length:]) for word in words):
            return length
    return 0
