"""Log probabilities in the formats of chat completions and of completions.

Both give the log-softmax of the target's logits, before temperature, truncation and penalties, as plain
decoding does; accepted draft tokens have the target's value too.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from outpace.api.detokenizer import CHARACTER, Detokenizer
from outpace.api.logprobs import LOWEST, Logprob, token_text
from outpace.models.vocabulary import Vocabulary


class TokenBytes:
    """The bytes of each token of a vocabulary."""

    def __init__(self, tokenizer: Any, vocab: int) -> None:
        self.tokenizer = tokenizer
        self.add_up = True  # whether the bytes of tokens add up to a text; unknown for slow tokenizers
        try:
            self._pieces = Vocabulary.of(tokenizer, vocab).pieces
        except ValueError:
            self._pieces, self.add_up = (None,) * vocab, False

    def __call__(self, token: int) -> bytes:
        """The bytes of this token; those of its name for special tokens."""
        piece = self._pieces[token]
        return token_text(self.tokenizer, token).encode() if piece is None else piece

    def in_text(self, token: int) -> bytes:
        """The bytes of this token in a text: special tokens have none."""
        piece = self._pieces[token]
        if piece is not None:
            return piece
        return token_text(self.tokenizer, token, skip_special_tokens=True).encode()


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

    def __init__(
        self,
        bytes_of: TokenBytes,
        prompt: Sequence[int],
        shown: Mapping[int, str] = MappingProxyType({}),  # special tokens that the text has
    ) -> None:
        self._bytes_of, self._shown, self._offset = bytes_of, shown, 0
        self._detokenizer = None if bytes_of.add_up else Detokenizer(bytes_of.tokenizer, prompt, shown=shown)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        for token in prompt[-CHARACTER:]:  # the text goes on with a character that they begin
            self._decoder.decode(self._in_text(token))

    def __call__(self, token: int) -> tuple[int, int]:
        """The offset of the next token, and the number of characters that are complete with it."""
        offset = self._offset
        if self._detokenizer is None:
            self._offset += len(self._decoder.decode(self._in_text(token)))
        else:
            self._detokenizer.push([token])
            self._offset = len(self._detokenizer.text)
        return offset, self._offset - offset

    def _in_text(self, token: int) -> bytes:
        return self._shown[token].encode() if token in self._shown else self._bytes_of.in_text(token)


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
        "text_offset": [place_of(each.token)[0] for each in found],
    }


def _word(spelt: bytes) -> str:
    """The text of a token; a part of a character is written in OpenAI's form `bytes:\\xe2\\x80`."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
