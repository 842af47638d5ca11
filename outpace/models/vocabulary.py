"""Vocabularies as bytes: the byte string of each token, and a draft model whose vocabulary differs from the
target's.

Bytes rather than characters, because a token may hold a part of a UTF-8 character, and the byte strings of
tokens must concatenate to the text.

Letters: V tokens of a vocabulary, K tokens of the draft model, A draft model tokens with a matching target
token.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from outpace.core.contracts import Target

STRAY = re.compile("[\udc80-\udcff]")  # surrogates to which Python decodes bytes that are not UTF-8
ANCHORS = 8  # number of characters, besides a line feed, that are tried as a prefix when text is encoded
FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# roles: special tokens of two vocabularies with the same role match although their names differ
BEGIN, END = ("bos", "eos")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The byte strings of one model's tokens, and how text is tokenized."""

    pieces: tuple[bytes | None, ...]  # (V,) byte string of each token; None: a special token, or an unused id
    split: Callable[[str], Sequence[int]]  # text from anywhere in a longer text -> tokens, none special
    specials: Mapping[str, int] = field(default_factory=dict[str, int])  # role or name -> token id
    begin: tuple[int, ...] = ()  # tokens before every text, such as bos
    later: frozenset[int] = frozenset()  # tokens that `ids` uses only if no other has the same bytes

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Byte string -> token id; where several tokens have the same bytes, the first that is not in
        `later`."""
        ids: dict[bytes, int] = {}
        for token, piece in enumerate(self.pieces):
            if piece and (piece not in ids or ids[piece] in self.later):
                ids[piece] = token
        return ids

    def to_bytes(self, tokens: Sequence[int]) -> bytes:
        """The concatenated byte strings of these tokens; special tokens have none."""
        return b"".join(self.pieces[token] or b"" for token in tokens)

    def tokenize(self, text: bytes) -> list[int]:
        """The tokenization of this text; bytes that are not UTF-8 become byte tokens, or are dropped if the
        vocabulary has none."""
        tokens: list[int] = []
        decoded, start = text.decode("utf-8", "surrogateescape"), 0
        for stray in STRAY.finditer(decoded):
            tokens += self._tokenize_utf8(decoded[start : stray.start()])
            token = self.ids.get(stray[0].encode("utf-8", "surrogateescape"))
            tokens += [] if token is None else [token]
            start = stray.end()
        return tokens + self._tokenize_utf8(decoded[start:])

    def _tokenize_utf8(self, text: str) -> list[int]:
        return list(self.split(text)) if text else []

    @staticmethod
    def of(tokenizer: Any, size: int, name: str = "the model") -> Vocabulary:
        """The vocabulary of a transformers tokenizer. `size` is the model's vocabulary size, which may exceed
        the tokenizer's. ValueError for a tokenizer that is not a fast one or has another decoder than
        byte-level or SentencePiece."""
        inner = getattr(tokenizer, "backend_tokenizer", None)
        if inner is None:
            raise ValueError(
                f"{name} has no fast tokenizer, so what its tokens spell is not known: give another draft"
            )
        decode_piece = _piece_decoder(json.loads(inner.to_str()).get("decoder"), name)
        added = tokenizer.added_tokens_decoder
        pieces: list[bytes | None] = [None] * size
        specials: dict[str, int] = {}
        for word, token in tokenizer.get_vocab().items():
            if token >= size:
                continue
            if token not in added:
                pieces[token] = decode_piece(word)
            elif added[token].special:
                specials[word] = token
            else:
                pieces[token] = added[token].content.encode()
        for role in (BEGIN, END):
            token = getattr(tokenizer, f"{role}_token_id", None)
            if token is not None:
                specials[role] = token
        first = tokenizer("")["input_ids"][:1]
        begin = tuple(first) if first and first[0] == specials.get(BEGIN) else ()
        words = tokenizer.get_vocab()
        later = frozenset(words[f"<0x{byte:02X}>"] for byte in range(256) if f"<0x{byte:02X}>" in words)
        return Vocabulary(tuple(pieces), _splitter(inner, pieces), specials, begin, later)

    @staticmethod
    def longest_match(
        pieces: Sequence[bytes | None], specials: Mapping[str, int] | None = None
    ) -> Vocabulary:
        """A vocabulary whose tokenization takes the longest matching token, from left to right; bytes without
        a token are skipped."""
        words = {piece: token for token, piece in enumerate(pieces) if piece}
        longest = max(map(len, words))

        def split(text: str) -> list[int]:
            data, tokens = text.encode(), list[int]()
            while data:
                piece = next((data[:size] for size in range(longest, 0, -1) if data[:size] in words), None)
                if piece is not None:
                    tokens.append(words[piece])
                data = data[len(piece or b"?") :]
            return tokens

        return Vocabulary(tuple(pieces), split, specials or {})


@dataclass(frozen=True, eq=False)
class CrossVocabularyDraft:
    """A draft model whose vocabulary may differ from the target's, and both vocabularies."""

    model: Target
    draft_vocabulary: Vocabulary  # vocabulary of the draft model
    target_vocabulary: Vocabulary  # vocabulary of the target

    @cached_property
    def matching_tokens(self) -> dict[int, int]:
        """Draft model token -> target token with the same bytes or the same special role; one to one."""
        target_vocabulary, draft_vocabulary = self.target_vocabulary, self.draft_vocabulary
        matches = {
            token: target_vocabulary.ids[piece]
            for piece, token in draft_vocabulary.ids.items()
            if piece in target_vocabulary.ids
        }
        taken = set(matches.values())
        for name, token in draft_vocabulary.specials.items():
            match = target_vocabulary.specials.get(name)
            if match is not None and token not in matches and match not in taken:
                matches[token] = match
                taken.add(match)
        return matches

    @cached_property
    def shared(self) -> tuple[Tensor, Tensor]:  # (A,), (A,) int64
        """The draft model's tokens that have a matching target token, and those target tokens."""
        pairs = sorted(self.matching_tokens.items())
        return torch.tensor([own for own, _ in pairs]), torch.tensor([match for _, match in pairs])

    @cached_property
    def match_of(self) -> Tensor:  # (K,) int64
        """The matching target token of each draft model token; -1: none."""
        own, match = self.shared
        return torch.full((self.model.vocab,), -1, dtype=torch.int64).index_copy_(0, own, match)

    @cached_property
    def _draft_token_of(self) -> dict[int, int]:
        return {match: own for own, match in self.matching_tokens.items()}

    def translated(self, token: int) -> list[int]:
        """One target token in the draft model's tokens: the matching token, or else the tokenization of its
        bytes."""
        own = self._draft_token_of.get(token)
        return (
            self.draft_vocabulary.tokenize(self.target_vocabulary.pieces[token] or b"")
            if own is None
            else [own]
        )


