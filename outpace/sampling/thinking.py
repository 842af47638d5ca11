"""Thinking before the answer as a rule on the next token: it may have a budget of tokens, and a grammar may
begin with the answer.

Like a grammar, the rule depends on the generated text alone. Thinking ends where the bytes of the text have
the end tag, into whatever tokens it is divided.

Letters: M nodes, V vocabulary size, G generated tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import cached_property, lru_cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outpace.core.common_length import common_length
from outpace.core.sampling_params import Grammar


class Phase(Enum):
    """What the next token of a text belongs to."""

    UNDECIDED = auto()  # the start tag or the answer
    THINKING = auto()
    ANSWER = auto()


class Place(NamedTuple):
    """Where a generated text is."""

    phase: Phase
    tail: bytes = b""  # the end of the text, which a tag may go on with
    num_tokens: int = 0  # of the text
    num_thinking: int = 0  # those of them in the reasoning, the end tag's included
    answer: int = 0  # number of tokens before the answer, in Phase.ANSWER


class ThinkingTags:
    """The tags around reasoning, in the tokens of a vocabulary."""

    def __init__(
        self,
        start: str,
        end: str,
        tokenizer: Any,
        bytes_of: Callable[[int], bytes],  # of a token within a text
        vocab: int,
    ) -> None:
        """ValueError for a tokenizer that cannot spell the tags."""
        self._start, self._end = start.encode(), end.encode()
        self._bytes_of, self._vocab = bytes_of, vocab
        self.start_tokens, self.end_tokens = (
            tuple(tokenizer(tag, add_special_tokens=False)["input_ids"]) for tag in (start, end)
        )
        for tag, tokens in ((self._start, self.start_tokens), (self._end, self.end_tokens)):
            if tag not in b"".join(map(bytes_of, tokens)):
                raise ValueError(f"the tokenizer cannot spell {tag.decode()}: name another reasoning parser")
        self.crossing = lru_cache(maxsize=None)(self._crossing)

    def after(self, place: Place, token: int) -> Place:
        """Where a text is with one more token."""
        num_tokens = place.num_tokens + 1
        if place.phase is Phase.ANSWER:
            return place._replace(num_tokens=num_tokens)
        text, num_thinking = place.tail + self._bytes_of(token), place.num_thinking
        if place.phase is Phase.THINKING:
            num_thinking += 1
        else:
            begun = text.lstrip()
            if self._start.startswith(begun) and begun != self._start:
                return Place(Phase.UNDECIDED, text, num_tokens)
            if not begun.startswith(self._start):
                return Place(Phase.ANSWER, b"", num_tokens)
            text = begun.removeprefix(self._start)
        if self._end in text:
            return Place(Phase.ANSWER, b"", num_tokens, num_thinking, num_tokens)
        return Place(Phase.THINKING, text[-len(self._end) + 1 :], num_tokens, num_thinking)

    def num_begun(self, tail: bytes) -> int:
        """How many bytes of the end tag the text ends with."""
        sizes = range(len(self._end) - 1, 0, -1)
        return next((size for size in sizes if tail.endswith(self._end[:size])), 0)

    def _crossing(self, num_begun: int) -> Tensor:  # (V,) bool
        """The tokens that complete the end tag and go on behind it, after its first `num_begun` bytes."""
        begun, found = self._end[:num_begun], torch.zeros(self._vocab, dtype=torch.bool)
        for token, spelt in self._long:
            at = (begun + spelt).find(self._end)
            found[token] = 0 <= at < num_begun + len(spelt) - len(self._end)
        return found

    @cached_property
    def _long(self) -> list[tuple[int, bytes]]:
        """The tokens that may complete the end tag and go on."""
        spelt = ((token, self._bytes_of(token)) for token in range(self._vocab))
        return [(token, each) for token, each in spelt if self._end[-1:] in each[:-1]]


class ThinkingRule:
    """Implementation of core.sampling_params.Grammar of one request.

    After `budget` tokens of reasoning the end tag follows. Where a grammar begins with the answer,
    the text cannot end before it, and no token has both the end of the tag and a part of the answer.
    """

    def __init__(
        self,
        tags: ThinkingTags,
        vocab: int,
        *,
        is_open: bool,  # whether the prompt ends with the start tag
        budget: int | None,
        grammar: Grammar | None,
        stop: Sequence[int],  # tokens that end the text
    ) -> None:
        self._tags, self._vocab, self._budget = tags, vocab, budget
        self._grammar, self._stop = grammar, list(stop)
        self._begin = self._place = Place(Phase.THINKING if is_open else Phase.UNDECIDED)
        self._text = torch.empty(0, dtype=torch.int64)  # the generated text that `_place` is of

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        self._follow(text)
        found = torch.ones(len(paths), self._vocab, dtype=torch.bool)
        answers: list[int] = []  # nodes at which the grammar decides
        for node, path in enumerate(paths):
            place = reduce(self._tags.after, path, self._place)
            if place.phase is Phase.THINKING:
                self._think(found[node], place)
            elif self._grammar is not None and not self._starts(found[node], place, text, path):
                answers.append(node)
        if self._grammar is not None and answers:
            found[answers] = self._answer(self._grammar, text, [paths[node] for node in answers])
            if self._place == self._begin and self._begin.phase is Phase.UNDECIDED:
                first = [node for node in answers if not paths[node]]
                found[first, self._tags.start_tokens[0]] = True
        return found

    def _follow(self, text: Tensor) -> None:  # (G,)
        """Update `_place`, the state of the reasoning (before, within or after it), to the end of `text`."""
        if common_length(self._text, text) < len(self._text):
            self._place, self._text = self._begin, text[:0]
        self._place = reduce(self._tags.after, text[len(self._text) :].tolist(), self._place)
        self._text = text

    def _think(self, allowed: Tensor, place: Place) -> None:  # (V,)
        """Change the mask of next tokens within the reasoning. With its budget spent only the end tag is
        allowed, token by token; with a grammar, no token that ends the text or reaches into the answer."""
        over = -1 if self._budget is None else place.num_thinking - self._budget
        if 0 <= over < len(self._tags.end_tokens):
            allowed[:] = False
            allowed[self._tags.end_tokens[over]] = True
        elif self._grammar is not None:
            allowed[self._tags.crossing(self._tags.num_begun(place.tail))] = False
            allowed[self._stop] = False

    def _starts(self, allowed: Tensor, place: Place, text: Tensor, path: Sequence[int]) -> bool:
        """Whether the text so far is the beginning of the start tag (such as `<think` before its `>`); if so,
        the mask allows the tag's next token alone."""
        tags, size = self._tags.start_tokens, place.num_tokens
        if place.phase is not Phase.UNDECIDED or not 0 < size < len(tags):
            return False
        if tuple([*text.tolist(), *path]) != tags[:size]:
            return False
        allowed[:] = False
        allowed[tags[size]] = True
        return True

    def _answer(self, grammar: Grammar, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:  # (M, V)
        """The tokens that the grammar allows, which begins with the answer."""
        if self._place.phase is Phase.ANSWER:
            return grammar.allowed(text[self._place.answer :], paths)
        ends = [reduce(self._tags.after, path, self._place) for path in paths]
        # an undecided text is the beginning of the answer, unless it is that of the start tag
        whole = [[*text.tolist(), *path] for path in paths]
        return grammar.allowed(text[:0], [each[end.answer :] for each, end in zip(whole, ends, strict=True)])
