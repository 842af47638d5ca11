"""The index of n-grams gives the tokens that transformers' processor forbids."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor

from outpace.core.repeated_ngrams import RepeatedNgrams

VOCAB = 5


def forbidden(size: int, history: list[int]) -> set[int]:
    scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor([history]), torch.zeros(1, VOCAB))
    return set(scores[0].isneginf().nonzero()[:, 0].tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_tokens_are_those_of_transformers_while_the_text_grows(size: int) -> None:
    """Also after paths, that end n-grams which begin in the text, and after another text."""
    draw = random.Random(size)
    index = RepeatedNgrams(size)
    for _ in range(4):
        text = torch.tensor([draw.randrange(VOCAB) for _ in range(60)])
        length = draw.randrange(1, 4)
        while length <= len(text):
            paths = [[draw.randrange(VOCAB) for _ in range(draw.randrange(9))] for _ in range(6)]
            found = [set(tokens) for tokens in index.after(text[:length], paths)]
            assert found == [forbidden(size, [*text[:length].tolist(), *path]) for path in paths]
            length += draw.randrange(1, 8)


def test_a_step_reads_the_new_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text, read, convert = torch.randint(0, VOCAB, (5000,)), list[int](), Tensor.tolist
    index = RepeatedNgrams(3)
    list(index.after(text[:4990], [[]]))

    def watched(tokens: Tensor) -> list[int]:
        read.append(len(tokens))
        return convert(tokens)

    monkeypatch.setattr(Tensor, "tolist", watched)
    list(index.after(text, [[], [1], [1, 2]]))
    assert read == [12, 2]