def _piece_decoder(decoder: Any, name: str) -> Callable[[str], bytes]:
    """The function from a token's string in the vocabulary to its bytes, chosen by the type of the
    tokenizer's decoder; ValueError for other decoders."""
    kinds = set(_types(decoder))
    if "ByteLevel" in kinds:
        codes = _byte_level()

        def byte_level(word: str) -> bytes:
            return (
                bytes(codes[character] for character in word)
                if all(c in codes for c in word)
                else word.encode()
            )

        return byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:

        def sentence_piece(word: str) -> bytes:
            fallback = FALLBACK.fullmatch(word)
            return bytes([int(fallback[1], 16)]) if fallback else word.replace("\u2581", " ").encode()

        return sentence_piece
    raise ValueError(
        f"the tokens of {name} do not spell text piece by piece (its decoder is "
        f"{', '.join(sorted(kinds)) or 'none'}): "
        "give a draft with byte-level or SentencePiece tokens"
    )


def _types(decoder: Any) -> list[str]:
    if not decoder:
        return []
    return [decoder["type"], *(kind for inner in decoder.get("decoders", ()) for kind in _types(inner))]


def _byte_level() -> dict[str, int]:
    """Character -> byte in the strings of byte-level vocabularies: printable characters represent
    themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def _splitter(inner: Any, pieces: Sequence[bytes | None]) -> Callable[[str], Sequence[int]]:
    """A function that encodes text as part of a longer text: without the space that some tokenizers put
    before the first word."""

    def plain(text: str) -> list[int]:
        return inner.encode(text, add_special_tokens=False).ids

    def to_bytes(tokens: Sequence[int]) -> bytes:
        return b"".join(pieces[token] or b"" for token in tokens)

    if to_bytes(plain("a")) == b"a":
        return plain
    anchors = _anchors(pieces)

    def inside(text: str) -> list[int]:
        # the tokenizer puts a space before every text: encode an anchor first, then drop the tokens of both
        for anchor in anchors:
            tokens = plain(anchor + text)
            for end in range(1, len(tokens) + 1):
                before = to_bytes(tokens[:end])
                if before.lstrip(b" ") == anchor.encode():
                    if to_bytes(tokens[end:]) == text.encode("utf-8", "surrogateescape"):
                        return tokens[end:]
                    break
                if len(before) > len(anchor.encode()) + 1:
                    break
        return plain(text)

    return inside


def _anchors(pieces: Sequence[bytes | None]) -> list[str]:
    """Characters to encode before a text: a line feed, then characters that are tokens by themselves and
    occur in few longer tokens, so that they seldom merge with the text after them."""
    longer: Counter[str] = Counter()
    single: set[str] = set()
    for piece in pieces:
        text = (piece or b"").decode("utf-8", "ignore").lstrip(" ")
        if len(text) == 1 and text.isprintable():
            single.add(text)
        elif len(text) > 1:
            longer.update(set(text))
    rarest = sorted(single, key=lambda character: (longer[character], character))
    return ["\n", *rarest[:ANCHORS]]
