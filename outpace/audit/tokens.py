"""The token ids of an answer, from what the server says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outpace.audit.endpoint import Answer, EndpointError
from outpace.models.vocabulary import Vocabulary

LOST, BYTES = "\N{REPLACEMENT CHARACTER}", "bytes:"  # how servers spell parts of characters


class TokenReader:
    """Reads answers with the reference's tokenizer."""

    def __init__(self, tokenizer: Any, vocab: int, ends: Sequence[int]) -> None:
        self.vocab, self.ends = vocab, tuple(ends)
        self._tokenizer = tokenizer
        words: dict[str, list[int]] = {}
        self._partial = torch.zeros(vocab, dtype=torch.bool)  # tokens that are no whole characters
        for token, piece in enumerate(Vocabulary.of(tokenizer, vocab).pieces):
            word = _name(tokenizer, token) if piece is None else _word(piece)
            if word is not None:
                words.setdefault(word, []).append(token)
                self._partial[token] = word.startswith(BYTES)
        self._by_word = {word: tokens[0] for word, tokens in words.items() if len(tokens) == 1}
        self._shared = words.keys() - self._by_word.keys()  # spellings of several tokens
        self._unique = torch.zeros(vocab, dtype=torch.bool)
        self._unique[torch.tensor(list(self._by_word.values()), dtype=torch.long)] = True
        # whether the server spells parts of characters as bytes, from the answer after the first that does
        self._spells_bytes = self._has_spelt_bytes = False

    @property
    def unreadable(self) -> Tensor:  # (V,)
        """Tokens that no spelling identifies, other than those that end a text. What is unreadable in an
        answer follows from earlier answers alone."""
        readable = self._unique if self._spells_bytes else self._unique & ~self._partial
        unreadable = ~readable
        unreadable[list(self.ends)] = False  # known by the finish reason
        return unreadable

    def read(self, answer: Answer) -> list[int] | None:
        """The token ids of an answer, with the token that ended it. `vocab` stands for a token that its
        spelling does not identify, after which nothing is read. None if the server gives only text.
        EndpointError for tokens of another tokenizer."""
        if answer.token_ids is not None:
            tokens = list(answer.token_ids)
            self._check_ids(tokens, answer.text)
        elif answer.words is not None:
            tokens = self._from_words(answer.words)
        else:
            return None
        if self.ends and answer.finish_reason == "stop" and self.vocab not in tokens:
            if not tokens or tokens[-1] not in self.ends:
                tokens.append(self.ends[0])
        return [self.ends[0] if token in self.ends else token for token in tokens]

    def _from_words(self, words: Sequence[str]) -> list[int]:
        self._spells_bytes = self._has_spelt_bytes
        tokens = list[int]()
        for word in words:
            token = self._by_word.get(word)
            if word.startswith(BYTES):
                self._has_spelt_bytes = True
                if not self._spells_bytes:
                    return [*tokens, self.vocab]
            if token is None:
                if LOST not in word and word not in self._shared:
                    raise _other_tokenizer(f"{word!r} is no token of its tokenizer")
                return [*tokens, self.vocab]
            tokens.append(token)
        return tokens

    def _check_ids(self, tokens: Sequence[int], text: str) -> None:
        wrong = next((token for token in tokens if not 0 <= token < self.vocab), None)
        if wrong is not None:
            raise _other_tokenizer(f"it has no token {wrong}")
        decoded = self._tokenizer.decode(tokens, skip_special_tokens=True)
        if _without_blanks(decoded) != _without_blanks(text):
            raise _other_tokenizer(f"the server's tokens spell {text[:40]!r}, and {decoded[:40]!r} with it")


def _other_tokenizer(why: str) -> EndpointError:
    return EndpointError(
        f"the reference has another tokenizer than the server ({why}): give the model that the server serves"
    )


def _without_blanks(text: str) -> str:
    """The text without what decoders treat differently: blanks, and parts of characters."""
    return "".join(text.replace(LOST, "").split())


def _word(piece: bytes) -> str:
    """The text of a token; a part of a character in OpenAI's form, as in bytes:\\xe2."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return BYTES + "".join(f"\\x{byte:02x}" for byte in piece)


def _name(tokenizer: Any, token: int) -> str | None:
    found = tokenizer.convert_ids_to_tokens(token) if token < len(tokenizer) else None
    return found if isinstance(found, str) else None
