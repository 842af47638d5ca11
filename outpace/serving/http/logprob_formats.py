"""Log probabilities in the formats of chat completions and of completions.

Both give the log-softmax of the target's logits, before temperature, truncation and penalties, as plain
decoding does; accepted draft tokens have the target's value too.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from outpace.api.detokenizer import CHARACTER, Detokenizer
from outpace.api.logprobs import LOWEST, Logprob, token_text
from outpace.api.prompt_logprobs import PromptLogprob
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
        *,
        offset: int = 0,  # number of characters before the text that follows the prompt
    ) -> None:
        self._bytes_of, self._shown, self._offset = bytes_of, shown, offset
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
            before = len(self._detokenizer.text)
            self._detokenizer.push([token])
            self._offset += len(self._detokenizer.text) - before
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
        "top_logprobs": [_tops((*own.top, own), bytes_of) for own in found],
        "text_offset": [place_of(each.token)[0] for each in found],
    }


def echo_logprobs(
    found: Sequence[PromptLogprob | None],
    tokens: Sequence[int],
    num_top: int,
    bytes_of: TokenBytes,
    length: int,
) -> dict[str, Any]:
    """The lists of `completion_logprobs` for the tokens of a prompt, whose text has `length` characters. The
    first token has no log probability."""
    place_of = TextPlaces(bytes_of, ())
    places = [place_of(token) for token in tokens]
    surplus = max(0, sum(places[-1]) - length)  # some tokenizers put a blank before the text
    return {
        "tokens": [_word(bytes_of(token)) for token in tokens],
        "token_logprobs": [each and max(each.raw, LOWEST) for each in found],
        "top_logprobs": [each and _tops((*each.top[:num_top], each), bytes_of) for each in found],
        "text_offset": [max(0, offset - surplus) for offset, _ in places],
    }


def prompt_entries(
    found: Sequence[PromptLogprob | None], num_top: int, bytes_of: TokenBytes
) -> list[dict[str, Any] | None]:
    """The log probabilities of a prompt in the form of vLLM's server: for each token, by token id, its own
    entry and those of the most probable tokens; None for the first."""

    def entry(each: PromptLogprob) -> dict[str, Any]:
        decoded = bytes_of(each.token).decode("utf-8", "replace")
        return {"logprob": max(each.raw, LOWEST), "rank": each.rank, "decoded_token": decoded}

    return [
        None if own is None else {str(each.token): entry(each) for each in (own, *own.top[:num_top])}
        for own in found
    ]


def _tops(found: Iterable[Logprob | PromptLogprob], bytes_of: TokenBytes) -> dict[str, float]:
    return {_word(bytes_of(each.token)): max(each.raw, LOWEST) for each in found}


def _word(spelt: bytes) -> str:
    """The text of a token; a part of a character is written in OpenAI's form `bytes:\\xe2\\x80`."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
