"""Log probabilities in the formats of chat completions and of completions.

Both give the log-softmax of the target's logits, before temperature, truncation and penalties, as plain
decoding does; accepted draft tokens have the target's value too.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from outpace.api.logprobs import LOWEST, Logprob, token_text
from outpace.models.vocabulary import Vocabulary


class TokenBytes:
    """The bytes of each token of a vocabulary."""

    def __init__(self, tokenizer: Any, vocab: int) -> None:
        self._tokenizer = tokenizer
        try:
            self._pieces = Vocabulary.of(tokenizer, vocab).pieces
        except ValueError:  # tokens that do not add up to a text
            self._pieces = (None,) * vocab

    def __call__(self, token: int) -> bytes:
        """The bytes of this token; those of its name for special tokens."""
        piece = self._pieces[token]
        return token_text(self._tokenizer, token).encode() if piece is None else piece

    def in_text(self, token: int) -> bytes:
        """The bytes of this token in a text: special tokens have none."""
        piece = self._pieces[token]
        if piece is not None:
            return piece
        return token_text(self._tokenizer, token, skip_special_tokens=True).encode()


def chat_logprobs(found: Sequence[Logprob], bytes_of: TokenBytes) -> list[dict[str, Any]]:
    """One entry per token, with its text, bytes and most probable alternatives."""

    def entry(each: Logprob) -> dict[str, Any]:
        spelt = bytes_of(each.token)
        return {
            "token": spelt.decode("utf-8", "replace"),
            "logprob": max(each.raw, LOWEST),
            "bytes": list(spelt),
        }

    return [entry(each) | {"top_logprobs": [entry(top) for top in each.top]} for each in found]


class TextPlaces:
    """Where the tokens of one text are in it, in characters. A token that ends within a character begins
    where that character does, as do the tokens that go on with it."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def __call__(self, spelt: bytes) -> tuple[int, int]:
        """The offset of the next token, which has these bytes in the text, and the number of characters that
        are complete with it."""
        offset, size = self._offset, len(self._decoder.decode(spelt))
        self._offset += size
        return offset, size


def completion_logprobs(
    found: Sequence[Logprob], bytes_of: TokenBytes, place_of: TextPlaces
) -> dict[str, Any]:
    """Lists with one element per token. `place_of`: has been called with all tokens of the text before."""
    return {
        "tokens": [_word(bytes_of(each.token)) for each in found],
        "token_logprobs": [max(each.raw, LOWEST) for each in found],
        # the token itself is always among its alternatives
        "top_logprobs": [
            {_word(bytes_of(each.token)): max(each.raw, LOWEST) for each in (*own.top, own)} for own in found
        ],
        "text_offset": [place_of(bytes_of.in_text(each.token))[0] for each in found],
    }


def _word(spelt: bytes) -> str:
    """The text of a token; a part of a character is written in OpenAI's form `bytes:\\xe2\\x80`."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
