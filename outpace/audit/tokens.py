"""The token ids of an answer, from what the server says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outpace.audit.endpoint import Answer, EndpointError
from outpace.models.vocabulary import Vocabulary

LOST = "\N{REPLACEMENT CHARACTER}"


class TokenReader:
    """Reads answers with the reference's tokenizer."""

    def __init__(self, tokenizer: Any, vocab: int, ends: Sequence[int]) -> None:
        self.vocab, self.ends = vocab, tuple(ends)
        self._tokenizer = tokenizer
        pieces = Vocabulary.of(tokenizer, vocab).pieces
        found: dict[str, int | None] = {}
        for token, piece in enumerate(pieces):
            word = _word(piece) if piece is not None else _name(tokenizer, token)
            if word is not None:
                found[word] = None if word in found else token
        self._by_word = {word: token for word, token in found.items() if token is not None}
        readable = torch.zeros(vocab, dtype=torch.bool)
        readable[torch.tensor(list(self._by_word.values()), dtype=torch.long)] = True
        self.unreadable: Tensor = ~readable  # (V,) tokens that no spelling identifies

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
        tokens = list[int]()
        for word in words:
            if (token := self._by_word.get(word)) is None:
                if LOST not in word and not word.startswith("bytes:") and not self._is_shared(word):
                    raise _other_tokenizer(f"{word!r} is no token of its tokenizer")
                return [*tokens, self.vocab]
            tokens.append(token)
        return tokens

    def _is_shared(self, word: str) -> bool:
        """Whether several tokens are spelt so."""
        return any(self._tokenizer.decode([int(each)]) == word for each in self.unreadable.nonzero()[:, 0])

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


def _word(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def _name(tokenizer: Any, token: int) -> str | None:
    found = tokenizer.convert_ids_to_tokens(token) if token < len(tokenizer) else None
    return found if isinstance(found, str) else None
